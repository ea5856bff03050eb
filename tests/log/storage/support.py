"""Partitions for the storage tests: made, filled, read back in full, broken on purpose.

What a test expects is worked out here without the code under test: `layout` walks a segment file by the lengths in it.
"""

from __future__ import annotations

import errno
import os
import shutil
import struct
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from millstream.log.storage import partition as partitions
from millstream.log.storage.disk import Disk
from millstream.log.storage.frame import NO_TIMESTAMP, TRANSACTIONAL, Draft, draft
from millstream.log.storage.layout import HEADERS, TIMESTAMP, stored_schema
from millstream.log.storage.mark import Mark, MarkFile
from millstream.log.storage.partition import Partition
from millstream.log.storage.reader import PartitionReader

SCHEMA = stored_schema(None)
TINY = 4096
OTHER_BOOT = b"another boot id."
FRAME_HEADER = struct.Struct("<IIqIIqqiiH14x")


class Rec(NamedTuple):
    """A record as a test looks at it; the time is in microseconds."""

    offset: int
    key: bytes | None
    value: Any
    time: int | None


def batch(
    values: Sequence[Any],
    keys: Sequence[bytes | None] | None = None,
    times: Sequence[int | None] | None = None,
    schema: pa.Schema = SCHEMA,
) -> pa.RecordBatch:
    count = len(values)
    columns = [
        pa.array(keys if keys is not None else [None] * count, pa.binary()),
        pa.array(values, schema.field("value").type),
        pa.array(times if times is not None else [0] * count, pa.int64()).cast(TIMESTAMP),
        pa.nulls(count, HEADERS),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def made(records: pa.RecordBatch, **identity: int) -> Draft:
    newest = pc.max(records.column("timestamp").cast(pa.int64())).as_py()
    return draft(records, NO_TIMESTAMP if newest is None else newest, **identity)


def frame(*values: Any, times: Sequence[int | None] | None = None, **identity: int) -> Draft:
    return made(batch(values, times=times), **identity)


def keyed(
    pairs: Sequence[tuple[bytes | None, Any]], times: Sequence[int | None] | None = None, **identity: int
) -> Draft:
    return made(batch([value for _, value in pairs], [key for key, _ in pairs], times), **identity)


def transactional(*values: Any, producer: int, epoch: int = 1) -> Draft:
    return frame(*values, producer_id=producer, epoch=epoch, flags=TRANSACTIONAL)


def opened(folder: Path, segment_bytes: int = TINY, schema: pa.Schema = SCHEMA, disk: Disk | None = None) -> Partition:
    """A handle as another process would have it; the partition is made if it is not there."""
    disk = disk or Disk()
    if not folder.exists():
        partitions.create(folder, schema, Disk())
    return Partition("topic", 0, folder, schema, segment_bytes, disk)


def read_all(partition: Partition, offset: int = 0, *, committed: bool = False, max_bytes: int = 1 << 30) -> list[Rec]:
    return drain(PartitionReader(partition, offset, committed=committed), max_bytes)


def drain(reader: PartitionReader, max_bytes: int = 1 << 30) -> list[Rec]:
    found: list[Rec] = []
    while some := records_of(reader, max_bytes):
        found += some
    return found


def records_of(reader: PartitionReader, max_bytes: int = 1 << 30) -> list[Rec]:
    found = []
    for fetch in reader.read(max_bytes):
        times = fetch.records.column("timestamp").cast(pa.int64()).to_pylist()
        columns = fetch.records.column("key").to_pylist(), fetch.records.column("value").to_pylist(), times
        found += [Rec(int(offset), *rest) for offset, *rest in zip(fetch.offsets, *columns, strict=True)]
    return found


def values_of(partition: Partition, offset: int = 0, *, committed: bool = False) -> list[Any]:
    return [record.value for record in read_all(partition, offset, committed=committed)]


# ---------------------------------------------------------------- what lies in the files


class Lying(NamedTuple):
    """A frame as it lies in a file."""

    position: int
    size: int
    base_offset: int
    span: int
    rows: int

    @property
    def is_filler(self) -> bool:
        """It only uses up an offset, so that the segment after an empty one has a name of its own."""
        return self.span == 1 and self.rows == 0


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.seg"))


def layout(path: Path) -> list[Lying]:
    """The frames of a sound file, found by their lengths alone."""
    content = path.read_bytes()
    found = []
    position = header_size(content)
    while position < len(content):
        length, _, base, span, rows, *_ = FRAME_HEADER.unpack_from(content, position)
        found.append(Lying(position, 64 + length, base, span, rows))
        position += 64 + length
    return found


def header_size(content: bytes) -> int:
    (schema_bytes,) = struct.unpack_from("<I", content, 11)
    return (23 + schema_bytes + 63) // 64 * 64


def flip(path: Path, position: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))


def copied(folder: Path, name: str) -> Path:
    target = folder.with_name(name)
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(folder, target)
    return target


def read_mark(folder: Path) -> Mark:
    return MarkFile(folder / "mark", Disk()).read()


def rebooted(folder: Path) -> None:
    """As if the machine had been restarted since the mark was written."""
    MarkFile.create(folder / "mark", replace(read_mark(folder), boot=OTHER_BOOT), Disk())


# ---------------------------------------------------------------- disks and processes that fail


class Killed(BaseException):
    """The process is dead: nothing after this happens."""


class DyingDisk(Disk):
    """Writes `left_bytes` more bytes, then the process dies in the middle of the write. Counts whole frames."""

    def __init__(self, left_bytes: int | None = None) -> None:
        self.left_bytes = left_bytes
        self.frames_of_records = 0

    def write(self, fd: int, buffers: Sequence[Any], position: int) -> None:
        content = b"".join(buffers)
        if self.left_bytes is not None and self.left_bytes < len(content):
            os.pwrite(fd, content[: self.left_bytes], position)
            raise Killed
        super().write(fd, [content], position)
        self.frames_of_records += not content.startswith((b"MSSEG", b"MSMARK")) and len(content) > 64
        if self.left_bytes is not None:
            self.left_bytes -= len(content)


class Steps:
    """The process dies before the n-th time it opens a file for writing, renames one or deletes one."""

    _installed = False
    _counting: Steps | None = None

    def __init__(self, dies_at: int) -> None:
        self.left = dies_at

    def __enter__(self) -> None:
        if not Steps._installed:
            sys.addaudithook(Steps._noticed)
            Steps._installed = True
        Steps._counting = self

    def __exit__(self, *raised: object) -> None:
        Steps._counting = None

    @staticmethod
    def _noticed(event: str, given: tuple[Any, ...]) -> None:
        steps = Steps._counting
        writes = event == "open" and isinstance(given[1], str) and "w" in given[1]
        if steps is not None and (event in ("os.rename", "os.remove") or writes):
            steps.left -= 1
            if steps.left < 0:
                raise Killed


class DyingPartition(Partition):
    """A dead process does not clear up behind itself."""

    def _roll_back(self, mark: Mark) -> None:
        self._close_active()


def killed_while_appending(
    folder: Path, drafts: Sequence[Draft], after_bytes: int, segment_bytes: int = TINY, schema: pa.Schema = SCHEMA
) -> bool:
    """Appends in a process that dies after writing so many bytes; whether it lived to the end of it."""
    disk = DyingDisk()
    partition = DyingPartition("topic", 0, folder, schema, segment_bytes, disk)
    disk.left_bytes = after_bytes
    try:
        partition.append(drafts, sync=False)
    except Killed:
        return False
    return True


def marker_left_behind(folder: Path, *, commit: bool, producer: int = 1, epoch: int = 1) -> None:
    """A process that died behind the marker of a transaction and before it moved the mark."""
    disk = DyingDisk()
    partition = DyingPartition("topic", 0, folder, SCHEMA, TINY, disk)
    disk.left_bytes = 64 + 24 + 10  # the marker, if need be an entry of the aborted, a little of the mark
    try:
        partition.end_transaction(producer, epoch, commit=commit)
    except Killed:
        return
    raise AssertionError("it was to die of it")


class FailingDisk(Disk):
    """Fails at one call, after writing part of what it was given; sound again afterwards."""

    def __init__(self) -> None:
        self.calls = 0
        self.fails_at: int | None = None
        self.share = 0.0
        self.code = errno.ENOSPC

    def _due(self) -> bool:
        self.calls += 1
        return self.calls - 1 == self.fails_at

    def write(self, fd: int, buffers: Sequence[Any], position: int) -> None:
        content = b"".join(buffers)
        if self._due():
            os.pwrite(fd, content[: int(len(content) * self.share)], position)
            raise OSError(self.code, os.strerror(self.code))
        super().write(fd, [content], position)

    def sync(self, fd: int) -> None:
        if self._due():
            raise OSError(self.code, os.strerror(self.code))
        super().sync(fd)
