"""Calendar windows follow local time: one begins at the first instant whose local time lies in it."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from millstream.plan.windows import MICROSECOND

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def calendar_span(unit: str, zone: ZoneInfo, time: int) -> tuple[int, int]:
    """Start and end of the calendar window a time lies in, all in microseconds since 1970."""
    local = (EPOCH + time * MICROSECOND).astimezone(zone).date()
    first = first_day(unit, local)
    while time >= first_instant(next_first_day(unit, first), zone):
        first = next_first_day(unit, first)
    while time < first_instant(first, zone):
        first = first_day(unit, first - timedelta(days=1))
    return first_instant(first, zone), first_instant(next_first_day(unit, first), zone)


def first_day(unit: str, day: date) -> date:
    if unit == "week":
        return day - timedelta(days=day.weekday())
    month = {"day": day.month, "month": day.month, "quarter": (day.month - 1) // 3 * 3 + 1, "year": 1}[unit]
    return day if unit == "day" else date(day.year, month, 1)


def next_first_day(unit: str, first: date) -> date:
    days = {"day": 1, "week": 7, "month": 31, "quarter": 93, "year": 366}[unit]
    return first_day(unit, first + timedelta(days=days))


def first_instant(day: date, zone: ZoneInfo) -> int:
    """The first instant whose local time lies in the day; midnight may not exist."""
    midnight = datetime(day.year, day.month, day.day, tzinfo=zone)
    late, early = (_micros(midnight.replace(fold=fold)) for fold in (0, 1))
    if early >= late:  # it exists; of two midnights the first is meant
        return late
    while early < late:  # clocks were put forward over it, somewhere between the two readings
        middle = (early + late) // 2
        if (EPOCH + middle * MICROSECOND).astimezone(zone).date() < day:
            early = middle + 1
        else:
            late = middle
    return late


def _micros(moment: datetime) -> int:
    return (moment.astimezone(UTC) - EPOCH) // MICROSECOND
