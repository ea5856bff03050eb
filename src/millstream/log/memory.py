"""Logs in memory: embedded logs whose files are on a file system in memory, and end with the process that made them."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from millstream.errors import InvalidSetting, StorageError
from millstream.log.storage.disk import FileLock, storage_errors
from millstream.log.topics import checked_name

SCHEME = "memory://"
ROOT = Path("/dev/shm")
PREFIX = "millstream-memory-"
OWNER = "owner"  # locked by the process that made the folder, as long as it lives
UNNAMED = "log"


class _Place:
    """The folder of this process's logs. Forked children find it, too, and leave it alone when they end."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._folder: Path | None = None
        self._owner: FileLock | None = None

    def folder(self) -> Path:
        with self._starting:
            if self._folder is None:
                _check_root()
                _remove_abandoned()
                self._folder = self._created()
            return self._folder

    def _created(self) -> Path:
        with storage_errors(ROOT):
            draft = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=ROOT))
            self._owner = FileLock(draft / OWNER)
            self._owner.__enter__()  # before it has its name: nobody may take it for abandoned
            made = draft.rename(ROOT / draft.name.removeprefix("."))
        self._owner.path = made / OWNER
        atexit.register(_remove, made, os.getpid())
        return made


_place = _Place()


def memory_folder(address: str) -> str:
    """The folder of a log in memory. An address always means the same log, as long as this process lives."""
    name = address.removeprefix(SCHEME).rstrip("/")
    return str(_place.folder() / (checked_name(name, "log in memory") if name else UNNAMED))


def _check_root() -> None:
    if not os.access(ROOT, os.W_OK | os.X_OK) or not os.path.ismount(ROOT):
        raise InvalidSetting(
            "this machine has no file system in memory that everybody may use",
            where=str(ROOT),
            next_step="mount one there (tmpfs), or give a folder",
        )


def _remove_abandoned() -> None:
    """Removes what processes of this user left that were killed."""
    for folder in ROOT.glob(f"{PREFIX}*"):
        with suppress(OSError, StorageError):
            if folder.stat().st_uid == os.getuid() and not folder.is_symlink():
                with FileLock(folder / OWNER).attempt() as free:
                    if free:
                        shutil.rmtree(folder, ignore_errors=True)


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
