"""Reads lines in chunks: large ones if there is much input, small ones without delay if there is little."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from millstream.errors import InvalidInput
from millstream.readiness import wait_readable

CHUNK_BYTES = 4 << 20
GATHER_SECONDS, GATHER_SECONDS_MAX = 0.005, 0.1
LINE_BYTES_MAX = 64 << 20
CSV_RECORD_BYTES_MAX = 1 << 20
LINE_BYTES = 64  # memory overhead of a line
_OPEN_QUOTE = re.compile(rb'(?:\A|,)"(?:[^"]|"")*+\Z')
_FIELD = rb'(?:"(?:[^"]|"")*+"|[^",]*+)'
_RECORD = re.compile(_FIELD + rb"(?:," + _FIELD + rb")*+")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some lines, their line numbers, and how many bytes of the source they were."""

    lines: list[bytes]
    numbers: Sequence[int]
    size_bytes: int

    def without_empty(self) -> Chunk:
        if b"" not in self.lines:
            return self
        kept = [(line, number) for line, number in zip(self.lines, self.numbers, strict=True) if line]
        return Chunk([line for line, _ in kept], [number for _, number in kept], self.size_bytes)


def size_of(stream: BinaryIO) -> int | None:
    """The size of the input, if it can be known."""
    try:
        about = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return None
    return about.st_size if stat.S_ISREG(about.st_mode) else None


def read_chunks(stream: BinaryIO, *, where: str | None = None) -> Iterator[Chunk]:
    number = 1
    rest: list[bytes] = []
    rest_bytes = 0
    for block in _blocks(stream):
        cut = block.rfind(b"\n")
        if cut < 0:
            rest.append(block)
            rest_bytes += len(block)
            if rest_bytes > LINE_BYTES_MAX:
                raise InvalidInput(
                    f"line {number} is longer than {LINE_BYTES_MAX >> 20} MiB",
                    where=where,
                    next_step="check that the input is made of lines",
                )
            continue
        whole = b"".join([*rest, block[:cut]])
        rest, rest_bytes = [block[cut + 1 :]], len(block) - cut - 1
        chunk = _chunk(whole, number, len(whole) + 1)
        number += len(chunk.lines)
        yield chunk
    if last := b"".join(rest):
        yield _chunk(last, number, len(last))


def _chunk(whole: bytes, number: int, size_bytes: int) -> Chunk:
    lines = whole.split(b"\n")
    if b"\r" in whole:
        lines = [line.removesuffix(b"\r") for line in lines]
    return Chunk(lines, range(number, number + len(lines)), size_bytes)


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        descriptor = None
    while block := stream.read(CHUNK_BYTES) if descriptor is None else _gather(descriptor):
        yield block


def _gather(descriptor: int) -> bytes:
    """What can be read now, waiting for the first bytes as long as it takes and for more only briefly."""
    pieces: list[bytes] = []
    size = 0
    deadline = 0.0
    while size < CHUNK_BYTES:
        if pieces and (time.monotonic() > deadline or not wait_readable([descriptor], GATHER_SECONDS)):
            break
        piece = os.read(descriptor, CHUNK_BYTES - size)
        if not piece:
            break
        deadline = deadline or time.monotonic() + GATHER_SECONDS_MAX
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


# ---------------------------------------------------------------- CSV records, which may have line breaks in quotes


def join_quoted(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Joins the lines of one CSV record; a quote that is never closed only affects its own line."""
    held: list[tuple[bytes, int]] = []
    for chunk in chunks:
        lines, held = [*held, *zip(chunk.lines, chunk.numbers, strict=True)], []
        records: list[tuple[bytes, int]] = []
        at = 0
        while at < len(lines):
            count = _record_lines(lines, at)
            if count is None:  # it may end in the next chunk
                held = lines[at:]
                break
            records.append((_joined(lines[at : at + count]), lines[at][1]))
            at += count
        yield Chunk([record for record, _ in records], [number for _, number in records], chunk.size_bytes)
    if held:
        yield Chunk([line for line, _ in held], [number for _, number in held], 0)


def _record_lines(lines: Sequence[tuple[bytes, int]], at: int) -> int | None:
    """How many lines from here on are one record; None if more input is needed."""
    line = lines[at][0]
    if line.count(b'"') % 2 == 0 or not _OPEN_QUOTE.search(line):
        return 1
    size = len(line)
    for end in range(at + 1, len(lines)):
        size += len(lines[end][0]) + LINE_BYTES  # so that empty lines are limited, too
        if size > CSV_RECORD_BYTES_MAX:
            return 1
        if lines[end][0].count(b'"') % 2:
            count = end - at + 1
            return count if _RECORD.fullmatch(_joined(lines[at : at + count])) else 1
    return None


def _joined(lines: Sequence[tuple[bytes, int]]) -> bytes:
    return b"\n".join(line for line, _ in lines)
