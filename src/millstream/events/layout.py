"""The columns of a store's topic: one record per event, its key the stream, so that any flow can read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from operator import attrgetter

import pyarrow as pa

from millstream.log.storage.layout import HEADERS, TIMESTAMP, no_values, stored_schema
from millstream.records import Schema

SCHEMA = "stream string, version bigint, type string, format int, id string, data string, metadata string, at timestamp"
CLOSED = "$closed"
RETENTION = "$retention"
DELETED = "deleted_before"
"""The field of a row with rules that has the position before which Kafka may delete all records."""
PERSONAL = "$personal"  # the field with the encrypted ones
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STORED: pa.Schema = stored_schema(Schema.of(SCHEMA))
COLUMNS: list[pa.Field] = list(STORED.field("value").type)


@dataclass(slots=True)
class Row:
    """An event as it is stored. Rows of the store itself, such as the end of a stream, have no version.

    The version and the time are set when it is decided that it is stored: one object per event, not two, because the
    garbage collector takes a large part of the time of an append.
    """

    stream: str
    version: int | None
    type: str
    format: int
    id: str
    data: str
    metadata: str | None
    at_us: int

    @property
    def at(self) -> datetime:
        return EPOCH + timedelta(microseconds=self.at_us)


values_of = attrgetter(*(field.name for field in fields(Row)))
"""The values of a row, in the order of the columns."""


def to_batch(rows: Sequence[Row]) -> pa.RecordBatch:
    """The rows as records of the topic."""
    columns = list(zip(*map(values_of, rows), strict=True))
    values = [pa.array(column, field.type) for column, field in zip(columns, COLUMNS, strict=True)]
    value = pa.StructArray.from_arrays(values, fields=COLUMNS)
    keys = values[0].view(pa.binary())
    times = values[-1].view(TIMESTAMP)
    return pa.RecordBatch.from_arrays([keys, value, times, no_values(HEADERS, len(rows))], schema=STORED)


def to_rows(value: pa.StructArray) -> list[Row]:
    """The rows of a column of values."""
    columns = value.flatten()
    columns[-1] = columns[-1].cast(pa.int64())
    return [Row(*row) for row in zip(*(column.to_pylist() for column in columns), strict=True)]
