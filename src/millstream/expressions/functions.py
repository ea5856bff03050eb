"""The functions of Spark SQL that also run without Spark: their arguments, result types, and translation to DuckDB.

A function that is not in `FUNCTIONS` is rejected by name, so that nothing is silently computed differently; for those
in `refused` the reason is known. `FUNCTIONS[name].note` documents differences from Spark's manual; floating-point
functions may differ in the last digit.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from millstream.expressions import nested_functions as nested
from millstream.expressions import time_functions as times
from millstream.expressions.array_functions import ARRAYS
from millstream.expressions.function_entries import (
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    LONG,
    STRING,
    WORDS,
    Function,
    Lower,
    cast_to,
    literal_of,
    made,
    same,
)
from millstream.expressions.json_functions import JSON
from millstream.expressions.lowered import (
    NULL,
    Lowered,
    Refusal,
    cast,
    text,
    together,
    type_name,
)
from millstream.expressions.map_functions import MAPS
from millstream.expressions.number_functions import NUMBERS
from millstream.expressions.spark_types import INSTANT
from millstream.expressions.text_functions import TEXTS
from millstream.expressions.time_functions import TIMES


def call(name: str, given: Sequence[Lowered]) -> Lowered:
    """A function call, checked and lowered; raises Refusal."""
    function = FUNCTIONS[name]
    needed = len(function.takes) - function.optional
    if len(given) < needed or (len(given) > len(function.takes) and not function.repeats):
        raise Refusal(f"{name} takes {function.arguments or 'nothing'}, but got {len(given)} arguments")
    kinds = list(function.takes) + [function.takes[-1]] * (len(given) - len(function.takes)) if function.takes else []
    made = function.lower([_argument(name, kind, part) for kind, part in zip(kinds, given, strict=False)])
    return Lowered(made.sql, made.type, made.fails or any(part.fails for part in given))


def _argument(name: str, kind: str, part: Lowered) -> Lowered:
    """An argument as the function needs it; like in Spark, text is parsed if a date or timestamp is expected."""
    wanted = {
        "string": (STRING, ("string",)),
        "double": (DOUBLE, ("number",)),
        "moment": (INSTANT, ("timestamp", "date", "string")),
        "day": (DATE, ("date", "timestamp", "string")),
        "boolean": (BOOLEAN, ("boolean",)),
    }.get(kind)
    if kind == "any":
        return part
    if wanted is not None and part.family in (*wanted[1], "null"):
        return cast(part, wanted[0])
    if part.family == "null":
        raise Refusal(f"an argument of {name} is always null", "give it a type with cast(null as …)")
    is_whole = pa.types.is_integer(part.type)
    if (kind == "whole" and is_whole) or (kind != "whole" and part.family == kind):
        return part
    raise Refusal(f"{name} takes {WORDS[kind]}, but got {type_name(part.type)}", "convert it with cast(… as …)")


# ---------------------------------------------------------------- conditional


def _coalesce(parts: Sequence[Lowered]) -> Lowered:
    alike, kind = together(list(parts), "coalesce")
    return Lowered(f"COALESCE({', '.join(part.sql for part in alike)})", kind)


def _extreme(name: str) -> Lower:
    def lower(parts: Sequence[Lowered]) -> Lowered:
        if len(parts) < 2:
            raise Refusal(f"{name} takes two values or more")
        alike, kind = together(list(parts), name)
        return Lowered(f"{name}({', '.join(part.sql for part in alike)})", kind)

    return lower


def choose(condition: Lowered, yes: Lowered, no: Lowered) -> Lowered:
    (yes, no), kind = together([yes, no], "if")
    return Lowered(
        f"(CASE WHEN {condition.sql} THEN {yes.sql} ELSE {no.sql} END)",
        kind,
        condition.fails or yes.fails or no.fails,
    )


def _nvl2(parts: Sequence[Lowered]) -> Lowered:
    return choose(Lowered(f"({parts[0].sql} IS NOT NULL)", BOOLEAN), parts[1], parts[2])


def _nullif(parts: Sequence[Lowered]) -> Lowered:
    alike, _ = together(list(parts), "nullif")
    same = Lowered(f"({alike[0].sql} = {alike[1].sql})", BOOLEAN)
    return choose(same, NULL, parts[0])


def _equal_null(parts: Sequence[Lowered]) -> Lowered:
    (one, other), _ = together(list(parts), "equal_null")
    return Lowered(f"({one.sql} IS NOT DISTINCT FROM {other.sql})", BOOLEAN)


def _zero_if_null(parts: Sequence[Lowered]) -> Lowered:
    return _coalesce([parts[0], Lowered("CAST(0 AS INTEGER)", INT, literal=0)])


# ---------------------------------------------------------------- fields of a date


def field_of(unit: str, part: Lowered) -> Lowered:
    """extract(unit from …) and date_part('unit', …)."""
    if unit.lower() not in times.FIELDS:
        raise Refusal(
            f"there is no field '{unit}' to extract", f"fields: {', '.join(dict.fromkeys(times.FIELDS.values()))}"
        )
    return call(times.FIELDS[unit.lower()], [part])


def _date_part(parts: Sequence[Lowered]) -> Lowered:
    return field_of(literal_of(parts[0], "date_part", "field"), parts[1])


# ---------------------------------------------------------------- the table


FUNCTIONS: dict[str, Function] = {
    # conditional
    "coalesce": Function(("any",), _coalesce, repeats=True),
    "ifnull": Function(("any", "any"), _coalesce),
    "nvl": Function(("any", "any"), _coalesce),
    "nvl2": Function(("any", "any", "any"), _nvl2),
    "nullif": Function(("any", "any"), _nullif),
    "if": Function(("boolean", "any", "any"), lambda parts: choose(*parts)),
    "iff": Function(("boolean", "any", "any"), lambda parts: choose(*parts)),
    "greatest": Function(("any",), _extreme("greatest"), repeats=True, note="nulls are skipped"),
    "least": Function(("any",), _extreme("least"), repeats=True, note="nulls are skipped"),
    "isnull": made(BOOLEAN, "({0} IS NULL)", "any"),
    "isnotnull": made(BOOLEAN, "({0} IS NOT NULL)", "any"),
    "typeof": Function(("any",), lambda parts: Lowered(text(type_name(parts[0].type)), STRING)),
    "equal_null": Function(("any", "any"), _equal_null),
    "nullifzero": same("nullif({0}, 0)", "number"),
    "zeroifnull": Function(("number",), _zero_if_null),
    **TEXTS,
    **NUMBERS,
    **TIMES,
    "date_part": Function(("string", "any"), _date_part),
    "datepart": Function(("string", "any"), _date_part),
    # arrays, maps, structs
    "size": Function(("any",), nested.size, note="null for null"),
    "cardinality": Function(("any",), nested.size),
    "array_size": Function(("array",), nested.size),
    "array": Function(("any",), nested.array, optional=1, repeats=True),
    "element_at": Function(
        ("any", "any"), nested.element_at, note="from 1; an error outside an array, null outside a map"
    ),
    "get": Function(("array", "whole"), nested.get, note="from 0; null outside"),
    "try_element_at": Function(("any", "any"), nested.try_element_at, note="null outside"),
    **ARRAYS,
    **MAPS,
    **JSON,
    "named_struct": Function(("any",), nested.named_struct, repeats=True),
    # casts as functions
    "boolean": cast_to(BOOLEAN),
    "tinyint": cast_to(pa.int8()),
    "smallint": cast_to(pa.int16()),
    "int": cast_to(INT),
    "bigint": cast_to(LONG),
    "float": cast_to(pa.float32()),
    "double": cast_to(DOUBLE),
    "string": cast_to(STRING),
    "date": cast_to(DATE),
    "timestamp": cast_to(INSTANT),
}
