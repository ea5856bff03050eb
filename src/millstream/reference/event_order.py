"""Rows in order of event time: they wait until the watermark has reached them. Rows behind the watermark are late."""

from __future__ import annotations

from millstream.plan.time.bundles import Bundle, Row, late_reason
from millstream.reference.tables import late


class EventOrder:
    """The rows that wait, sorted by event time; rows of the same time are in order of arrival."""

    def __init__(self) -> None:
        self.waiting: list[Row] = []

    def take(self, bundle: Bundle) -> list[Row]:
        """Adds the rows of a bundle; returns the late ones."""
        self.waiting = sorted([*self.waiting, *in_time(bundle)], key=time_of)
        return [late(row, late_reason(row.time)) for row in bundle.rows if _is_late(row, bundle)]

    def ready(self, watermark: int) -> list[Row]:
        """The rows that the watermark has reached; they no longer wait."""
        ready = [row for row in self.waiting if time_of(row) <= watermark]
        self.waiting = self.waiting[len(ready) :]
        return ready


def in_time(bundle: Bundle) -> list[Row]:
    """The rows of a bundle that are not late."""
    return [row for row in bundle.rows if not _is_late(row, bundle)]


def _is_late(row: Row, bundle: Bundle) -> bool:
    return row.time is None or row.time < bundle.watermark_before


def time_of(row: Row) -> int:
    assert row.time is not None, "a row without event time is late"
    return row.time
