"""A change of one row, and the columns that changes have in a topic.

A topic has the changes of one table. Its images `before` and `after` have the columns of the table, all of them
nullable, and of columns that the table had before: a schema only grows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from millstream.errors import InvalidInput, NotFound
from millstream.records import Schema, can_evolve
from millstream.user_lines import what_exists

SNAPSHOT, INSERT, UPDATE, DELETE, TRUNCATE, MESSAGE = "snapshot", "insert", "update", "delete", "truncate", "message"
TIME = pa.timestamp("us", "UTC")
Values = tuple[Any, ...]
ToArrow = Callable[[Sequence[Any], pa.Field], pa.Array]
ColumnTypes = Mapping[tuple[str, str], pa.DataType]
"""By table and column: the types that replace those of the database."""


def key_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return value.hex() if isinstance(value, bytes) else str(value)


class Change(NamedTuple):
    """One change; the values of an image are in the order of the table's columns, as the database returns them."""

    op: str
    before: Values | None
    after: Values | None
    transaction: str
    number: int
    """Its place among the changes of its transaction, from 0."""
    position: int
    """Its place in the change log of the database: never decreasing."""
    at_us: int
    unsent: Sequence[str] | None = None
    """Columns whose value the database did not send, because the update did not change it."""


@dataclass(frozen=True)
class TableShape:
    """The columns of a captured table, now and in its topic."""

    name: str
    topic: str
    columns: Schema
    key: tuple[str, ...]
    """Key columns; none if the table has no key."""
    stored: Schema
    """The columns of its images in the topic: those it has now, and those it had before."""

    @classmethod
    def of(cls, name: str, topic: str, columns: Schema, key: Sequence[str]) -> TableShape:
        nullable = Schema.of(pa.schema([field.with_nullable(True) for field in columns.arrow]))
        return cls(name, topic, nullable, tuple(key), nullable)

    def since(self, before: Schema, where: str) -> TableShape:
        """The shape, given the columns that its images had before; raises if those cannot be kept."""
        kept = [field if field.name not in self.columns else self._wider(field) for field in before.arrow]
        added = [field for field in self.columns.arrow if field.name not in before]
        stored = Schema.of(pa.schema([*kept, *added]))
        if reasons := can_evolve(before, stored):
            raise InvalidInput(
                f"table '{self.name}' has changed, and its new columns do not fit the topic '{self.topic}': "
                + "; ".join(reasons),
                where=where,
                next_step="capture it under another name, into another topic: the new topic starts with a snapshot",
            )
        return replace(self, stored=stored)

    def _wider(self, before: pa.Field) -> pa.Field:
        """A column as the topic has it, if values of the table's type fit into it; else as the table has it."""
        now = self.columns.field(before.name)
        return before if not can_evolve(pa.schema([now]), pa.schema([before])) else now

    @property
    def envelope(self) -> Schema:
        """The columns of the topic."""
        return envelope(self.stored)

    def batch(
        self, changes: Sequence[Change], to_arrow: ToArrow, as_text: Callable[[Any], str | None] = key_text
    ) -> pa.RecordBatch:
        """The records of changes, in order. `as_text` makes the text of a key from a value of an image."""
        before = self._images([change.before for change in changes], to_arrow)
        after = self._images([change.after for change in changes], to_arrow)
        ops, _, _, transactions, numbers, positions, times, unsent = zip(*changes, strict=True)
        keys = self.keys([change.before if change.after is None else change.after for change in changes], as_text)
        columns = [
            pa.repeat(self.name, len(changes)),
            pa.array(ops, pa.string()),
            keys,
            before,
            after,
            pa.array(unsent, pa.list_(pa.string())),
            pa.array(transactions, pa.string()),
            pa.array(numbers, pa.int32()),
            pa.array(positions, pa.int64()),
            pa.array(times, pa.int64()).cast(TIME),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.envelope.arrow)

    def snapshot(
        self, columns: Sequence[pa.Array], keys: pa.Array, transaction: str, number: int, position: int, at_us: int
    ) -> pa.RecordBatch:
        """The records of rows, given by column; `number` is that of the first."""
        rows, schema = len(keys), self.envelope.arrow
        after = pa.StructArray.from_arrays(self._stored(columns, rows), fields=list(self.stored.arrow))
        arrays = [
            pa.repeat(self.name, rows),
            pa.repeat(SNAPSHOT, rows),
            keys,
            pa.nulls(rows, after.type),
            after,
            pa.nulls(rows, schema.field("unsent").type),
            pa.repeat(transaction, rows),
            pa.array(np.arange(number, number + rows, dtype=np.int32)),
            pa.repeat(pa.scalar(position, pa.int64()), rows),
            pa.repeat(pa.scalar(at_us, pa.int64()), rows).cast(TIME),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def keys(self, images: Sequence[Values | None], as_text: Callable[[Any], str | None] = key_text) -> pa.Array:
        """The record keys: the value of a key column as text, or a JSON array of several."""
        places = [self.columns.names.index(name) for name in self.key]
        if not places:
            return pa.nulls(len(images), pa.string())
        if len(places) == 1:
            return pa.array([None if image is None else as_text(image[places[0]]) for image in images], pa.string())
        several = [None if image is None else [as_text(image[place]) for place in places] for image in images]
        return pa.array([None if key is None else json.dumps(key, ensure_ascii=False) for key in several], pa.string())

    def _images(self, images: Sequence[Values | None], to_arrow: ToArrow) -> pa.StructArray:
        nothing = (None,) * len(self.columns)
        values = zip(*(nothing if image is None else image for image in images), strict=True)
        columns = [to_arrow(column, field) for column, field in zip(values, self.columns.arrow, strict=True)]
        absent = pa.array([image is None for image in images], pa.bool_())
        return pa.StructArray.from_arrays(
            self._stored(columns, len(images)), fields=list(self.stored.arrow), mask=absent
        )

    def _stored(self, columns: Sequence[pa.Array], rows: int) -> list[pa.Array]:
        """The columns of an image in the topic, from those of the table."""
        by_name = dict(zip(self.columns.names, columns, strict=True))
        return [
            by_name[field.name].cast(field.type) if field.name in by_name else pa.nulls(rows, field.type)
            for field in self.stored.arrow
        ]


def check_distinct(tables: Iterable[tuple[str, Hashable]], where: str) -> None:
    """Raises if two names are of the same table: its changes would go to one of the topics only."""
    names: dict[Hashable, str] = {}
    for name, id in tables:
        if id in names:
            raise InvalidInput(
                f"'{name}' is another name of the table '{names[id]}', which is captured already",
                where=where,
                next_step="name each table once",
            )
        names[id] = name


def check_columns(chosen: Iterable[tuple[str, str]], shapes: Iterable[TableShape], where: str) -> None:
    """Raises if one of these columns, by table and name, is not captured: its type would be ignored."""
    stored = {shape.name: shape.stored.names for shape in shapes}
    for table, column in chosen:
        if table not in stored:
            raise InvalidInput(
                f"a type is given for '{table}.{column}', but '{table}' is not captured",
                where=where,
                next_step=what_exists(table, list(stored), kind="tables"),
            )
        if column not in stored[table]:
            raise NotFound(
                f"the table '{table}' has no column '{column}'",
                where=where,
                next_step=what_exists(column, stored[table]),
            )


def envelope(columns: Schema) -> Schema:
    """The columns of a topic with the changes of tables whose images have these columns."""
    image = pa.struct(list(columns.arrow))
    return Schema.of(
        pa.schema(
            [
                ("table", pa.string()),
                ("op", pa.string()),
                ("key", pa.string()),
                ("before", image),
                ("after", image),
                ("unsent", pa.list_(pa.string())),
                ("transaction", pa.string()),
                ("number", pa.int32()),
                ("position", pa.int64()),
                ("at", TIME),
            ]
        )
    )
