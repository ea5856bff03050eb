"""The values that distinct counts have seen: entries that are looked up by group and value, and written when new.

A group stores the number of its values and not the values, so the cost of a batch does not depend on earlier ones. An
entry is shared by several counts, one bit each: often they count the same column under conditions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from millstream.operators.clock import Frames
from millstream.state.hashing import key_hashes

VALUE, MASK = "value", "mask"
GROUP = "__group"
"""The number of a row's group among those that arrived."""
HASHES = ["group", "check"]
"""128 bits that identify the key of a group: keys may be long, and would be repeated in every entry."""
COUNTS_MAX = 64
FEW = 0.6  # if more than this share is left after deduplication, the rows are sent as they are
SAMPLE_ROWS = 1 << 14


class Seen:
    """The entries of some distinct counts, at most COUNTS_MAX of them: values of one type share a table."""

    def __init__(self, keys: list[str], names: Sequence[str], given: pl.Schema) -> None:
        self._keys = keys
        self.names = list(names)
        self.counts = {name: f"distinct.{name}" for name in self.names}
        self._bits = {name: 1 << number for number, name in enumerate(self.names)}
        types = list(dict.fromkeys(given[f"{name}.input"] for name in self.names))
        self._columns = {
            f"{VALUE}.{number}": [name for name in self.names if given[f"{name}.input"] == kind]
            for number, kind in enumerate(types)
        }
        hashes = dict.fromkeys(HASHES, pl.UInt64)
        self.tables: Frames = {
            f"seen.{number}": pl.DataFrame(schema={**hashes, VALUE: kind, MASK: pl.UInt64})
            for number, kind in enumerate(types)
        }
        self.own_keys = {name: [*HASHES, VALUE] for name in self.tables}
        self._no_pairs = pl.DataFrame(
            schema={GROUP: pl.UInt32, MASK: pl.UInt64, **dict(zip(self._columns, types, strict=True))}
        )
        self.nothing = pl.DataFrame(schema={**{key: given[key] for key in keys}, **self._no_pairs.drop(GROUP).schema})

    # ------------------------------------------------------------ arriving values

    def values(self, fed: pl.DataFrame) -> pl.DataFrame | None:
        """The distinct values by group; None if deduplication would save little, judging by the first of them."""
        if len(fed) > SAMPLE_ROWS:
            some = fed.head(SAMPLE_ROWS)
            pairs, before = self._pairs(some, self._groups(some)[1])
            if len(pairs) > FEW * before:
                return None
        groups, places = self._groups(fed)
        pairs, before = self._pairs(fed, places)
        if len(pairs) > FEW * before:
            return None
        keys = groups[pairs[GROUP]].get_columns() if self._keys else []
        return pl.DataFrame([*keys, *pairs.drop(GROUP).get_columns()])

    def entries(self, fed: pl.DataFrame, values: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, pl.DataFrame]]:
        """From rows and from values: the groups with their hashes, and entries by table."""
        groups, pairs = [], []
        for frame in (fed, values):
            found, places = self._groups(frame)
            hashed = self._hashed(found)
            made = self._pairs(fed, places)[0] if frame is fed else frame.drop(self._keys).with_columns(places)
            groups.append(hashed)
            pairs.append(made.drop(GROUP).with_columns(hashed.select(HASHES)[made[GROUP]]))
        both, tables = pl.concat(pairs, how="diagonal"), {}
        for name, column in zip(self.tables, self._columns, strict=True):
            mine = both.filter(pl.col(column).is_not_null()).select(*HASHES, pl.col(column).alias(VALUE), MASK)
            if len(values):  # from several tasks
                mine = mine.group_by(*HASHES, VALUE).agg(pl.col(MASK).bitwise_or())
            tables[name] = mine
        return pl.concat(groups).unique(HASHES), tables

    def _groups(self, rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
        """The keys that arrived, and the number of each row's key: integers are faster to compare."""
        if not self._keys:
            return pl.DataFrame({GROUP: [0]}), pl.zeros(len(rows), pl.UInt32, eager=True).alias(GROUP)
        keys = rows.select(self._keys)
        groups = keys.unique()
        numbers = groups.with_row_index(GROUP)
        return groups, keys.join(numbers, on=self._keys, nulls_equal=True, maintain_order="left")[GROUP]

    def _hashed(self, groups: pl.DataFrame) -> pl.DataFrame:
        if not self._keys:
            return pl.DataFrame([pl.Series(name, [0], pl.UInt64) for name in HASHES])
        salted = groups.with_columns(pl.lit(1, pl.Int64).alias(GROUP))
        made = [key_hashes(groups, self._keys), key_hashes(salted, [GROUP, *self._keys])]
        return groups.with_columns(pl.Series(name, hashes) for name, hashes in zip(HASHES, made, strict=True))

    def _pairs(self, fed: pl.DataFrame, places: pl.Series) -> tuple[pl.DataFrame, int]:
        """Group, value and the counts that include it, deduplicated; and from how many rows."""
        found, before = [self._no_pairs], 0
        for column, names in self._columns.items():
            parts = []
            for family in _families(fed, names):
                mask = np.zeros(len(fed), np.uint64)
                for name in family:
                    mask |= np.where(
                        fed[f"{name}.input"].is_not_null().to_numpy(), np.uint64(self._bits[name]), np.uint64(0)
                    )
                rows = pl.DataFrame([places, pl.Series(MASK, mask), fed[f"{family[0]}.input"].alias(column)])
                parts.append(rows.drop_nulls(column))
            together = pl.concat(parts)
            before += len(together)
            found.append(together.group_by(GROUP, column).agg(pl.col(MASK).bitwise_or()))
        return pl.concat(found, how="diagonal"), before

    # ------------------------------------------------------------ new values

    def new(self, entries: Frames, held: Frames) -> tuple[dict[str, pl.DataFrame], pl.DataFrame]:
        """The entries to write, and how many values are new for each count, by group hashes."""
        put, fresh = {}, []
        for name, rows in entries.items():
            known = held[name].rename({MASK: "known"})
            rows = rows.join(known, on=self.own_keys[name], how="left").with_columns(pl.col("known").fill_null(0))
            rows = rows.with_columns((pl.col(MASK) - (pl.col(MASK) & pl.col("known"))).alias("fresh"))
            rows = rows.filter(pl.col("fresh") != 0)
            put[name] = rows.select(*HASHES, VALUE, pl.col(MASK) | pl.col("known"))
            fresh.append(rows.select(*HASHES, "fresh"))
        counts = [
            ((pl.col("fresh") & pl.lit(self._bits[name], pl.UInt64)) != 0).sum().cast(pl.Int64).alias(count)
            for name, count in self.counts.items()
        ]
        return put, pl.concat(fresh).group_by(HASHES).agg(counts)

    def counted(self, groups: pl.DataFrame, counts: pl.DataFrame) -> pl.DataFrame:
        """The same, by group keys."""
        return groups.join(counts, on=HASHES).drop(HASHES)


def _families(fed: pl.DataFrame, names: Sequence[str]) -> list[list[str]]:
    """Counts grouped so that each counts the values of the first, or fewer of them."""
    found: list[list[str]] = []
    for name in names:
        own = fed[f"{name}.input"]
        for family in found:
            first = fed[f"{family[0]}.input"]
            if (own.is_null() | (own == first).fill_null(False)).all():
                family.append(name)
                break
        else:
            found.append([name])
    return found
