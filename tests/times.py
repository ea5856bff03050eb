"""The times that tests count in: seconds since the start of 2026."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 1, tzinfo=UTC)


def t(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)
