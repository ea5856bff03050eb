"""Liveness: a participant holds a lock on its own file, which the kernel releases when the process dies.

So a death is noticed at once and without heartbeats, whatever its cause.
"""

from __future__ import annotations

import fcntl
import os
import re
import uuid
import weakref
from contextlib import suppress
from pathlib import Path

from millstream.errors import StorageError
from millstream.log.storage.disk import storage_errors
from millstream.private_files import create_alike, open_private

IDENTITY = re.compile(r"[0-9A-Za-z-]{1,64}")
"""The name of a participant: a single path component."""
_held: set[int] = set()


def _release_in_child() -> None:
    """A forked child must not make its parent look alive."""
    for fd in _held:
        with suppress(OSError):
            os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_release_in_child)


class Participant:
    """A group member, queue consumer or named producer; alive until it is closed or killed."""

    def __init__(self, folder: Path) -> None:
        self.id = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._path = folder / self.id
        with storage_errors(folder):
            self._fd = create_alike(self._path)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        _held.add(self._fd)
        # One that is garbage collected without being closed must not look alive until its process ends.
        self.close = weakref.finalize(self, _let_go, self._fd, self._path, os.getpid())


def _let_go(fd: int, path: Path, process: int) -> None:
    if os.getpid() == process and fd in _held:
        _held.discard(fd)
        path.unlink(missing_ok=True)
        os.close(fd)


def is_alive(folder: Path, participant: str) -> bool:
    """Whether a participant still holds its lock. The file of a dead one is deleted."""
    if not IDENTITY.fullmatch(participant):  # it would be used as a file name
        return False
    path = folder / participant
    try:
        with storage_errors(path):
            fd = open_private(path, os.O_RDWR)
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return False
        raise
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        path.unlink(missing_ok=True)
        return False
    finally:
        os.close(fd)
