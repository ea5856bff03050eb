"""Spark's functions of dates and instants, in DuckDB; an instant is a naive time in UTC there."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.expressions.datetime_patterns import for_duckdb
from millstream.expressions.function_entries import (
    DATE,
    DOUBLE,
    INT,
    LONG,
    STRING,
    Function,
    let,
    literal_of,
    made,
)
from millstream.expressions.lowered import (
    MICROS_PER_SECOND,
    Lowered,
    Mistake,
    Refusal,
    cast,
    failing,
    floor_div,
    moment,
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
        default = "yyyy-MM-dd HH:mm:ss"
        parts = [parts[0], Lowered(text(default), STRING, literal=default)]
    moment = to_timestamp(parts) if len(parts) == 2 else cast(parts[0], INSTANT)
    return Lowered(f"(epoch_us({moment.sql}) // {MICROS_PER_SECOND})", LONG, moment.fails)  # cut, not rounded down


def units_since_1970(micros: int) -> Function:
    return made(LONG, floor_div("epoch_us({0})", micros) if micros > 1 else "epoch_us({0})", "moment")


def moment_of(micros: int) -> Function:
    return made(INSTANT, f"make_timestamp(CAST({{0}} AS BIGINT) * {micros})", "whole", fails=True)


def field(part: str, *, plus: int = 0) -> Function:
    return made(INT, f"(date_part('{part}', {{0}}) + {plus})", "moment")


def _months_between(parts: Sequence[Lowered]) -> Lowered:
    """Whole if both are on the same day of the month, or both on the last; else by months of 31 days."""
    rounded = parts[2].literal if len(parts) == 3 else True
    if not isinstance(rounded, bool):
        raise Refusal("the third argument of months_between must be true or false")

    def body(a: str, b: str) -> str:
        years = f"(date_part('year', {a}) - date_part('year', {b}))"
        months = f"({years} * 12 + date_part('month', {a}) - date_part('month', {b}))"
        last = [f"(CAST({each} AS DATE) = last_day({each}))" for each in (a, b)]
        since = "((epoch_us({0}) - epoch_us(date_trunc('day', {0}))) // 1000000)"
        days = f"(date_part('day', {a}) - date_part('day', {b}))"
        apart = f"({days} * 86400 + {since.format(a)} - {since.format(b)})"
        exact = f"({months} + CAST({apart} AS DOUBLE) / 2678400.0::DOUBLE)"
        made = f"floor({exact} * 1e8::DOUBLE + 0.5::DOUBLE) / 1e8::DOUBLE" if rounded else exact
        whole = f"{days} = 0 OR ({last[0]} AND {last[1]})"
        return f"(CASE WHEN {whole} THEN CAST({months} AS DOUBLE) ELSE {made} END)"

    return Lowered(let(parts[:2], body), DOUBLE)


WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def _next_day(parts: Sequence[Lowered]) -> Lowered:
    given = literal_of(parts[1], "next_day", "day of the week").lower()
    at = [number for number, name in enumerate(WEEKDAYS, 1) if given in (name, name[:3], name[:2])]
    if not at:
        raise Refusal(f"there is no day '{given}' in a week", f"days: {', '.join(WEEKDAYS)}")
    made = let(parts[:1], lambda d: f"({d} + CAST(({at[0]} - date_part('isodow', {d}) + 6) % 7 + 1 AS INTEGER))")
    return Lowered(made, DATE)


def _make_timestamp(parts: Sequence[Lowered]) -> Lowered:
    """Of whole seconds; 60 seconds are the next minute."""
    names = [f"CAST({part.sql} AS BIGINT)" for part in parts]
    wrong = f"{names[3]} NOT BETWEEN 0 AND 23 OR {names[4]} NOT BETWEEN 0 AND 59 OR {names[5]} NOT BETWEEN 0 AND 60"
    missing = " OR ".join(f"{part.sql} IS NULL" for part in parts)
    made = f"(make_timestamp({', '.join(names[:5])}, 0.0) + to_seconds({names[5]}))"
    checked = failing(wrong, "make_timestamp of a time that does not exist", made)
    return Lowered(f"(CASE WHEN {missing} THEN NULL ELSE {checked} END)", INSTANT, fails=True)


def _make_date(parts: Sequence[Lowered]) -> Lowered:
    names = [f"CAST({part.sql} AS BIGINT)" for part in parts]
    missing = " OR ".join(f"{part.sql} IS NULL" for part in parts)
    return Lowered(f"(CASE WHEN {missing} THEN NULL ELSE make_date({', '.join(names)}) END)", DATE, fails=True)


MICROS = {
    "microsecond": 1, "millisecond": 1000, "second": MICROS_PER_SECOND, "minute": 60 * MICROS_PER_SECOND,
    "hour": 3600 * MICROS_PER_SECOND, "day": 86400 * MICROS_PER_SECOND, "dayofyear": 86400 * MICROS_PER_SECOND,
    "week": 7 * 86400 * MICROS_PER_SECOND,
}  # fmt: skip
MONTHS = {"month": 1, "quarter": 3, "year": 12}


def time_added(unit: str, parts: Sequence[Lowered]) -> Lowered:
    """timestampadd: a number of units later; a day that its month does not have becomes the last one of the month."""
    number, start = f"CAST({parts[0].sql} AS BIGINT)", moment(parts[1])
    if unit in MONTHS:
        added = f"to_months(CAST({number} * {MONTHS[unit]} AS INTEGER))"
    else:
        added = f"to_microseconds({number} * {MICROS[unit]})"
    return Lowered(f"CAST({start.sql} + {added} AS TIMESTAMP)", INSTANT, fails=True)


def time_between(unit: str, parts: Sequence[Lowered]) -> Lowered:
    """timestampdiff: whole units from the first to the second; below 0 if the second is earlier."""

    def body(start: str, end: str) -> str:
        if unit not in MONTHS:
            return f"((epoch_us({end}) - epoch_us({start})) // {MICROS[unit]})"
        days = [f"CAST({each} AS DATE)" for each in (start, end)]
        clocks = [f"CAST({each} AS TIME)" for each in (start, end)]
        too_early = f"{days[1]} > {days[0]} AND {clocks[1]} < {clocks[0]}"
        too_late = f"{days[1]} < {days[0]} AND {clocks[1]} > {clocks[0]}"
        last = f"({days[1]} + (CASE WHEN {too_early} THEN -1 WHEN {too_late} THEN 1 ELSE 0 END))"
        packed = [
            f"((date_part('year', {each}) * 12 + date_part('month', {each})) * 32 + date_part('day', {each}))"
            for each in (days[0], last)
        ]
        return f"(({packed[1]} - {packed[0]}) // 32 // {MONTHS[unit]})"

    made = [moment(part) for part in parts]
    return Lowered(let(made, body), LONG, any(part.fails for part in made))


WITH_UNITS = {
    **dict.fromkeys(("timestampadd", "dateadd", "date_add"), time_added),
    **dict.fromkeys(("timestampdiff", "timediff", "datediff", "date_diff"), time_between),
}
"""Functions that take a unit as a word before two other arguments."""


def with_unit(name: str, word: str, parts: Sequence[Lowered]) -> Lowered:
    unit, made = word.lower(), WITH_UNITS[name]
    units = [each for each in (*MICROS, *MONTHS) if made is time_added or each != "dayofyear"]
    if unit not in units:
        raise Mistake(f"{name} has no unit '{word}'", f"units: {', '.join(units)}")
    if made is time_added and parts[0].family != "number":
        raise Mistake(f"{name} adds a whole number of units, not {type_name(parts[0].type)}", f"{name}(HOUR, 1, at)")
    return made(unit, parts)


TIMES: dict[str, Function] = {
    "year": field("year"),
    "quarter": field("quarter"),
    "month": field("month"),
    "day": field("day"),
    "dayofmonth": field("day"),
    "dayofweek": Function(field("dow").takes, field("dow", plus=1).lower, note="1 is Sunday"),
    "weekday": Function(field("isodow").takes, field("isodow", plus=-1).lower, note="0 is Monday"),
    "dayofyear": field("doy"),
    "weekofyear": Function(field("week").takes, field("week").lower, note="of ISO 8601"),
    "hour": field("hour"),
    "minute": field("minute"),
    "second": field("second"),
    "date_trunc": Function(("string", "moment"), date_trunc, note="a timestamp; weeks begin on Monday"),
    "trunc": Function(("day", "string"), trunc, note="a date"),
    "date_format": Function(("moment", "string"), date_format),
    "from_unixtime": Function(("whole", "string"), from_unixtime, 1, note="a string"),
    "unix_timestamp": Function(("any", "string"), unix_timestamp, 2, note="whole seconds, rounded down"),
    "to_unix_timestamp": Function(("any", "string"), unix_timestamp, 1),
    "to_timestamp": Function(("any", "string"), to_timestamp, 1, note="an error if it cannot be parsed"),
    "to_date": Function(("any", "string"), to_date, 1, note="an error if it cannot be parsed"),
    "unix_seconds": units_since_1970(MICROS_PER_SECOND),
    "unix_millis": units_since_1970(1000),
    "unix_micros": units_since_1970(1),
    "unix_date": made(INT, "({0} - DATE '1970-01-01')", "day"),
    "timestamp_seconds": moment_of(MICROS_PER_SECOND),
    "timestamp_millis": moment_of(1000),
    "timestamp_micros": moment_of(1),
    "date_add": made(DATE, "({0} + CAST({1} AS INTEGER))", "day", "whole"),
    "dateadd": made(DATE, "({0} + CAST({1} AS INTEGER))", "day", "whole"),
    "date_sub": made(DATE, "({0} - CAST({1} AS INTEGER))", "day", "whole"),
    "datediff": made(INT, "({0} - {1})", "day", "day", note="days from the second to the first"),
    "date_diff": made(INT, "({0} - {1})", "day", "day"),
    "add_months": made(DATE, "({0} + to_months(CAST({1} AS INTEGER)))", "day", "whole"),
    "last_day": made(DATE, "last_day({0})", "day"),
    "make_date": Function(("whole", "whole", "whole"), _make_date),
    "months_between": Function(("moment", "moment", "boolean"), _months_between, 1),
    "next_day": Function(("day", "string"), _next_day),
    "dayname": made(STRING, "strftime({0}, '%a')", "day"),
    "monthname": made(STRING, "strftime({0}, '%b')", "day"),
    "date_from_unix_date": made(DATE, "(DATE '1970-01-01' + CAST({0} AS INTEGER))", "whole", fails=True),
    "make_timestamp": Function(("whole",) * 6, _make_timestamp, note="of whole seconds"),
}
