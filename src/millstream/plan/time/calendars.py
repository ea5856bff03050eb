"""Calendar windows follow local time: each starts at the first instant whose local time is within it."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from millstream.plan.time.windows import FIRST, FOREVER, LAST, MICROSECOND

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1) // MICROSECOND
DAYS_MAX = {"day": 1, "week": 7, "month": 31, "quarter": 93, "year": 366}


def calendar_span(unit: str, zone: ZoneInfo, time: int) -> tuple[int, int]:
    """Start and end of the calendar window that contains a time, all in microseconds since 1970.

    The first window starts at the first representable instant, and the last ends at the last.
    """
    first = first_day(unit, _local_day(time, zone))
    while time >= (end := _end(unit, first, zone)):
        if _is_last(unit, first):  # local time is ahead, in a year beyond the last date
            return end, LAST
        first = next_first_day(unit, first)
    while time < (start := first_instant(first, zone)):
        if first == date.min:  # local time is behind, in a year before the first date
            return FIRST, start
        first = first_day(unit, first - timedelta(days=1))
    return max(FIRST, start), min(LAST, _end(unit, first, zone))


def _is_last(unit: str, first: date) -> bool:
    """Whether the window that starts on this day is the last one that starts on a representable date."""
    return (date.max - first).days < DAYS_MAX[unit] and first_day(unit, date.max) == first


def _end(unit: str, first: date, zone: ZoneInfo) -> int:
    if not _is_last(unit, first):
        return first_instant(next_first_day(unit, first), zone)
    # The last representable date ends a year, but not a week.
    return FOREVER if unit == "week" else first_instant(date.max, zone) + DAY


def _local_day(time: int, zone: ZoneInfo) -> date:
    moment = EPOCH + time * MICROSECOND
    try:
        return moment.astimezone(zone).date()
    except OverflowError:  # the local year has no representable dates
        return moment.date()


def first_day(unit: str, day: date) -> date:
    if unit == "week":
        return day - timedelta(days=day.weekday())
    month = {"day": day.month, "month": day.month, "quarter": (day.month - 1) // 3 * 3 + 1, "year": 1}[unit]
    return day if unit == "day" else date(day.year, month, 1)


def next_first_day(unit: str, first: date) -> date:
    return first_day(unit, first + timedelta(days=DAYS_MAX[unit]))


def first_instant(day: date, zone: ZoneInfo) -> int:
    """The first instant whose local time is within the day; midnight may not exist."""
    midnight = datetime(day.year, day.month, day.day, tzinfo=zone)
    late, early = (_micros(midnight.replace(fold=fold)) for fold in (0, 1))
    if early >= late:  # it exists; of two midnights, the first
        return late
    while early < late:  # clocks skipped it, somewhere between the two readings
        middle = (early + late) // 2
        if _local_day(middle, zone) < day:
            early = middle + 1
        else:
            late = middle
    return late


def _micros(moment: datetime) -> int:
    offset = moment.utcoffset()
    assert offset is not None
    naive = (moment.replace(tzinfo=None) - EPOCH.replace(tzinfo=None)) // MICROSECOND  # may be out of range in UTC
    return naive - offset // MICROSECOND
