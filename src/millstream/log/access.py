"""Who may use a log: its owner alone, or a group, which the log's own description names.

The outermost folder decides for everybody: nobody gets past it to the files below.
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
    """The access that a user asks for with the name or number of a group."""
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
    """The folder of a log, if it is not there; those above it are nobody's but the user's, and left to the umask."""
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
    """An empty folder that was there becomes a log's; a public one, such as /tmp, stays what it is."""
    found = path.stat()
    if found.st_uid == os.geteuid() and not found.st_mode & stat.S_ISVTX and not is_granted(path, access):
        _grant(path, access)
        grant_below(path, access)  # what another try has left


def share(path: Path, access: Access) -> None:
    """Opens an existing log to a group: only its owner can, and asks for it by name."""
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
            f"this user may not give the folder to group {access.group_id}",
            where=str(path),
            next_step="name a group of which you are a member (`id`)",
        ) from error


def is_granted(path: Path, access: Access) -> bool:
    return Access.of(path) == access and stat.S_IMODE(path.stat().st_mode) == access.folder_mode


def check(path: Path, group: str | None) -> None:
    """Closes a private log that others may read, and warns of one that others may change."""
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if group is not None:
        if Access.of(path) == PRIVATE:
            logger.warning(
                "the log %s is shared with group '%s', but its folder has mode %o: its owner restores the rights by "
                "opening it with --shared-group %s",
                path,
                group,
                mode,
                group,
            )
    elif found.st_uid != os.geteuid() or not mode & OTHERS_MAY_ENTER:
        return
    elif mode & OTHERS_MAY_WRITE:  # perhaps on purpose: nobody is locked out without being asked
        logger.warning(
            "other users can change the log %s (mode %o): share it properly with --shared-group GROUP, or close it "
            "with: chmod 700 %s",
            path,
            mode,
            path,
        )
    else:
        grant(path, PRIVATE)
        logger.warning(
            "other users could read the log %s (mode %o), and now cannot any more: share it with --shared-group GROUP "
            "if they should",
            path,
            mode,
        )
