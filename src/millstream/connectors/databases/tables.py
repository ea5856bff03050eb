"""Shared by all database sinks: how rows are stored in a table, and whether an existing table fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from millstream import terminal
from millstream.connectors.databases.changes import Changes, append_changes, upsert_changes
from millstream.connectors.databases.endpoints import DatabaseTable
from millstream.connectors.flat_rows import check_json, flat_arrays
from millstream.connectors.refusals import kept, narrowed
from millstream.connectors.weights import WEIGHT, one_batch
from millstream.errors import InvalidSchema
from millstream.plan.steps.flat_columns import FlatColumn, flat_columns
from millstream.records import Schema, align

LEDGER = "_millstream_batches"
UNIT_WEIGHT, UNIT_PLACES = "__unit_weight", "__unit_places"
LOOKUP_COLUMNS = 3  # for finding a retracted row without a key: in panes, key and window

logger = terminal.logger(__name__)
Stored = Callable[[pa.Array], pa.Array]


@dataclass(frozen=True)
class Units:
    """Rows as a table stores them, each with its weight and its positions in the batch."""

    rows: pl.DataFrame
    weights: pl.Series | None
    places: pl.Series

    def part(self, start: int, end: int) -> Units:
        count = end - start
        weights = None if self.weights is None else self.weights.slice(start, count)
        return Units(self.rows.slice(start, count), weights, self.places.slice(start, count))

    def applied(self, attempt: Callable[[Units], None]) -> dict[int, str]:
        """Applies all rows, bisecting where some are rejected; returns their positions and the reasons."""
        refused: dict[int, str] = {}

        def note(units: Units, reason: str) -> None:
            refused.update(dict.fromkeys(units.places.explode().to_list(), reason))

        narrowed(self, lambda units: units.rows.height, Units.part, attempt, note)
        return refused


class Layout:
    """The columns of a table, and the conversion of rows."""

    def __init__(self, endpoint: DatabaseTable, schema: Schema, stored: Stored) -> None:
        check_json(schema)
        self._schema = schema
        self._stored = stored
        self._endpoint = endpoint
        self.columns: tuple[FlatColumn, ...] = flat_columns(schema)
        self.names = [column.name for column in self.columns]
        self.key = list(endpoint.key_columns(schema))
        simple = [column.name for column in self.columns if not pa.types.is_nested(column.type)]
        self.lookup = self.key or simple[:LOOKUP_COLUMNS] or self.names[:1]

    def units(self, rows: pa.Table, weights: pa.Array | None, refused: Mapping[int, str]) -> Units:
        """The rows as stored, without the rejected ones."""
        batch = align(one_batch(rows), self._schema.arrow)
        places = pl.int_range(batch.num_rows, dtype=pl.Int64, eager=True)
        if refused:
            chosen = kept(batch.num_rows, refused)
            batch, places = batch.filter(chosen), places.filter(pl.Series(chosen))
            weights = None if weights is None else weights.filter(chosen)
        if weights is not None and WEIGHT in self._schema:
            # A retraction equals its row except for the weight: tables contain the row as it arrived.
            came = pa.repeat(pa.scalar(1, self._schema.field(WEIGHT).type), batch.num_rows)
            batch = batch.set_column(self._schema.arrow.get_field_index(WEIGHT), self._schema.field(WEIGHT), came)
        arrays = [self._stored(array) for array in flat_arrays(batch, self.columns)]
        frame = pl.DataFrame(pa.table(arrays, names=self.names))
        given = None if weights is None else pl.Series(weights)
        if self.key or given is None or bool((given > 0).all()):
            return Units(frame, given, places)
        # Equal rows that are added and retracted are one unit: separately, a row might be deleted before it is added.
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
        """Rejects a table with other columns, or with types that cannot store the rows; `found` maps name to type."""
        there = {name.lower(): kind for name, kind in found.items()}
        own = {column.name.lower(): column for column in self.columns}
        missing = [column.name for name, column in own.items() if name not in there]
        strange = [name for name in found if name.lower() not in own]
        reasons = [f"it has no column {_listed(missing)}"] if missing else []
        reasons += [f"the rows have no column {_listed(strange)}"] if strange else []
        reasons += [
            f"its column '{column.name}' is {there[name]}, which cannot store {column.type}"
            for name, column in own.items()
            if name in there and not fits(column.type, there[name])
        ]
        if reasons:
            raise InvalidSchema(
                f"the existing table '{self._endpoint.table}' does not fit the rows: {'; '.join(reasons)}",
                where=where,
                next_step="write to another table, or convert the rows to its columns with select(…)",
            )


def warn_of_missing(count: int, table: str) -> None:
    """Another program has changed the table. Missing rows cannot be deleted, but that is no reason to stop."""
    if count > 0:
        logger.warning("%d rows were retracted that table '%s' does not have", count, table)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
