"""The lines of a file, packed or not: each is given whole, or it is too long and only its beginning is."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from millstream.records.bounds import size_text
from millstream.sources.file_bounds import FileBounds, Unreadable

CHUNK_LINES = 20_000
CHUNK_BYTES = 16 << 20
CSV_RECORD_LINES_MAX = 1000  # a quote that is still open after so many lines was never meant to be one
SKIPPED_BYTES = 1 << 20  # at once
SHOWN_BYTES = 1000  # of a line that is too long
DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile, Unreadable)


class Line(NamedTuple):
    number: int  # as editors count
    content: bytes
    fault: str | None = None
    """Why it cannot be used, if it cannot: then the content is only its beginning."""


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    if path.suffix == ".gz":
        with gzip.open(path, "rb") as unpacked:
            yield cast(BinaryIO, unpacked)
    else:
        with path.open("rb") as file:
            yield file


def lines(file: BinaryIO, bounds: FileBounds) -> Iterator[Line]:
    """Those that are not empty."""
    size_max = bounds.record_bytes_max
    number = 0
    while line := file.readline(size_max + 2):  # with room for the line's end
        number += 1
        bounds.unpack(len(line))
        content = line.rstrip(b"\r\n")
        is_cut = len(line) > size_max + 1 and not line.endswith(b"\n")
        if is_cut or len(content) > size_max:
            size = len(line) + (_skip_line(file, bounds) if is_cut else 0)
            fault = f"the line has {size_text(size)}, more than the limit of {size_text(size_max)}"
            yield Line(number, content[:SHOWN_BYTES], f"{fault}; to read it, say files(…, max_record=…)")
        elif content:
            yield Line(number, content)


def _skip_line(file: BinaryIO, bounds: FileBounds) -> int:
    """Reads up to the end of the line; returns how much that was."""
    size = 0
    while piece := file.readline(SKIPPED_BYTES):
        bounds.unpack(len(piece))
        size += len(piece)
        if piece.endswith(b"\n"):
            break
    return size


def chunks(found: Iterator[Line]) -> Iterator[list[Line]]:
    """So many at a time that few bytes are held; those before the place where a file is damaged come as well."""
    chunk: list[Line] = []
    size = 0
    try:
        for line in found:
            chunk.append(line)
            size += len(line.content)
            if len(chunk) >= CHUNK_LINES or size >= CHUNK_BYTES:
                yield chunk
                chunk, size = [], 0
    except DAMAGE:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk


def csv_records(found: Iterator[Line], size_max: int) -> Iterator[Line]:
    """CSV records: a line whose quotes are still open goes on in the next one."""
    for line in found:
        if line.fault is not None or line.content.count(b'"') % 2 == 0:
            yield line
            continue
        held, size = [line], len(line.content)
        for more in islice(found, CSV_RECORD_LINES_MAX):
            held.append(more)
            size += 1 + len(more.content)
            if more.fault is not None or size > size_max:
                yield from held
                break
            if more.content.count(b'"') % 2:
                yield Line(line.number, b"\n".join(each.content for each in held))
                break
        else:  # it is never closed: only the line it is in is lost by that
            yield from held
