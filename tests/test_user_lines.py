"""Errors name the line of the user's code, also where the standard library stands between it and Millstream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import millstream as ms
from millstream.errors import InvalidInput
from millstream.user_lines import STANDARD_LIBRARY, users_line, what_exists


def test_a_way_to_show_progress_that_does_not_exist_is_named_with_the_users_line() -> None:
    flow = ms.Flow("f")
    flow.read("rows", "n int").write("copy")
    with pytest.raises(InvalidInput, match="progress='loud' is unknown") as refused:
        flow.run(progress="loud")
    assert (refused.value.where or "").startswith(f"{__file__}:")


def test_only_the_users_frames_count() -> None:
    """The frames of `contextlib` are skipped; code of the user that it calls is not."""
    found = []

    @contextmanager
    def entered() -> Iterator[None]:
        found.append(users_line())
        yield

    with entered():
        pass
    assert (found[0] or "").startswith(f"{__file__}:")
    assert contextmanager.__code__.co_filename.startswith(STANDARD_LIBRARY)


def test_what_exists_where_there_is_nothing() -> None:
    assert what_exists("a", [], kind="savepoints") == "there are no savepoints"
    assert what_exists("colum", ["column"]) == "did you mean 'column'? columns that exist: column"
