"""The aborted transactions of a partition: their records lie in its segments and are passed over by committed readers.

An entry is written before the mark that counts it, so whoever sees the count finds the entry.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from crc32c import crc32c

from millstream.errors import DamagedLog
from millstream.log.disk import Disk, sync_folder

ENTRY = struct.Struct("<qiqI")


class AbortedTransactions:
    """Entries of producer id, epoch, and the offset before which the transaction's records lie."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._known: tuple[int, frozenset[tuple[int, int]]] = 0, frozenset()

    def add(self, count: int, producer_id: int, epoch: int, before_offset: int) -> int:
        """Called under the partition's lock; returns the new count."""
        fields = struct.pack("<qiq", producer_id, epoch, before_offset)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._disk.write(fd, [fields + struct.pack("<I", crc32c(fields))], count * ENTRY.size)
            self._disk.sync(fd)
        finally:
            os.close(fd)
        if not count:
            sync_folder(self.path.parent)
        return count + 1

    def known(self, count: int) -> frozenset[tuple[int, int]]:
        """Producer id and epoch of the first `count` aborted transactions."""
        known_count, known = self._known
        if count != known_count:
            known = frozenset((pid, epoch) for pid, epoch, _ in self.entries(count))
            self._known = count, known
        return known

    def entries(self, count: int) -> list[tuple[int, int, int]]:
        if not count:
            return []
        content = self.path.read_bytes() if self.path.exists() else b""
        if len(content) < count * ENTRY.size:
            raise self._damaged(len(content))
        entries = []
        for position in range(0, count * ENTRY.size, ENTRY.size):
            *fields, crc = ENTRY.unpack_from(content, position)
            if crc32c(content[position : position + ENTRY.size - 4]) != crc:
                raise self._damaged(position)
            entries.append((fields[0], fields[1], fields[2]))
        return entries

    def intact_count(self) -> int:
        """How many entries there are from the first on that match their checksums."""
        content = self.path.read_bytes() if self.path.exists() else b""
        count = 0
        for *_, crc in ENTRY.iter_unpack(content[: len(content) // ENTRY.size * ENTRY.size]):
            if crc32c(content[count * ENTRY.size : (count + 1) * ENTRY.size - 4]) != crc:
                break
            count += 1
        return count

    def _damaged(self, position: int) -> DamagedLog:
        return DamagedLog(
            "the list of aborted transactions is damaged",
            where=f"{self.path}, byte {position}",
            next_step="restore the file from a copy; without it committed and aborted records cannot be told apart",
        )
