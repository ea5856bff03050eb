"""How complete a stream is: a strategy derives the watermark of a source partition from its rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from millstream.errors import InvalidInput
from millstream.records import duration, format_duration
from millstream.user_lines import AtUsersLine, users_line


@dataclass(frozen=True)
class Watermark:
    """A strategy; a partition without rows for `idle` of processing time does not hold back the others."""

    idle: timedelta | None = None

    def _shown(self, kind: str, *arguments: str) -> str:
        idle = [] if self.idle is None else [f"idle={format_duration(self.idle)}"]
        return f"{kind}({', '.join([*arguments, *idle])})"


@dataclass(frozen=True)
class Bounded(Watermark):
    delay: timedelta = timedelta(0)
    ahead_at_most: timedelta | None = None
    """Rows further ahead of the clock than this do not count."""

    def __str__(self) -> str:
        ahead = [] if self.ahead_at_most is None else [f"ahead_at_most={format_duration(self.ahead_at_most)}"]
        if self.delay or ahead:
            return self._shown("bounded", format_duration(self.delay), *ahead)
        return self._shown("ascending")


@dataclass(frozen=True)
class Punctuated(Watermark):
    expression: str = ""

    def __str__(self) -> str:
        return self._shown("punctuated", self.expression)


@dataclass(frozen=True)
class Custom(Watermark):
    function: Callable[[list[dict[str, Any]]], datetime | None] | None = None

    def __str__(self) -> str:
        return self._shown("custom", getattr(self.function, "__name__", "function"))


def bounded(
    delay: str | timedelta,
    *,
    idle: str | timedelta | None = None,
    ahead_at_most: str | timedelta | None = None,
) -> Bounded:
    """Rows are at most `delay` out of order: the watermark of a partition is its newest event time minus `delay`.

    Rows whose event time is more than `ahead_at_most` ahead of the processing time do not move the watermark, and go to
    `.late` of the next step with the reason `ahead`.
    """
    with AtUsersLine():
        ahead = None if ahead_at_most is None else duration(ahead_at_most, what="ahead_at_most")
        return Bounded(_idle(idle), duration(delay, what="delay"), ahead)


def ascending(*, idle: str | timedelta | None = None) -> Bounded:
    """Event times never decrease within a partition. This is the default."""
    return Bounded(_idle(idle), timedelta(0))


def punctuated(expression: str, *, idle: str | timedelta | None = None) -> Punctuated:
    """Rows carry the watermark: the expression is the watermark, or null in rows without one."""
    if not isinstance(expression, str) or not expression.strip():
        raise InvalidInput(
            f"punctuated takes a Spark SQL expression as text, not {expression!r}",
            where=users_line(),
            next_step="for example punctuated(\"case when kind = 'mark' then at end\")",
        )
    return Punctuated(_idle(idle), expression)


def custom(
    function: Callable[[list[dict[str, Any]]], datetime | None], *, idle: str | timedelta | None = None
) -> Custom:
    """A function of a partition's new rows returns the watermark, or None to keep it."""
    if not callable(function):
        raise InvalidInput(
            f"custom takes a function, not {function!r}",
            where=users_line(),
            next_step="a function of a list of rows that returns a datetime, or None",
        )
    return Custom(_idle(idle), function)


def _idle(idle: str | timedelta | None) -> timedelta | None:
    if idle is None:
        return None
    with AtUsersLine():
        quiet = duration(idle, what="idle")
    if quiet <= timedelta(0):
        raise InvalidInput(
            "idle must be longer than 0", where=users_line(), next_step="leave it out: partitions are then never idle"
        )
    return quiet
