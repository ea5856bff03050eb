"""A part of an expression in DuckDB's SQL, with the type it has in Spark; and conversions between types.

Spark 4 runs in ANSI mode: what has no result (text that is not a number, a division by zero, an overflow) is an error.
The same holds here; nothing silently becomes null. `try_cast` returns null instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millstream.expressions.spark_types import (
    INSTANT,
    INTERVAL,
    NUMBER_ORDER,
    NoCommonType,
    common_type,
    duckdb_name,
    family,
)
from millstream.records.ddl import format_type

NOT_LITERAL = object()
NULL_KEY = "a key of a map is null"
"""The error of rows without a value, which says nothing about the expression."""
MICROS_PER_SECOND = 1_000_000


class Refusal(Exception):
    """Something that cannot be lowered, and what to write instead."""

    def __init__(self, what: str, next_step: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.next_step = next_step


class Mistake(Refusal):
    """A refusal that holds on every engine: Spark need not be asked."""


class Unsure(Mistake):
    """A mistake, unless a running Spark knows better: a function that it does not have by itself, unusual syntax."""


@dataclass(frozen=True)
class Lowered:
    sql: str
    type: pa.DataType
    fails: bool = False
    """Whether it can raise an error on some row; its guards must then be evaluated first."""
    literal: Any = NOT_LITERAL

    @property
    def is_literal(self) -> bool:
        return self.literal is not NOT_LITERAL

    @property
    def family(self) -> str:
        return family(self.type)


NULL = Lowered("NULL", pa.null(), literal=None)


def text(value: str) -> str:
    """A string literal of DuckDB."""
    return "'" + value.replace("'", "''") + "'"


def type_name(kind: pa.DataType) -> str:
    if kind == INTERVAL:
        return "an interval"
    return "null" if pa.types.is_null(kind) else format_type(kind)


def failing(condition: str, message: str, otherwise: str) -> str:
    """`otherwise`, or an error where the condition holds."""
    return f"(CASE WHEN {condition} THEN error({text(message)}) ELSE {otherwise} END)"


def divided(one: Lowered, other: Lowered, made: str) -> str:
    """An error for a division by zero; null divided by zero is null."""
    if other.is_literal and other.literal:
        return made
    return failing(f"{other.sql} = 0 AND {one.sql} IS NOT NULL", "division by zero", made)


def floor_div(sql: str, by: int) -> str:
    """Division that rounds down, also before 1970."""
    return f"(({sql} - ((({sql}) % {by} + {by}) % {by})) // {by})"


def together(parts: list[Lowered], what: str) -> tuple[list[Lowered], pa.DataType]:
    """Converts the parts to their common type; a text literal next to dates or timestamps is parsed as one."""
    kinds = [part.type for part in parts]
    moments = [kind for kind in kinds if family(kind) in ("date", "timestamp")]
    if moments:
        as_time = common_type(moments)
        parts = [cast(part, as_time) if part.family == "string" and part.is_literal else part for part in parts]
        kinds = [part.type for part in parts]
    try:
        wide = common_type(kinds)
    except NoCommonType:
        names = " and ".join(dict.fromkeys(type_name(kind) for kind in kinds))
        raise Refusal(
            f"{what} has operands of types {names}", "convert them to one type, for example with cast(… as …)"
        ) from None
    return [widened(part, wide) for part in parts], wide


def widened(part: Lowered, kind: pa.DataType) -> Lowered:
    """A lossless cast."""
    if part.type == kind or pa.types.is_null(kind):
        return part
    return Lowered(f"CAST({part.sql} AS {duckdb_name(kind)})", kind, part.fails, part.literal)


# ---------------------------------------------------------------- casts


NUMBER_TEXT = r"\s*[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\s*"
WHOLE_TEXT = r"\s*[+-]?[0-9]+\s*"
MOMENT_TEXT = r"\s*[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z?)?\s*"
"""What DuckDB reads as Spark does. It ignores offsets."""
BLANKS = " \t\n\r"


def cast(part: Lowered, kind: pa.DataType, *, safe: bool = False) -> Lowered:
    """A cast as the user wrote it; `safe` returns null if it fails."""
    if part.type == kind:
        return part
    if part.family == "null":
        return Lowered(f"CAST(NULL AS {duckdb_name(kind)})", kind, literal=None)
    lower = CASTS.get((part.family, family(kind)))
    if lower is None:
        raise Refusal(
            f"a cast from {type_name(part.type)} to {type_name(kind)} is not supported in a flow",
            CAST_HINTS.get((part.family, family(kind))),
        )
    return Lowered(lower(part, kind, safe), kind, part.fails or not (safe or _is_widening(part.type, kind)))


def _is_widening(kind: pa.DataType, to: pa.DataType) -> bool:
    if kind in NUMBER_ORDER and to in NUMBER_ORDER:
        return NUMBER_ORDER.index(kind) <= NUMBER_ORDER.index(to)
    return to == pa.string() or (family(kind), family(to)) in {("date", "timestamp"), ("timestamp", "date")}


def _plain(sql: str, kind: pa.DataType, safe: bool) -> str:
    return f"{'TRY_CAST' if safe else 'CAST'}({sql} AS {duckdb_name(kind)})"


def _directly(part: Lowered, kind: pa.DataType, safe: bool) -> str:
    return _plain(part.sql, kind, safe)


def _number_to_number(part: Lowered, kind: pa.DataType, safe: bool) -> str:
    """Spark truncates the fraction; DuckDB would round."""
    if pa.types.is_floating(part.type) and pa.types.is_decimal(kind):  # based on the printed number: 1.005 is 1.01
        printed = _plain(f"CAST(CAST({part.sql} AS DOUBLE) AS VARCHAR)", kind, safe)
        return f"(CASE WHEN isfinite({part.sql}) THEN {printed} END)"
    if pa.types.is_float64(part.type) and pa.types.is_float32(kind):  # what is too large is infinite
        limit = "3.4028235677973366e38::DOUBLE"
        return (
            f"(CASE WHEN isnan({part.sql}) THEN CAST('NaN' AS FLOAT)"
            f" WHEN {part.sql} >= {limit} THEN CAST('Infinity' AS FLOAT)"
            f" WHEN {part.sql} <= -{limit} THEN CAST('-Infinity' AS FLOAT) ELSE {_plain(part.sql, kind, safe)} END)"
        )
    cuts = pa.types.is_integer(kind) and not pa.types.is_integer(part.type)
    return _plain(f"trunc({part.sql})" if cuts else part.sql, kind, safe)


def _number_to_text(part: Lowered, kind: pa.DataType, safe: bool) -> str:
    if pa.types.is_floating(part.type):
        raise Refusal(
            f"a {type_name(part.type)} as text looks different on Spark (1.0E10)",
            "cast it to a decimal first, or format it in a map(…)",
        )
    return _plain(part.sql, kind, safe)


def _text_to(pattern: str, what: str) -> Any:
    """Only text of one form, which both parse alike; anything else is an error."""

    def lower(part: Lowered, kind: pa.DataType, safe: bool) -> str:
        fits = f"regexp_full_match({part.sql}, {text(pattern)})"
        trimmed = f"trim({part.sql}, {text(BLANKS)})"
        otherwise = "NULL" if safe else f"error('cannot read ' || {part.sql} || {text(' as ' + what)})"
        read = _plain(trimmed, kind, safe)
        return f"(CASE WHEN {part.sql} IS NULL THEN NULL WHEN {fits} THEN {read} ELSE {otherwise} END)"

    return lower


ANY_DATE = r"(?s)[\x00-\x20]*([+-]?[0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?[\x00-\x20]*"
"""Months and days may be missing or have one digit; what follows a day is ignored."""
NO_DATE = r"(?s)[\x00-\x20\x7f]*(T?[0-9]{1,2}:.*|T[0-9].*|(-[0-9]{4,6}|\+?(0000|[0-9]{5,6}))([-\x00-\x20\x7f].*)?)"
"""Text that Spark reads as a time of the current day, or in a year that Python does not have."""


def _text_to_date(part: Lowered, kind: pa.DataType, safe: bool) -> str:
    otherwise = "NULL" if safe else f"error('cannot read ' || {part.sql} || ' as a date such as 2026-01-31')"
    year, month, day = (f"regexp_extract({part.sql}, {text(ANY_DATE)}, {at})" for at in (1, 2, 3))
    month, day = (f"TRY_CAST((CASE {each} WHEN '' THEN '1' ELSE {each} END) AS BIGINT)" for each in (month, day))
    first = f"make_date(TRY_CAST({year} AS BIGINT), {month}, 1)"
    exists = f"(CASE WHEN {month} BETWEEN 1 AND 12 THEN {day} BETWEEN 1 AND date_part('day', last_day({first})) END)"
    return (
        f"(CASE WHEN {part.sql} IS NULL THEN NULL"
        f" WHEN regexp_full_match({part.sql}, '[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}') THEN {_plain(part.sql, kind, safe)}"
        f" WHEN regexp_full_match({part.sql}, {text(ANY_DATE)}) THEN"
        f" (CASE WHEN {exists} THEN {first} + CAST({day} - 1 AS INTEGER) ELSE {otherwise} END) ELSE {otherwise} END)"
    )


def _text_to_moment(part: Lowered, kind: pa.DataType, safe: bool) -> str:
    """Common forms in DuckDB, the others in Python. `try_cast` must not be null for what Spark reads differently."""
    trimmed = f"trim({part.sql}, {text(BLANKS)})"
    read = f"make_timestamp(spark_timestamp_micros({part.sql}))"
    if safe:
        reason = "a timestamp needs a date, with a year from 1 to 9999: 2026-01-31 12:00:00"
        read = failing(f"regexp_full_match({part.sql}, {text(NO_DATE)})", reason, read)
    else:
        wrong = f"error('cannot read ' || {part.sql} || ' as a timestamp such as 2026-01-31 12:00:00')"
        read = f"coalesce({read}, {wrong})"
    return (
        f"(CASE WHEN {part.sql} IS NULL THEN NULL"
        f" WHEN regexp_full_match({part.sql}, {text(MOMENT_TEXT)}) THEN {_plain(trimmed, kind, safe)} ELSE {read} END)"
    )


def _text_to_number(part: Lowered, kind: pa.DataType, safe: bool) -> str:
    whole = pa.types.is_integer(kind)
    found: str = _text_to(WHOLE_TEXT if whole else NUMBER_TEXT, "a whole number" if whole else "a number")(
        part, kind, safe
    )
    return found


def _text_to_boolean(part: Lowered, kind: pa.DataType, safe: bool) -> str:
    word = f"lower(trim({part.sql}, ' '))"
    otherwise = "NULL" if safe else f"error('cannot read ' || {part.sql} || ' as a boolean')"
    return (
        f"(CASE WHEN {word} IN ('t', 'true', 'y', 'yes', '1') THEN TRUE"
        f" WHEN {word} IN ('f', 'false', 'n', 'no', '0') THEN FALSE"
        f" WHEN {part.sql} IS NULL THEN NULL ELSE {otherwise} END)"
    )


def _number_to_boolean(part: Lowered, kind: pa.DataType, safe: bool) -> str:
    return f"({part.sql} <> 0)"


def _number_to_moment(part: Lowered, kind: pa.DataType, safe: bool) -> str:
    if not pa.types.is_integer(part.type):
        raise Refusal(f"a {type_name(part.type)} as timestamp", "use timestamp_micros(cast(… * 1000000 as bigint))")
    return f"make_timestamp(CAST({part.sql} AS BIGINT) * {MICROS_PER_SECOND})"


def _moment_to_number(part: Lowered, kind: pa.DataType, safe: bool) -> str:
    if pa.types.is_floating(kind):
        return _plain(f"(epoch_us({part.sql}) / {float(MICROS_PER_SECOND)})", kind, safe)
    return _plain(floor_div(f"epoch_us({part.sql})", MICROS_PER_SECOND), kind, safe)


def _text_to_binary(part: Lowered, kind: pa.DataType, safe: bool) -> str:
    return f"encode({part.sql})"


def _binary_to_text(part: Lowered, kind: pa.DataType, safe: bool) -> str:
    return f"decode({part.sql})"


CASTS: dict[tuple[str, str], Any] = {
    ("number", "number"): _number_to_number,
    ("number", "string"): _number_to_text,
    ("number", "boolean"): _number_to_boolean,
    ("number", "timestamp"): _number_to_moment,
    ("string", "number"): _text_to_number,
    ("string", "boolean"): _text_to_boolean,
    ("string", "date"): _text_to_date,
    ("string", "timestamp"): _text_to_moment,
    ("string", "binary"): _text_to_binary,
    ("string", "string"): _directly,
    ("binary", "string"): _binary_to_text,
    ("boolean", "string"): _directly,
    ("boolean", "number"): _directly,
    ("date", "string"): _directly,
    ("date", "timestamp"): _directly,
    ("timestamp", "string"): _directly,
    ("timestamp", "date"): _directly,
    ("timestamp", "number"): _moment_to_number,
}
CAST_HINTS = {
    ("date", "number"): "use datediff(…, date '1970-01-01')",
    ("number", "date"): "use date_add(date '1970-01-01', …)",
    ("interval", "number"): "use the difference of unix_micros(…)",
}


def moment(part: Lowered) -> Lowered:
    return cast(part, INSTANT)


def day(part: Lowered) -> Lowered:
    return cast(part, pa.date32())
