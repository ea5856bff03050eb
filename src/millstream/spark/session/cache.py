"""The cache of generated files: an archive of classes, code to send to workers, a `java` for launchers.

All of it is executed. So only this user, root and the owner of this code may create or change it.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from millstream.errors import UntrustedFolder

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_folder() -> Path:
    """In the virtual environment, and removed with it; otherwise the user's cache."""
    if os.environ.get("MILLSTREAM_CACHE"):
        return Path(os.environ["MILLSTREAM_CACHE"])
    if sys.prefix != sys.base_prefix and os.access(sys.prefix, os.W_OK):
        return Path(sys.prefix, "var", "millstream")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "millstream")


def ensure_folder(path: Path) -> Path:
    """Creates a folder in the cache, or the cache itself; refuses one that another user created."""
    folders = [cache_folder(), *(each for each in reversed([path, *path.parents]) if cache_folder() in each.parents)]
    for folder in folders:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        found = folder.stat()
        if found.st_uid == os.geteuid() and found.st_mode & OTHERS_WRITE:
            # A umask of 002 opens a folder to the user's group. Files of other members are refused by owner.
            folder.chmod(stat.S_IMODE(found.st_mode) & ~OTHERS_WRITE)
        elif (fault := _fault(folder)) is not None:
            raise UntrustedFolder(
                f"the cache folder {fault}, so the code in it could be another user's",
                where=str(folder),
                next_step="remove it, or set MILLSTREAM_CACHE to a folder of your own",
            )
    return path


def is_trusted(file: Path) -> bool:
    """Whether a file of the cache exists and no other user could have written it. Otherwise it is rebuilt."""
    if not file.is_file():
        return False
    ensure_folder(file.parent)
    return not file.is_symlink() and _fault(file) is None


def _fault(path: Path) -> str | None:
    found = path.stat()
    if found.st_uid not in (os.geteuid(), 0, Path(__file__).stat().st_uid):
        return f"belongs to user {found.st_uid}, not to user {os.geteuid()}"
    if found.st_mode & OTHERS_WRITE:
        return f"can be written by other users (mode {stat.S_IMODE(found.st_mode):o})"
    return None
