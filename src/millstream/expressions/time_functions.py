"""Spark's functions of dates and instants, in DuckDB; an instant is a naive time in UTC there."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.expressions.datetime_patterns import for_duckdb
from millstream.expressions.function_entries import (
    DATE,
    INT,
    LONG,
    STRING,
    Function,
    literal_of,
    made,
)
from millstream.expressions.lowered import (
    MICROS_PER_SECOND,
    Lowered,
    Refusal,
    cast,
    floor_div,
    text,
    type_name,
)
from millstream.expressions.spark_types import INSTANT

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
        raise Refusal(f"{name} has no unit '{given}'", f"units: {', '.join(unit.rstrip('s') for unit in units)}")
    return unit


def date_trunc(parts: Sequence[Lowered]) -> Lowered:
    unit = _unit(parts[0], "date_trunc", tuple(dict.fromkeys(UNITS.values())))
    return Lowered(f"CAST(date_trunc('{unit}', {parts[1].sql}) AS TIMESTAMP)", INSTANT)


def trunc(parts: Sequence[Lowered]) -> Lowered:
    unit = _unit(parts[1], "trunc", DATE_UNITS)
    return Lowered(f"CAST(date_trunc('{unit}', {parts[0].sql}) AS DATE)", DATE)


def date_format(parts: Sequence[Lowered]) -> Lowered:
    made, _ = for_duckdb(literal_of(parts[1], "date_format", "pattern"))
    return Lowered(f"strftime({parts[0].sql}, {text(made)})", STRING)


def from_unixtime(parts: Sequence[Lowered]) -> Lowered:
    made, _ = for_duckdb(literal_of(parts[1], "from_unixtime", "pattern") if len(parts) == 2 else "yyyy-MM-dd HH:mm:ss")
    moment = f"make_timestamp(CAST({parts[0].sql} AS BIGINT) * {MICROS_PER_SECOND})"
    return Lowered(f"strftime({moment}, {text(made)})", STRING, fails=True)


def to_timestamp(parts: Sequence[Lowered]) -> Lowered:
    if len(parts) == 1:
        return cast(parts[0], INSTANT)
    if parts[0].family != "string":
        raise Refusal(f"to_timestamp with a pattern takes a string, not {type_name(parts[0].type)}")
    pattern = literal_of(parts[1], "to_timestamp", "pattern")
    made, form = for_duckdb(pattern, reading=True)
    given = parts[0].sql
    read = f"strptime({given}, {text(made)})"
    wrong = f"error('cannot read ' || {given} || {text(f' by the pattern {pattern}')})"
    fits = f"regexp_full_match({given}, {text(form)})"
    return Lowered(
        f"(CASE WHEN {given} IS NULL THEN NULL WHEN {fits} THEN {read} ELSE {wrong} END)", INSTANT, fails=True
    )


def to_date(parts: Sequence[Lowered]) -> Lowered:
    read = to_timestamp(parts) if len(parts) == 2 else parts[0]
    return cast(read, DATE)


def unix_timestamp(parts: Sequence[Lowered]) -> Lowered:
    if not parts:
        raise Refusal("unix_timestamp() is the current time, but results must be repeatable", "give it a column")
    if parts[0].family == "string" and len(parts) == 1:
        raise Refusal("unix_timestamp of a string needs a pattern", "write unix_timestamp(…, 'yyyy-MM-dd HH:mm:ss')")
    moment = to_timestamp(parts) if len(parts) == 2 else cast(parts[0], INSTANT)
    return Lowered(floor_div(f"epoch_us({moment.sql})", MICROS_PER_SECOND), LONG, moment.fails)


def units_since_1970(micros: int) -> Function:
    return made(LONG, floor_div("epoch_us({0})", micros) if micros > 1 else "epoch_us({0})", "moment")


def moment_of(micros: int) -> Function:
    return made(INSTANT, f"make_timestamp(CAST({{0}} AS BIGINT) * {micros})", "whole", fails=True)


def field(part: str, *, plus: int = 0) -> Function:
    return made(INT, f"(date_part('{part}', {{0}}) + {plus})", "moment")
