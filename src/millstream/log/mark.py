"""The mark beside a partition says what has been acknowledged: readers read up to it, recovery cuts only above it.

It has two slots written in turn, each with a checksum and a sequence number, so that one of them is always whole. It
knows three places: the end (written, safe from the death of a process), the synced end (safe from the death of the
machine) and where each open transaction begins. Only in the same boot of the machine can the end be relied on.

It also knows the start: what lies before it retention deleted, and what is missing behind it is a loss. Marks written
by earlier versions know none; they gain one with the next write.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from millstream.errors import DamagedLog, TransactionAborted
from millstream.log.disk import Disk, boot_id, is_gone, storage_errors
from millstream.private_files import create_alike, open_private

SLOT_BYTES = 4096
FIXED = struct.Struct("<8sIIQ16sqqqqqqqI")
OPEN = struct.Struct("<qiqqq")
MAGIC = b"MSMARK01"
START = struct.Struct("<q")  # behind the open transactions
HAS_START = 1
OPEN_TRANSACTIONS_MAX = (SLOT_BYTES - FIXED.size - START.size) // OPEN.size
BOOT = boot_id()


class Place(NamedTuple):
    """A point between two frames: the next offset, and where in which segment it lies."""

    offset: int
    segment: int
    position: int


class OpenTransaction(NamedTuple):
    producer_id: int
    epoch: int
    first: Place


@dataclass(frozen=True, slots=True)
class Mark:
    end: Place
    synced: Place
    open: tuple[OpenTransaction, ...] = ()
    aborted_count: int = 0
    boot: bytes = BOOT
    sequence: int = 0
    start: int | None = None  # unknown in a mark of an earlier version

    @property
    def stable(self) -> Place:
        """Everything before it is decided: no transaction that began there is still open."""
        return min((transaction.first for transaction in self.open), default=self.end)

    def with_open(self, producer_id: int, epoch: int, first: Place) -> Mark:
        if any(known.producer_id == producer_id and known.epoch == epoch for known in self.open):
            return self
        if len(self.open) >= OPEN_TRANSACTIONS_MAX:
            raise TransactionAborted(
                f"{len(self.open)} transactions are open in this partition, the most it can hold",
                next_step="commit or abort some of them first",
            )
        return replace(self, open=(*self.open, OpenTransaction(producer_id, epoch, first)))

    def without_open(self, producer_id: int, epoch: int) -> Mark:
        kept = tuple(known for known in self.open if (known.producer_id, known.epoch) != (producer_id, epoch))
        return replace(self, open=kept)


class MarkFile:
    """Reads are free of locks and system calls; only the holder of the partition's lock writes."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        with storage_errors(path):
            writable = os.access(path, os.W_OK)
            self._fd = open_private(path, os.O_RDWR if writable else os.O_RDONLY)
            size = os.fstat(self._fd).st_size
            self._map = mmap.mmap(self._fd, 2 * SLOT_BYTES, prot=mmap.PROT_READ) if size == 2 * SLOT_BYTES else None

    @staticmethod
    def create(path: Path, mark: Mark, disk: Disk) -> None:
        with storage_errors(path):
            draft = path.with_name(path.name + ".new")
            with os.fdopen(create_alike(draft), "wb") as file:
                slots = [bytes(SLOT_BYTES), bytes(SLOT_BYTES)]
                slots[mark.sequence % 2] = _pack(mark).ljust(SLOT_BYTES, b"\0")  # the next write goes into the other
                file.writelines(slots)
                file.flush()
                disk.sync(file.fileno())
            draft.replace(path)

    def read(self) -> Mark:
        for _ in range(100):  # both slots can look torn only while a writer is at work between the two looks
            found = [mark for mark in map(self._slot, (0, 1)) if mark is not None]
            if found:
                return max(found, key=lambda mark: mark.sequence)
        raise DamagedLog(
            "the mark of what was acknowledged cannot be read",
            where=str(self.path),
            next_step="restore the partition, or run 'millstream topics repair' to keep what still checks out",
        )

    @property
    def gone(self) -> bool:
        """Whether this is no longer the mark of the partition: it was deleted, and perhaps created again."""
        return is_gone(self.path, self._fd)

    @property
    def is_whole(self) -> bool:
        """Whether the file has room for both slots, whatever lies in them."""
        return self._map is not None

    def write(self, mark: Mark, *, sync: bool) -> Mark:
        mark = replace(mark, boot=BOOT, sequence=mark.sequence + 1)
        self._disk.write(self._fd, [_pack(mark)], mark.sequence % 2 * SLOT_BYTES)
        if sync:
            self._disk.sync(self._fd)
        return mark

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)

    def _slot(self, number: int) -> Mark | None:
        if self._map is None:
            return None
        return _unpack(self._map[number * SLOT_BYTES : (number + 1) * SLOT_BYTES])


def _pack(mark: Mark) -> bytes:
    opens = b"".join(OPEN.pack(known.producer_id, known.epoch, *known.first) for known in mark.open)
    start = b"" if mark.start is None else START.pack(mark.start)
    flags = HAS_START if start else 0
    body = (
        FIXED.pack(
            MAGIC, 0, len(mark.open), mark.sequence, mark.boot, *mark.end, *mark.synced, mark.aborted_count, flags
        )
        + opens
        + start
    )
    return body[:8] + struct.pack("<I", crc32c(body[12:])) + body[12:]


def _unpack(slot: bytes) -> Mark | None:
    magic, crc, open_count, sequence, boot, *numbers, flags = FIXED.unpack_from(slot)
    opens_end = FIXED.size + open_count * OPEN.size
    size = opens_end + (START.size if flags & HAS_START else 0)
    if magic != MAGIC or size > SLOT_BYTES or crc32c(slot[12:size]) != crc:
        return None
    if min(numbers) < 0:
        return None
    entries = (OPEN.unpack_from(slot, FIXED.size + i * OPEN.size) for i in range(open_count))
    transactions = tuple(OpenTransaction(pid, epoch, Place(*first)) for pid, epoch, *first in entries)
    start = START.unpack_from(slot, opens_end)[0] if flags & HAS_START else None
    return Mark(Place(*numbers[:3]), Place(*numbers[3:6]), transactions, numbers[6], boot, sequence, start)
