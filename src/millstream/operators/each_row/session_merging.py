"""How sessions grow and merge while rows arrive one by one: which rows follow one another in the same session.

A life of a session continues while rows arrive that do not affect its trigger's state: it may grow, but not merge with
another, nor move ahead of the watermark again after it was behind. Otherwise a new life begins.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np

from millstream.operators.ordering import Numbers
from millstream.plan.time.windows import LAST


@dataclass(slots=True)
class Lives:
    """The life of each row (-1 if it is late), and the bounds of its session after it."""

    of_rows: Numbers
    starts: Numbers
    ends: Numbers
    levels: list[int] = field(default_factory=list)
    """For each life: 0 if it began on its own, else one more than those it was merged from."""
    held: list[int] = field(default_factory=list)
    """For each life, the held session that it continues, or -1."""
    touched_by_first_row: list[int] = field(default_factory=list)
    """Held sessions that the first row of their key touches."""


@dataclass(frozen=True, slots=True)
class Held:
    """The sessions of a key, in order."""

    numbers: list[int]
    starts: list[int]
    ends: list[int]


def lives(
    times: Numbers, counts: Numbers, held: list[Held | None], gap: int, watermark: int, expired_before: int
) -> Lives:
    """Rows come by key; for each key their number, and its held sessions.

    A session that ends at `expired_before` or earlier is expired.
    """
    of_rows, starts, ends = (np.empty(len(times), np.int64) for _ in range(3))
    found = Lives(of_rows, starts, ends)
    place = 0
    for count, known in zip(counts.tolist(), held, strict=True):
        here = slice(place, place + count)
        rows = _Key(found, known, gap, watermark, expired_before).run(times[here].tolist())
        of_rows[here], starts[here], ends[here] = rows
        place += count
    return found


class _Key:
    """The sessions of one key, as rows arrive."""

    def __init__(self, found: Lives, held: Held | None, gap: int, watermark: int, expired_before: int) -> None:
        self.found = found
        self.gap, self.watermark, self.expired_before = gap, watermark, expired_before
        self.starts = [] if held is None else list(held.starts)
        self.ends = [] if held is None else list(held.ends)
        self.lives = [] if held is None else [self._begin(0, number) for number in held.numbers]
        self.held = dict(zip(self.lives, held.numbers, strict=True)) if held else {}

    def _begin(self, level: int, held: int = -1) -> int:
        self.found.levels.append(level)
        self.found.held.append(held)
        return len(self.found.levels) - 1

    def run(self, times: list[int]) -> tuple[list[int], list[int], list[int]]:
        of_rows, starts, ends = [], [], []
        gap, watermark = self.gap, self.watermark
        # The session of the previous row takes most of the next ones, without a lookup.
        start, end, room, life, is_over = 1, 0, 0, -1, False
        current = -1
        for number, time in enumerate(times):
            reach = min(time + gap, LAST)
            if start <= time <= end and reach < room and not (is_over and reach > watermark):
                if reach > end:
                    end = reach
                    self.ends[current] = end
            else:
                current = self._put(time, reach, is_first=number == 0)
                if current < 0:
                    of_rows.append(-1)
                    starts.append(time)
                    ends.append(reach)
                    start, end = 1, 0
                    continue
                start, end, life = self.starts[current], self.ends[current], self.lives[current]
                room = self.starts[current + 1] if current + 1 < len(self.starts) else reach + (1 << 62)
                is_over = end <= watermark
            of_rows.append(life)
            starts.append(start)
            ends.append(end)
        return of_rows, starts, ends

    def _put(self, time: int, reach: int, *, is_first: bool) -> int:
        """The index of the session that takes a row, or -1."""
        last = bisect_right(self.starts, reach) - 1
        if last < 0 or self.ends[last] < time:
            if reach <= self.expired_before:
                return -1
            self.starts.insert(last + 1, time)
            self.ends.insert(last + 1, reach)
            self.lives.insert(last + 1, self._begin(0))
            return last + 1
        first = last
        while first and self.ends[first - 1] >= time:
            first -= 1
        old = self.lives[first : last + 1]
        if is_first:
            self.found.touched_by_first_row += [self.held[life] for life in old]
        start, end = min(self.starts[first], time), max(self.ends[last], reach)
        comes_out = self.ends[last] <= self.watermark < end
        self.starts[first : last + 1], self.ends[first : last + 1] = [start], [end]
        if first < last or comes_out:
            self.lives[first : last + 1] = [self._begin(1 + max(self.found.levels[life] for life in old))]
        return first
