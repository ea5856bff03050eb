"""A whole pattern as a value: its shape, the conditions of its variables, and its limits of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from millstream.plan.patterns.terms import Term, variables_of

PATTERN = "()"
"""The name of the whole pattern among the places of a text; no variable has it."""


@dataclass(frozen=True)
class Rules:
    """What to look for. How it is matched, and what becomes of a match, is decided where it is used."""

    term: Term
    conditions: Mapping[str, str | None] = field(default_factory=dict)
    """By name of a variable or an absence, its condition in Spark SQL; None or no entry: any row."""
    within: timedelta | None = None
    """At most this long from the first row to the last, the limit included."""
    between_neighbours: timedelta | None = None
    """At most this long between two rows of a match that follow one another, the limit included."""
    subsets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names for several variables at once, for conditions and measures."""
    lines: Mapping[str, str | None] = field(default_factory=dict, compare=False)
    """By name, where the user defined it."""
    places: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Of a pattern that is text: by name, where the condition stands in it, and under PATTERN the whole."""

    @property
    def variables(self) -> list[str]:
        return variables_of(self.term)

    @property
    def has_limit(self) -> bool:
        return self.within is not None or self.between_neighbours is not None

    def members(self, name: str) -> tuple[str, ...]:
        """The variables that a name stands for: itself, or those of a subset."""
        return self.subsets.get(name, (name,))

    def __str__(self) -> str:
        limits = [(self.within, ""), (self.between_neighbours, " between neighbours")]
        return str(self.term) + "".join(f" within {limit}{kind}" for limit, kind in limits if limit is not None)
