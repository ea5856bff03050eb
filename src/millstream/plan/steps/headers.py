"""Headers of records as a column: a map from names to bytes, which steps read and set like any other column."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from millstream.expressions.expression import expression
from millstream.expressions.lowered import type_name
from millstream.plan.checks import refusal
from millstream.plan.endpoints import Endpoint
from millstream.records import Schema

HEADERS = "headers"
TYPE = pa.map_(pa.string(), pa.binary())


def with_headers_column(source: Endpoint, schema: Schema) -> Schema:
    """The columns of a source, and the headers of its records."""
    if not source.is_topic:
        raise refusal(f"{source} has no headers: only records of topics have", "remove headers=True")
    if HEADERS in schema:
        _check_type(schema)
        return schema
    return Schema.from_arrow(pa.schema([*schema.arrow, pa.field(HEADERS, TYPE)]))


def set_headers(schema: Schema, given: Mapping[str, str]) -> str:
    """The expression of the column: what it has, with some headers replaced, added or, by null, removed."""
    if not given:
        raise refusal("with_headers needs at least one header", "for example with_headers(trace='trace_id')")
    entries, names = [], []
    for name, text in given.items():
        if not isinstance(name, str) or not name:
            raise refusal(f"the name of a header is a string, not {name!r}", "with_headers({'trace-id': 'id'})")
        names.append(_literal(name))
        entries.append(f"{names[-1]}, {_as_bytes(schema, name, text)}")
    made = f"map_filter(map({', '.join(entries)}), (name, value) -> value IS NOT NULL)"
    if HEADERS not in schema:
        return made
    _check_type(schema)
    none = "map_filter(map('', CAST('' AS BINARY)), (name, value) -> false)"
    others = f"map_filter(coalesce({HEADERS}, {none}), (name, value) -> name NOT IN ({', '.join(names)}))"
    return f"map_concat({others}, {made})"


def _as_bytes(schema: Schema, name: str, text: str) -> str:
    made = expression(text, schema)
    if made.native is not None:
        raise refusal(
            f"the header '{name}' is given as a Column, and headers are given as text",
            f"make it a column first: with_column('{name}', …), then with_headers({{'{name}': '`{name}`'}})",
        )
    kind = made.type
    if pa.types.is_nested(kind):
        raise refusal(
            f"the header '{name}' would be {type_name(kind)}, and a header is bytes", "make it a text: to_json(…)"
        )
    return f"({text})" if pa.types.is_binary(kind) else f"CAST(CAST(({text}) AS STRING) AS BINARY)"


def _literal(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _check_type(schema: Schema) -> None:
    found = schema.field(HEADERS).type
    if found != TYPE:
        raise refusal(
            f"the column '{HEADERS}' is {type_name(found)}, not map<string,binary>",
            "rename it first: rename(headers='…')",
        )
