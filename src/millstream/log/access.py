"""Who may use a log: its owner alone, or a group named in the log's description.

The outermost folder controls access to everything below it.
"""

from __future__ import annotations

import grp
import os
import stat
from pathlib import Path

from millstream import terminal
from millstream.errors import InvalidSetting, NoAccess
from millstream.private_files import PRIVATE, Access, grant, grant_below

SHARED_GROUP = "shared_group"
OTHERS_MAY_ENTER = 0o077
OTHERS_MAY_WRITE = 0o022
logger = terminal.logger(__name__)


def access_for(group: str | None) -> Access:
    """The access for a group, given by name or number."""
    if group is None:
        return PRIVATE
    try:
        return Access(int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid)
    except (KeyError, ValueError, OverflowError):
        raise InvalidSetting(
            f"there is no group '{group}' on this machine",
            next_step="name one of `getent group`, of which you are a member (`id`)",
        ) from None


def make_root(path: Path, access: Access) -> None:
    """Creates the folder of a log if it does not exist; its parents are left to the umask."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=PRIVATE.folder_mode)
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    try:
        _grant(path, access)
    except BaseException:
        path.rmdir()
        raise


def claim(path: Path, access: Access) -> None:
    """Takes over an existing, empty folder for a log; a public one, such as /tmp, keeps its permissions."""
    found = path.stat()
    if found.st_uid == os.geteuid() and not found.st_mode & stat.S_ISVTX and not is_granted(path, access):
        _grant(path, access)
        grant_below(path, access)  # left over from an earlier attempt


def share(path: Path, access: Access) -> None:
    """Opens an existing log to a group; only its owner can."""
    if path.stat().st_uid != os.geteuid():
        raise NoAccess(
            "only the owner of a log can share it with a group",
            where=str(path),
            next_step="ask its owner to open it once with that group, or leave the group out",
        )
    _grant(path, access)
    grant_below(path, access)


def _grant(path: Path, access: Access) -> None:
    try:
        grant(path, access)
    except PermissionError as error:
        if access.group_id is None:
            raise
        raise NoAccess(
            f"this user may not assign the folder to group {access.group_id}",
            where=str(path),
            next_step="name a group of which you are a member (`id`)",
        ) from error


def is_granted(path: Path, access: Access) -> bool:
    return Access.of(path) == access and stat.S_IMODE(path.stat().st_mode) == access.folder_mode


def check(path: Path, group: str | None) -> None:
    """Closes a private log that others may read, and warns about one that others may change."""
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if group is not None:
        if Access.of(path) == PRIVATE:
            logger.warning(
                "the log %s is shared with group '%s', but its folder has mode %o: its owner can restore access by "
                "opening it with --shared-group %s",
                path,
                group,
                mode,
                group,
            )
    elif found.st_uid != os.geteuid() or not mode & OTHERS_MAY_ENTER:
        return
    elif mode & OTHERS_MAY_WRITE:  # perhaps on purpose: do not lock anyone out without being asked
        logger.warning(
            "other users can change the log %s (mode %o): share it with --shared-group GROUP, or close it with: chmod "
            "700 %s",
            path,
            mode,
            path,
        )
    else:
        grant(path, PRIVATE)
        logger.warning(
            "other users could read the log %s (mode %o); it is now private: to share it, use --shared-group GROUP",
            path,
            mode,
        )
