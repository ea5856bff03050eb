"""A file that grows and is rotated: lines that its record does not count are removed before others are written.

The record, a hidden file beside it, has the last batch and the length of the file after it, and is replaced
atomically. So a batch that was interrupted, even in the middle of a line or between two rotations, is undone: its
rotations are reversed, and the file is cut to its length in the record.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np

from millstream.connectors.file_ledger import replace_durably
from millstream.errors import SinkFailed, SinkUnavailable
from millstream.log.storage.disk import sync_folder

LINE_BREAK = b"\n"


@dataclass(frozen=True)
class Limits:
    """When the file is rotated, and how many of the old ones are kept; None: no limit."""

    size_bytes_max: int | None
    age_seconds_max: float | None
    keep: int | None


@dataclass(frozen=True)
class Record:
    """What was completely written."""

    run: str
    batch: int | None
    number: int
    """That of the next rotation; all numbers that exist are lower."""
    file: tuple[int, int]
    """The device and the inode of the file that grows: one that somebody else put there is not cut."""
    size_bytes: int
    began_at: float
    is_writing: bool = False
    """A batch has begun: what is beyond `size_bytes` is a part of it, and otherwise somebody else's."""


class RotatedFile:
    def __init__(self, path: Path, limits: Limits, now: Callable[[], float]) -> None:
        self.path = path
        self._limits = limits
        self._now = now
        self._record_path = path.with_name(f".{path.name}.millstream")
        self._own_name = re.compile(rf"{re.escape(path.name)}\.(\d{{6,}})")
        self._lock: IO[bytes] | None = None

    def newest(self, run: str) -> int | None:
        """The last batch of a run that was written, after the rest of an interrupted one is removed."""
        self._hold()
        record = self._restored()
        return record.batch if record.run == run else None

    def append(self, run: str, batch: int, lines: Sequence[bytes], header: bytes) -> None:
        """After `newest`. Lines have their line break; `header` begins every file."""
        record = self._restored()
        number, size, began_at = record.number, record.size_bytes, record.began_at
        self._save(replace(record, is_writing=True))
        if lines and size and self._is_old(began_at):
            number, size, began_at = self._rotate(number)
        ends = np.cumsum([len(line) for line in lines])
        at = 0
        while at < len(lines):
            beginning = b"" if size else header
            fit = self._fitting(ends, at, size + len(beginning))
            if fit <= at and size:
                number, size, began_at = self._rotate(number)
                continue
            until = max(fit, at + 1)  # a line that is longer than a file may be has one of its own
            size = self._write(size, beginning + b"".join(lines[at:until]))
            at = until
        sync_folder(self.path.parent)
        self._save(Record(run, batch, number, _identity(self.path), size, began_at))
        self._remove_old(number)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # ------------------------------------------------------------ writing

    def _is_old(self, began_at: float) -> bool:
        age_max = self._limits.age_seconds_max
        return age_max is not None and self._now() - began_at >= age_max

    def _fitting(self, ends: np.ndarray, at: int, size_bytes: int) -> int:
        """The lines up to which there is room in the file."""
        if self._limits.size_bytes_max is None:
            return len(ends)
        before = int(ends[at - 1]) if at else 0
        return int(np.searchsorted(ends, before + self._limits.size_bytes_max - size_bytes, side="right"))

    def _write(self, size: int, content: bytes) -> int:
        """At the end of the file, durably; returns its new size."""
        with self.path.open("r+b") as file:
            if size:
                file.seek(size - 1)
                if file.read(1) != LINE_BREAK:  # what somebody else has written
                    content = LINE_BREAK + content
            file.seek(size)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return size + len(content)

    def _rotate(self, number: int) -> tuple[int, int, float]:
        self.path.rename(self._rotated(number))
        self.path.open("xb").close()
        return number + 1, 0, self._now()

    def _rotated(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number:06d}")

    def _numbers(self) -> list[int]:
        found = (self._own_name.fullmatch(name) for name in os.listdir(self.path.parent))  # noqa: PTH208 - names only
        return [int(match[1]) for match in found if match]

    def _remove_old(self, number: int) -> None:
        if self._limits.keep is not None:
            for each in self._numbers():
                if each < number - self._limits.keep:
                    with suppress(OSError):  # the next batch tries again
                        self._rotated(each).unlink()

    # ------------------------------------------------------------ the record

    def _hold(self) -> None:
        """Two processes would cut each other's lines."""
        if self._lock is not None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = self.path.with_name(f".{self.path.name}.lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise SinkUnavailable(
                "another job writes this file", where=str(self.path), next_step="give each job a file of its own"
            ) from None
        self._lock = lock

    def _restored(self) -> Record:
        """The record, after the files are again what it says."""
        found = self._load()
        if found is not None and found.is_writing:
            self._undo_rotations(found)
        if not self.path.exists():
            self.path.open("xb").close()
        about = self.path.stat()
        number = max([0, *self._numbers()]) + 1
        if found is None:
            made = Record("", None, number, _identity(self.path), about.st_size, self._now())
        elif found.file != _identity(self.path):
            made = replace(found, file=_identity(self.path), size_bytes=about.st_size, began_at=self._now())
        elif found.is_writing:
            made = replace(found, size_bytes=min(found.size_bytes, about.st_size))
        else:
            made = replace(found, size_bytes=about.st_size)
        made = replace(made, number=max(made.number, number), is_writing=False)
        if about.st_size > made.size_bytes:
            with self.path.open("r+b") as file:
                file.truncate(made.size_bytes)
                os.fsync(file.fileno())
        if made != found:
            sync_folder(self.path.parent)
            self._save(made)
        return made

    def _undo_rotations(self, record: Record) -> None:
        """The file of the record gets its name back; those that were begun after it have nothing that counts."""
        first = self._rotated(record.number)
        if not first.exists() or _identity(first) != record.file:
            return
        later = record.number + 1
        while self._rotated(later).exists():
            later += 1
        for number in range(later - 1, record.number, -1):
            self._rotated(number).unlink()
        first.rename(self.path)
        sync_folder(self.path.parent)

    def _load(self) -> Record | None:
        try:
            content = json.loads(self._record_path.read_bytes())
            device, inode = content.pop("file")
            return Record(**content, file=(device, inode))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise SinkFailed(
                f"the record of what was written cannot be read: {error}",
                where=str(self._record_path),
                next_step="restore it from a backup, or remove it: then lines of the last batch may come twice",
            ) from error

    def _save(self, record: Record) -> None:
        replace_durably(self._record_path, json.dumps(asdict(record)).encode())


def _identity(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_dev, about.st_ino
