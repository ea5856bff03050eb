"""Spark's functions of maps, in DuckDB: a key is unique and not null, otherwise it is an error."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from millstream.expressions.array_functions import any_null, where
from millstream.expressions.function_entries import BOOLEAN, STRING, Function, let, literal_of
from millstream.expressions.lowered import NULL_KEY, Lowered, Refusal, failing, text, together, type_name
from millstream.expressions.spark_types import duckdb_name, family


def key_type(kind: pa.DataType) -> pa.DataType:
    """Spark normalizes -0.0 and NaN in keys; DuckDB does not."""
    if pa.types.is_floating(kind) or family(kind) in ("array", "map", "struct", "null"):
        raise Refusal(f"a map with keys of type {type_name(kind)} is not supported in a flow")
    return kind


def built(keys: str, values: str) -> str:
    return failing(f"{where(keys, 'NULL')} > 0", NULL_KEY, f"map({keys}, {values})")


def map_of(parts: Sequence[Lowered]) -> Lowered:
    if not parts or len(parts) % 2:
        raise Refusal("map takes alternating keys and values")
    keys, key = together(list(parts[::2]), "the keys of a map")
    values, value = together(list(parts[1::2]), "the values of a map")
    if pa.types.is_null(value):
        raise Refusal("a map of nulls has no type", "give it one with cast(null as …)")
    listed = [", ".join(part.sql for part in each) for each in (keys, values)]
    made = built(f"list_value({listed[0]})", f"list_value({listed[1]})")
    return Lowered(made, pa.map_(key_type(key), value), fails=True)


def from_arrays(parts: Sequence[Lowered]) -> Lowered:
    kind = pa.map_(key_type(parts[0].type.value_type), parts[1].type.value_type)
    made = let(parts, lambda k, v: f"(CASE WHEN {any_null(k, v)} THEN NULL ELSE {built(k, v)} END)")
    return Lowered(f"CAST({made} AS {duckdb_name(kind)})", kind, fails=True)


def from_entries(parts: Sequence[Lowered]) -> Lowered:
    entry = parts[0].type.value_type
    if family(entry) != "struct" or entry.num_fields != 2:
        raise Refusal("map_from_entries takes an array of structs with two fields")
    names = [text(field.name) for field in entry]
    kind = pa.map_(key_type(entry.field(0).type), entry.field(1).type)

    def body(entries: str) -> str:
        keys, values = (f'list_transform({entries}, lambda "each": struct_extract("each", {name}))' for name in names)
        missing = f'len(list_filter({entries}, lambda "each": "each" IS NULL)) > 0'
        return f"(CASE WHEN {any_null(entries)} OR {missing} THEN NULL ELSE {built(keys, values)} END)"

    return Lowered(f"CAST({let(parts, body)} AS {duckdb_name(kind)})", kind, fails=True)


def entry_type(kind: pa.DataType) -> pa.DataType:
    return pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])


def entries(parts: Sequence[Lowered]) -> Lowered:
    return Lowered(f"map_entries({parts[0].sql})", pa.list_(entry_type(parts[0].type)))


def contains_key(parts: Sequence[Lowered]) -> Lowered:
    (key, _), kind = together([parts[1], Lowered("NULL", parts[0].type.key_type)], "the key of a map")
    if kind != parts[0].type.key_type:
        raise Refusal(f"the keys of the map are {type_name(parts[0].type.key_type)}, not {type_name(parts[1].type)}")
    made = let(
        [parts[0], key],
        lambda m, k: f"(CASE WHEN {any_null(m, k)} THEN NULL ELSE {where(f'map_keys({m})', k)} > 0 END)",
    )
    return Lowered(made, BOOLEAN)


def concatenated(parts: Sequence[Lowered]) -> Lowered:
    kind = parts[0].type
    for part in parts:
        if part.type != kind:
            raise Refusal(f"map_concat has maps of types {type_name(kind)} and {type_name(part.type)}")
    key_type(kind.key_type)

    def body(*maps: str) -> str:
        keys, values = (", ".join(f"map_{what}({each})" for each in maps) for what in ("keys", "values"))
        return f"(CASE WHEN {any_null(*maps)} THEN NULL ELSE map(list_concat({keys}), list_concat({values})) END)"

    return Lowered(f"CAST({let(parts, body)} AS {duckdb_name(kind)})", kind, fails=True)


ONE_LETTER = re.compile(r"[\w/,;:=&@ ~#%<>'\"!-]|\\[^\w\s]|\[[\w/,;:=&@ ~#%<>'\"!|.]+\]")
"""A pattern that matches one letter: a plain one, one with a backslash, or one of several."""


def from_text(parts: Sequence[Lowered]) -> Lowered:
    """str_to_map: a key ends at the first separator; without one its value is null."""
    between, within = (
        literal_of(parts[at], "str_to_map", "separator") if len(parts) > at else default
        for at, default in ((1, ","), (2, ":"))
    )
    for pattern in (between, within):
        if not ONE_LETTER.fullmatch(pattern):
            raise Refusal(f"'{pattern}' does not separate by one letter")
    pair, key = '"pair"', f'string_split_regex("pair", {text(within)})[1]'

    def body(given: str) -> str:
        pairs = f"string_split_regex({given}, {text(between)})"
        value = f"(CASE WHEN length({key}) < length({pair}) THEN substr({pair}, length({key}) + 2) END)"
        keys, values = (f"list_transform({pairs}, lambda {pair}: {made})" for made in (key, value))
        return f"(CASE WHEN {any_null(given)} THEN NULL ELSE map({keys}, {values}) END)"

    return Lowered(let(parts[:1], body), pa.map_(STRING, STRING), fails=True)


def parts_of(name: str) -> Function:
    def lower(parts: Sequence[Lowered]) -> Lowered:
        kind = parts[0].type.key_type if name == "map_keys" else parts[0].type.item_type
        return Lowered(f"{name}({parts[0].sql})", pa.list_(kind))

    return Function(("map",), lower)


MAPS: dict[str, Function] = {
    "map": Function(("any",), map_of, optional=1, repeats=True),
    "map_from_arrays": Function(("array", "array"), from_arrays),
    "map_from_entries": Function(("array",), from_entries),
    "map_keys": parts_of("map_keys"),
    "map_values": parts_of("map_values"),
    "map_entries": Function(("map",), entries),
    "map_contains_key": Function(("map", "any"), contains_key),
    "str_to_map": Function(
        ("string", "string", "string"),
        from_text,
        optional=2,
        note="separators of one letter; a key that comes twice is an error",
    ),
    "map_concat": Function(("map",), concatenated, repeats=True, note="an error if a key comes twice"),
}
