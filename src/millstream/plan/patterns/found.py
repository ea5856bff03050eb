"""A match that was found, as a value: which rows play which variables. The same for every matcher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millstream.plan.patterns.node import Skip, SkipTo

PathRow = tuple[int, str, bool]
"""A row of a match: its place, the variable that it plays, and whether it is excluded from the output."""
Path = tuple[PathRow, ...]


@dataclass(frozen=True, slots=True)
class Complete:
    """A match, or a partial match that timed out."""

    path: Sequence[PathRow]
    end: int
    """The time of its last row, or the limit that it waited for."""
    at_limit: bool = False
    """Whether it was complete, or over, because its time was over."""

    @property
    def first(self) -> int:
        return self.path[0][0]


def lacks_target(path: Sequence[PathRow], skip: Skip) -> bool:
    """Whether the variable to skip to has no row in a match."""
    return bool(skip.variables) and not any(variable in skip.variables for _, variable, _ in path)


def first_after(path: Sequence[PathRow], skip: Skip) -> int:
    """The first place at which another match may begin."""
    if skip.to is SkipTo.PAST_LAST:
        return path[-1][0] + 1
    places = [place for place, variable, _ in path if variable in skip.variables]
    if not places:  # also if the variable to skip to has no row in this match
        return path[0][0] + 1
    return places[0] if skip.to is SkipTo.FIRST_OF else places[-1]
