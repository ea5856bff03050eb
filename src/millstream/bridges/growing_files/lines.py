"""Whole lines of a piece of content, and how far it is read then."""

from __future__ import annotations

from typing import NamedTuple


class Taken(NamedTuple):
    size: int
    lines: list[bytes]
    """One that is longer than allowed is the beginning of a line that was cut."""
    is_cut: bool
    """Whether what follows is the rest of such a line."""


def whole_lines(content: bytes, bytes_max: int, *, is_cut: bool, is_ended: bool) -> Taken:
    """The last line without a line break only of what will not grow."""
    end = content.rfind(b"\n") + 1
    if not end and len(content) > bytes_max:
        return Taken(len(content), [] if is_cut else [content[: bytes_max + 1]], True)
    if not end and not (is_ended and content):
        return Taken(0, [], is_cut)
    taken = content[: end or len(content)]
    lines = taken.removesuffix(b"\n").split(b"\n")
    return Taken(len(taken), [line.removesuffix(b"\r") for line in lines[is_cut:]], False)
