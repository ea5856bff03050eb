"""The archive of a partition: segments that retention moved elsewhere, in the same format, each named by its offsets.

A segment is copied there and synced before it is deleted here, so it is always in one place or the other. The root has
a mark of its own: a file system that is not mounted is not mistaken for an archive without segments. An archive is a
folder, or a folder in an object store or HDFS.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from millstream.errors import ArchiveUnavailable
from millstream.log.storage.disk import storage_errors, sync_folder
from millstream.log.storage.segment import SegmentName, segment_names
from millstream.private_files import create_alike, make_folders

if TYPE_CHECKING:
    from millstream.log.storage.remote_archive import RemoteArchive

MARK = ".millstream-archive"
ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def archive_root(given: object) -> str:
    """The root of an archive as it is stored: an address as it is, a folder with its whole path."""
    text = os.fspath(given) if isinstance(given, str | os.PathLike) else str(given)
    if not ADDRESS.match(text):
        return str(Path(text).expanduser().absolute())
    from millstream.remote_folders import check_address, local_path, scheme_of

    check_address(text)
    return text.rstrip("/") if scheme_of(text) else local_path(text)


def prepare_archive(root: str) -> None:
    """Creates the folder of an archive, when a topic is given one."""
    if ADDRESS.match(root):
        from millstream.log.storage.remote_archive import prepare

        prepare(root)
        return
    folder = Path(root)
    with storage_errors(folder):
        make_folders(folder)
        if not (folder / MARK).exists():
            os.close(create_alike(folder / MARK))


def open_archive(root: str, topic: str, identity: str, number: int) -> Archive:
    """The archive of one partition."""
    below = f"{topic}-{identity}/{number}"
    return _remote(root, below) if ADDRESS.match(root) else FolderArchive(Path(root), below)


def _remote(root: str, below: str) -> RemoteArchive:
    from millstream.log.storage.remote_archive import RemoteArchive  # imported lazily: Arrow's file systems load slowly

    return RemoteArchive(root, below)


class Archive(Protocol):
    """The archived segments of a partition, which have all offsets up to the first that is not archived."""

    def start(self, live: int) -> int:
        """The first offset from which on nothing is missing up to `live`, the first that is not archived."""

    def find(self, offset: int) -> SegmentName | None:
        """The segment that has an offset, as a file that can be read."""

    def since(self, timestamp: int, live: int) -> Iterator[SegmentName]:
        """The segments before `live` in order, as files that can be read; perhaps without those before a time (µs)."""

    def store(self, name: SegmentName, end: int) -> None:
        """Copies a closed segment durably; again, if a copy was interrupted."""


def away(root: str, reason: str = "") -> ArchiveUnavailable:
    return ArchiveUnavailable(
        f"the archive of the topic is not there{reason and f': {reason}'}",
        where=root,
        next_step="bring it back, or restore it from a copy; nothing was lost, and newer records can be read",
    )


def archived(names: list[SegmentName], live: int) -> list[SegmentName]:
    """Without segments that are still here, too: they are being copied, or a killed process has left a part of one."""
    return [name for name in names if name.base < live]


def start_of(names: list[SegmentName], live: int) -> int:
    for name in reversed(names):
        if name.base >= live:
            continue  # it is still here, too, or is part of a larger one
        if name.end != live:
            break
        live = name.base
    return live


def with_offset(names: list[SegmentName], offset: int) -> SegmentName | None:
    return next((name for name in names if name.base <= offset < (name.end or 0)), None)


class FolderArchive:
    def __init__(self, root: Path, below: str) -> None:
        self._root = root
        self._folder = root / below

    def _names(self) -> list[SegmentName]:
        if not (self._root / MARK).exists():
            raise away(str(self._root))
        return segment_names(self._folder)[0] if self._folder.is_dir() else []

    def start(self, live: int) -> int:
        return start_of(self._names(), live)

    def find(self, offset: int) -> SegmentName | None:
        return with_offset(self._names(), offset)

    def since(self, timestamp: int, live: int) -> Iterator[SegmentName]:
        yield from archived(self._names(), live)

    def store(self, name: SegmentName, end: int) -> None:
        self._names()
        kept = SegmentName(name.base, end, self._folder)
        with storage_errors(self._folder):
            make_folders(self._folder)
            for source, target in ((name.index_path, kept.index_path), (name.path, kept.path)):
                if source.exists() and not (target.exists() and target.stat().st_size == source.stat().st_size):
                    _copy(source, target)
            sync_folder(self._folder)


def _copy(source: Path, target: Path) -> None:
    draft = target.with_name(f".{target.name}.archiving")
    draft.unlink(missing_ok=True)
    with source.open("rb") as old, os.fdopen(create_alike(draft), "wb") as new:
        shutil.copyfileobj(old, new, 1 << 20)
        new.flush()
        os.fsync(new.fileno())
    draft.replace(target)
