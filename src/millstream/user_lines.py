"""The line of the user's code that an error refers to."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from types import FrameType, TracebackType

from millstream.errors import MillstreamError

PACKAGE = str(Path(__file__).parent) + os.sep


def users_line() -> str | None:
    """File and line of the nearest caller outside Millstream."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(PACKAGE):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return None


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
    lower = {name.lower(): name for name in reversed(names)}
    near = [lower[key] for key in get_close_matches(str(wanted).lower(), lower, 1)]
    hint = f"did you mean '{near[0]}'? " if near else ""
    return f"{hint}{kind} that exist: {', '.join(names)}"
