"""The aborted transactions of a partition: their records stay in its segments, and committed readers skip them.

An entry is written before the mark that counts it, so a reader that sees the count finds the entry. Once retention or
compaction has deleted the records of the oldest ones, these are removed; the first entry is then the number of removed
ones, so that the count in the mark stays as it was.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from itertools import islice, takewhile
from pathlib import Path

from crc32c import crc32c

from millstream.errors import DamagedLog
from millstream.log.storage.disk import Disk, storage_error, sync_folder
from millstream.private_files import create_alike, open_alike, open_private

FIELDS = struct.Struct("<qiq")
ENTRY = struct.Struct("<qiqI")
REMOVED = -2  # as producer id: the entry has the number of removed ones


class AbortedTransactions:
    """Entries of producer id, epoch, and the offset before which all records of the transaction lie."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._known: tuple[int, frozenset[tuple[int, int]]] = 0, frozenset()

    def add(self, count: int, producer_id: int, epoch: int, before_offset: int) -> int:
        """Called under the partition's lock; returns the new count."""
        fd = open_alike(self.path, os.O_RDWR | os.O_CREAT)
        try:
            first = _unpacked(os.pread(fd, ENTRY.size, 0))
            place = count if first is None or first[0] != REMOVED else count - first[2] + 1
            self._disk.write(fd, [_packed(producer_id, epoch, before_offset)], place * ENTRY.size)
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
            # Also those removed since: a reader may still have a deleted segment open.
            before = known if count > known_count else frozenset()
            known = before | {(pid, epoch) for pid, epoch, _ in self.entries(count)}
            self._known = count, known
        return known

    def entries(self, count: int) -> list[tuple[int, int, int]]:
        """Those of the first `count` that were not removed."""
        return self._numbered(count)[1] if count else []

    def _numbered(self, count: int) -> tuple[int, list[tuple[int, int, int]]]:
        """How many entries were removed, and the others up to `count`."""
        stored = self._intact()
        first = next(stored, None)
        if first is not None and first[0] == REMOVED:
            removed, entries = first[2], list(islice(stored, max(0, count - first[2])))
        else:
            removed, entries = 0, [] if first is None else [first, *islice(stored, count - 1)]
        if removed + len(entries) < count:
            raise self._damaged(len(entries) * ENTRY.size)
        return removed, entries

    def forget(self, count: int, start_offset: int) -> None:
        """Removes the oldest entries whose records were all before an offset. Called under the partition's lock."""
        if not count:
            return
        removed, entries = self._numbered(count)
        old = sum(1 for _ in takewhile(lambda entry: entry[2] <= start_offset, entries))
        if not old:
            return
        draft = self.path.with_name(f".{self.path.name}.cleaning")
        with os.fdopen(create_alike(draft), "wb") as file:
            file.write(_packed(REMOVED, 0, removed + old))
            file.writelines(_packed(*entry) for entry in entries[old:])
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path)
        sync_folder(self.path.parent)

    def intact_count(self) -> int:
        """How many entries match their checksums, counted from the first, with those that were removed."""
        return sum(entry[2] if entry[0] == REMOVED else 1 for entry in self._intact())

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
                found = _unpacked(entry)
                if found is None:
                    return
                yield found

    def _damaged(self, position: int) -> DamagedLog:
        return DamagedLog(
            "the list of aborted transactions is damaged",
            where=f"{self.path}, byte {position}",
            next_step="restore the file from a copy; without it committed and aborted records cannot be distinguished",
        )


def _packed(producer_id: int, epoch: int, before_offset: int) -> bytes:
    fields = FIELDS.pack(producer_id, epoch, before_offset)
    return fields + struct.pack("<I", crc32c(fields))


def _unpacked(entry: bytes) -> tuple[int, int, int] | None:
    """None if the entry does not match its checksum."""
    if len(entry) < ENTRY.size:
        return None
    producer_id, epoch, before_offset, crc = ENTRY.unpack(entry)
    return (producer_id, epoch, before_offset) if crc32c(entry[: FIELDS.size]) == crc else None
