"""A frame is a 64-byte header and one Arrow record batch; its checksum covers every other byte of both.

    length u32, crc32c u32, base offset i64, span u32, rows u32, newest timestamp i64 (µs),
    producer id i64, epoch i32, sequence i32, flags u16, 14 bytes of zero

`span` is the number of offsets the frame covers: `rows` as written, more once compaction has thinned it out, none for
the marker that ends a transaction. The body's checksum is computed first, so that only the header's is computed while
the partition is locked.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

if TYPE_CHECKING:
    from typing_extensions import Buffer

HEADER = struct.Struct("<IIqIIqqiiH14x")
HEADER_BYTES = 64
ALIGNMENT = 64
FRAME_BYTES_TARGET = 1 << 20  # a frame that fits into the CPU cache is checked and read in one pass

TRANSACTIONAL = 1
COMMITS = 2
ABORTS = 4
SPARSE = 8  # the batch has its own column of offsets
WITHOUT = {"key": 16, "headers": 32}  # a column of nulls is omitted
LEFT_OUT = sum(WITHOUT.values())

NO_PRODUCER = -1
NO_TIMESTAMP = -(1 << 63)
OFFSET_MAX = (1 << 63) - 1
TIMESTAMP_BYTES = 8


class Header(NamedTuple):
    length: int
    crc: int
    base_offset: int
    span: int
    rows: int
    max_timestamp: int
    producer_id: int
    epoch: int
    sequence: int
    flags: int

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.span

    @property
    def size_bytes(self) -> int:
        return HEADER_BYTES + self.length

    @property
    def is_control(self) -> bool:
        return bool(self.flags & (COMMITS | ABORTS))


@dataclass(frozen=True, slots=True)
class Draft:
    """A frame before its offset is assigned."""

    schema: pa.Schema | None
    body: Buffer
    padding: bytes
    body_crc: int
    span: int
    rows: int
    max_timestamp: int
    producer_id: int = NO_PRODUCER
    epoch: int = 0
    sequence: int = 0
    flags: int = 0

    @property
    def size_bytes(self) -> int:
        return HEADER_BYTES + memoryview(self.body).nbytes + len(self.padding)

    def at(self, base_offset: int) -> list[Buffer]:
        """The bytes of the frame, as buffers to write in order."""
        fields = [self.size_bytes - HEADER_BYTES, 0, base_offset, self.span, self.rows, self.max_timestamp,
                  self.producer_id, self.epoch, self.sequence, self.flags]  # fmt: skip
        fields[1] = _seal(HEADER.pack(*fields), self.body_crc)
        return [HEADER.pack(*fields), self.body, self.padding]


def _seal(header: Buffer, body_crc: int) -> int:
    view = memoryview(header)
    return int(crc32c(view[8:HEADER_BYTES], crc32c(view[:4], body_crc)))


def draft(
    batch: pa.RecordBatch,
    max_timestamp: int,
    *,
    span: int | None = None,
    producer_id: int = NO_PRODUCER,
    epoch: int = 0,
    sequence: int = 0,
    flags: int = 0,
) -> Draft:
    stored = batch
    for column, flag in WITHOUT.items():
        place = batch.schema.get_field_index(column)
        if place >= 0 and batch.column(place).null_count == batch.num_rows:
            stored = stored.drop_columns([column])
            flags |= flag
    body = stored.serialize()
    padding = bytes(-body.size % ALIGNMENT)
    body_crc = crc32c(padding, crc32c(memoryview(body)))
    rows = batch.num_rows
    span = rows if span is None else span
    return Draft(batch.schema, body, padding, body_crc, span, rows, max_timestamp, producer_id, epoch, sequence, flags)


def timed_draft(records: pa.RecordBatch, *, producer_id: int, epoch: int, sequence: int, flags: int) -> Draft:
    """A draft whose newest time is that of its records."""
    newest = pc.max(records.column("timestamp").cast(pa.int64())).as_py()
    return draft(
        records,
        NO_TIMESTAMP if newest is None else newest,
        producer_id=producer_id,
        epoch=epoch,
        sequence=sequence,
        flags=flags,
    )


def marker(producer_id: int, epoch: int, *, commit: bool) -> Draft:
    """The frame without records that ends a transaction in one partition."""
    flags = TRANSACTIONAL | (COMMITS if commit else ABORTS)
    return Draft(None, b"", b"", 0, 0, 0, NO_TIMESTAMP, producer_id, epoch, 0, flags)


def skip() -> Draft:
    """A frame without records that takes up one offset."""
    return Draft(None, b"", b"", 0, 1, 0, NO_TIMESTAMP)


def parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Splits a batch into pieces of one frame each."""
    rows_per_frame = max(1, batch.num_rows * FRAME_BYTES_TARGET // max(1, batch.nbytes))
    if batch.num_rows <= rows_per_frame + rows_per_frame // 4:
        yield batch
        return
    for start in range(0, batch.num_rows, rows_per_frame):
        yield batch.slice(start, rows_per_frame)


def header_at(file: Buffer, position: int, limit: int) -> Header | None:
    """The header at `position`, if a whole frame fits between there and `limit`; not yet verified."""
    if position + HEADER_BYTES > limit:
        return None
    header = Header._make(HEADER.unpack_from(file, position))
    if position + header.size_bytes > limit or header.length % ALIGNMENT:
        return None
    return header if _is_plausible(header) else None


def _is_plausible(header: Header) -> bool:
    """Whether the numbers are consistent; anyone who can write the file can also forge its checksum.

    Every record has a timestamp in the body, so there cannot be more records than fit there.
    """
    if header.base_offset < 0 or header.next_offset > OFFSET_MAX or header.rows * TIMESTAMP_BYTES > header.length:
        return False
    return header.rows in (0, header.span) or (header.flags & SPARSE != 0 and header.rows < header.span)


def is_intact(file: Buffer, position: int, header: Header) -> bool:
    view = memoryview(file)
    body_crc = crc32c(view[position + HEADER_BYTES : position + header.size_bytes])
    return _seal(view[position : position + HEADER_BYTES], body_crc) == header.crc
