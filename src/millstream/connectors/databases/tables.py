"""What the sinks of all databases share: how rows lie in a table, and what a table that is there must look like."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from millstream import terminal
from millstream.connectors.databases.changes import Changes, append_changes, upsert_changes
from millstream.connectors.flat_rows import check_json, flat_arrays
from millstream.connectors.refusals import kept, narrowed
from millstream.connectors.weights import WEIGHT, one_batch
from millstream.errors import InvalidSchema
from millstream.plan.endpoints import Table
from millstream.plan.flat_columns import FlatColumn, flat_columns
from millstream.records import Schema, align

LEDGER = "_millstream_batches"
UNIT_WEIGHT, UNIT_PLACES = "__unit_weight", "__unit_places"
LOOKUP_COLUMNS = 3  # by these a row that is taken back is looked up where there is no key: of panes, key and window

logger = terminal.logger(__name__)
Stored = Callable[[pa.Array], pa.Array]


@dataclass(frozen=True)
class Units:
    """Rows as a table stores them, each with its weight, and with the places in the batch that it stands for."""

    rows: pl.DataFrame
    weights: pl.Series | None
    places: pl.Series

    def part(self, start: int, end: int) -> Units:
        count = end - start
        weights = None if self.weights is None else self.weights.slice(start, count)
        return Units(self.rows.slice(start, count), weights, self.places.slice(start, count))

    def applied(self, attempt: Callable[[Units], None]) -> dict[int, str]:
        """Tries to apply all of them, by halves where some row is refused; the places of those that are, and why."""
        refused: dict[int, str] = {}

        def note(units: Units, reason: str) -> None:
            refused.update(dict.fromkeys(units.places.explode().to_list(), reason))

        narrowed(self, lambda units: units.rows.height, Units.part, attempt, note)
        return refused


class Layout:
    """The columns of a table, and how rows become what is stored there."""

    def __init__(self, place: Table, schema: Schema, stored: Stored) -> None:
        check_json(schema)
        self._schema = schema
        self._stored = stored
        self._place = place
        self.columns: tuple[FlatColumn, ...] = flat_columns(schema)
        self.names = [column.name for column in self.columns]
        self.key = list(place.key_columns(schema))
        simple = [column.name for column in self.columns if not pa.types.is_nested(column.type)]
        self.lookup = self.key or simple[:LOOKUP_COLUMNS] or self.names[:1]

    def units(self, rows: pa.Table, weights: pa.Array | None, refused: Mapping[int, str]) -> Units:
        """The rows as they are stored, but for those that are refused."""
        batch = align(one_batch(rows), self._schema.arrow)
        places = pl.int_range(batch.num_rows, dtype=pl.Int64, eager=True)
        if refused:
            chosen = kept(batch.num_rows, refused)
            batch, places = batch.filter(chosen), places.filter(pl.Series(chosen))
            weights = None if weights is None else weights.filter(chosen)
        if weights is not None and WEIGHT in self._schema:
            # A row that is taken back is the one that came, but for its weight: tables hold it as it came.
            came = pa.repeat(pa.scalar(1, self._schema.field(WEIGHT).type), batch.num_rows)
            batch = batch.set_column(self._schema.arrow.get_field_index(WEIGHT), self._schema.field(WEIGHT), came)
        arrays = [self._stored(array) for array in flat_arrays(batch, self.columns)]
        frame = pl.DataFrame(pa.table(arrays, names=self.names))
        given = None if weights is None else pl.Series(weights)
        if self.key or given is None or bool((given > 0).all()):
            return Units(frame, given, places)
        # Equal rows that come and go are one unit: done one after the other, a row might go before it came.
        sums = (
            frame.with_columns(given.cast(pl.Int64).alias(UNIT_WEIGHT), places.alias(UNIT_PLACES))
            .group_by(frame.columns, maintain_order=True)
            .agg(pl.col(UNIT_WEIGHT).sum(), pl.col(UNIT_PLACES))
        )
        return Units(sums.select(frame.columns), sums[UNIT_WEIGHT], sums[UNIT_PLACES])

    def changes(self, units: Units) -> Changes:
        if self.key:
            return upsert_changes(units.rows, units.weights, self.key)
        return append_changes(units.rows, units.weights)

    def check_table(self, found: Mapping[str, str], fits: Callable[[pa.DataType, str], bool], where: str) -> None:
        """Refuses a table with other columns, or with types that cannot hold the rows; `found` maps name to type."""
        there = {name.lower(): kind for name, kind in found.items()}
        own = {column.name.lower(): column for column in self.columns}
        missing = [column.name for name, column in own.items() if name not in there]
        strange = [name for name in found if name.lower() not in own]
        reasons = [f"it has no column {_listed(missing)}"] if missing else []
        reasons += [f"the rows have no column {_listed(strange)}"] if strange else []
        reasons += [
            f"its column '{column.name}' is {there[name]}, which cannot hold {column.type}"
            for name, column in own.items()
            if name in there and not fits(column.type, there[name])
        ]
        if reasons:
            raise InvalidSchema(
                f"the table '{self._place.table}' that is there does not fit the rows: {'; '.join(reasons)}",
                where=where,
                next_step="write to another table, or bring the rows to its columns with select(…)",
            )


def warn_of_missing(count: int, table: str) -> None:
    """Someone else has changed the table. What is gone already cannot be taken back; that is no reason to stop."""
    if count > 0:
        logger.warning("%d rows were to be taken back from table '%s', which does not have them", count, table)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
