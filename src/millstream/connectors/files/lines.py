"""The lines of a file, compressed or not: each is returned whole, or only its start if it is too long."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import BinaryIO, cast

from millstream.connectors.files.bounds import FileBounds, Unreadable
from millstream.records.bounds import size_text

CHUNK_LINES = 20_000
CHUNK_BYTES = 16 << 20
CSV_RECORD_LINES_MAX = 1000  # a quote that is still open after this many lines is a stray one
BLOCK_BYTES = 1 << 20
LINE_END_BYTES = 16  # carriage returns do not count
SHOWN_BYTES = 1000  # of a line that exceeds the limit
DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile, Unreadable)


Line = tuple[int, bytes, str | None]
"""The line number, the content, and why it cannot be used: then the content is only its start."""


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    if path.suffix == ".gz":
        with gzip.open(path, "rb") as unpacked:
            yield cast(BinaryIO, unpacked)
    else:
        with path.open("rb") as file:
            yield file


def lines(file: BinaryIO, bounds: FileBounds) -> Iterator[list[Line]]:
    """Non-empty lines, in chunks."""
    size_max = bounds.record_bytes_max
    number, open_ = 1, _OpenLine(size_max)
    while block := file.read1(BLOCK_BYTES):  # type: ignore[attr-defined]
        bounds.unpack(len(block))
        first, *whole = block.split(b"\n")
        open_.add(first)
        if not whole:
            continue
        found = open_.ended(number)
        last = whole.pop()
        if len(block) <= size_max:
            found += [(at, text, None) for at, line in enumerate(whole, number + 1) if (text := line.rstrip(b"\r"))]
        else:
            found += [
                _line(at, line, len(line), size_max) for at, line in enumerate(whole, number + 1) if line.rstrip(b"\r")
            ]
        yield found
        number += 1 + len(whole)
        open_.add(last)
    yield open_.ended(number)


class _OpenLine:
    """The pieces of an incomplete line, up to the limit."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._pieces: list[bytes] = []
        self._size = 0

    def add(self, piece: bytes) -> None:
        if self._size <= self._size_max + LINE_END_BYTES:
            self._pieces.append(piece)
        self._size += len(piece)

    def ended(self, number: int) -> list[Line]:
        """The complete line, or nothing if it is empty; starts the next one."""
        content, size = b"".join(self._pieces), self._size
        self._pieces, self._size = [], 0
        return [_line(number, content, size, self._size_max)] if content.rstrip(b"\r") else []


def _line(number: int, content: bytes, size: int, size_max: int) -> Line:
    text = content.rstrip(b"\r")
    if len(text) <= size_max and size == len(content):
        return number, text, None
    fault = f"the line has {size_text(size)}, more than the limit of {size_text(size_max)}"
    return number, text[:SHOWN_BYTES], f"{fault}; to read it, set files(…, max_record=…)"


def chunks(found: Iterator[list[Line]]) -> Iterator[list[Line]]:
    """Lines in chunks of few bytes, including those before a damaged part of the file."""
    chunk: list[Line] = []
    size = 0
    try:
        for some in found:
            chunk += some
            size += sum([len(content) for _, content, _ in some])
            if len(chunk) >= CHUNK_LINES or size >= CHUNK_BYTES:
                yield chunk
                chunk, size = [], 0
    except DAMAGE:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk


def csv_records(found: Iterator[Line], size_max: int) -> Iterator[list[Line]]:
    """CSV records: a line with an open quote continues in the next one."""
    for line in found:
        number, content, fault = line
        if fault is not None or content.count(b'"') % 2 == 0:
            yield [line]
            continue
        held, size = [line], len(content)
        for more in islice(found, CSV_RECORD_LINES_MAX):
            held.append(more)
            size += 1 + len(more[1])
            if more[2] is not None or size > size_max:
                yield held
                break
            if more[1].count(b'"') % 2:
                yield [(number, b"\n".join(text for _, text, _ in held), None)]
                break
        else:  # never closed: only its line is lost
            yield held
