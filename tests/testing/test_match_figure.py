"""Figures of patterns: every row and every match is shown, with a title that says what it is."""

from __future__ import annotations

import re
from typing import Any

import pytest

import millstream as ms
from millstream.testing import Add, Watermark, play
from times import t

SCHEMA = "key string, name string, at timestamp"
PATTERN = ms.pattern("a", "name = 'a'").next("b", "name = 'b'")


def add(names: str, since: int = 0, key: str = "k") -> Add:
    return Add([{"key": key, "name": name, "at": t(since + at)} for at, name in enumerate(names)])


def titles(build: Any, *steps: Any, kind: str = "match", **options: Any) -> list[str]:
    """What the marks of a figure say."""
    figure = play(build, list(steps), schema=SCHEMA, event_time="at", draw=True, **options).figure
    assert figure is not None
    return re.findall(rf'<g class="{kind}"><title>(.*?)</title>', figure)


@pytest.mark.parametrize("rows", ["one", "all"])
def test_a_match_is_shown_in_the_step_that_emitted_it(rows: Any) -> None:
    found = titles(lambda stream: stream.key_by("key").match(PATTERN, rows=rows), add("acab"), Watermark(None))
    assert found == ["step 1: match: a at 00:00:02, b at 00:00:03"]


def test_matches_of_sql_are_shown() -> None:
    text = "measures A.name as name pattern (A B) define A as name = 'a', B as name = 'b'"
    found = titles(lambda stream: stream.match_recognize(text), add("ab"), Watermark(None))
    assert found == ["step 1: match: A at 00:00, B at 00:00:01"]


def test_retractions_are_shown() -> None:
    steps = [add("a"), add("b", 2), add("c", 1)]
    found = titles(lambda stream: stream.key_by("key").match(PATTERN, early=True), *steps)
    assert [title.rpartition(": ")[0] for title in found] == ["step 1: match", "step 2: retracted match"]


def test_partial_matches_that_timed_out_are_shown() -> None:
    pattern = PATTERN.within("5 seconds")
    found = titles(lambda stream: stream.key_by("key").match(pattern), add("a"), Watermark(t(10)))
    assert found == ["step 1: partial match whose time was over: a at 00:00"]


def test_rows_are_shown_by_key_and_late_ones_are_marked() -> None:
    steps = [add("ab"), add("c", key="<k>"), Watermark(t(5)), add("x")]
    build = lambda stream: stream.key_by("key").match(PATTERN)  # noqa: E731
    assert titles(build, *steps, kind="row") == [
        "row c at 00:00",
        "row a at 00:00",
        "row b at 00:00:01",
        "late row x at 00:00",
    ]
