"""The folder of an embedded log: created if it is new or empty, rejected if it contains anything else."""

from __future__ import annotations

import os
import resource
import shutil
import time
from contextlib import suppress
from pathlib import Path

from millstream.errors import NotALog
from millstream.log import access
from millstream.log.description import DESCRIPTION, FOLDERS, FORMAT, PARTICIPANTS, log_description
from millstream.log.storage.disk import FileLock, storage_errors, write_document
from millstream.private_files import make_folder

LEFTOVER_SECONDS = 60.0
OPEN_FILES = 65536
OLD_PARTICIPANTS = "people"
"""What the folder of participants was called in logs made before."""


def raise_file_limit() -> None:
    """A partition needs several open files, and the usual soft limit is meant for programs that use select()."""
    with suppress(OSError, ValueError):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def changes_lock(folder: Path) -> FileLock:
    """Held while the log is created and topics are changed."""
    return FileLock(folder / ".lock")


def open_folder(folder: Path, group: str | None) -> None:
    description = folder / DESCRIPTION
    rights = access.access_for(group)
    shared = {} if group is None else {access.SHARED_GROUP: group}
    with storage_errors(folder):
        access.make_root(folder, rights)
        with changes_lock(folder):
            if not description.exists():
                strangers = [name for name in os.listdir(folder) if not _is_own(folder, name)]  # noqa: PTH208
                if strangers:
                    (folder / ".lock").unlink()
                    raise NotALog(
                        "the folder is not empty and is not a log",
                        where=f"{folder} ({', '.join(sorted(strangers)[:3])})",
                        next_step="choose an empty or new folder with --log or MILLSTREAM_BROKER",
                    )
                access.claim(folder, rights)
                for name in FOLDERS:
                    make_folder(folder / name)
                write_document(description, {"what": "a Millstream log", "format": FORMAT, **shared})
            if (folder / OLD_PARTICIPANTS).is_dir() and not (folder / PARTICIPANTS).exists():
                (folder / OLD_PARTICIPANTS).rename(folder / PARTICIPANTS)
            document = log_description(folder)
            recorded = document.get(access.SHARED_GROUP)
            if group is not None and not (recorded == group and access.is_granted(folder, rights)):
                access.share(folder, rights)
                write_document(description, {**document, **shared})
                recorded = group
            _sweep(folder)
    access.check(folder, recorded)


def _sweep(folder: Path) -> None:
    """Removes what a process left that died while it created or deleted a topic."""
    with suppress(FileNotFoundError):
        for entry in list(os.scandir(folder / "topics")):
            if entry.name.startswith((".deleted-", ".new-")):
                with suppress(FileNotFoundError):
                    if time.time() - entry.stat(follow_symlinks=False).st_ctime > LEFTOVER_SECONDS:
                        shutil.rmtree(entry.path, ignore_errors=True)


def _is_own(folder: Path, name: str) -> bool:
    """Whether this was left by an interrupted creation of a log."""
    if name in FOLDERS:
        return not any((folder / name).iterdir())
    # Jobs of flows that read and write elsewhere also keep their folders here.
    return name in (".lock", "jobs") or name.startswith(f".{DESCRIPTION}.")
