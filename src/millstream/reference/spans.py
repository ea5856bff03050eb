"""The windows that a time falls into, and which sessions touch. Windows are half-open."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from millstream.plan.time import windows
from millstream.plan.time.bundles import BEGINNING, moment
from millstream.plan.time.calendars import calendar_span


def spans_of(window: windows.Window, time: int) -> list[tuple[int, int]]:
    """The windows that a time lies in, for windows with a fixed place in time."""
    if isinstance(window, windows.Fixed):
        window = windows.Sliding(window.size, window.size, window.offset, window.time)
    if isinstance(window, windows.Sliding):
        size, every, offset = map(windows.microseconds, (window.size, window.every, window.offset))
        start = (time - offset) // every * every + offset
        spans = []
        while start + size > time:
            spans.append((start, min(start + size, windows.LAST)))
            start -= every
        return spans[::-1]
    assert isinstance(window, windows.Calendar)
    return [calendar_span(window.unit, ZoneInfo(window.tz), time)]


def touching(parts: list[tuple[int, int, Any]]) -> list[list[tuple[int, int, Any]]]:
    """Groups spans that overlap or touch."""
    groups: list[list[tuple[int, int, Any]]] = []
    reach = BEGINNING
    for part in sorted(parts, key=lambda part: part[:2]):
        if groups and part[0] <= reach:
            groups[-1].append(part)
        else:
            groups.append([part])
            reach = BEGINNING
        reach = max(reach, part[1])
    return groups


def span_values(span: tuple[int | None, int | None] | None) -> dict[str, datetime | None] | None:
    return None if span is None else {"start": moment(span[0]), "end": moment(span[1])}
