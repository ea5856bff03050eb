"""Quiet hours: alerts of this time are sent together when it ends."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from millstream.errors import InvalidInput

_FORM = re.compile(r"\s*(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})(?:\s+(\S+))?\s*")
EXAMPLE = "for example '22:00-07:00 Europe/Berlin'; the time zone is UTC if there is none"


@dataclass(frozen=True)
class QuietHours:
    start: time
    end: time
    zone: str = "UTC"

    @classmethod
    def parse(cls, text: str) -> QuietHours:
        found = _FORM.fullmatch(text) if isinstance(text, str) else None
        try:
            if found is None:
                raise ValueError
            hour, minute, end_hour, end_minute = (int(each) for each in found.groups()[:4])
            zone = found.group(5) or "UTC"
            ZoneInfo(zone)
            return cls(time(hour, minute), time(end_hour, end_minute), zone)
        except (ValueError, OSError, KeyError):
            raise InvalidInput(f"{text!r} are not quiet hours", next_step=EXAMPLE) from None

    def ends_after(self, now: float) -> float | None:
        """When the quiet hours end that an instant is in; None if it is in none."""
        local = datetime.fromtimestamp(now, ZoneInfo(self.zone))
        for day in (local.date() - timedelta(days=1), local.date()):
            first = datetime.combine(day, self.start, ZoneInfo(self.zone))
            last_day = day if self.end > self.start else day + timedelta(days=1)
            last = datetime.combine(last_day, self.end, ZoneInfo(self.zone))
            if first.astimezone(UTC) <= local.astimezone(UTC) < last.astimezone(UTC):
                return last.timestamp()
        return None
