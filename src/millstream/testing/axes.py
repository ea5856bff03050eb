"""Scales and ticks: the range of time that an axis shows, and its labels."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from millstream.reference import EPOCH, MICROSECOND

SECOND = 1_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86400 * SECOND
TICKS = [
    *(n * SECOND // 1000 for n in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *(n * SECOND for n in (1, 2, 5, 10, 15, 30)),
    *(n * MINUTE for n in (1, 2, 5, 10, 15, 30)),
    *(n * HOUR for n in (1, 2, 3, 6, 12)),
    *(n * DAY for n in (1, 2, 7, 14, 30, 91, 182, 365, 3650)),
]


@dataclass(frozen=True)
class Scale:
    """Maps values from `low` to `high` to pixels from `start` to `stop`; values beyond are drawn at the edge."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        part = (value - self.low) / (self.high - self.low)
        return self.start + min(1.0, max(0.0, part)) * (self.stop - self.start)


@dataclass(frozen=True)
class Frame:
    """A panel's plot, in pixels."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True)
class Axes:
    """The scales of event time and processing time on a panel."""

    frame: Frame
    x: Scale
    y: Scale

    def edges(self, span: tuple[int | None, int | None]) -> tuple[float, float]:
        """The edges of a window; an unbounded one is as wide as the plot, a single row's still visible."""
        start = self.frame.left if span[0] is None else self.x(span[0])
        end = self.frame.right if span[1] is None else self.x(span[1])
        low, high = min(start, end), max(start, end)
        return (low, high) if high - low >= 8 else ((low + high) / 2 - 4, (low + high) / 2 + 4)


def padded(values: list[int], share: float, alone: float) -> tuple[float, float]:
    """A range around the values with some margin; `alone` is that of a single one."""
    low, high = (min(values), max(values)) if values else (0, 0)
    air = (high - low) * share or alone
    return low - air, high + air


def time_ticks(low: float, high: float, count_max: int) -> list[tuple[int, str]]:
    """Round times within a range and their labels."""
    step = next((tick for tick in TICKS if (high - low) / tick <= count_max), TICKS[-1])
    first = -int(-low // step)
    times = [n * step for n in range(first, int(high // step) + 1)]
    return [(time, clock_face(time, step)) for time in times]


def step_ticks(count: int, count_max: int) -> list[tuple[int, str]]:
    every = -(-count // count_max) if count else 1
    return [(number, str(number)) for number in range(0, count, every)]


def clock_face(micros: int, step: int = 1) -> str:
    """A time, as precise as ticks at this distance need."""
    time = moment_of(micros)
    if step >= DAY:
        return f"{time:%Y}" if step > 300 * DAY else f"{time:%b} {time.day}"
    text = f"{time:%H:%M}" if step >= MINUTE else f"{time:%H:%M:%S}"
    return text if step >= SECOND or not time.microsecond else text + f"{time:.%f}".rstrip("0")


def moment_of(micros: int) -> datetime:
    return EPOCH + micros * MICROSECOND


def instant_text(micros: int | None) -> str:
    """A time for a title, with seconds if it has any."""
    if micros is None:
        return "…"
    time = moment_of(micros)
    return clock_face(micros, MINUTE if micros % MINUTE == 0 else SECOND if not time.microsecond else 1)
