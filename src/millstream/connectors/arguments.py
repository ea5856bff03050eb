"""Validation of connector arguments: errors point to the user's line."""

from __future__ import annotations

from os import PathLike, fspath

from millstream.errors import InvalidInput
from millstream.user_lines import users_line


def refused(what: str, next_step: str | None) -> InvalidInput:
    return InvalidInput(what, where=users_line(), next_step=next_step)


def path(given: object, example: str) -> str:
    if isinstance(given, PathLike):
        given = fspath(given)
    return text(given, "a path must be a string or a Path", example)


def text(given: object, what: str, example: str) -> str:
    if not isinstance(given, str) or not given.strip() or "\0" in given:
        raise refused(f"{what}, not {given!r}", f"for example {example}")
    return given


def whole_number(given: object, what: str, next_step: str) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise refused(f"{what} must be a positive integer, not {given!r}", next_step)
    return given
