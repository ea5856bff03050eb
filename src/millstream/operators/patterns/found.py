"""What a search over the rows of one key has found, and what it has to keep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from millstream.errors import InvalidInput
from millstream.plan.patterns.found import Complete, Path

PATHS_MAX = 100_000
"""How many matches may end with one row."""
Node = tuple[int, str, bool, Any]
"""A row of partial matches: its place, its variable, whether it is excluded, and the nodes of the row before."""


@dataclass(slots=True)
class Found:
    matches: list[Complete] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)
    """The first rows of further matches, which are known as runs. They are many, so there is no object for each."""
    timed_out: list[Complete] = field(default_factory=list)
    firsts: set[int] = field(default_factory=set)
    """The first rows of what may still become a match."""
    due: int | None = None
    """When there is something to do without a row."""
    hold: int | None = None
    """The earliest event time that is still to be emitted."""
    without_target: int = 0
    """How many matches have no row of the variable to skip to."""

    @property
    def count(self) -> int:
        return len(self.matches) + len(self.runs)

    def in_order(self) -> Sequence[Complete | int]:
        """All matches. No two have a row in common if there are runs."""
        if not self.matches or not self.runs:
            return self.matches or self.runs
        return sorted([*self.matches, *self.runs], key=lambda match: match if isinstance(match, int) else match.first)


def paths_to(nodes: list[Node], step: str) -> list[Path]:
    """All paths that end in some nodes, in order."""
    found: dict[Path, None] = {}
    for path in _paths(nodes):
        found.setdefault(path)
        if len(found) > PATHS_MAX:
            raise InvalidInput(
                f"more than {PATHS_MAX:,} matches end with one row",
                where=step,
                next_step="limit the time with within(…), use matches='preferred', or use "
                "followed_by(…) and consecutive() where any row or all combinations are allowed now",
            )
    return sorted(found)


def _paths(nodes: list[Node]) -> Iterator[Path]:
    stack: list[tuple[Node, Any]] = [(node, None) for node in nodes]
    while stack:
        node, after = stack.pop()
        chain = (node[:3], after)
        if node[3]:
            stack += [(before, chain) for before in node[3]]
            continue
        path = []
        link: Any = chain
        while link is not None:
            path.append(link[0])
            link = link[1]
        yield tuple(path)
