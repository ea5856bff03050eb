"""How a record lies in a segment: key, value, timestamp, headers; the value is bytes, or a struct of typed columns."""

from __future__ import annotations

import pyarrow as pa

from millstream.records import Schema

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADERS = pa.map_(pa.string(), pa.binary())


def stored_schema(schema: Schema | None) -> pa.Schema:
    value = pa.binary() if schema is None else pa.struct(list(schema.arrow))
    return pa.schema([("key", pa.binary()), ("value", value), ("timestamp", TIMESTAMP), ("headers", HEADERS)])
