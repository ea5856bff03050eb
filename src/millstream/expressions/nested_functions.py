"""Spark's functions of arrays, maps and structs, in DuckDB."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from millstream.expressions.function_entries import (
    INT,
    let,
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
        made = let(
            [part, _long(index)],
            lambda a, i: failing(
                f"{a} IS NOT NULL AND ({i} < 0 OR {i} >= len({a}))",
                "an array index is outside the array",
                f"list_extract({a}, {i} + 1)",
            ),
        )
        return Lowered(made, part.type.value_type, fails=True)
    raise Refusal(f"{type_name(part.type)} has no item at {type_name(index.type)}")


def _of_map(part: Lowered, key: Lowered) -> Lowered:
    (wanted, _), kind = together([key, Lowered("NULL", part.type.key_type)], "the key of a map")
    if kind != part.type.key_type:
        raise Refusal(f"the keys of the map are {type_name(part.type.key_type)}, not {type_name(key.type)}")
    return Lowered(f"{part.sql}[{wanted.sql}]", part.type.item_type)


def _long(part: Lowered) -> Lowered:
    return Lowered(f"CAST({part.sql} AS BIGINT)", pa.int64(), part.fails)


def element_at(parts: Sequence[Lowered], *, outside: str = " OR abs({i}) > len({a})") -> Lowered:
    if parts[0].family == "map":
        return _of_map(*parts)
    if parts[0].family != "array" or not pa.types.is_integer(parts[1].type):
        raise Refusal("element_at takes an array and a position, or a map and a key")
    made = let(
        [parts[0], _long(parts[1])],
        lambda a, i: failing(
            f"{a} IS NOT NULL AND ({i} = 0{outside.format(a=a, i=i)})",
            "element_at outside the array",
            f"list_extract({a}, {i})",
        ),
    )
    return Lowered(made, parts[0].type.value_type, fails=True)


def try_element_at(parts: Sequence[Lowered]) -> Lowered:
    """Null outside; but there is no position 0."""
    return element_at(parts, outside="")


def get(parts: Sequence[Lowered]) -> Lowered:
    made = let([parts[0], _long(parts[1])], lambda a, i: f"(CASE WHEN {i} >= 0 THEN list_extract({a}, {i} + 1) END)")
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


def struct_of(fields: Sequence[tuple[str, Lowered]]) -> Lowered:
    if not fields or any(pa.types.is_null(part.type) for _, part in fields):
        raise Refusal("a struct needs fields with types", "give nulls a type with cast(null as …)")
    members = ", ".join(f"{quoted(name)} := {part.sql}" for name, part in fields)
    kind = pa.struct([pa.field(name, part.type) for name, part in fields])
    return Lowered(f"struct_pack({members})", kind, any(part.fails for _, part in fields))


def named_struct(parts: Sequence[Lowered]) -> Lowered:
    if len(parts) % 2:
        raise Refusal("named_struct takes alternating names and values")
    names = [literal_of(part, "named_struct", "name") for part in parts[::2]]
    return struct_of(list(zip(names, parts[1::2], strict=True)))


def arrays_zip(fields: Sequence[tuple[str, Lowered]]) -> Lowered:
    """An array of structs as long as the longest array; null where one is shorter."""
    for _, part in fields:
        if part.family != "array":
            raise Refusal(f"arrays_zip takes arrays, but got {type_name(part.type)}")
    if len({name.lower() for name, _ in fields}) < len(fields) or not fields:
        raise Refusal("arrays_zip needs arrays with different names")
    kind = pa.struct([pa.field(name, part.type.value_type) for name, part in fields])

    def body(*arrays: str) -> str:
        made = ", ".join(f'{quoted(name)} := "each"[{at}]' for at, (name, _) in enumerate(fields, 1))
        zipped = f'list_transform(list_zip({", ".join(arrays)}), lambda "each": struct_pack({made}))'
        return f"(CASE WHEN {' OR '.join(f'{array} IS NULL' for array in arrays)} THEN NULL ELSE {zipped} END)"

    return Lowered(let([part for _, part in fields], body), pa.list_(kind), any(part.fails for _, part in fields))
