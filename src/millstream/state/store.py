"""State in memory: windows found by key and by deadline, at a cost that follows what is touched, not what is held.

A store is a few runs, each sorted by the hash of the key. A change marks the old row of a run dead and puts the new one
into a run of its own; small runs are merged now and then.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

NEVER = 1 << 62
RUNS_MAX = 5
BUCKETS = 1 << 14
BUCKET_SHIFT = np.uint64(64 - 14)
MUCH = 4


@dataclass(slots=True)
class Run:
    """Rows in order of hash; `alive` says which have not been replaced since."""

    rows: pl.DataFrame
    hashes: npt.NDArray[np.uint64]
    alive: npt.NDArray[np.bool_]
    event_deadlines: npt.NDArray[np.int64]
    clock_deadlines: npt.NDArray[np.int64]
    next_event: int
    next_clock: int
    buckets: npt.NDArray[np.int64]
    halvings: int
    group_ends: npt.NDArray[np.int64]

    def find(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Where rows with these hashes lie. The first bits of a hash say nearly where, so little memory is touched."""
        bucket = (hashes >> BUCKET_SHIFT).astype(np.int64)
        low, high = self.buckets[bucket], self.buckets[bucket + 1]
        last = len(self.hashes) - 1
        for _ in range(self.halvings):
            middle = (low + high) >> 1
            before = (self.hashes[np.minimum(middle, last)] < hashes) & (low < high)
            low, high = np.where(before, middle + 1, low), np.where(before, high, middle)
        first: npt.NDArray[np.int64] = low[self.hashes[np.minimum(low, last)] == hashes]
        if not len(first):
            return first
        counts = self.group_ends[first] - first  # rows of one hash, as the windows of one key, follow one another
        if (counts == 1).all():
            return first
        starts: npt.NDArray[np.int64] = np.repeat(first - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
        return starts + np.arange(int(counts.sum()))

    def due(self, watermark: int, clock: int) -> npt.NDArray[np.int64]:
        if self.next_event > watermark and self.next_clock > clock:
            return np.empty(0, np.int64)
        return np.flatnonzero((self.event_deadlines <= watermark) | (self.clock_deadlines <= clock))


class Store:
    def __init__(self, keys: list[str], empty: pl.DataFrame) -> None:
        self._keys = keys
        self._empty = empty
        self._runs: list[Run] = []

    def __len__(self) -> int:
        return sum(int(run.alive.sum()) for run in self._runs)

    def held(self, rows: pl.DataFrame, watermark: int, clock: int) -> tuple[pl.DataFrame, list[npt.NDArray[np.int64]]]:
        """The windows of the keys in `rows` and those that are due, and where they were found."""
        probe = np.sort(_hashes(rows, self._keys).unique().to_numpy()) if self._runs else np.empty(0, np.uint64)
        found, places = [self._empty], []
        for run in self._runs:
            here, due = run.find(probe), run.due(watermark, clock)
            if len(due):  # numpy's own union is slow
                marked = np.zeros(len(run.rows), np.bool_)
                marked[here] = marked[due] = True
                here = np.flatnonzero(marked)
            here = here[run.alive[here]]
            places.append(here)
            if len(here):
                found.append(run.rows[here])
        return pl.concat(found, how="vertical_relaxed").rechunk(), places

    def smallest(self, value: pl.Expr) -> int:
        """The smallest value over everything held."""
        found = [run.rows.filter(run.alive).select(value.min().alias("value"))["value"][0] for run in self._runs]
        return min((value for value in found if value is not None), default=NEVER)

    def replace(self, places: list[npt.NDArray[np.int64]], rows: pl.DataFrame, event: pl.Expr, clock: pl.Expr) -> None:
        """Puts new rows in the place of those found. `event` and `clock` give their deadlines."""
        for run, here in zip(self._runs, places, strict=True):
            run.alive[here] = False
        self._runs = [run for run in self._runs if run.alive.any()]
        if len(rows):
            self._runs.append(self._run(rows, event, clock))
        if len(self._runs) > RUNS_MAX:
            self._merge(event, clock)

    def _merge(self, event: pl.Expr, clock: pl.Expr) -> None:
        """All runs become one, but for a first that is much larger than the others together."""
        newer = sum(len(run.rows) for run in self._runs[1:])
        kept = 1 if len(self._runs[0].rows) > MUCH * newer else 0
        rows = pl.concat([run.rows.filter(run.alive) for run in self._runs[kept:]], how="vertical_relaxed")
        self._runs[kept:] = [self._run(rows, event, clock)] if len(rows) else []

    def _run(self, rows: pl.DataFrame, event: pl.Expr, clock: pl.Expr) -> Run:
        hashes = _hashes(rows, self._keys).to_numpy()
        order = np.argsort(hashes, kind="stable")
        rows = rows[order]
        deadlines = rows.with_columns(__event=event.fill_null(NEVER), __clock=clock.fill_null(NEVER))
        events, clocks = deadlines["__event"].to_numpy(), deadlines["__clock"].to_numpy()
        hashes = hashes[order]
        buckets = np.searchsorted(hashes, np.arange(BUCKETS, dtype=np.uint64) << BUCKET_SHIFT)
        buckets = np.append(buckets, len(hashes))
        last_of_group = np.append(np.flatnonzero(hashes[1:] != hashes[:-1]), len(hashes) - 1)
        sizes = np.diff(last_of_group, prepend=-1)
        return Run(
            rows=rows,
            hashes=hashes,
            alive=np.ones(len(rows), np.bool_),
            event_deadlines=events,
            clock_deadlines=clocks,
            next_event=int(events.min()),
            next_clock=int(clocks.min()),
            buckets=buckets,
            halvings=int(np.diff(buckets).max()).bit_length(),
            group_ends=np.repeat(last_of_group + 1, sizes),
        )


def _hashes(rows: pl.DataFrame, keys: list[str]) -> pl.Series:
    if not keys:
        return pl.zeros(len(rows), dtype=pl.UInt64, eager=True)
    return rows.select((pl.col(keys[0]) if len(keys) == 1 else pl.struct(keys)).hash(7)).to_series()
