"""Where in event time: a window describes how rows are grouped in time; operators implement it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from millstream.errors import InvalidWindow
from millstream.expressions.column_texts import ExpressionLike, as_text
from millstream.records import duration, format_duration, signed_duration
from millstream.user_lines import AtUsersLine, users_line, what_exists

Time = Literal["event", "processing"]
CALENDAR_UNITS = ("day", "week", "month", "quarter", "year")
MICROSECOND = timedelta(microseconds=1)


FOREVER = 1 << 61
"""Longer than the range of times: anything longer is equivalent, and might overflow when times are added."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST, LAST = ((edge.replace(tzinfo=UTC) - _EPOCH) // MICROSECOND for edge in (datetime.min, datetime.max))
"""The first and the last instant that Python and Spark can represent: windows start and end within them."""


def microseconds(span: timedelta) -> int:
    return max(-FOREVER, min(span // MICROSECOND, FOREVER))


@dataclass(frozen=True)
class Window:
    """The base of all windows."""

    has_end: ClassVar[bool] = True
    """Whether the watermark can reach its end: windows that are closed by rows have no end in event time."""
    merges: ClassVar[bool] = False
    """Whether windows of a key that overlap become one."""

    @property
    def slides(self) -> bool:
        """Whether every row completes a window, of itself and rows before it."""
        return False


@dataclass(frozen=True)
class Fixed(Window):
    size: timedelta
    offset: timedelta = timedelta(0)
    time: Time = "event"

    def __str__(self) -> str:
        return f"fixed({format_duration(self.size)})" + _suffix(self.offset, self.time)


@dataclass(frozen=True)
class Sliding(Window):
    size: timedelta
    every: timedelta
    offset: timedelta = timedelta(0)
    time: Time = "event"

    def __str__(self) -> str:
        return f"sliding({format_duration(self.size)} every {format_duration(self.every)})" + _suffix(
            self.offset, self.time
        )


@dataclass(frozen=True)
class Sessions(Window):
    gap: timedelta
    time: Time = "event"
    merges: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"sessions({format_duration(self.gap)})" + _suffix(timedelta(0), self.time)


@dataclass(frozen=True)
class Calendar(Window):
    unit: str
    tz: str = "UTC"
    time: Time = "event"

    def __str__(self) -> str:
        return f"calendar({self.unit}, {self.tz})" + _suffix(timedelta(0), self.time)


@dataclass(frozen=True)
class Rows(Window):
    count: int
    every: int
    has_end: ClassVar[bool] = False

    def __str__(self) -> str:
        return f"rows({self.count})" if self.every == self.count else f"rows({self.count} every {self.every})"


@dataclass(frozen=True)
class DeltaWindow(Window):
    column: str
    threshold: float
    is_sliding: bool = False
    has_end: ClassVar[bool] = False

    @property
    def slides(self) -> bool:
        return self.is_sliding

    def __str__(self) -> str:
        return f"delta_window({self.column}, {self.threshold}{', sliding' if self.slides else ''})"


@dataclass(frozen=True)
class ClosedBy(Window):
    predicate: str
    has_end: ClassVar[bool] = False

    def __str__(self) -> str:
        return f"closed_by({self.predicate})"


@dataclass(frozen=True)
class Everything(Window):
    def __str__(self) -> str:
        return "everything()"


def _suffix(offset: timedelta, time: Time) -> str:
    shown = f" offset {format_duration(offset)}" if offset else ""
    return shown + (" in processing time" if time == "processing" else "")


# ---------------------------------------------------------------- public functions


def fixed(size: str | timedelta, *, offset: str | timedelta = timedelta(0), time: Time = "event") -> Fixed:
    """Adjacent windows of one size: [0, size), [size, 2·size) … since 1970, shifted by `offset`.

    With an offset of "-8 hours", days start when they do in a time zone eight hours ahead of UTC.
    """
    long = _positive(size, "size")
    return Fixed(long, _offset(offset, long), _time(time))


def sliding(
    size: str | timedelta, every: str | timedelta, *, offset: str | timedelta = timedelta(0), time: Time = "event"
) -> Sliding:
    """A window of `size` starts every `every`: windows overlap, or have gaps between them if `every` is larger."""
    long, period = _positive(size, "size"), _positive(every, "every")
    return Sliding(long, period, _offset(offset, period), _time(time))


def sessions(gap: str | timedelta, *, time: Time = "event") -> Sessions:
    """A window lasts as long as rows of a key follow each other by at most `gap`."""
    return Sessions(_positive(gap, "gap"), _time(time))


def calendar(unit: str, *, tz: str = "UTC", time: Time = "event") -> Calendar:
    """Days, weeks (from Monday), months, quarters or years in a time zone; a day has 23, 24 or 25 hours."""
    if unit not in CALENDAR_UNITS:
        raise _refuse(f"there is no calendar window {unit!r}", what_exists(unit, CALENDAR_UNITS, kind="units"))
    try:
        ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError, AttributeError):
        near = [name for name in sorted(available_timezones()) if str(tz).lower() in name.lower()][:5]
        hint = f"did you mean {', '.join(near)}?" if near else "use a name such as Europe/Berlin"
        raise _refuse(f"there is no time zone {tz!r}", hint) from None
    return Calendar(unit, tz, _time(time))


def rows(count: int, *, every: int | None = None) -> Rows:
    """Windows of `count` rows of a key, in order of arrival; a new one starts every `every` rows."""
    period = count if every is None else every
    for name, value in (("count", count), ("every", period)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise _refuse(f"{name} must be a positive integer, not {value!r}", "for example rows(100, every=10)")
    return Rows(count, period)


def delta_window(column: ExpressionLike, threshold: float, *, slides: bool = False) -> DeltaWindow:
    """A new window starts with a row whose `column` differs by `threshold` or more from the window's first row.

    With `slides`, every row emits a window of itself and the rows before it, back to the last one whose `column`
    differs from its own by `threshold` or more.
    """
    if not isinstance(slides, bool):
        raise _refuse(f"slides is True or False, not {slides!r}", "for example delta_window('speed', 10, slides=True)")
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 < threshold < math.inf:
        raise _refuse(
            f"a threshold must be a positive number, not {threshold!r}", "for example delta_window('speed', 10)"
        )
    return DeltaWindow(_text(column, "delta_window takes a column", "delta_window('speed', 10)"), threshold, slides)


def closed_by(predicate: ExpressionLike) -> ClosedBy:
    """A row that satisfies the predicate is the last of its window."""
    return ClosedBy(_text(predicate, "closed_by takes a condition", "closed_by(\"kind = 'end'\")"))


def everything() -> Everything:
    """One window for everything, which never ends."""
    return Everything()


def _text(value: object, what: str, example: str) -> str:
    text = as_text(value)
    if not isinstance(text, str) or not text.strip():
        raise _refuse(f"{what} as text, not {value!r}", f"for example {example}")
    return text


def _positive(span: str | timedelta, what: str) -> timedelta:
    with AtUsersLine():
        long = duration(span, what=what)
    if long <= timedelta(0):
        raise _refuse(f"{what} must be longer than 0", "for example '1 minute'")
    return long


def _offset(offset: str | timedelta, period: timedelta) -> timedelta:
    """Normalizes an offset to less than one period."""
    with AtUsersLine():
        return signed_duration(offset, what="offset") % period


def _time(time: Time) -> Time:
    if time not in ("event", "processing"):
        raise _refuse(
            f"time is 'event' or 'processing', not {time!r}", "time='processing' uses the time of a row's arrival"
        )
    return time


def _refuse(what: str, next_step: str | None) -> InvalidWindow:
    return InvalidWindow(what, where=users_line(), next_step=next_step)
