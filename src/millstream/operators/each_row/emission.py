"""In which order the rows of windows emit their panes, if each row is its own bundle."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from millstream.operators.ordering import Numbers


class Emission:
    """The rows that emit panes, in order of emission. Often these are all of them as they are, and nothing is moved."""

    def __init__(self, sending: Numbers | None, turns: Numbers | None) -> None:
        """`sending`: the positions of these rows, unless all emit. `turns`: their order, unless it is as they are."""
        self._turns = turns
        self._rows = turns if sending is None else sending if turns is None else sending[turns]
        self._places = None if self._rows is None else indexes(self._rows)

    def of_frame(self, rows: pl.DataFrame) -> pl.DataFrame:
        """A frame of all rows, for each pane."""
        return rows if self._places is None or not rows.width else rows[self._places]

    def of_rows(self, values: Any) -> Any:
        """Values of all rows, for each pane."""
        return values if self._rows is None else values[self._rows]

    def of_panes(self, values: Any) -> Any:
        """Values of panes, in order of emission."""
        return values if self._turns is None else values[self._turns]

    @property
    def numbers(self) -> pl.Expr:
        """The numbers of panes, in order of emission."""
        count = pl.int_range(pl.len(), dtype=pl.Int64)
        return count if self._turns is None else pl.lit(pl.Series(self._turns)).cast(pl.Int64)


def indexes(numbers: Numbers) -> pl.Series:
    """Positions as polars needs them."""
    return pl.Series(numbers.astype(np.uint32))
