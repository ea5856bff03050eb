"""Spark's functions of arrays, in DuckDB: null in, null out, unless noted; NaN is equal to NaN."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from millstream.expressions.function_entries import BOOLEAN, LONG, STRING, Function, let
from millstream.expressions.lowered import Lowered, Refusal, failing, together, type_name
from millstream.expressions.spark_types import duckdb_name, family

EACH = '"each"'
ITEMS_MAX = 2147483632
"""The longest array of Spark."""


def ordered(kind: pa.DataType, name: str) -> None:
    """Arrays and structs with nulls inside are ordered differently by the two engines."""
    if family(kind) in ("array", "struct", "map"):
        raise Refusal(f"{name} would order {type_name(kind)} differently", "use its fields or items")


def item_type(part: Lowered) -> pa.DataType:
    return part.type.value_type


def with_value(array: Lowered, value: Lowered, name: str) -> tuple[Lowered, Lowered]:
    """An array and a value of the type of its items."""
    (alike, _), kind = together([value, Lowered("NULL", item_type(array))], name)
    if family(kind) == "map":
        raise Refusal(f"{name} cannot compare maps")
    return as_items(array, kind), alike


def as_items(array: Lowered, kind: pa.DataType) -> Lowered:
    if item_type(array) == kind:
        return array
    return Lowered(f"CAST({array.sql} AS {duckdb_name(kind)}[])", pa.list_(kind), array.fails)


def alike(arrays: Sequence[Lowered], name: str) -> tuple[list[Lowered], pa.DataType]:
    """Arrays with one type of items."""
    for part in arrays:
        if part.family != "array":
            raise Refusal(f"{name} takes arrays, but got {type_name(part.type)}")
    _, kind = together([Lowered("NULL", item_type(part)) for part in arrays], name)
    return [as_items(part, kind) for part in arrays], kind


def _plain_zeros(array: Lowered) -> Lowered:
    """Functions that compare items return -0.0 as 0.0."""
    if not pa.types.is_floating(item_type(array)):
        return array
    zero = f"CAST(0 AS {duckdb_name(item_type(array))})"
    return Lowered(f'list_transform({array.sql}, lambda "each": "each" + {zero})', array.type, array.fails)


def any_null(*parts: str) -> str:
    return " OR ".join(f"{part} IS NULL" for part in parts)


def where(array: str, value: str) -> str:
    """The first position of a value, from 1, or 0; a null is found as well."""
    return f"coalesce(list_position({array}, {value}), 0)"


def distinct(array: str) -> str:
    """Each value where it first stands."""
    return f'list_filter({array}, lambda "at", "nth": list_position({array}, "at") = "nth")'


def contains(parts: Sequence[Lowered]) -> Lowered:
    """Null if the value is not found but there are nulls."""
    array, value = with_value(parts[0], parts[1], "array_contains")

    def body(whole: str, wanted: str) -> str:
        found = f"{where(whole, wanted)} > 0"
        unknown = f"(NOT ({found}) AND {where(whole, 'NULL')} > 0)"
        return f"(CASE WHEN {any_null(whole, wanted)} OR {unknown} THEN NULL ELSE {found} END)"

    return Lowered(let([array, value], body), BOOLEAN)


def array_distinct(parts: Sequence[Lowered]) -> Lowered:
    return Lowered(let([_plain_zeros(parts[0])], distinct), parts[0].type)


def union(parts: Sequence[Lowered]) -> Lowered:
    both, kind = alike(parts, "array_union")
    joined = Lowered(let(both, lambda a, b: f"(CASE WHEN {any_null(a, b)} THEN NULL ELSE list_concat({a}, {b}) END)"),
                     pa.list_(kind))  # fmt: skip
    return Lowered(let([_plain_zeros(joined)], distinct), pa.list_(kind))


def intersect(parts: Sequence[Lowered]) -> Lowered:
    return _with_other(parts, "array_intersect", "> 0")


def without(parts: Sequence[Lowered]) -> Lowered:
    return _with_other(parts, "array_except", "= 0")


def _with_other(parts: Sequence[Lowered], name: str, how: str) -> Lowered:
    both, kind = alike(parts, name)
    both = [_plain_zeros(part) for part in both]

    def body(one: str, other: str) -> str:
        kept = f'list_filter({distinct(one)}, lambda "each": {where(other, EACH)} {how})'
        return f"(CASE WHEN {any_null(one, other)} THEN NULL ELSE {kept} END)"

    return Lowered(let(both, body), pa.list_(kind))


def overlap(parts: Sequence[Lowered]) -> Lowered:
    both, _ = alike(parts, "arrays_overlap")

    def body(one: str, other: str) -> str:
        shared = f'"each" IS NOT NULL AND {where(other, EACH)} > 0'
        common = f'len(list_filter({one}, lambda "each": {shared})) > 0'
        unknown = f"len({one}) > 0 AND len({other}) > 0 AND ({where(one, 'NULL')} > 0 OR {where(other, 'NULL')} > 0)"
        return (
            f"(CASE WHEN {any_null(one, other)} THEN NULL WHEN {common} THEN TRUE"
            f" WHEN {unknown} THEN NULL ELSE FALSE END)"
        )

    return Lowered(let(both, body), BOOLEAN)


def position(parts: Sequence[Lowered]) -> Lowered:
    array, value = with_value(parts[0], parts[1], "array_position")
    made = let([array, value], lambda a, v: f"(CASE WHEN {any_null(a, v)} THEN NULL ELSE {where(a, v)} END)")
    return Lowered(f"CAST({made} AS BIGINT)", LONG)


def remove(parts: Sequence[Lowered]) -> Lowered:
    array, value = with_value(parts[0], parts[1], "array_remove")
    return Lowered(
        let(
            [array, value],
            lambda a, v: (
                f"(CASE WHEN {any_null(v)} THEN NULL ELSE"
                f' list_filter({a}, lambda "each": "each" IS NULL OR "each" <> {v}) END)'
            ),
        ),
        array.type,
    )


def repeat(parts: Sequence[Lowered]) -> Lowered:
    if parts[0].family == "null":
        raise Refusal("an array of nulls has no type", "give it one with cast(null as …)")

    def body(value: str, count: str) -> str:
        many = failing(f"{count} > {ITEMS_MAX}", "the array would be too long", f"range(greatest({count}, 0))")
        return f'(CASE WHEN {count} IS NULL THEN NULL ELSE list_transform({many}, lambda "each": {value}) END)'

    return Lowered(let(parts, body), pa.list_(parts[0].type), fails=True)


def sort(parts: Sequence[Lowered]) -> Lowered:
    """array_sort: nulls at the end."""
    ordered(item_type(parts[0]), "array_sort")
    return Lowered(f"list_sort({parts[0].sql}, 'ASC', 'NULLS LAST')", parts[0].type)


def sort_array(parts: Sequence[Lowered]) -> Lowered:
    """Nulls are smallest."""
    ordered(item_type(parts[0]), "sort_array")
    up = parts[1].literal if len(parts) == 2 else True
    if not isinstance(up, bool):
        raise Refusal("the order of sort_array must be true or false")
    how = "'ASC', 'NULLS FIRST'" if up else "'DESC', 'NULLS LAST'"
    return Lowered(f"list_sort({parts[0].sql}, {how})", parts[0].type)


def extreme(name: str) -> Function:
    def lower(parts: Sequence[Lowered]) -> Lowered:
        kind = item_type(parts[0])
        ordered(kind, f"array_{name}")
        made = f"list_{name}({{0}})"
        if pa.types.is_floating(kind):  # 0.0 and -0.0 are equal: the first of them
            made = f"{{0}}[list_position({{0}}, {made})]"
        return Lowered(let(parts, made.format), kind)

    return Function(("array",), lower, note="nulls are skipped")


def append(parts: Sequence[Lowered]) -> Lowered:
    return _added(parts, "array_append", "list_append({0}, {1})")


def prepend(parts: Sequence[Lowered]) -> Lowered:
    return _added(parts, "array_prepend", "list_prepend({1}, {0})")


def _added(parts: Sequence[Lowered], name: str, template: str) -> Lowered:
    array, value = with_value(parts[0], parts[1], name)
    made = let([array, value], lambda a, v: f"(CASE WHEN {a} IS NULL THEN NULL ELSE {template.format(a, v)} END)")
    return Lowered(made, array.type)


def insert(parts: Sequence[Lowered]) -> Lowered:
    """At a position from 1, or from the end below 0; nulls fill what is between."""
    array, value = with_value(parts[0], parts[2], "array_insert")
    name = duckdb_name(item_type(array))
    at = Lowered(f"CAST({parts[1].sql} AS BIGINT)", LONG, parts[1].fails)

    def body(a: str, i: str, v: str) -> str:
        one = f"CAST(list_value({v}) AS {name}[])"
        nulls = f'list_transform(range(abs({i}) - len({a}) - 1), lambda "each": CAST(NULL AS {name}))'
        place = f"(CASE WHEN {i} > 0 THEN {i} ELSE len({a}) + {i} + 2 END)"
        inside = f"list_concat({a}[:{place} - 1], {one}, {a}[{place}:])"
        made = (
            f"(CASE WHEN {any_null(a, i)} THEN NULL WHEN abs({i}) <= len({a}) + 1 THEN"
            f" (CASE WHEN {place} = 1 THEN list_concat({one}, {a}) ELSE {inside} END)"
            f" WHEN {i} > 0 THEN list_concat({a}, {nulls}, {one}) ELSE list_concat({one}, {nulls}, {a}) END)"
        )
        wrong = f"{a} IS NOT NULL AND ({i} = 0 OR abs({i}) > {ITEMS_MAX})"
        return failing(wrong, "array_insert at no valid position", made)

    return Lowered(let([array, at, value], body), array.type, fails=True)


def compact(parts: Sequence[Lowered]) -> Lowered:
    return Lowered(f'list_filter({parts[0].sql}, lambda "each": "each" IS NOT NULL)', parts[0].type)


def flatten(parts: Sequence[Lowered]) -> Lowered:
    if family(item_type(parts[0])) != "array":
        raise Refusal(f"flatten takes an array of arrays, but got {type_name(parts[0].type)}")
    made = let(parts, lambda a: f"(CASE WHEN {where(a, 'NULL')} > 0 THEN NULL ELSE flatten({a}) END)")
    return Lowered(made, item_type(parts[0]))


def slice_(parts: Sequence[Lowered]) -> Lowered:
    def body(a: str, start: str, count: str) -> str:
        first = f"(CASE WHEN {start} > 0 THEN {start} ELSE len({a}) + {start} + 1 END)"
        made = (
            f"(CASE WHEN {any_null(a, start, count)} THEN NULL WHEN {count} = 0 OR {first} < 1 OR {first} > len({a})"
            f" THEN {a}[:0] ELSE list_slice({a}, {first}, {first} + {count} - 1) END)"
        )
        given = f"NOT ({any_null(a, start, count)})"
        return failing(
            f"{given} AND ({start} = 0 OR {count} < 0)", "slice starts at 1, and takes 0 items or more", made
        )

    numbers = [Lowered(f"CAST({part.sql} AS BIGINT)", LONG, part.fails) for part in parts[1:]]
    return Lowered(let([parts[0], *numbers], body), parts[0].type, fails=True)


def sequence(parts: Sequence[Lowered]) -> Lowered:
    numbers, kind = together(list(parts), "sequence")
    if not pa.types.is_integer(kind):
        raise Refusal(f"sequence of {type_name(kind)} is not supported in a flow", "use whole numbers")
    given = [Lowered(f"CAST({part.sql} AS BIGINT)", LONG, part.fails) for part in numbers]

    def body(start: str, stop: str, *step: str) -> str:
        by = step[0] if step else f"(CASE WHEN {start} <= {stop} THEN 1 ELSE -1 END)"
        right = (
            f"({by} > 0 AND {start} <= {stop}) OR ({by} < 0 AND {start} >= {stop}) OR ({by} = 0 AND {start} = {stop})"
        )
        count = f"(CAST({stop} AS HUGEINT) - {start}) // (CASE WHEN {by} = 0 THEN 1 ELSE {by} END)"
        wrong = f"NOT ({any_null(start, stop, *step)}) AND (NOT ({right}) OR {count} >= {ITEMS_MAX})"
        made = f"(CASE WHEN {start} = {stop} THEN list_value({start}) ELSE generate_series({start}, {stop}, {by}) END)"
        return failing(wrong, "sequence does not lead from the start to the stop", made)

    return Lowered(f"CAST({let(given, body)} AS {duckdb_name(kind)}[])", pa.list_(kind), fails=True)


def joined(parts: Sequence[Lowered]) -> Lowered:
    """array_join: nulls are skipped, or replaced."""
    if item_type(parts[0]) != STRING:
        raise Refusal(f"array_join takes an array of strings, but got {type_name(parts[0].type)}")

    def body(array: str, sign: str, *instead: str) -> str:
        kept = f'list_filter({array}, lambda "each": "each" IS NOT NULL)'
        if instead:
            kept = f'list_transform({array}, lambda "each": coalesce("each", {instead[0]}))'
        together = f"coalesce(array_to_string({kept}, {sign}), '')"
        if not parts[1].is_literal:  # which array_to_string needs
            together = f'list_reduce({kept}, lambda "one", "other": "one" || {sign} || "other")'
            together = f"(CASE WHEN len({kept}) = 0 THEN '' ELSE {together} END)"
        return f"(CASE WHEN {any_null(array, sign, *instead)} THEN NULL ELSE {together} END)"

    return Lowered(let(parts, body), STRING)


def concatenated(parts: Sequence[Lowered]) -> Lowered:
    arrays, kind = alike(parts, "concat")
    made = let(arrays, lambda *each: f"(CASE WHEN {any_null(*each)} THEN NULL ELSE list_concat({', '.join(each)}) END)")
    return Lowered(made, pa.list_(kind))


def reverse(parts: Sequence[Lowered]) -> Lowered:
    """Of an array, or of the code points of text."""
    if parts[0].family == "array":
        return Lowered(f"list_reverse({parts[0].sql})", parts[0].type)
    if parts[0].family != "string":
        raise Refusal(f"reverse takes a string or an array, but got {type_name(parts[0].type)}")
    letters = "array_to_string(list_reverse(regexp_extract_all({0}, '(?s).')), '')"
    return Lowered(let(parts, lambda s: f"(CASE WHEN {s} = '' THEN '' ELSE {letters.format(s)} END)"), STRING)


ARRAYS: dict[str, Function] = {
    "array_contains": Function(("array", "any"), contains),
    "array_distinct": Function(("array",), array_distinct, note="in the order of the first of each"),
    "array_union": Function(("array", "array"), union),
    "array_intersect": Function(("array", "array"), intersect),
    "array_except": Function(("array", "array"), without),
    "arrays_overlap": Function(("array", "array"), overlap),
    "array_position": Function(("array", "any"), position, note="from 1, or 0"),
    "array_remove": Function(("array", "any"), remove),
    "array_repeat": Function(("any", "whole"), repeat),
    "sort_array": Function(("array", "boolean"), sort_array, 1, note="nulls are smallest"),
    "array_max": extreme("max"),
    "array_min": extreme("min"),
    "array_append": Function(("array", "any"), append),
    "array_prepend": Function(("array", "any"), prepend),
    "array_insert": Function(("array", "whole", "any"), insert),
    "array_compact": Function(("array",), compact),
    "flatten": Function(("array",), flatten, note="null if an inner array is null"),
    "slice": Function(("array", "whole", "whole"), slice_),
    "sequence": Function(("whole", "whole", "whole"), sequence, 1, note="of whole numbers"),
    "array_join": Function(("array", "string", "string"), joined, 1, note="nulls are skipped, or replaced"),
    "reverse": Function(("any",), reverse, note="of an array or text"),
}
