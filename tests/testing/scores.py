"""A small stream of scores, and flows over it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import millstream as ms
from millstream.testing import Add, play
from millstream.testing.steps import Step

SCHEMA = "team string, score int, at timestamp"


def at(minute: int, second: int = 0) -> datetime:
    return datetime(2026, 1, 31, 12, minute, second, tzinfo=UTC)


def row(score: int, minute: int, second: int = 0, team: str = "red") -> dict[str, Any]:
    return {"team": team, "score": score, "at": at(minute, second)}


def scored(score: int, minute: int, second: int = 0, team: str = "red") -> Add:
    return Add([row(score, minute, second, team)])


def totals(scores: Any, *, window: Any = None, trigger: Any = None, mode: str = "accumulating", **options: Any) -> Any:
    windowed = scores.key_by("team").window(window or ms.fixed("1 minute"), **options)
    if trigger is not None:
        windowed = windowed.trigger(trigger)
    return getattr(windowed, mode)().agg(total=ms.sum("score"))


def played(build: Any, steps: list[Step], draw: str | Path | None = None) -> list[Any]:
    return play(build, steps, schema=SCHEMA, event_time="at", on="reference", draw=draw)
