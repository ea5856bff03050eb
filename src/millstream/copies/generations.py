"""A copy in a folder: the path is a symbolic link to the folder of its newest generation.

A new generation is written beside the old one. Replacing the link is one step, so a reader that opens a file through
the path finds the old copy or the new one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millstream.copies.ports import Changes, Mark
from millstream.errors import AlreadyExists, SinkUnavailable
from millstream.log.storage.disk import read_document, sync_folder, write_document

MARKS = ".millstream"


class Generation:
    """One folder: that of the link, or with `is_next` a new one beside it."""

    def __init__(self, path: Path, *, is_next: bool = False) -> None:
        self.path = path.expanduser().absolute()
        self._own: Path | None = None
        with self.errors():
            if self.path.exists() and not self.path.is_symlink():
                raise AlreadyExists(
                    "there is a file or a folder that is not a copy of Millstream",
                    where=str(self.path),
                    next_step="choose a path that does not exist: it becomes a link to a folder beside it",
                )
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if is_next:
                self._own = self._created()
            elif not self.path.is_symlink():
                self._own = self._created()
                self.switch()

    def _created(self) -> Path:
        made = self.path.with_name(f".{self.path.name}-{uuid.uuid4().hex[:12]}")
        (made / MARKS).mkdir(parents=True)
        return made

    @property
    def folder(self) -> Path:
        """Looked up each time: another process may have switched."""
        return self._own or self.path.resolve()

    def switch(self) -> None:
        assert self._own is not None
        with self.errors():
            sync_folder(self._own)
            draft = self._own.with_name(f"{self._own.name}.link")
            draft.symlink_to(self._own.name)
            draft.replace(self.path)
            sync_folder(self.path.parent)
            for old in self.path.parent.glob(f".{self.path.name}-{'?' * 12}"):
                if old != self._own:
                    shutil.rmtree(old, ignore_errors=True)
        self._own = None

    # ------------------------------------------------------------ marks

    def mark(self, writer: str, folder: Path | None = None) -> Mark | None:
        path = _mark_file(folder or self.folder, writer)
        with self.errors():
            return read_document(path)["mark"] if path.exists() else None

    def writers(self) -> list[str]:
        with self.errors():
            return sorted(read_document(path)["writer"] for path in (self.folder / MARKS).glob("*.json"))

    def note(self, folder: Path, writer: str, mark: Mark) -> None:
        with self.errors():
            write_document(_mark_file(folder, writer), {"writer": writer, "mark": mark})

    def forget(self, folder: Path) -> None:
        with self.errors():
            for path in (folder / MARKS).glob("*.json"):
                path.unlink()

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SinkUnavailable(
                f"the copy cannot be written: {error.strerror or error}",
                where=str(error.filename or self.path),
                next_step="check that the folder is writable and has free space",
            ) from error


class FolderStore(ABC):
    """What copies in folders have in common."""

    def __init__(self, path: Path, *, is_next: bool) -> None:
        self._generation = Generation(path, is_next=is_next)

    @property
    def where(self) -> str:
        return str(self._generation.path)

    def mark(self, writer: str) -> Mark | None:
        return self._generation.mark(writer)

    def writers(self) -> list[str]:
        return self._generation.writers()

    def apply(self, changes: Changes, writer: str, mark: Mark, before: Mark | None, *, clear: bool = False) -> bool:
        folder = self._generation.folder
        if self._generation.mark(writer, folder) != before:
            return False
        self._change(folder, changes, clear)
        self._generation.note(folder, writer, mark)
        return True

    def empty(self) -> None:
        folder = self._generation.folder
        self._change(folder, {}, clear=True)
        self._generation.forget(folder)

    def switch(self) -> None:
        self.close()
        self._generation.switch()

    @abstractmethod
    def _change(self, folder: Path, changes: Changes, clear: bool) -> None:
        """Applies changes durably; with `clear`, to an empty folder."""

    @abstractmethod
    def close(self) -> None: ...


def _mark_file(folder: Path, writer: str) -> Path:
    return folder / MARKS / f"{hashlib.sha256(writer.encode()).hexdigest()[:16]}.json"


def replace_file(path: Path, content: bytes) -> None:
    """Readers find the old file or the new one; durable when the folder is synced."""
    draft = path.with_name(f".{path.name[:200]}.draft")
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
