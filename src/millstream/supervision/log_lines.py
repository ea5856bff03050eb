"""Reads logs by whole lines, whatever part is requested: a masked value is recognized by the name in front of it."""

from __future__ import annotations

import os
from typing import BinaryIO

from millstream.supervision.mask import SIGN

LINE_BYTES_MAX = 1 << 16
"""A longer line is hidden."""
CHUNK_BYTES = 1 << 16


def read_lines(log: BinaryIO, offset: int, at_most: int, *, is_complete: bool) -> tuple[bytes, int]:
    """The lines of about `at_most` bytes from the one at `offset` on, and where the next line starts.

    A negative offset counts from the end. At least one line is returned if there is one. A line without an end is
    left for later, unless the log is complete.
    """
    size = log.seek(0, os.SEEK_END)
    end = size if is_complete else _line_start(log, size)
    at = max(0, end + offset) if offset < 0 else min(offset, end)
    if at == end:
        return b"", end
    stop = end if at + at_most >= end else _line_start(log, at + at_most)
    if stop <= at:
        stop = _line_end(log, at, end)
    return _shown(log, _line_start(log, at), stop), stop


def _shown(log: BinaryIO, start: int, stop: int) -> bytes:
    made = []
    while start < stop:
        log.seek(start)
        line = log.readline(min(LINE_BYTES_MAX + 1, stop - start))
        if not line:
            break
        after = start + len(line)
        if len(line) > LINE_BYTES_MAX:
            after = _line_end(log, start, stop)
            line = f"{SIGN} (a line of {after - start:,} bytes)\n".encode()
        made.append(line)
        start = after
    return b"".join(made)


def _line_start(log: BinaryIO, at: int) -> int:
    """Where the line starts that has the byte at `at`, or that starts there."""
    while at > 0:
        before = max(0, at - CHUNK_BYTES)
        log.seek(before)
        found = log.read(at - before).rfind(b"\n")
        if found >= 0:
            return before + found + 1
        at = before
    return 0


def _line_end(log: BinaryIO, at: int, end: int) -> int:
    """Where the line ends that has the byte at `at`; at the latest, at `end`."""
    while at < end:
        log.seek(at)
        chunk = log.read(min(CHUNK_BYTES, end - at))
        found = chunk.find(b"\n")
        if found >= 0:
            return at + found + 1
        if not chunk:
            break
        at += len(chunk)
    return end
