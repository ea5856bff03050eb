"""Which values a distinct count has seen: a set, to which only what is new is added.

A group has the number of its values and not the values, so a batch costs what came in it, however much was seen before.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from millstream.operators.windowed import Frames
from millstream.plan.aggregates import Aggregate

WHICH, VALUE, GROUP = "which", "value", "__group"
PLAIN = (pl.String, pl.Binary, pl.Boolean, pl.Date)


class Seen:
    """The sets of some aggregates: those of one type of values share a table."""

    def __init__(self, keys: list[str], aggregates: Sequence[tuple[str, Aggregate]], given: pl.Schema) -> None:
        self._keys = keys
        self.names = [
            name
            for name, made in aggregates
            if made.kind == "distinct_count" and _can_be_looked_up(given[f"{name}.input"])
        ]
        self.counts = {name: f"distinct.{name}" for name in self.names}
        self._types = list(dict.fromkeys(given[f"{name}.input"] for name in self.names))
        self._columns = {name: f"{VALUE}.{self._types.index(given[f'{name}.input'])}" for name in self.names}
        self.tables: Frames = {
            f"seen.{number}": pl.DataFrame(schema={**{key: given[key] for key in keys}, WHICH: pl.UInt32, VALUE: kind})
            for number, kind in enumerate(self._types)
        }
        self.sets = {name: [*keys, WHICH, VALUE] for name in self.tables}
        self.nothing = pl.DataFrame(
            schema={
                **{key: given[key] for key in keys},
                WHICH: pl.UInt32,
                **{f"{VALUE}.{number}": kind for number, kind in enumerate(self._types)},
            }
        )

    def values(self, fed: pl.DataFrame) -> pl.DataFrame:
        """The values that came for each group and aggregate, each once."""
        groups, places = self._groups(fed)
        found = [self.nothing]
        for number, name in enumerate(self.names):
            pairs = pl.DataFrame([places, fed[f"{name}.input"].alias(self._columns[name])])
            pairs = pairs.drop_nulls().unique()
            keys = groups[pairs[GROUP]].get_columns() if self._keys else []
            values = pl.DataFrame([*keys, pairs[self._columns[name]]])
            found.append(values.with_columns(pl.lit(number, pl.UInt32).alias(WHICH)))
        return pl.concat(found, how="diagonal")

    def _groups(self, fed: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
        """The keys that came, and of each row the place of its own: whole numbers are quicker to tell apart."""
        if not self._keys:
            return pl.DataFrame(), pl.zeros(len(fed), pl.UInt32, eager=True).alias(GROUP)
        groups = fed.select(self._keys).unique()
        places = fed.select(self._keys).join(
            groups.with_row_index(GROUP), on=self._keys, nulls_equal=True, maintain_order="left"
        )
        return groups, places[GROUP]

    def by_table(self, values: pl.DataFrame) -> dict[str, pl.DataFrame]:
        """The rows of each set that these values are."""
        made = {}
        for number, name in enumerate(self.tables):
            column = f"{VALUE}.{number}"
            mine = values.filter(pl.col(column).is_not_null())
            made[name] = mine.select(*self._keys, WHICH, pl.col(column).alias(VALUE)).unique()
        return made

    def new(self, values: pl.DataFrame, held: Frames) -> dict[str, pl.DataFrame]:
        """Of each set, what is not in it yet."""
        return {
            name: rows.join(held[name], on=self.sets[name], how="anti", nulls_equal=True)
            for name, rows in self.by_table(values).items()
        }

    def counted(self, new: Frames) -> pl.DataFrame:
        """By group, how many values are new of each aggregate."""
        rows = pl.concat([new[name].select(*self._keys, WHICH) for name in self.tables])
        counts = [
            (pl.col(WHICH) == number).sum().cast(pl.Int64).alias(self.counts[name])
            for number, name in enumerate(self.names)
        ]
        return rows.group_by(self._keys).agg(counts) if self._keys else rows.select(counts)


def _can_be_looked_up(kind: pl.DataType) -> bool:
    return kind.is_integer() or kind in PLAIN or isinstance(kind, pl.Datetime)
