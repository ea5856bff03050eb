"""The journal of files: entry `n` is permanently the file with offset `n`.

Append-only, and synced before an entry is used; a line truncated by a crash was never used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

from millstream.errors import DamagedLog
from millstream.log.storage.disk import storage_errors, sync_folder
from millstream.private_files import open_alike, open_private


class Entry(NamedTuple):
    path: str
    size_bytes: int
    modified_ns: int


class HasPath(Protocol):
    @property
    def path(self) -> str: ...


AnyEntry = TypeVar("AnyEntry", bound=HasPath)


class Journal(Generic[AnyEntry]):
    def __init__(self, path: Path, kind: Callable[..., AnyEntry]) -> None:
        """`kind` is a named tuple: what an entry is made of."""
        self.path = path
        self._kind = kind
        self._entries: list[AnyEntry] = []
        self._seen: set[str] = set()
        self._read_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, path: str) -> bool:
        return path in self._seen

    def entry(self, number: int) -> AnyEntry:
        if number >= len(self._entries):
            self.refresh()
        if number >= len(self._entries):
            raise DamagedLog(
                f"the journal of files has {len(self._entries)} entries, but number {number} was requested",
                where=str(self.path),
                next_step="restore the file from a backup, or run the job with --start-over",
            )
        return self._entries[number]

    def refresh(self) -> None:
        """Reads the entries added since the last call."""
        with storage_errors(self.path):
            if not self.path.exists():
                return
            with os.fdopen(open_private(self.path, os.O_RDONLY), "rb") as file:
                file.seek(self._read_bytes)
                content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        for line in whole.splitlines():
            try:
                self._add(self._kind(*json.loads(line)))
            except (ValueError, TypeError):
                raise DamagedLog(
                    f"line {len(self) + 1} of the journal of files cannot be read",
                    where=str(self.path),
                    next_step="restore the file from a backup, or run the job with --start-over",
                ) from None
        self._read_bytes += len(whole)

    def append(self, entries: Iterable[AnyEntry]) -> None:
        """Called by one process only, the planner's."""
        self.refresh()
        content = "".join(json.dumps(entry) + "\n" for entry in entries).encode()
        if not content:
            return
        with storage_errors(self.path):
            is_new = not self.path.exists()
            fd = open_alike(self.path, os.O_RDWR | os.O_CREAT)
            try:
                os.ftruncate(fd, self._read_bytes)
                written = 0
                while written < len(content):
                    written += os.pwrite(fd, content[written:], self._read_bytes + written)
                os.fsync(fd)
            finally:
                os.close(fd)
            if is_new:
                sync_folder(self.path.parent)
        self.refresh()

    def _add(self, entry: AnyEntry) -> None:
        self._entries.append(entry)
        self._seen.add(entry.path)
