"""Folders and files that nobody else can read, plant or swap: created private, and never reached through a link."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from millstream.errors import UntrustedFolder

FOLDER_MODE = 0o700
FILE_MODE = 0o600


def private_folder(path: Path) -> Path:
    """Creates the folder for this user alone, or closes it to others; refuses one that others made or could change."""
    path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    try:
        path.mkdir(mode=FOLDER_MODE)
    except FileExistsError:
        _refuse_untrusted(path)
    return path


def is_private(path: Path) -> bool:
    """Whether this user alone can have made the folder and what is in it."""
    try:
        return _fault_of(path) is None
    except FileNotFoundError:
        return False


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """A descriptor of a file that, if created, is for this user alone. A symbolic link is refused with ELOOP."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)


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
        if stat.S_IMODE(path.lstat().st_mode) != FOLDER_MODE:  # others could only read what is in it
            path.chmod(FOLDER_MODE)
        return
    raise UntrustedFolder(
        f"the private folder {path} {fault}, so its content cannot be trusted",
        where=str(path),
        next_step="remove it if nothing of yours is in it, or set TMPDIR (or spark.local.dir) to a folder of your own",
    )
