"""Parts of logs: whole lines, whichever bytes are requested, so that no choice of them shows a masked value."""

from __future__ import annotations

import io

import pytest

from millstream.supervision import log_lines
from millstream.supervision.failures import DETAILS_CHARACTERS_MAX, failures_in
from millstream.supervision.log_lines import LINE_BYTES_MAX, read_lines
from millstream.supervision.specification import JobSpecification
from millstream.supervision.store import Observed
from millstream.supervision.supervisor import Supervisor

from .test_http import asked, port, supervisor  # noqa: F401

SECRET = "ann@example.org"
TEXT = f"starts\nthe row email={SECRET} is wrong\n\nends\n".encode()


def test_no_slice_of_a_log_shows_a_masked_value(supervisor: Supervisor, port: int) -> None:  # noqa: F811
    """Method: every offset, from the start and from the end, with limits from a byte on."""
    supervisor.masking._columns = frozenset(["email"])
    supervisor.store.add(JobSpecification("a", "/nowhere/flow.py", "a"), "ann", Observed.STOPPED, None)
    supervisor.store.end_run("a", supervisor.store.begin_run("a", "start"), 0, "done")
    printed = supervisor.drivers.folder / "a" / "runs" / "1" / "log.txt"
    printed.parent.mkdir(parents=True)
    printed.write_bytes(TEXT)
    for offset in range(-len(TEXT), len(TEXT) + 1):
        for limit in (1, 7, len(SECRET)):
            _, found = asked(port, "GET", f"/v1/jobs/a/logs?offset={offset}&limit={limit}")
            assert "example" not in found["text"]
            assert "ann@" not in found["text"]
            assert TEXT[: found["next"]].endswith(b"\n")


@pytest.mark.parametrize("chunk_bytes", [1, 3, 1000])
@pytest.mark.parametrize("at_most", [1, 5, 20, 1000])
def test_a_log_is_read_once_and_by_line(chunk_bytes: int, at_most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "CHUNK_BYTES", chunk_bytes)
    for text in (TEXT, TEXT + b"no end"):
        offset, parts = 0, []
        while True:
            part, offset = read_lines(io.BytesIO(text), offset, at_most, is_complete=True)
            if not part:
                break
            parts.append(part)
        assert b"".join(parts) == text
        assert offset == len(text)


def test_a_line_that_is_being_written_is_left_for_later() -> None:
    log = io.BytesIO(TEXT + b"email=an")
    assert read_lines(log, -3, 100, is_complete=False) == (b"ends\n", len(TEXT))
    assert read_lines(log, len(TEXT) + 4, 100, is_complete=False) == (b"", len(TEXT))
    assert read_lines(log, len(TEXT) + 4, 100, is_complete=True) == (b"email=an", len(TEXT) + 8)


def test_a_long_line_is_hidden() -> None:
    longest, longer = b"x" * (LINE_BYTES_MAX - 1) + b"\n", b"y" * (3 * LINE_BYTES_MAX) + b"\n"
    log = io.BytesIO(longest + longer + b"ends\n")
    text, after = read_lines(log, 0, 1 << 20, is_complete=True)
    assert text == longest + f"••• (a line of {len(longer):,} bytes)\nends\n".encode()
    assert after == len(longest) + len(longer) + 5
    for offset in (LINE_BYTES_MAX, LINE_BYTES_MAX + 1, after - 10):
        text, after_it = read_lines(log, offset, 1, is_complete=True)
        assert (b"y" not in text.replace(b"bytes", b""), after_it) == (True, after - 5)


def test_a_traceback_is_cut_between_lines() -> None:
    lines = [f"  email={SECRET} {number}" for number in range(DETAILS_CHARACTERS_MAX // 10)]
    text = "\n".join(["Traceback (most recent call last):", *lines, "ValueError: no luck"])
    (found,) = failures_in(text)
    assert found.details is not None
    assert len(found.details) > DETAILS_CHARACTERS_MAX - 50
    assert set(found.details.splitlines()) < set(text.splitlines())
