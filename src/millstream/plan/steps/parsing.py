"""Columns that are encoded in another one: texts in JSON, CSV or a pattern, or bytes in Avro or Protobuf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.expressions.column_texts import ExpressionLike, as_text
from millstream.plan.checks import column_of, refusal
from millstream.plan.nodes import Parse
from millstream.records import Codec, Schema, SchemaLike, codec
from millstream.records.codecs.regex import regex_codec
from millstream.user_lines import AtUsersLine, users_line, what_exists

if TYPE_CHECKING:
    from millstream.plan.stream import Stream

WITH_PATTERN = r"parse('line', format='regex', pattern='(?P<user>\w+) .*', …)"
FORMATS = ("json", "csv", "avro", "protobuf", "regex", "grok")


def parse(
    stream: Stream,
    encoded: ExpressionLike,
    schema: SchemaLike | None,
    format: str,
    options: Mapping[str, Any],
    name: str | None,
) -> Stream:
    given = stream.schema
    column = column_of(given, as_text(encoded))
    kind = given.field(column).type
    if not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        raise refusal(f"parse takes a string or binary column, but '{column}' is {kind}", "name the encoded column")
    made = _codec(format, schema, options)
    rest = [field for field in given.arrow if field.name != column]
    taken = {field.name.lower() for field in rest}
    if twice := [name for name in made.schema.names if name.lower() in taken]:
        raise refusal(
            f"there is already a column '{twice[0]}' beside '{column}'",
            f"rename it first: rename({twice[0]}='…'), or drop('{twice[0]}')",
        )
    with AtUsersLine():
        columns = Schema.from_arrow(pa.schema([*rest, *made.schema.arrow]))
    node = Parse("", columns, (stream.node,), users_line(), column, made)
    return stream._next(stream.flow.named(node, "parse", name))


def _codec(format: str, schema: SchemaLike | None, options: Mapping[str, Any]) -> Codec:
    if format not in FORMATS:
        raise refusal(f"there is no format {format!r}", what_exists(format, FORMATS, kind="formats"))
    with AtUsersLine():
        if format in ("regex", "grok"):
            unknown = [option for option in options if option != "pattern"]
            if unknown or "pattern" not in options:
                raise refusal(f"the format '{format}' takes one option, pattern", WITH_PATTERN)
            return regex_codec(options["pattern"], schema)
        if "pattern" in options:
            raise refusal(f"the format '{format}' has no option 'pattern'", WITH_PATTERN)
        return codec(format, schema, **options)


def decoded(values: pa.Array, node: Parse) -> tuple[pa.RecordBatch, npt.NDArray[np.int64], dict[int, str]]:
    """The rows that values have, the place of each value, and reasons for the others. A null has a row of nulls."""
    found = node.codec.decode(values.cast(pa.binary()))
    reasons = {failure.index: failure.reason for failure in found.failures}
    nulls = found.tombstones
    strict = [field.name for field in node.codec.schema.arrow if not field.nullable]
    if len(nulls) and strict:
        reasons |= {int(place): f"it is null, and column '{strict[0]}' is NOT NULL" for place in nulls}
        nulls = nulls[:0]
    if not len(nulls):
        return found.rows, found.indices, dict(sorted(reasons.items()))
    empty = pa.RecordBatch.from_arrays(
        [pa.nulls(len(nulls), field.type) for field in found.rows.schema], schema=found.rows.schema
    )
    places = np.concatenate([found.indices, nulls])
    order = np.argsort(places, kind="stable")
    rows = pa.Table.from_batches([found.rows, empty]).take(pa.array(order)).combine_chunks().to_batches()
    whole = rows[0] if rows else empty
    return whole, places[order], dict(sorted(reasons.items()))
