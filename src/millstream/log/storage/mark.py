"""The mark of a partition records what has been acknowledged: readers stop at it, and recovery only truncates above it.

It has two slots written in turn, each with a checksum and a sequence number, so that one of them is always intact. It
has three positions: the end (written, survives a crash of the process), the synced end (survives a crash of the
machine) and where each open transaction starts. The end is only reliable within the same boot of the machine.

It also has the start: records before it were deleted by retention; records missing after it are lost. Marks of earlier
versions have no start; the next write adds it.
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
from millstream.log.storage.disk import Disk, boot_id, is_gone, storage_errors
from millstream.private_files import create_alike, open_private

SLOT_BYTES = 4096
FIXED = struct.Struct("<8sIIQ16sqqqqqqqI")
SEQUENCE = struct.Struct("<Q")
SEQUENCE_AT = 16  # in a slot
OPEN = struct.Struct("<qiqqq")
MAGIC = b"MSMARK01"
START = struct.Struct("<q")  # after the open transactions
HAS_START = 1
OPEN_TRANSACTIONS_MAX = (SLOT_BYTES - FIXED.size - START.size) // OPEN.size
BOOT = boot_id()


class FrameBoundary(NamedTuple):
    """A point between two frames: the next offset, its segment, and the position there."""

    offset: int
    segment: int
    position: int


class OpenTransaction(NamedTuple):
    producer_id: int
    epoch: int
    first: FrameBoundary


@dataclass(frozen=True, slots=True)
class Mark:
    end: FrameBoundary
    synced: FrameBoundary
    open: tuple[OpenTransaction, ...] = ()
    aborted_count: int = 0
    boot: bytes = BOOT
    sequence: int = 0
    start: int | None = None  # unknown in marks of earlier versions

    @property
    def stable(self) -> FrameBoundary:
        """The last stable offset: no transaction that started before it is still open."""
        return min((transaction.first for transaction in self.open), default=self.end)

    def with_open(self, producer_id: int, epoch: int, first: FrameBoundary) -> Mark:
        if any(known.producer_id == producer_id and known.epoch == epoch for known in self.open):
            return self
        if len(self.open) >= OPEN_TRANSACTIONS_MAX:
            raise TransactionAborted(
                f"{len(self.open)} transactions are open in this partition, the maximum",
                next_step="commit or abort some of them first",
            )
        return replace(self, open=(*self.open, OpenTransaction(producer_id, epoch, first)))

    def without_open(self, producer_id: int, epoch: int) -> Mark:
        kept = tuple(known for known in self.open if (known.producer_id, known.epoch) != (producer_id, epoch))
        return replace(self, open=kept)


class MarkFile:
    """Reads need no locks or system calls; only the holder of the partition's lock writes."""

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
                slots[mark.sequence % 2] = _pack(mark).ljust(SLOT_BYTES, b"\0")  # the next write uses the other slot
                file.writelines(slots)
                file.flush()
                disk.sync(file.fileno())
            draft.replace(path)

    def read(self) -> Mark:
        for _ in range(100):  # both slots can only look torn if a writer is active between the two reads
            for number in self._newest_first():
                mark = self._slot(number)
                if mark is not None:
                    return mark
        raise DamagedLog(
            "the mark of what was acknowledged cannot be read",
            where=str(self.path),
            next_step="restore the partition, or run 'millstream topics repair' to keep what is intact",
        )

    @property
    def gone(self) -> bool:
        """Whether this is no longer the partition's mark: the partition was deleted, and perhaps recreated."""
        return is_gone(self.path, self._fd)

    @property
    def is_whole(self) -> bool:
        """Whether the file is large enough for both slots, whatever they contain."""
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

    def _newest_first(self) -> tuple[int, int]:
        """The slots in the order of their sequence numbers, whether they are intact or not."""
        if self._map is None:
            return 0, 1
        first, second = (SEQUENCE.unpack_from(self._map, at + SEQUENCE_AT) for at in (0, SLOT_BYTES))
        return (0, 1) if first >= second else (1, 0)

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
    transactions = tuple(OpenTransaction(pid, epoch, FrameBoundary(*first)) for pid, epoch, *first in entries)
    start = START.unpack_from(slot, opens_end)[0] if flags & HAS_START else None
    return Mark(
        FrameBoundary(*numbers[:3]), FrameBoundary(*numbers[3:6]), transactions, numbers[6], boot, sequence, start
    )
