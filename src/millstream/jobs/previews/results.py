"""The limits of a preview, and the rows it has found so far."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import polars as pl

from millstream.errors import InvalidInput
from millstream.operators.aggregates.accumulators import WEIGHT
from millstream.operators.elementwise import frame_of, net
from millstream.plan.nodes import Node
from millstream.user_lines import users_line

ROWS, ROWS_IN_TIME = 20, 1_000
ROWS_MAX = 1_000_000
SECONDS, SECONDS_MAX = 10.0, 3600.0


@dataclass(frozen=True)
class Limits:
    """How many results a preview returns, and how long it reads.

    `follows` is whether it also reads what arrives in that time; otherwise it ends with what is there at the start.
    """

    rows: int
    seconds: float
    follows: bool

    @classmethod
    def of(cls, rows: object, seconds: object) -> Limits:
        if rows is not None and (not isinstance(rows, int) or isinstance(rows, bool) or not 1 <= rows <= ROWS_MAX):
            raise _refused(f"rows is a number of rows from 1 to {ROWS_MAX:,}, not {rows!r}", "preview(rows=20)")
        if seconds is not None and (
            not isinstance(seconds, int | float)
            or isinstance(seconds, bool)
            or not (math.isfinite(seconds) and 0 < seconds <= SECONDS_MAX)
        ):
            raise _refused(
                f"seconds is a number of seconds, above 0 and up to {SECONDS_MAX:,.0f}, not {seconds!r}",
                "preview(seconds=10)",
            )
        follows = seconds is not None
        return cls(rows or (ROWS_IN_TIME if follows else ROWS), float(seconds or SECONDS), follows)


def _refused(what: str, next_step: str) -> InvalidInput:
    return InvalidInput(what, where=users_line(), next_step=next_step)


class Results:
    """The rows of a stream: the current ones of a table, else the first that were emitted."""

    def __init__(self, node: Node, rows_max: int) -> None:
        self._node = node
        self._rows_max = rows_max
        self._names = node.schema.names
        self._rows = frame_of([], node, hidden=[WEIGHT])

    @property
    def are_complete(self) -> bool:
        """Whether later rows change nothing; the rows of a table may always change."""
        return not self._node.is_table and len(self._rows) >= self._rows_max

    def add(self, rows: pl.DataFrame) -> None:
        """Rows with their weights."""
        found = pl.concat([self._rows, rows.select(self._rows.columns)])
        self._rows = net(found, self._names) if self._node.is_table else found.head(self._rows_max)

    def frame(self) -> pl.DataFrame:
        """The rows as the user sees them: those of a changing stream have a weight."""
        rows = self._rows
        if self._node.is_table:
            current = rows.filter(pl.col(WEIGHT) > 0)
            rows = current[np.repeat(np.arange(len(current)), current[WEIGHT].to_numpy())].head(self._rows_max)
        plain = pl.from_arrow(rows.select(self._names).to_arrow().cast(self._node.schema.arrow))
        assert isinstance(plain, pl.DataFrame)
        if self._node.is_table or not self._node.is_changing or "weight" in self._names:
            return plain
        return plain.with_columns(rows[WEIGHT].alias("weight"))
