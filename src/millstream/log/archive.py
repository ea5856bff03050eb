"""The archive of a partition: segments that retention moved elsewhere, in the same format, each named by its offsets.

A segment is copied there and synced before it is deleted here, so it is always in one place or the other. The root has
a mark of its own: a file system that is not mounted is not mistaken for an archive without segments.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from millstream.errors import ArchiveUnavailable
from millstream.log.disk import storage_errors, sync_folder
from millstream.log.segment import SegmentName, segment_names
from millstream.private_files import create_alike, make_folders

MARK = ".millstream-archive"


def prepare_archive(root: str) -> None:
    """Creates the folder of an archive, when a topic is given one."""
    folder = Path(root)
    with storage_errors(folder):
        make_folders(folder)
        if not (folder / MARK).exists():
            os.close(create_alike(folder / MARK))


class Archive:
    def __init__(self, root: str, topic: str, identity: str, number: int) -> None:
        self._root = Path(root)
        self._folder = self._root / f"{topic}-{identity}" / str(number)

    def names(self) -> list[SegmentName]:
        """The archived segments in order."""
        if not (self._root / MARK).exists():
            raise ArchiveUnavailable(
                "the archive of the topic is not there",
                where=str(self._root),
                next_step="mount it, or restore it from a copy; nothing was lost, and newer records can be read",
            )
        return segment_names(self._folder)[0] if self._folder.is_dir() else []

    def start(self, live: int) -> int:
        """The first offset from which on nothing is missing up to `live`, the first that is not archived."""
        for name in reversed(self.names()):
            if name.end != live:
                break
            live = name.base
        return live

    def find(self, offset: int) -> SegmentName | None:
        """The segment that has an offset."""
        return next((name for name in self.names() if name.base <= offset < (name.end or 0)), None)

    def store(self, name: SegmentName, end: int) -> None:
        """Copies a closed segment durably; again, if a copy was interrupted."""
        self.names()
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
