"""Who is alive: a participant holds a lock on a file of its own, and the kernel lets go of it when its process dies.

So a death is seen at once and without heartbeats, however it came about.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import uuid
import weakref
from contextlib import suppress
from pathlib import Path

from millstream.log.disk import storage_errors

_held: set[int] = set()


def _let_go_in_child() -> None:
    """A forked child must not keep its parent alive in the eyes of others."""
    for fd in _held:
        with suppress(OSError):
            os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_let_go_in_child)


ID = re.compile(r"[A-Za-z0-9-]+")
"""What a participant is called: one plain part of a path."""


class Participant:
    """A group member, a queue's consumer or a named producer, alive from here until closed or killed."""

    def __init__(self, folder: Path) -> None:
        self.id = f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._path = folder / self.id
        with storage_errors(folder):
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        _held.add(self._fd)
        # One that is forgotten without being closed must not look alive until its process ends.
        self.close = weakref.finalize(self, _let_go, self._fd, self._path, os.getpid())


def _let_go(fd: int, path: Path, process: int) -> None:
    if os.getpid() == process and fd in _held:
        _held.discard(fd)
        path.unlink(missing_ok=True)
        os.close(fd)


def is_alive(folder: Path, participant: str) -> bool:
    """Whether a participant still holds its lock. The file of a dead one is cleared away."""
    if not ID.fullmatch(participant):
        return False  # the name comes from a database: any other could lead out of the folder
    path = folder / participant
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno == errno.ELOOP:
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
