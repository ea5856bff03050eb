"""The hidden folder of a run's drafts: its path comes from a ledger, so it is never trusted by name alone.

Anyone with access to the job's folder can edit a ledger. A folder counts as a run's own only if it has the run's name,
is not a symbolic link, and contains the marker from its creation by the sink. Only drafts and the marker are ever
deleted from it: anything else is kept, and so is the folder then.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path, PurePosixPath

MARKER = ".millstream-drafts"
PREFIX = ".drafts-"
RUN = re.compile(r"\d{8}T\d{6}-[0-9a-f]{8}")
DRAFT = re.compile(r"[0-9a-f]{32}\.tmp")


def folder_name(step: str, run: str) -> str:
    return f"{PREFIX}{step}-{run}"


def mark(folder: Path, step: str, run: str) -> None:
    """Creates the folder if needed, and marks it as one that drafts may be deleted from."""
    if _marker_of(folder) != _marker(step, run):
        marker = folder / MARKER
        descriptor = os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_marker(step, run))


def is_own(folder: Path, step: str, run: str) -> bool:
    """Whether a folder exists and belongs to a run's drafts."""
    if not RUN.fullmatch(run) or folder.name != folder_name(step, run) or ".." in folder.parts:
        return False
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and _marker_of(folder) == _marker(step, run)


def clear(folder: Path, step: str, run: str, *, whole: bool) -> None:
    """Deletes the drafts of a run and, with `whole`, their folder, unless it contains anything else."""
    if not is_own(folder, step, run):
        return
    # By descriptor from here on: links that are swapped in meanwhile are not followed.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        names = [entry.name for entry in os.scandir(descriptor)]
        for name in names:
            if DRAFT.fullmatch(name):
                with suppress(FileNotFoundError, IsADirectoryError, PermissionError):
                    os.unlink(name, dir_fd=descriptor)
        if whole and all(name == MARKER or DRAFT.fullmatch(name) for name in names):
            os.unlink(MARKER, dir_fd=descriptor)
            folder.rmdir()
    finally:
        os.close(descriptor)


def is_below(path: str) -> bool:
    """Whether a recorded path stays below the folder it is joined to."""
    parts = PurePosixPath(path)
    return bool(parts.parts) and not parts.is_absolute() and ".." not in parts.parts and "\0" not in path


def _marker(step: str, run: str) -> bytes:
    return f"{step}\n{run}\n".encode()


def _marker_of(folder: Path) -> bytes | None:
    try:
        descriptor = os.open(folder / MARKER, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read(4096)
