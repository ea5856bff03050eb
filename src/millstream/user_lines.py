"""The line of the user's code that an error refers to."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from types import FrameType, TracebackType

from millstream.errors import MillstreamError

PACKAGE = str(Path(__file__).parent) + os.sep
COMMAND_LINE = PACKAGE + "cli" + os.sep
STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep
INSTALLED = tuple(f"{STANDARD_LIBRARY}{folder}{os.sep}" for folder in ("site-packages", "dist-packages"))
"""Other packages, where the standard library has them in a folder of its own."""


def users_line() -> str | None:
    """File and line of the nearest caller outside Millstream and the standard library, such as `contextlib`.

    None if that is a command of Millstream itself: what calls it is no line of the user.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(COMMAND_LINE):
            return None
        if not name.startswith((PACKAGE, "<frozen ")) and not _is_standard(name):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def _is_standard(name: str) -> bool:
    return name.startswith(STANDARD_LIBRARY) and not name.startswith(INSTALLED)


class AtUsersLine:
    """Adds the user's line to errors raised inside that do not have it (of a schema, of a duration)."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        line = users_line()
        if isinstance(error, MillstreamError) and line is not None and not (error.where or "").startswith(line):
            where = f"{line}, {error.where}" if error.where else line
            raise type(error)(error.what, where=where, next_step=error.next_step) from None


def what_exists(wanted: object, known: Iterable[str], *, kind: str = "columns") -> str:
    """The next step after a wrong name: a similar one, and all that exist."""
    names = list(known)
    if not names:
        return f"there are no {kind}"
    lower = {name.lower(): name for name in reversed(names)}
    near = [lower[key] for key in get_close_matches(str(wanted).lower(), lower, 1)]
    hint = f"did you mean '{near[0]}'? " if near else ""
    return f"{hint}{kind} that exist: {', '.join(names)}"
