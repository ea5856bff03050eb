"""A duration is an exact, non-negative number of microseconds; floats are never used."""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction

from millstream.errors import InvalidDuration

_UNITS_US: dict[str, int] = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_SHORT = {
    "us": "microsecond", "µs": "microsecond", "ms": "millisecond", "s": "second", "sec": "second", "secs": "second",
    "m": "minute", "min": "minute", "mins": "minute", "h": "hour", "hr": "hour", "hrs": "hour", "d": "day", "w": "week",
}  # fmt: skip
_NOT_FIXED = {"month", "months", "year", "years", "quarter", "quarters", "y"}
_PART = re.compile(r"\s*([+-]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([^\W\d_]+)\s*", re.UNICODE)
_US = timedelta(microseconds=1)
_UNITS_HELP = "units: microseconds, milliseconds, seconds, minutes, hours, days, weeks, or us, ms, s, m, h, d, w"
_DIGITS_MAX = 40


def duration(text: str | timedelta, *, what: str = "duration") -> timedelta:
    """A Spark interval text ("90 seconds", "1 hour 30 minutes"), a short one ("250ms") or a timedelta, as a timedelta.

    `what` names the setting in error messages.
    """
    if isinstance(text, timedelta):
        if text < timedelta(0):
            raise InvalidDuration(f"the {what} is negative: {text}", next_step="give a duration of zero or more")
        return text
    if not isinstance(text, str):
        raise InvalidDuration(
            f"the {what} must be text or a timedelta, not {type(text).__name__}",
            next_step='write it with its unit: "90 seconds"',
        )
    total_us = _total_us(text, what)
    if total_us.denominator != 1:
        raise InvalidDuration(
            f"the {what} '{text}' is finer than a microsecond", next_step="round it to whole microseconds"
        )
    try:
        return int(total_us) * _US
    except OverflowError:
        raise InvalidDuration(
            f"the {what} '{text}' is too long", next_step=f"the longest is {timedelta.max.days} days"
        ) from None


def signed_duration(text: str | timedelta, *, what: str = "duration") -> timedelta:
    """Like `duration`, with an optional sign that applies to all of it ("-1 hour 30 minutes")."""
    if isinstance(text, timedelta):
        return text
    if isinstance(text, str) and text.strip().startswith("-"):
        return -duration(text.strip()[1:].strip(), what=what)
    return duration(text, what=what)


def format_duration(value: timedelta) -> str:
    """The shortest text in whole units, largest first ("1 hour 30 minutes"); `duration` parses it back to `value`."""
    if value < timedelta(0):
        raise InvalidDuration(f"a duration is not negative: {value}")
    left_us = value // _US
    parts = []
    for unit, size_us in reversed([(unit, size) for unit, size in _UNITS_US.items() if unit != "week"]):
        count, left_us = divmod(left_us, size_us)
        if count:
            parts.append(f"{count} {unit}{'' if count == 1 else 's'}")
    return " ".join(parts) or "0 seconds"


def _total_us(text: str, what: str) -> Fraction:
    body = re.sub(r"^\s*interval\b", "", text, flags=re.IGNORECASE)
    if not body.strip():
        raise InvalidDuration(f"the {what} is empty", next_step='write for example "90 seconds"')
    total_us = Fraction(0)
    at = 0
    while at < len(body):
        part = _PART.match(body, at)
        if part is None:
            raise InvalidDuration(
                f"the {what} '{_short(text)}' cannot be read from '{_short(body[at:].strip())}' on",
                next_step=f'write a number and a unit, as in "90 seconds" or "1 hour 30 minutes"; {_UNITS_HELP}',
            )
        sign, number, unit = part.groups()
        if sign == "-":
            raise InvalidDuration(f"the {what} '{text}' is negative", next_step="give a duration of zero or more")
        if len(number) > _DIGITS_MAX:
            raise InvalidDuration(f"the {what} '{_short(text)}' has a number of {len(number)} digits")
        total_us += Fraction(number) * _unit_us(unit, text, what)
        at = part.end()
    return total_us


def _unit_us(unit: str, text: str, what: str) -> int:
    lower = unit.lower()
    if lower in _NOT_FIXED:
        raise InvalidDuration(
            f"the {what} '{text}' uses {unit}, which have no fixed length: a month is 28 to 31 days",
            next_step="give it in days or weeks, or use a calendar window",
        )
    name = _SHORT.get(lower) or _SHORT.get(unit) or lower.removesuffix("s")
    if name not in _UNITS_US:
        raise InvalidDuration(f"the {what} '{_short(text)}' has the unknown unit '{unit}'", next_step=_UNITS_HELP)
    return _UNITS_US[name]


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:60] + "…"
