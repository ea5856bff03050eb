"""All of the log's disk access: every write, sync and lock goes through here and fails as a StorageError.

`Disk` is passed in, so that a test can make a write fail half way, as a real disk does.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
import weakref
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.errors import DamagedLog, DiskFull, NoAccess, NotALog, StorageError
from millstream.private_files import NO_ROOM, NotAPlainFile, create_alike, open_alike, read_bounded

if TYPE_CHECKING:
    from typing_extensions import Buffer

NO_RIGHTS = {errno.EACCES, errno.EPERM}
NO_FILES = {errno.EMFILE, errno.ENFILE}
DOCUMENT_BYTES_MAX = 64 << 20


@contextmanager
def storage_errors(place: Path) -> Iterator[None]:
    """Turns operating system errors about `place` into our own."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, place) from error


def storage_error(error: OSError, place: Path) -> StorageError:
    where = str(error.filename or place)
    if error.errno in NO_ROOM:
        return DiskFull("no space left on the disk", where=where, next_step="free some space, then try again")
    if error.errno == errno.EROFS:
        return mounted_read_only(where)
    if error.errno in NO_FILES:
        return StorageError(
            "too many files are open",
            where=where,
            next_step="raise the limit of open files (ulimit -n), or use fewer partitions in one process",
        )
    if error.errno in NO_RIGHTS:
        return NoAccess(
            "this user may not read or write the log",
            where=where,
            next_step="give the user access to the folder, or choose another with --log or MILLSTREAM_BROKER",
        )
    if error.errno in (errno.ELOOP, errno.EMSGSIZE) or isinstance(error, NotAPlainFile):
        what = "a symbolic link" if error.errno == errno.ELOOP else error.strerror
        return DamagedLog(
            f"this is not a file of the log: {what}",
            where=where,
            next_step="remove it, and restore the file from a copy; only the whole log may be behind a link",
        )
    if error.errno == errno.EISDIR:
        return NotALog(
            "there is a folder where a file should be",
            where=where,
            next_step="move the folder elsewhere, and restore the file from a copy",
        )
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return NotALog("there is a file where a folder should be", where=where, next_step="choose another folder")
    return StorageError(f"disk error: {error.strerror}", where=where, next_step="check the folder and its file system")


def mounted_read_only(where: str) -> NoAccess:
    return NoAccess(
        "the log is on a file system that is mounted read-only",
        where=where,
        next_step="mount it for writing, or choose another folder with --log or MILLSTREAM_BROKER",
    )


class Disk:
    """The disk operations that the log needs."""

    def write(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        """Writes everything or raises an OSError; a short write is continued until the disk fails."""
        written = os.pwritev(fd, buffers, position)
        total = sum(memoryview(buffer).nbytes for buffer in buffers)
        while written < total:
            rest = b"".join(buffers)[written:]
            written += os.pwrite(fd, rest, position + written)

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)


def sync_folder(folder: Path) -> None:
    """Makes new, renamed and deleted names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_document(path: Path, content: dict[str, Any]) -> None:
    """Replaces a JSON file atomically and durably: a reader sees the old or the new one, never a part."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    with storage_errors(path):
        try:
            with os.fdopen(create_alike(draft), "w") as file:
                json.dump(content, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        sync_folder(path.parent)


def read_document(path: Path) -> Any:
    """The JSON content of a file, not validated; a ValueError if it is not JSON."""
    with storage_errors(path):
        content = read_bounded(path, DOCUMENT_BYTES_MAX)
    return parsed(content)


def parsed(document: str | bytes) -> Any:
    try:
        return json.loads(document)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def is_gone(path: Path, fd: int) -> bool:
    """Whether an open file is no longer the one of that name: it was deleted, moved or replaced."""
    try:
        now = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    return not os.path.samestat(now, os.fstat(fd))


class FileLock:
    """Held by one thread of one process at a time; the kernel releases it when the process dies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open()
        _locks.add(self)

    def _open(self) -> None:
        with storage_errors(self.path):
            self.fd = open_alike(self.path, os.O_RDWR | os.O_CREAT)
        self._thread = threading.RLock()
        self._holds: tuple[Generator[None], Any] | None = None  # the innermost, and those around it
        self._owner: int | None = None

    def __enter__(self) -> FileLock:
        hold = self._hold()
        try:
            next(hold)
            self._holds = (hold, self._holds)
        except BaseException:  # a signal handler can raise before the lock is acquired, and after it
            hold.close()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        assert self._holds is not None
        hold, self._holds = self._holds
        hold.close()

    def _hold(self) -> Generator[None]:
        """Suspended while the lock is held: closing it releases what was acquired, also after half of it.

        A signal handler can raise after a call returned. `with` has no such moment between acquiring and its block.
        """
        with self._thread:
            is_outermost = self._holds is None
            try:
                if is_outermost:
                    fcntl.flock(self.fd, fcntl.LOCK_EX)
                    self._owner = threading.get_ident()
                yield
            finally:
                if is_outermost:
                    self._owner = None
                    fcntl.flock(self.fd, fcntl.LOCK_UN)

    @property
    def _here(self) -> tuple[Generator[None], Any] | None:
        """The holds of this thread."""
        return self._holds if self._owner == threading.get_ident() else None

    @property
    def backstop(self) -> _Backstop:
        """`with lock.backstop, lock:` also releases the lock if a signal handler raises just as `__exit__` begins."""
        return _Backstop(self)

    @contextmanager
    def attempt(self) -> Iterator[bool]:
        """Whether the lock was free; if so, it is held until the block ends."""
        if not self._thread.acquire(blocking=False):
            yield False
            return
        try:
            if self._holds is not None:
                yield False
                return
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            try:
                self._holds, self._owner = (_nothing(), None), threading.get_ident()
                yield True
            finally:
                self._holds = self._owner = None
                fcntl.flock(self.fd, fcntl.LOCK_UN)
        finally:
            self._thread.release()

    @property
    def gone(self) -> bool:
        """Whether the lock's file was deleted since it was opened, with the folder it guards."""
        return is_gone(self.path, self.fd)

    def __del__(self) -> None:
        """One that is held until the process ends releases its holds first: they need the open file."""
        holds, self._holds = getattr(self, "_holds", None), None
        while holds is not None:
            hold, holds = holds
            with suppress(OSError, RuntimeError):  # of another thread
                hold.close()
        if hasattr(self, "fd"):
            os.close(self.fd)


class _Backstop:
    def __init__(self, lock: FileLock) -> None:
        self._lock = lock
        self._before = lock._here

    def __enter__(self) -> None:
        pass

    def __exit__(self, *raised: object) -> None:
        while self._lock._here is not self._before:
            self._lock.__exit__()


class SharedLock:
    """Held by any number of threads and processes from its creation to its end; keeps out a `FileLock` of the file."""

    def __init__(self, path: Path) -> None:
        with storage_errors(path):
            self._fd = open_alike(path, os.O_RDWR | os.O_CREAT)
            fcntl.flock(self._fd, fcntl.LOCK_SH)

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)


_locks: weakref.WeakSet[FileLock] = weakref.WeakSet()
_of_parent: list[Any] = []
"""What threads of the parent held when this process was forked: kept, because closing it would release their locks."""


def _nothing() -> Generator[None]:
    yield


def _separate_from_parent() -> None:
    """A forked process shares its parent's open files, and with them its locks."""
    for lock in list(_locks):
        shared = lock.fd
        _of_parent.append(lock._holds)
        with suppress(StorageError):  # what it guarded was deleted: there is nothing to lock
            lock._open()
            os.close(shared)


os.register_at_fork(after_in_child=_separate_from_parent)


def boot_id() -> bytes:
    """Identifies this boot of the machine: unsynced data survives a process crash, but not a new boot id."""
    try:
        return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)
