"""The functions of Spark SQL that also run without Spark: their arguments, result types, and translation to DuckDB.

A function that is not in `FUNCTIONS` is rejected by name, so that nothing is silently computed differently; for those
in `refused` the reason is known. `FUNCTIONS[name].note` documents differences from Spark's manual; floating-point
functions may differ in the last digit.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from millstream.expressions import nested_functions as nested
from millstream.expressions import text_functions as texts
from millstream.expressions import time_functions as times
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
from millstream.expressions.lowered import (
    MICROS_PER_SECOND,
    NULL,
    Lowered,
    Refusal,
    cast,
    divided,
    together,
    type_name,
)
from millstream.expressions.spark_types import INSTANT, decimal, duckdb_name


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


# ---------------------------------------------------------------- numbers


def _rounded_to_whole(name: str) -> Lower:
    def lower(parts: Sequence[Lowered]) -> Lowered:
        kind = parts[0].type
        result = decimal(kind.precision - kind.scale + 1, 0) if pa.types.is_decimal(kind) else LONG
        return Lowered(f"CAST({name}({parts[0].sql}) AS {duckdb_name(result)})", result, fails=True)

    return lower


def _round(parts: Sequence[Lowered]) -> Lowered:
    """Rounds half away from zero, based on the printed number: 2.675 is 2.68."""
    kind, places = parts[0].type, parts[1].literal if len(parts) == 2 else 0
    if not isinstance(places, int) or not 0 <= places <= 15:
        raise Refusal("the number of places of round must be a literal from 0 to 15")
    if pa.types.is_integer(kind):
        return parts[0]
    if pa.types.is_decimal(kind):
        scale = min(places, kind.scale)
        result = decimal(kind.precision - kind.scale + scale + 1, scale)
        return Lowered(f"CAST(round({parts[0].sql}, {scale}) AS {duckdb_name(result)})", result)
    exact = f"CAST(CAST(CAST({parts[0].sql} AS DOUBLE) AS VARCHAR) AS DECIMAL(38, 20))"
    small = f"(abs({parts[0].sql}) < 4503599627370496.0)"
    made = f"(CASE WHEN {small} THEN CAST(round({exact}, {places}) AS {duckdb_name(kind)}) ELSE {parts[0].sql} END)"
    return Lowered(made, kind)


def _remainder(name: str, template: str) -> Lower:
    def lower(parts: Sequence[Lowered]) -> Lowered:
        (one, other), kind = together(list(parts), name)
        if pa.types.is_decimal(kind):
            raise Refusal(
                f"the digits of {name} of decimals would differ between the runners", "use %, or cast to double"
            )
        made = f"CAST({template.format(one.sql, other.sql)} AS {duckdb_name(kind)})"
        return Lowered(divided(one, other, made), kind, fails=True)

    return lower


def _logarithm(name: str) -> Function:
    return made(DOUBLE, f"CASE WHEN {{0}} > 0 THEN {name}({{0}}) END", "double", note="null for 0 and below")


def _log(parts: Sequence[Lowered]) -> Lowered:
    logs = [f"(CASE WHEN {part.sql} > 0 THEN ln({part.sql}) END)" for part in parts]
    return Lowered(logs[0] if len(logs) == 1 else f"({logs[1]} / {logs[0]})", DOUBLE)


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
    "isnan": made(BOOLEAN, "coalesce(isnan({0}), FALSE)", "double"),
    # text
    "length": made(INT, "length({0})", "string"),
    "char_length": made(INT, "length({0})", "string"),
    "character_length": made(INT, "length({0})", "string"),
    "len": made(INT, "length({0})", "string"),
    "upper": made(STRING, "upper({0})", "string", note="ß and a few other letters stay single letters"),
    "ucase": made(STRING, "upper({0})", "string"),
    "lower": made(STRING, "lower({0})", "string"),
    "lcase": made(STRING, "lower({0})", "string"),
    "concat": Function(("any",), texts.concat, repeats=True, note="null if any is null"),
    "concat_ws": Function(("string", "any"), texts.concat_ws, repeats=True, note="nulls are skipped"),
    "substring": Function(
        ("string", "whole", "whole"), texts.substring, 1, note="from 1; 0 is 1; negative from the end"
    ),
    "substr": Function(("string", "whole", "whole"), texts.substring, 1),
    "left": made(STRING, "substring({0}, 1, greatest({1}, 0))", "string", "whole"),
    "right": made(STRING, "CASE WHEN {1} <= 0 THEN '' ELSE right({0}, {1}) END", "string", "whole"),
    "lpad": Function(("string", "whole", "string"), texts.padded("lpad"), 1),
    "rpad": Function(("string", "whole", "string"), texts.padded("rpad"), 1),
    "trim": Function(("string",), texts.trimmed("trim"), note="spaces only"),
    "ltrim": Function(("string",), texts.trimmed("ltrim")),
    "rtrim": Function(("string",), texts.trimmed("rtrim")),
    "replace": made(STRING, "replace({0}, {1}, {2})", "string", "string", "string"),
    "repeat": made(STRING, "repeat({0}, {1})", "string", "whole"),
    "translate": made(STRING, "translate({0}, {1}, {2})", "string", "string", "string"),
    "instr": made(INT, "instr({0}, {1})", "string", "string"),
    "locate": made(INT, "instr({1}, {0})", "string", "string"),
    "position": made(INT, "instr({1}, {0})", "string", "string"),
    "startswith": made(BOOLEAN, "starts_with({0}, {1})", "string", "string"),
    "endswith": made(BOOLEAN, "ends_with({0}, {1})", "string", "string"),
    "contains": made(BOOLEAN, "contains({0}, {1})", "string", "string"),
    "split": Function(("string", "string"), texts.split, note="by a regular expression; empty parts at the end stay"),
    "regexp_extract": Function(("string", "string", "whole"), texts.regexp_extract, 1, note="default: group 1"),
    "regexp_extract_all": Function(("string", "string", "whole"), texts.regexp_extract_all, 1, note="default: group 1"),
    "regexp_replace": Function(("string", "string", "string"), texts.regexp_replace, note="all matches; groups are $1"),
    "regexp_like": Function(("string", "string"), texts.regexp_like),
    "regexp": Function(("string", "string"), texts.regexp_like),
    "rlike": Function(("string", "string"), texts.regexp_like),
    "md5": made(STRING, "md5({0})", "string"),
    "sha2": Function(("string", "whole"), texts.sha2, note="with 256 bits"),
    # numbers
    "abs": same("abs({0})", "number", fails=True),
    "ceil": Function(("number",), _rounded_to_whole("ceil"), note="a bigint, or a decimal"),
    "ceiling": Function(("number",), _rounded_to_whole("ceil")),
    "floor": Function(("number",), _rounded_to_whole("floor"), note="a bigint, or a decimal"),
    "round": Function(("number", "whole"), _round, 1, note="half away from zero"),
    "mod": Function(("number", "number"), _remainder("mod", "({0} % {1})")),
    "pmod": Function(("number", "number"), _remainder("pmod", "((({0} % {1}) + {1}) % {1})")),
    "sqrt": made(DOUBLE, "CASE WHEN {0} < 0 THEN CAST('NaN' AS DOUBLE) ELSE sqrt({0}) END", "double"),
    "cbrt": made(DOUBLE, "cbrt({0})", "double"),
    "exp": made(DOUBLE, "exp({0})", "double"),
    "ln": _logarithm("ln"),
    "log": Function(("double", "double"), _log, 1, note="natural, or log(base, x)"),
    "log10": _logarithm("log10"),
    "log2": _logarithm("log2"),
    "power": made(DOUBLE, "pow({0}, {1})", "double", "double"),
    "pow": made(DOUBLE, "pow({0}, {1})", "double", "double"),
    "sign": made(DOUBLE, "sign({0})", "double"),
    "signum": made(DOUBLE, "sign({0})", "double"),
    "sin": made(DOUBLE, "sin({0})", "double"),
    "cos": made(DOUBLE, "cos({0})", "double"),
    "tan": made(DOUBLE, "tan({0})", "double"),
    "atan": made(DOUBLE, "atan({0})", "double"),
    "atan2": made(DOUBLE, "atan2({0}, {1})", "double", "double"),
    "radians": made(DOUBLE, "radians({0})", "double"),
    "degrees": made(DOUBLE, "degrees({0})", "double"),
    "pi": made(DOUBLE, "pi()"),
    # dates and times, in UTC
    "year": times.field("year"),
    "quarter": times.field("quarter"),
    "month": times.field("month"),
    "day": times.field("day"),
    "dayofmonth": times.field("day"),
    "dayofweek": Function(times.field("dow").takes, times.field("dow", plus=1).lower, note="1 is Sunday"),
    "weekday": Function(times.field("isodow").takes, times.field("isodow", plus=-1).lower, note="0 is Monday"),
    "dayofyear": times.field("doy"),
    "weekofyear": Function(times.field("week").takes, times.field("week").lower, note="of ISO 8601"),
    "hour": times.field("hour"),
    "minute": times.field("minute"),
    "second": times.field("second"),
    "date_part": Function(("string", "moment"), _date_part),
    "datepart": Function(("string", "moment"), _date_part),
    "date_trunc": Function(("string", "moment"), times.date_trunc, note="a timestamp; weeks begin on Monday"),
    "trunc": Function(("day", "string"), times.trunc, note="a date"),
    "date_format": Function(("moment", "string"), times.date_format),
    "from_unixtime": Function(("whole", "string"), times.from_unixtime, 1, note="a string"),
    "unix_timestamp": Function(("any", "string"), times.unix_timestamp, 2, note="whole seconds, rounded down"),
    "to_unix_timestamp": Function(("any", "string"), times.unix_timestamp, 1),
    "to_timestamp": Function(("any", "string"), times.to_timestamp, 1, note="an error if it cannot be parsed"),
    "to_date": Function(("any", "string"), times.to_date, 1, note="an error if it cannot be parsed"),
    "unix_seconds": times.units_since_1970(MICROS_PER_SECOND),
    "unix_millis": times.units_since_1970(1000),
    "unix_micros": times.units_since_1970(1),
    "unix_date": made(INT, "({0} - DATE '1970-01-01')", "day"),
    "timestamp_seconds": times.moment_of(MICROS_PER_SECOND),
    "timestamp_millis": times.moment_of(1000),
    "timestamp_micros": times.moment_of(1),
    "date_add": made(DATE, "({0} + CAST({1} AS INTEGER))", "day", "whole"),
    "dateadd": made(DATE, "({0} + CAST({1} AS INTEGER))", "day", "whole"),
    "date_sub": made(DATE, "({0} - CAST({1} AS INTEGER))", "day", "whole"),
    "datediff": made(INT, "({0} - {1})", "day", "day", note="days from the second to the first"),
    "date_diff": made(INT, "({0} - {1})", "day", "day"),
    "add_months": made(DATE, "({0} + to_months(CAST({1} AS INTEGER)))", "day", "whole"),
    "last_day": made(DATE, "last_day({0})", "day"),
    "make_date": made(DATE, "make_date({0}, {1}, {2})", "whole", "whole", "whole", fails=True),
    # arrays, maps, structs
    "size": Function(("any",), nested.size, note="null for null"),
    "cardinality": Function(("any",), nested.size),
    "array_size": Function(("array",), nested.size),
    "array": Function(("any",), nested.array, optional=1, repeats=True),
    "array_contains": Function(("array", "any"), nested.array_contains),
    "array_join": Function(("array", "string"), nested.array_join, note="nulls are skipped"),
    "array_max": nested.of_items("list_max({0})"),
    "array_min": nested.of_items("list_min({0})"),
    "sort_array": Function(
        ("array",), lambda parts: Lowered(f"list_sort({parts[0].sql}, 'ASC', 'NULLS FIRST')", parts[0].type)
    ),
    "element_at": Function(
        ("any", "any"), nested.element_at, note="from 1; an error outside an array, null outside a map"
    ),
    "get": Function(("array", "whole"), nested.get, note="from 0; null outside"),
    "map_keys": nested.map_parts("map_keys"),
    "map_values": nested.map_parts("map_values"),
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
