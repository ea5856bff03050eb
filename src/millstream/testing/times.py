"""Times for human readers: as short as they can be distinguished."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from typing import Any


class ShortTimes:
    """Formats times without what all of them share: the day if there is only one, the seconds if there are none."""

    def __init__(self, times: Iterable[datetime]) -> None:
        known = [time.astimezone(UTC) for time in times]
        days = {time.date() for time in known}
        self.day: date | None = days.pop() if len(days) == 1 else None
        self.has_seconds = any(time.second or time.microsecond for time in known)

    def show(self, time: datetime) -> str:
        time = time.astimezone(UTC)
        day = "" if self.day == time.date() else f"{time:%Y-%m-%d} "
        text = f"{time:%H:%M:%S}" if self.has_seconds else f"{time:%H:%M}"
        part = f"{time:.%f}".rstrip("0") if time.microsecond else ""
        return day + text + part

    def span(self, window: Mapping[str, Any]) -> str:
        start, end = window["start"], window["end"]
        if start is None and end is None:
            return "everything"
        return f"{self._edge(start)} to {self._edge(end)}"

    def _edge(self, time: Any) -> str:
        return self.show(time) if isinstance(time, datetime) else "…" if time is None else str(time)


def times_in(value: Any) -> Iterable[datetime]:
    """Every time in rows, however deeply nested."""
    if isinstance(value, datetime):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from times_in(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from times_in(part)
