"""Folders and files that nobody else can read, plant or swap: created private, and never reached through a link.

Access is decided once, for the outermost folder: its owner alone, or a group as well. Everything below inherits from
its folder, so that any process of any member creates files that the others can use.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from millstream.errors import UntrustedFolder

FOLDER_MODE = 0o700
FILE_MODE = 0o600
SHARED_FOLDER_MODE = 0o2770  # setgid: what is created inside belongs to the same group
SHARED_FILE_MODE = 0o660
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
SEEN_ONLY: int = getattr(os, "O_PATH", os.O_RDONLY)
"""For a descriptor that only says what a file is: closing it does not release SQLite's locks (see
`ensure_database_file`)."""


class NotAPlainFile(OSError):
    """A pipe, socket, device or folder where a file is expected: reading it could block forever."""


@dataclass(frozen=True)
class Access:
    """Who may read and write besides the owner: nobody, or the members of one group."""

    group_id: int | None = None

    @property
    def folder_mode(self) -> int:
        return FOLDER_MODE if self.group_id is None else SHARED_FOLDER_MODE

    @property
    def file_mode(self) -> int:
        return FILE_MODE if self.group_id is None else SHARED_FILE_MODE

    @classmethod
    def of(cls, folder: str | os.PathLike[str]) -> Access:
        """The access inside a folder: it is shared if it is open to its group (setgid) and closed to everybody else."""
        found = os.stat(folder)  # noqa: PTH116 - on the way of appends
        is_shared = found.st_mode & 0o2777 == SHARED_FOLDER_MODE
        return cls(found.st_gid) if is_shared else PRIVATE


PRIVATE = Access()


def private_folder(path: Path) -> Path:
    """Creates the folder for this user alone, or closes it to others; rejects one that others made or could change."""
    path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    try:
        path.mkdir(mode=FOLDER_MODE)
    except FileExistsError:
        _refuse_untrusted(path)
    return path


def is_private(path: Path) -> bool:
    """Whether only this user can have created the folder and its contents."""
    try:
        return _fault_of(path) is None
    except FileNotFoundError:
        return False


def make_folder(path: Path, access: Access | None = None) -> bool:
    """Creates one folder, by default with the access of its parent. Returns whether it is new."""
    access = Access.of(path.parent) if access is None else access
    try:
        path.mkdir(mode=access.folder_mode & 0o700)
    except FileExistsError:
        return False
    grant(path, access)
    return True


def make_folders(path: Path) -> Path:
    """Creates a folder and its missing parents, each with the access of its own parent."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        if not make_folder(folder) and not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    return missing[0] if missing else path


def grant(path: Path, access: Access) -> None:
    """Gives a folder of this user the owner's and the group's permissions, whatever the umask."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if access.group_id is not None and os.fstat(fd).st_gid != access.group_id:
            os.fchown(fd, -1, access.group_id)
        if stat.S_IMODE(os.fstat(fd).st_mode) != access.folder_mode:
            os.fchmod(fd, access.folder_mode)
    finally:
        os.close(fd)


def grant_below(folder: Path, access: Access) -> None:
    """Gives everything of this user in a folder the same permissions; links and other users' files are left alone."""
    for _, _, names, fd in os.fwalk(folder, follow_symlinks=False):  # the folder before its contents
        _grant(fd, access, access.folder_mode)
        for name in names:
            try:
                file = os.open(name, SEEN_ONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
            except OSError:
                continue
            try:
                found = os.fstat(file)
                if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
                    _grant(f"/proc/self/fd/{file}" if SEEN_ONLY else file, access, access.file_mode)
            finally:
                os.close(file)


def _grant(file: int | str, access: Access, mode: int) -> None:
    if os.stat(file).st_uid == os.geteuid():  # noqa: PTH116
        if access.group_id is not None:
            os.chown(file, -1, access.group_id)
        os.chmod(file, mode)  # noqa: PTH101


def open_private(path: str | os.PathLike[str], flags: int, access: Access = PRIVATE) -> int:
    """A descriptor of a file that, if created, is private to this user, or to the group with access.

    A symbolic link is rejected with ELOOP, and anything but a regular file with NotAPlainFile, without blocking.
    """
    mode = access.file_mode
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise NotAPlainFile(errno.EINVAL, "not a plain file", os.fspath(path))
        # The umask may have removed permissions, and files of older versions have too many.
        if flags & os.O_CREAT and stat.S_IMODE(found.st_mode) != mode and found.st_uid == os.geteuid():
            os.fchmod(fd, mode)
    except BaseException:
        os.close(fd)
        raise
    return fd


def ensure_database_file(path: str | os.PathLike[str], access: Access | None = None) -> None:
    """Creates the file of an SQLite database with the access of its folder, or checks an existing one like
    `open_private` does: SQLite would follow a link.

    An existing one is not opened. Closing a descriptor of a file releases all POSIX locks that this process has on it,
    also those of its SQLite connections: then another process removes the write-ahead log that they still write to.
    """
    access = Access.of(os.path.dirname(path) or ".") if access is None else access  # noqa: PTH120
    try:
        fd = open_private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, access)
    except FileExistsError:
        refuse_link(path)
        found = os.lstat(path)
        if stat.S_IMODE(found.st_mode) != access.file_mode and found.st_uid == os.geteuid():
            os.chmod(path, access.file_mode)  # noqa: PTH101
    else:
        os.close(fd)


def refuse_link(path: str | os.PathLike[str]) -> None:
    """Rejects what is not a regular file, without opening it."""
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(found.st_mode):
        raise NotAPlainFile(errno.EINVAL, "not a plain file", os.fspath(path))


def open_alike(path: str | os.PathLike[str], flags: int) -> int:
    """Like `open_private`, with the access of the file's folder."""
    return open_private(path, flags, Access.of(os.path.dirname(path) or "."))  # noqa: PTH120 - on the way of appends


def create_alike(path: str | os.PathLike[str]) -> int:
    """A new, empty file for writing. An existing one is removed first: it may be a link to something precious."""
    for _ in range(100):
        try:
            return open_alike(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            os.unlink(path)  # noqa: PTH108
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(path))


def read_bounded(path: str | os.PathLike[str], bytes_max: int) -> bytes:
    """The whole content of a regular file; a larger one is rejected with EMSGSIZE."""
    fd = open_private(path, os.O_RDONLY)
    with os.fdopen(fd, "rb") as file:
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise OSError(errno.EMSGSIZE, f"larger than {bytes_max} bytes", os.fspath(path))
    return content


def is_plain_folder(path: Path) -> bool:
    """Whether it is a folder itself, and not a link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _fault_of(path: Path) -> str | None:
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        return "is not a folder"
    if found.st_uid != os.geteuid():
        return f"belongs to user {found.st_uid}, not to user {os.geteuid()}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"can be changed by other users (mode {stat.S_IMODE(found.st_mode):o})"
    return None


def _refuse_untrusted(path: Path) -> None:
    fault = _fault_of(path)
    if fault is None:
        if stat.S_IMODE(path.lstat().st_mode) != FOLDER_MODE:  # others could only read its contents
            path.chmod(FOLDER_MODE)
        return
    raise UntrustedFolder(
        f"the private folder {path} {fault}, so its content cannot be trusted",
        where=str(path),
        next_step="remove it if it has nothing of yours, or set TMPDIR (or spark.local.dir) to a folder of your own",
    )
