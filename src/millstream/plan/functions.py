"""The functions of Spark SQL that also run without Spark: what each takes, its type, and how DuckDB computes it.

A function that is not in `FUNCTIONS` is refused by its name, so nothing is computed differently in silence; for those
in `refused` the reason is known. `FUNCTIONS[name].note` says what a
reader of Spark's manual would not expect; floating-point functions may differ in the last digit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from millstream.plan.lowered import (
    MICROS_PER_SECOND,
    NULL,
    Lowered,
    Refusal,
    cast,
    divided,
    failing,
    floor_div,
    text,
    together,
    type_name,
)
from millstream.plan.patterns_of_time import for_duckdb
from millstream.plan.spark_types import INSTANT, decimal, duckdb_name, quoted

INT, LONG, DOUBLE, STRING, BOOLEAN, DATE = pa.int32(), pa.int64(), pa.float64(), pa.string(), pa.bool_(), pa.date32()
Lower = Callable[[Sequence[Lowered]], Lowered]
WORDS = {
    "string": "a string",
    "whole": "a whole number",
    "number": "a number",
    "double": "a number",
    "moment": "a timestamp",
    "day": "a date",
    "boolean": "a boolean",
    "array": "an array",
    "map": "a map",
    "any": "anything",
}


@dataclass(frozen=True)
class Function:
    """`takes` are the kinds of its arguments; the last `optional` of them may be left out, the last one may repeat."""

    takes: tuple[str, ...]
    lower: Lower
    optional: int = 0
    repeats: bool = False
    note: str = ""

    @property
    def arguments(self) -> str:
        """For a message and for the manual."""
        needed = len(self.takes) - self.optional
        said = [WORDS[kind] if at < needed else f"[{WORDS[kind]}]" for at, kind in enumerate(self.takes)]
        return ", ".join(said) + (", …" if self.repeats else "")


def call(name: str, given: Sequence[Lowered]) -> Lowered:
    """A function call, checked and lowered; raises Refusal."""
    function = FUNCTIONS[name]
    needed = len(function.takes) - function.optional
    if len(given) < needed or (len(given) > len(function.takes) and not function.repeats):
        raise Refusal(f"{name} takes {function.arguments or 'nothing'}, and here it has {len(given)} arguments")
    kinds = list(function.takes) + [function.takes[-1]] * (len(given) - len(function.takes)) if function.takes else []
    made = function.lower([_argument(name, kind, part) for kind, part in zip(kinds, given, strict=False)])
    return Lowered(made.sql, made.type, made.fails or any(part.fails for part in given))


def _argument(name: str, kind: str, part: Lowered) -> Lowered:
    """An argument as the function wants it; text is read as a date or a timestamp where one is wanted, as on Spark."""
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
    raise Refusal(f"{name} takes {WORDS[kind]}, and got {type_name(part.type)}", "bring it there with cast(… as …)")


def literal_of(part: Lowered, name: str, what: str) -> str:
    if not part.is_literal or not isinstance(part.literal, str):
        raise Refusal(f"the {what} of {name} is a text that stands in the expression", "write it as '…'")
    return part.literal


# ---------------------------------------------------------------- how entries of the table are made


def _made(
    kind: pa.DataType, template: str, *takes: str, optional: int = 0, fails: bool = False, note: str = ""
) -> Function:
    """DuckDB text with {0}, {1} … for the arguments, and a result of one type."""

    def lower(parts: Sequence[Lowered]) -> Lowered:
        body = template.format(*(part.sql for part in parts))
        return Lowered(f"CAST({body} AS {duckdb_name(kind)})", kind, fails)

    return Function(takes, lower, optional, note=note)


def _same(template: str, *takes: str, fails: bool = False, note: str = "") -> Function:
    """A result of the type of the first argument."""

    def lower(parts: Sequence[Lowered]) -> Lowered:
        body = template.format(*(part.sql for part in parts))
        return Lowered(f"CAST({body} AS {duckdb_name(parts[0].type)})", parts[0].type, fails)

    return Function(takes, lower, note=note)


def _field(part: str, *, plus: int = 0) -> Function:
    return _made(INT, f"(date_part('{part}', {{0}}) + {plus})", "moment")


def _cast_to(kind: pa.DataType) -> Function:
    return Function(("any",), lambda parts: cast(parts[0], kind))


# ---------------------------------------------------------------- choosing


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


# ---------------------------------------------------------------- text


def _concat(parts: Sequence[Lowered]) -> Lowered:
    if any(part.family == "binary" for part in parts):
        raise Refusal("concat of binary values stays binary on Spark", "cast them as string")
    return Lowered(f"({' || '.join(cast(part, STRING).sql for part in parts)})", STRING)


def _concat_ws(parts: Sequence[Lowered]) -> Lowered:
    return Lowered(f"concat_ws({', '.join(cast(part, STRING).sql for part in parts)})", STRING)


def _substring(parts: Sequence[Lowered]) -> Lowered:
    """From 1 on; 0 is 1, and a negative place counts from the end."""
    whole, at = parts[0].sql, f"CAST({parts[1].sql} AS BIGINT)"
    start = f"(CASE WHEN {at} > 0 THEN {at} - 1 WHEN {at} < 0 THEN length({whole}) + {at} ELSE 0 END)"
    if len(parts) == 2:
        return Lowered(f"substring({whole}, greatest({start}, 0) + 1)", STRING)
    stop = f"({start} + CAST({parts[2].sql} AS BIGINT))"
    return Lowered(f"substring({whole}, greatest({start}, 0) + 1, greatest({stop} - greatest({start}, 0), 0))", STRING)


def _padded(name: str) -> Lower:
    def lower(parts: Sequence[Lowered]) -> Lowered:
        whole, size = parts[0].sql, parts[1].sql
        fill = parts[2].sql if len(parts) == 3 else "' '"
        made = f"{name}({whole}, CAST({size} AS INTEGER), {fill})"
        cut = f"substring({whole}, 1, {size})"
        return Lowered(f"(CASE WHEN {size} <= 0 THEN '' WHEN {fill} = '' THEN {cut} ELSE {made} END)", STRING)

    return lower


def _trimmed(name: str) -> Lower:
    """Spark's trim takes spaces away and no other white space."""
    return lambda parts: Lowered(f"{name}({parts[0].sql}, ' ')", STRING)


def _regex(part: Lowered, name: str) -> str:
    pattern = literal_of(part, name, "pattern")
    if re.search(r"\(\?(?:[=!>]|<[=!])|\\[1-9]|[*+?}]\+|\\[hHRvVXZGkQE]|\[[^\]]*(?:&&|\[[^:])", pattern):
        raise Refusal(
            f"the pattern '{pattern}' has what Java's regular expressions know and DuckDB's do not",
            "write it without look-around, back-references, possessive quantifiers and class intersections",
        )
    return text(pattern)


def _group(parts: Sequence[Lowered], at: int) -> str:
    if len(parts) <= at:
        return "1"
    number = parts[at].literal
    if not isinstance(number, int) or not 0 <= number <= 9:
        raise Refusal("a group is a number from 0 to 9 that stands in the expression")
    return str(number)


def _regexp_extract(parts: Sequence[Lowered]) -> Lowered:
    pattern, group = _regex(parts[1], "regexp_extract"), _group(parts, 2)
    return Lowered(f"regexp_extract({parts[0].sql}, {pattern}, {group})", STRING)


def _regexp_extract_all(parts: Sequence[Lowered]) -> Lowered:
    pattern, group = _regex(parts[1], "regexp_extract_all"), _group(parts, 2)
    return Lowered(f"regexp_extract_all({parts[0].sql}, {pattern}, {group})", pa.list_(STRING))


def _regexp_replace(parts: Sequence[Lowered]) -> Lowered:
    """All matches; groups are $1 in Spark and \\1 in DuckDB."""
    pattern, by = _regex(parts[1], "regexp_replace"), literal_of(parts[2], "regexp_replace", "replacement")
    if re.search(r"\\|\$\{|\$\d\d|\$(?!\d)", by):
        raise Refusal(f"the replacement '{by}' has more than text and groups such as $1", "write the rest otherwise")
    by = re.sub(r"\$(\d)", r"\\\1", by)
    return Lowered(f"regexp_replace({parts[0].sql}, {pattern}, {text(by)}, 'g')", STRING)


def regexp_like(parts: Sequence[Lowered]) -> Lowered:
    return Lowered(f"regexp_matches({parts[0].sql}, {_regex(parts[1], 'rlike')})", BOOLEAN)


def _split(parts: Sequence[Lowered]) -> Lowered:
    pattern = _regex(parts[1], "split")
    if pattern == "''":
        raise Refusal("split by nothing", "give the pattern between the parts")
    return Lowered(f"string_split_regex({parts[0].sql}, {pattern})", pa.list_(STRING))


def _sha2(parts: Sequence[Lowered]) -> Lowered:
    if parts[1].literal not in (0, 256):
        raise Refusal("without Spark sha2 has 256 bits", "write sha2(…, 256)")
    return Lowered(f"sha256({parts[0].sql})", STRING)


# ---------------------------------------------------------------- numbers


def _rounded_to_whole(name: str) -> Lower:
    def lower(parts: Sequence[Lowered]) -> Lowered:
        kind = parts[0].type
        result = decimal(kind.precision - kind.scale + 1, 0) if pa.types.is_decimal(kind) else LONG
        return Lowered(f"CAST({name}({parts[0].sql}) AS {duckdb_name(result)})", result, fails=True)

    return lower


def _round(parts: Sequence[Lowered]) -> Lowered:
    """Half away from zero, of the number as it is printed: 2.675 is 2.68."""
    kind, places = parts[0].type, parts[1].literal if len(parts) == 2 else 0
    if not isinstance(places, int) or not 0 <= places <= 15:
        raise Refusal("round takes a number of places from 0 to 15 that stands in the expression")
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
            raise Refusal(f"the digits of {name} of decimals differ without Spark", "use %, or cast to double")
        made = f"CAST({template.format(one.sql, other.sql)} AS {duckdb_name(kind)})"
        return Lowered(divided(one, other, made), kind, fails=True)

    return lower


def _logarithm(name: str) -> Function:
    return _made(DOUBLE, f"CASE WHEN {{0}} > 0 THEN {name}({{0}}) END", "double", note="null for 0 and below")


def _log(parts: Sequence[Lowered]) -> Lowered:
    logs = [f"(CASE WHEN {part.sql} > 0 THEN ln({part.sql}) END)" for part in parts]
    return Lowered(logs[0] if len(logs) == 1 else f"({logs[1]} / {logs[0]})", DOUBLE)


# ---------------------------------------------------------------- dates and times


UNITS = {
    "year": "year", "yyyy": "year", "yy": "year", "quarter": "quarter", "month": "month", "mon": "month", "mm": "month",
    "week": "week", "day": "day", "dd": "day", "hour": "hour", "minute": "minute", "second": "second",
    "millisecond": "milliseconds", "microsecond": "microseconds",
}  # fmt: skip
DATE_UNITS = ("year", "quarter", "month", "week")
FIELDS = {
    "year": "year", "y": "year", "years": "year", "quarter": "quarter", "qtr": "quarter", "month": "month",
    "mon": "month", "months": "month", "week": "weekofyear", "w": "weekofyear", "weeks": "weekofyear",
    "day": "day", "d": "day", "days": "day", "dayofweek": "dayofweek", "dow": "dayofweek", "doy": "dayofyear",
    "hour": "hour", "h": "hour", "hours": "hour", "minute": "minute", "m": "minute", "min": "minute",
    "minutes": "minute",
}  # fmt: skip


def _unit(part: Lowered, name: str, units: Sequence[str]) -> str:
    given = literal_of(part, name, "unit")
    unit = UNITS.get(given.lower(), "")
    if unit.rstrip("s") not in {known.rstrip("s") for known in units}:
        raise Refusal(f"{name} knows no unit '{given}'", f"units: {', '.join(unit.rstrip('s') for unit in units)}")
    return unit


def _date_trunc(parts: Sequence[Lowered]) -> Lowered:
    unit = _unit(parts[0], "date_trunc", tuple(dict.fromkeys(UNITS.values())))
    return Lowered(f"CAST(date_trunc('{unit}', {parts[1].sql}) AS TIMESTAMP)", INSTANT)


def _trunc(parts: Sequence[Lowered]) -> Lowered:
    unit = _unit(parts[1], "trunc", DATE_UNITS)
    return Lowered(f"CAST(date_trunc('{unit}', {parts[0].sql}) AS DATE)", DATE)


def field_of(unit: str, part: Lowered) -> Lowered:
    """extract(unit from …) and date_part('unit', …)."""
    if unit.lower() not in FIELDS:
        raise Refusal(f"there is no field '{unit}' to extract", f"fields: {', '.join(dict.fromkeys(FIELDS.values()))}")
    return call(FIELDS[unit.lower()], [part])


def _date_part(parts: Sequence[Lowered]) -> Lowered:
    return field_of(literal_of(parts[0], "date_part", "field"), parts[1])


def _date_format(parts: Sequence[Lowered]) -> Lowered:
    made, _ = for_duckdb(literal_of(parts[1], "date_format", "pattern"))
    return Lowered(f"strftime({parts[0].sql}, {text(made)})", STRING)


def _from_unixtime(parts: Sequence[Lowered]) -> Lowered:
    made, _ = for_duckdb(literal_of(parts[1], "from_unixtime", "pattern") if len(parts) == 2 else "yyyy-MM-dd HH:mm:ss")
    moment = f"make_timestamp(CAST({parts[0].sql} AS BIGINT) * {MICROS_PER_SECOND})"
    return Lowered(f"strftime({moment}, {text(made)})", STRING, fails=True)


def _to_timestamp(parts: Sequence[Lowered]) -> Lowered:
    if len(parts) == 1:
        return cast(parts[0], INSTANT)
    if parts[0].family != "string":
        raise Refusal(f"to_timestamp with a pattern reads a string, not {type_name(parts[0].type)}")
    pattern = literal_of(parts[1], "to_timestamp", "pattern")
    made, form = for_duckdb(pattern, reading=True)
    given = parts[0].sql
    read = f"strptime({given}, {text(made)})"
    wrong = f"error('cannot read ' || {given} || {text(f' by the pattern {pattern}')})"
    fits = f"regexp_full_match({given}, {text(form)})"
    return Lowered(
        f"(CASE WHEN {given} IS NULL THEN NULL WHEN {fits} THEN {read} ELSE {wrong} END)", INSTANT, fails=True
    )


def _to_date(parts: Sequence[Lowered]) -> Lowered:
    read = _to_timestamp(parts) if len(parts) == 2 else parts[0]
    return cast(read, DATE)


def _unix_timestamp(parts: Sequence[Lowered]) -> Lowered:
    if not parts:
        raise Refusal("unix_timestamp() is the time now, and results must be repeatable", "give it a column")
    if parts[0].family == "string" and len(parts) == 1:
        raise Refusal("unix_timestamp of a string needs a pattern", "write unix_timestamp(…, 'yyyy-MM-dd HH:mm:ss')")
    moment = _to_timestamp(parts) if len(parts) == 2 else cast(parts[0], INSTANT)
    return Lowered(floor_div(f"epoch_us({moment.sql})", MICROS_PER_SECOND), LONG, moment.fails)


def _units_since_1970(micros: int) -> Function:
    return _made(LONG, floor_div("epoch_us({0})", micros) if micros > 1 else "epoch_us({0})", "moment")


def _moment_of(micros: int) -> Function:
    return _made(INSTANT, f"make_timestamp(CAST({{0}} AS BIGINT) * {micros})", "whole", fails=True)


# ---------------------------------------------------------------- arrays, maps, structs


def item(part: Lowered, index: Lowered) -> Lowered:
    """part[index]: arrays from 0 on, and an error outside; maps by key, null if it is missing."""
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


def _element_at(parts: Sequence[Lowered]) -> Lowered:
    if parts[0].family == "map":
        return _of_map(*parts)
    if parts[0].family != "array" or not pa.types.is_integer(parts[1].type):
        raise Refusal("element_at takes an array and a place, or a map and a key")
    whole, at = parts[0].sql, parts[1].sql
    made = failing(
        f"{whole} IS NOT NULL AND ({at} = 0 OR abs({at}) > len({whole}))",
        "element_at outside the array",
        f"list_extract({whole}, {at})",
    )
    return Lowered(made, parts[0].type.value_type, fails=True)


def _get(parts: Sequence[Lowered]) -> Lowered:
    made = f"(CASE WHEN {parts[1].sql} >= 0 THEN list_extract({parts[0].sql}, {parts[1].sql} + 1) END)"
    return Lowered(made, parts[0].type.value_type)


def _size(parts: Sequence[Lowered]) -> Lowered:
    if parts[0].family not in ("array", "map"):
        raise Refusal(f"size takes an array or a map, and got {type_name(parts[0].type)}")
    name = "len" if parts[0].family == "array" else "cardinality"
    return Lowered(f"CAST({name}({parts[0].sql}) AS INTEGER)", INT)


def _array(parts: Sequence[Lowered]) -> Lowered:
    if not parts:
        raise Refusal("array() has no type", "give it a value")
    alike, kind = together(list(parts), "array")
    if pa.types.is_null(kind):
        raise Refusal("an array of nulls has no type", "give it one with cast(null as …)")
    return Lowered(f"list_value({', '.join(part.sql for part in alike)})", pa.list_(kind))


def _array_contains(parts: Sequence[Lowered]) -> Lowered:
    whole, (wanted, _) = (
        parts[0].sql,
        together([parts[1], Lowered("NULL", parts[0].type.value_type)], "array_contains")[0],
    )
    found = f"list_contains({whole}, {wanted.sql})"
    unknown = f"(NOT {found} AND len(list_filter({whole}, lambda part: part IS NULL)) > 0)"
    return Lowered(f"(CASE WHEN {wanted.sql} IS NULL OR {unknown} THEN NULL ELSE {found} END)", BOOLEAN)


def _of_items(template: str) -> Function:
    return Function(
        ("array",),
        lambda parts: Lowered(template.format(parts[0].sql), parts[0].type.value_type),
        note="nulls are skipped",
    )


def _array_join(parts: Sequence[Lowered]) -> Lowered:
    if parts[0].type.value_type != STRING:
        raise Refusal(f"array_join takes an array of strings, and got {type_name(parts[0].type)}")
    return Lowered(f"array_to_string({parts[0].sql}, {parts[1].sql})", STRING)


def _map_parts(name: str) -> Function:
    def lower(parts: Sequence[Lowered]) -> Lowered:
        kind = parts[0].type.key_type if name == "map_keys" else parts[0].type.item_type
        return Lowered(f"{name}({parts[0].sql})", pa.list_(kind))

    return Function(("map",), lower)


def struct_of(fields: Sequence[tuple[str, Lowered]]) -> Lowered:
    if not fields or any(pa.types.is_null(part.type) for _, part in fields):
        raise Refusal("a struct has fields, and each has a type", "give nulls a type with cast(null as …)")
    said = ", ".join(f"{quoted(name)} := {part.sql}" for name, part in fields)
    kind = pa.struct([pa.field(name, part.type) for name, part in fields])
    return Lowered(f"struct_pack({said})", kind, any(part.fails for _, part in fields))


def _named_struct(parts: Sequence[Lowered]) -> Lowered:
    if len(parts) % 2:
        raise Refusal("named_struct takes names and values by turns")
    names = [literal_of(part, "named_struct", "name") for part in parts[::2]]
    return struct_of(list(zip(names, parts[1::2], strict=True)))


# ---------------------------------------------------------------- the table


FUNCTIONS: dict[str, Function] = {
    # choosing
    "coalesce": Function(("any",), _coalesce, repeats=True),
    "ifnull": Function(("any", "any"), _coalesce),
    "nvl": Function(("any", "any"), _coalesce),
    "nvl2": Function(("any", "any", "any"), _nvl2),
    "nullif": Function(("any", "any"), _nullif),
    "if": Function(("boolean", "any", "any"), lambda parts: choose(*parts)),
    "iff": Function(("boolean", "any", "any"), lambda parts: choose(*parts)),
    "greatest": Function(("any",), _extreme("greatest"), repeats=True, note="nulls are skipped"),
    "least": Function(("any",), _extreme("least"), repeats=True, note="nulls are skipped"),
    "isnull": _made(BOOLEAN, "({0} IS NULL)", "any"),
    "isnotnull": _made(BOOLEAN, "({0} IS NOT NULL)", "any"),
    "isnan": _made(BOOLEAN, "coalesce(isnan({0}), FALSE)", "double"),
    # text
    "length": _made(INT, "length({0})", "string"),
    "char_length": _made(INT, "length({0})", "string"),
    "character_length": _made(INT, "length({0})", "string"),
    "len": _made(INT, "length({0})", "string"),
    "upper": _made(STRING, "upper({0})", "string", note="ß and a few other letters stay one letter"),
    "ucase": _made(STRING, "upper({0})", "string"),
    "lower": _made(STRING, "lower({0})", "string"),
    "lcase": _made(STRING, "lower({0})", "string"),
    "concat": Function(("any",), _concat, repeats=True, note="null if any is null"),
    "concat_ws": Function(("string", "any"), _concat_ws, repeats=True, note="nulls are skipped"),
    "substring": Function(("string", "whole", "whole"), _substring, 1, note="from 1; 0 is 1; negative from the end"),
    "substr": Function(("string", "whole", "whole"), _substring, 1),
    "left": _made(STRING, "substring({0}, 1, greatest({1}, 0))", "string", "whole"),
    "right": _made(STRING, "CASE WHEN {1} <= 0 THEN '' ELSE right({0}, {1}) END", "string", "whole"),
    "lpad": Function(("string", "whole", "string"), _padded("lpad"), 1),
    "rpad": Function(("string", "whole", "string"), _padded("rpad"), 1),
    "trim": Function(("string",), _trimmed("trim"), note="spaces only"),
    "ltrim": Function(("string",), _trimmed("ltrim")),
    "rtrim": Function(("string",), _trimmed("rtrim")),
    "replace": _made(STRING, "replace({0}, {1}, {2})", "string", "string", "string"),
    "repeat": _made(STRING, "repeat({0}, {1})", "string", "whole"),
    "translate": _made(STRING, "translate({0}, {1}, {2})", "string", "string", "string"),
    "instr": _made(INT, "instr({0}, {1})", "string", "string"),
    "locate": _made(INT, "instr({1}, {0})", "string", "string"),
    "position": _made(INT, "instr({1}, {0})", "string", "string"),
    "startswith": _made(BOOLEAN, "starts_with({0}, {1})", "string", "string"),
    "endswith": _made(BOOLEAN, "ends_with({0}, {1})", "string", "string"),
    "contains": _made(BOOLEAN, "contains({0}, {1})", "string", "string"),
    "split": Function(("string", "string"), _split, note="by a regular expression; empty parts at the end stay"),
    "regexp_extract": Function(("string", "string", "whole"), _regexp_extract, 1, note="group 1 unless told"),
    "regexp_extract_all": Function(("string", "string", "whole"), _regexp_extract_all, 1, note="group 1 unless told"),
    "regexp_replace": Function(("string", "string", "string"), _regexp_replace, note="all matches; groups are $1"),
    "regexp_like": Function(("string", "string"), regexp_like),
    "regexp": Function(("string", "string"), regexp_like),
    "rlike": Function(("string", "string"), regexp_like),
    "md5": _made(STRING, "md5({0})", "string"),
    "sha2": Function(("string", "whole"), _sha2, note="with 256 bits"),
    # numbers
    "abs": _same("abs({0})", "number", fails=True),
    "ceil": Function(("number",), _rounded_to_whole("ceil"), note="a bigint, or a decimal"),
    "ceiling": Function(("number",), _rounded_to_whole("ceil")),
    "floor": Function(("number",), _rounded_to_whole("floor"), note="a bigint, or a decimal"),
    "round": Function(("number", "whole"), _round, 1, note="half away from zero"),
    "mod": Function(("number", "number"), _remainder("mod", "({0} % {1})")),
    "pmod": Function(("number", "number"), _remainder("pmod", "((({0} % {1}) + {1}) % {1})")),
    "sqrt": _made(DOUBLE, "CASE WHEN {0} < 0 THEN CAST('NaN' AS DOUBLE) ELSE sqrt({0}) END", "double"),
    "cbrt": _made(DOUBLE, "cbrt({0})", "double"),
    "exp": _made(DOUBLE, "exp({0})", "double"),
    "ln": _logarithm("ln"),
    "log": Function(("double", "double"), _log, 1, note="natural, or log(base, x)"),
    "log10": _logarithm("log10"),
    "log2": _logarithm("log2"),
    "power": _made(DOUBLE, "pow({0}, {1})", "double", "double"),
    "pow": _made(DOUBLE, "pow({0}, {1})", "double", "double"),
    "sign": _made(DOUBLE, "sign({0})", "double"),
    "signum": _made(DOUBLE, "sign({0})", "double"),
    "sin": _made(DOUBLE, "sin({0})", "double"),
    "cos": _made(DOUBLE, "cos({0})", "double"),
    "tan": _made(DOUBLE, "tan({0})", "double"),
    "atan": _made(DOUBLE, "atan({0})", "double"),
    "atan2": _made(DOUBLE, "atan2({0}, {1})", "double", "double"),
    "radians": _made(DOUBLE, "radians({0})", "double"),
    "degrees": _made(DOUBLE, "degrees({0})", "double"),
    "pi": _made(DOUBLE, "pi()"),
    # dates and times, in UTC
    "year": _field("year"),
    "quarter": _field("quarter"),
    "month": _field("month"),
    "day": _field("day"),
    "dayofmonth": _field("day"),
    "dayofweek": Function(_field("dow").takes, _field("dow", plus=1).lower, note="1 is Sunday"),
    "weekday": Function(_field("isodow").takes, _field("isodow", plus=-1).lower, note="0 is Monday"),
    "dayofyear": _field("doy"),
    "weekofyear": Function(_field("week").takes, _field("week").lower, note="of ISO 8601"),
    "hour": _field("hour"),
    "minute": _field("minute"),
    "second": _field("second"),
    "date_part": Function(("string", "moment"), _date_part),
    "datepart": Function(("string", "moment"), _date_part),
    "date_trunc": Function(("string", "moment"), _date_trunc, note="a timestamp; weeks begin on Monday"),
    "trunc": Function(("day", "string"), _trunc, note="a date"),
    "date_format": Function(("moment", "string"), _date_format),
    "from_unixtime": Function(("whole", "string"), _from_unixtime, 1, note="a string"),
    "unix_timestamp": Function(("any", "string"), _unix_timestamp, 2, note="whole seconds, rounded down"),
    "to_unix_timestamp": Function(("any", "string"), _unix_timestamp, 1),
    "to_timestamp": Function(("any", "string"), _to_timestamp, 1, note="an error if it cannot be read"),
    "to_date": Function(("any", "string"), _to_date, 1, note="an error if it cannot be read"),
    "unix_seconds": _units_since_1970(MICROS_PER_SECOND),
    "unix_millis": _units_since_1970(1000),
    "unix_micros": _units_since_1970(1),
    "unix_date": _made(INT, "({0} - DATE '1970-01-01')", "day"),
    "timestamp_seconds": _moment_of(MICROS_PER_SECOND),
    "timestamp_millis": _moment_of(1000),
    "timestamp_micros": _moment_of(1),
    "date_add": _made(DATE, "({0} + CAST({1} AS INTEGER))", "day", "whole"),
    "dateadd": _made(DATE, "({0} + CAST({1} AS INTEGER))", "day", "whole"),
    "date_sub": _made(DATE, "({0} - CAST({1} AS INTEGER))", "day", "whole"),
    "datediff": _made(INT, "({0} - {1})", "day", "day", note="days from the second to the first"),
    "date_diff": _made(INT, "({0} - {1})", "day", "day"),
    "add_months": _made(DATE, "({0} + to_months(CAST({1} AS INTEGER)))", "day", "whole"),
    "last_day": _made(DATE, "last_day({0})", "day"),
    "make_date": _made(DATE, "make_date({0}, {1}, {2})", "whole", "whole", "whole", fails=True),
    # arrays, maps, structs
    "size": Function(("any",), _size, note="null for null"),
    "cardinality": Function(("any",), _size),
    "array_size": Function(("array",), _size),
    "array": Function(("any",), _array, optional=1, repeats=True),
    "array_contains": Function(("array", "any"), _array_contains),
    "array_join": Function(("array", "string"), _array_join, note="nulls are skipped"),
    "array_max": _of_items("list_max({0})"),
    "array_min": _of_items("list_min({0})"),
    "sort_array": Function(
        ("array",), lambda parts: Lowered(f"list_sort({parts[0].sql}, 'ASC', 'NULLS FIRST')", parts[0].type)
    ),
    "element_at": Function(("any", "any"), _element_at, note="from 1; an error outside an array, null outside a map"),
    "get": Function(("array", "whole"), _get, note="from 0; null outside"),
    "map_keys": _map_parts("map_keys"),
    "map_values": _map_parts("map_values"),
    "named_struct": Function(("any",), _named_struct, repeats=True),
    # casts as functions
    "boolean": _cast_to(BOOLEAN),
    "tinyint": _cast_to(pa.int8()),
    "smallint": _cast_to(pa.int16()),
    "int": _cast_to(INT),
    "bigint": _cast_to(LONG),
    "float": _cast_to(pa.float32()),
    "double": _cast_to(DOUBLE),
    "string": _cast_to(STRING),
    "date": _cast_to(DATE),
    "timestamp": _cast_to(INSTANT),
}
