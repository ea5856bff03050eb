"""Spark's functions of arrays, maps and structs, in DuckDB."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from millstream.expressions.function_entries import (
    BOOLEAN,
    INT,
    STRING,
    Function,
    literal_of,
)
from millstream.expressions.lowered import (
    Lowered,
    Refusal,
    failing,
    together,
    type_name,
)
from millstream.expressions.spark_types import quoted


def item(part: Lowered, index: Lowered) -> Lowered:
    """part[index]: arrays from 0, with an error out of bounds; maps by key, null if it is missing."""
    if part.family == "map":
        return _of_map(part, index)
    if part.family == "array" and pa.types.is_integer(index.type):
        outside = f"{part.sql} IS NOT NULL AND ({index.sql} < 0 OR {index.sql} >= len({part.sql}))"
        made = failing(outside, "an array index is outside the array", f"list_extract({part.sql}, {index.sql} + 1)")
        return Lowered(made, part.type.value_type, fails=True)
    raise Refusal(f"{type_name(part.type)} has no item at {type_name(index.type)}")


def _of_map(part: Lowered, key: Lowered) -> Lowered:
    (wanted, _), kind = together([key, Lowered("NULL", part.type.key_type)], "the key of a map")
    if kind != part.type.key_type:
        raise Refusal(f"the keys of the map are {type_name(part.type.key_type)}, not {type_name(key.type)}")
    return Lowered(f"{part.sql}[{wanted.sql}]", part.type.item_type)


def element_at(parts: Sequence[Lowered]) -> Lowered:
    if parts[0].family == "map":
        return _of_map(*parts)
    if parts[0].family != "array" or not pa.types.is_integer(parts[1].type):
        raise Refusal("element_at takes an array and a position, or a map and a key")
    whole, at = parts[0].sql, parts[1].sql
    made = failing(
        f"{whole} IS NOT NULL AND ({at} = 0 OR abs({at}) > len({whole}))",
        "element_at outside the array",
        f"list_extract({whole}, {at})",
    )
    return Lowered(made, parts[0].type.value_type, fails=True)


def get(parts: Sequence[Lowered]) -> Lowered:
    made = f"(CASE WHEN {parts[1].sql} >= 0 THEN list_extract({parts[0].sql}, {parts[1].sql} + 1) END)"
    return Lowered(made, parts[0].type.value_type)


def size(parts: Sequence[Lowered]) -> Lowered:
    if parts[0].family not in ("array", "map"):
        raise Refusal(f"size takes an array or a map, but got {type_name(parts[0].type)}")
    name = "len" if parts[0].family == "array" else "cardinality"
    return Lowered(f"CAST({name}({parts[0].sql}) AS INTEGER)", INT)


def array(parts: Sequence[Lowered]) -> Lowered:
    if not parts:
        raise Refusal("array() has no type", "give it a value")
    alike, kind = together(list(parts), "array")
    if pa.types.is_null(kind):
        raise Refusal("an array of nulls has no type", "give it one with cast(null as …)")
    return Lowered(f"list_value({', '.join(part.sql for part in alike)})", pa.list_(kind))


def array_contains(parts: Sequence[Lowered]) -> Lowered:
    whole, (wanted, _) = (
        parts[0].sql,
        together([parts[1], Lowered("NULL", parts[0].type.value_type)], "array_contains")[0],
    )
    found = f"list_contains({whole}, {wanted.sql})"
    unknown = f"(NOT {found} AND len(list_filter({whole}, lambda part: part IS NULL)) > 0)"
    return Lowered(f"(CASE WHEN {wanted.sql} IS NULL OR {unknown} THEN NULL ELSE {found} END)", BOOLEAN)


def of_items(template: str) -> Function:
    return Function(
        ("array",),
        lambda parts: Lowered(template.format(parts[0].sql), parts[0].type.value_type),
        note="nulls are skipped",
    )


def array_join(parts: Sequence[Lowered]) -> Lowered:
    if parts[0].type.value_type != STRING:
        raise Refusal(f"array_join takes an array of strings, but got {type_name(parts[0].type)}")
    return Lowered(f"array_to_string({parts[0].sql}, {parts[1].sql})", STRING)


def map_parts(name: str) -> Function:
    def lower(parts: Sequence[Lowered]) -> Lowered:
        kind = parts[0].type.key_type if name == "map_keys" else parts[0].type.item_type
        return Lowered(f"{name}({parts[0].sql})", pa.list_(kind))

    return Function(("map",), lower)


def struct_of(fields: Sequence[tuple[str, Lowered]]) -> Lowered:
    if not fields or any(pa.types.is_null(part.type) for _, part in fields):
        raise Refusal("a struct needs fields with types", "give nulls a type with cast(null as …)")
    said = ", ".join(f"{quoted(name)} := {part.sql}" for name, part in fields)
    kind = pa.struct([pa.field(name, part.type) for name, part in fields])
    return Lowered(f"struct_pack({said})", kind, any(part.fails for _, part in fields))


def named_struct(parts: Sequence[Lowered]) -> Lowered:
    if len(parts) % 2:
        raise Refusal("named_struct takes alternating names and values")
    names = [literal_of(part, "named_struct", "name") for part in parts[::2]]
    return struct_of(list(zip(names, parts[1::2], strict=True)))
