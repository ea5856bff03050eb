"""The aborted transactions of a partition: their records stay in its segments, and committed readers skip them.

An entry is written before the mark that counts it, so a reader that sees the count finds the entry.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from crc32c import crc32c

from millstream.errors import DamagedLog
from millstream.log.disk import Disk, storage_error, sync_folder
from millstream.private_files import open_alike, open_private

ENTRY = struct.Struct("<qiqI")


class AbortedTransactions:
    """Entries of producer id, epoch, and the offset before which all records of the transaction lie."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._known: tuple[int, frozenset[tuple[int, int]]] = 0, frozenset()

    def add(self, count: int, producer_id: int, epoch: int, before_offset: int) -> int:
        """Called under the partition's lock; returns the new count."""
        fields = struct.pack("<qiq", producer_id, epoch, before_offset)
        fd = open_alike(self.path, os.O_RDWR | os.O_CREAT)
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
        entries = list(islice(self._intact(), count))
        if len(entries) < count:
            raise self._damaged(len(entries) * ENTRY.size)
        return entries

    def intact_count(self) -> int:
        """How many entries match their checksums, counted from the first."""
        return sum(1 for _ in self._intact())

    def _intact(self) -> Iterator[tuple[int, int, int]]:
        """The entries up to the first that does not match its checksum."""
        try:
            fd = open_private(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error(error, self.path) from error
        with os.fdopen(fd, "rb") as file:
            while len(entry := file.read(ENTRY.size)) == ENTRY.size:
                producer_id, epoch, before_offset, crc = ENTRY.unpack(entry)
                if crc32c(entry[: ENTRY.size - 4]) != crc:
                    return
                yield producer_id, epoch, before_offset

    def _damaged(self, position: int) -> DamagedLog:
        return DamagedLog(
            "the list of aborted transactions is damaged",
            where=f"{self.path}, byte {position}",
            next_step="restore the file from a copy; without it committed and aborted records cannot be distinguished",
        )
