"""A value that a measure refers to: of one row of a match, or over the rows of some variables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from millstream.plan.patterns.references import Reference


@dataclass(frozen=True)
class Measured:
    reference: Reference
    members: frozenset[str] | None
    """The variables whose rows count; None: all rows of the match."""
    field: str | None
    """The column of a row that it takes; None to count rows, or for the variable that a row plays."""
    is_final: bool = False
    shift: int = 0
    """How many rows of the key further it looks, from the row that it refers to: PREV and NEXT."""

    @property
    def is_of_one_row(self) -> bool:
        return self.reference.kind in ("first", "last")

    def counts(self, variable: str | None) -> bool:
        """Whether a row that plays a variable counts; the rows around a match play none."""
        return variable is not None and (self.members is None or variable in self.members)

    def place(self, variables: Sequence[str | None], end: int) -> int | None:
        """Of one row: which one it is, given the variables of the rows in order; those from `end` on are not seen yet,
        except by PREV and NEXT."""
        is_first = self.reference.kind == "first"
        left = self.reference.offset
        for place in range(end) if is_first else range(end - 1, -1, -1):
            if self.counts(variables[place]):
                if not left:
                    found = place + self.shift
                    return found if 0 <= found < len(variables) else None
                left -= 1
        return None

    def value(self, variables: Sequence[str | None], rows: Sequence[dict[str, Any]], end: int) -> Any:
        """Its value, given the rows in order and the variables that they play."""
        if self.is_of_one_row:
            place = self.place(variables, end)
            if place is None:
                return None
            return variables[place] if self.field is None else rows[place][self.field]
        places = [place for place in range(end) if self.counts(variables[place])]
        return self.reference.of([None if self.field is None else rows[place][self.field] for place in places])
