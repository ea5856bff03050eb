"""A run is immutable: rows in order of their key's hash, and an index by due time.

A run overrides older runs for every hash in it. A hash without any rows left has one dead row, so that older runs are
not searched for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
from crc32c import crc32c

Places = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Times = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

EVENT, CLOCK, HOLD = "event", "clock", "hold"
MARKS = (EVENT, CLOCK, HOLD)
ABSENT = (1 << 63) - 1  # a row without this mark; later than the end of time, which can be a deadline
OWN = "__state."  # prefix of columns that are not the rows' own
HASH_COLUMN, DEAD_COLUMN = OWN + "hash", OWN + "dead"
FIRST_LOOK = 64
NO_HASHES: Hashes = np.empty(0, np.uint64)


@dataclass(slots=True)
class Rows:
    """Rows in order of hash. `dead` is None if all are live, and a mark is None if no row has it."""

    content: pl.DataFrame
    hashes: Hashes
    dead: Flags | None = None
    marks: dict[str, Times] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.hashes)

    def at(self, places: Places) -> Rows:
        return Rows(
            self.content[places],
            self.hashes[places],
            None if self.dead is None else self.dead[places],
            {name: times[places] for name, times in self.marks.items()},
        )

    def between(self, low: int, high: int) -> Rows:
        """The rows with hashes from `low` to `high`, without copying them."""
        first = int(np.searchsorted(self.hashes, np.uint64(low)))
        last = int(np.searchsorted(self.hashes, np.uint64(high), "right"))
        return Rows(
            self.content[first:last],
            self.hashes[first:last],
            None if self.dead is None else self.dead[first:last],
            {name: times[first:last] for name, times in self.marks.items()},
        )

    def times(self, mark: str) -> Times:
        found = self.marks.get(mark)
        return np.full(len(self), ABSENT, np.int64) if found is None else found

    def live(self, places: Places) -> Places:
        return places if self.dead is None else places[~self.dead[places]]

    def live_content(self) -> pl.DataFrame:
        return self.content if self.dead is None else self.content.filter(pl.Series(~self.dead))

    def live_count(self) -> int:
        return len(self) - (0 if self.dead is None else int(self.dead.sum()))

    def covered_hashes(self) -> Hashes:
        """The distinct hashes."""
        return distinct(self.hashes)

    def frame(self) -> pl.DataFrame:
        more: list[pl.Series] = [pl.Series(HASH_COLUMN, self.hashes)]
        if self.dead is not None:
            more.append(pl.Series(DEAD_COLUMN, self.dead))
        more.extend(pl.Series(mark_column(mark), times) for mark, times in self.marks.items())
        return self.content.hstack(more)


class Run:
    """Rows, with the order in which they become due."""

    def __init__(self, rows: Rows, orders: dict[str, npt.NDArray[np.uint32]] | None = None) -> None:
        self.rows = rows
        if orders is None:
            orders = {name: np.argsort(times, kind="stable").astype(np.uint32) for name, times in rows.marks.items()}
        self._orders = orders
        self._marked = {name: self._until(name, ABSENT - 1) for name in orders}
        self._distinct = bool((rows.hashes[1:] != rows.hashes[:-1]).all())

    def __len__(self) -> int:
        return len(self.rows)

    def find(self, hashes: Hashes) -> tuple[Flags, Places]:
        """Which of some ascending hashes this run has, and the positions of their rows."""
        own = self.rows.hashes
        first = np.searchsorted(own, hashes)
        hit: Flags = own[np.minimum(first, len(own) - 1)] == hashes
        first = first[hit]
        if self._distinct:
            return hit, first
        counts = np.searchsorted(own, hashes[hit], "right") - first
        starts = np.repeat(first - (np.cumsum(counts) - counts), counts)
        return hit, starts + np.arange(int(counts.sum()))

    def covers(self, hashes: Hashes) -> Flags:
        return within(hashes, self.rows.hashes)

    def due(self, mark: str, before: int, now: int, cursor: int) -> Places:
        """Rows with a mark in (before, now]. Those before the cursor are known to be replaced."""
        if mark not in self._orders:
            return np.empty(0, np.int64)
        first, last = max(cursor, self._until(mark, before)), self._until(mark, now)
        return self._orders[mark][first : max(first, min(last, self._marked[mark]))].astype(np.int64)

    def first(self, mark: str, cursor: int, newer: Sequence[Run], limit: int) -> tuple[int, int]:
        """The new cursor, and the first mark from there on if it is below `limit`, else `limit`.

        Replaced rows stay replaced, so a cursor only moves forward and skips them for good.
        """
        if mark not in self._orders:
            return 0, limit
        order, times, look = self._orders[mark], self.rows.marks[mark], FIRST_LOOK
        while cursor < self._marked[mark] and times[order[cursor]] < limit:
            places = order[cursor : min(cursor + look, self._marked[mark])]
            seen = visible(self.rows.hashes[places], newer)
            if seen.any():
                cursor += int(seen.argmax())
                return cursor, min(limit, int(times[order[cursor]]))
            cursor, look = cursor + len(places), look * 4
        return cursor, limit

    def _until(self, mark: str, time: int) -> int:
        """How many rows are marked up to a time. Touches few pages: the times themselves are not sorted."""
        order, times = self._orders[mark], self.rows.marks[mark]
        low, high = 0, len(order)
        while low < high:
            middle = (low + high) // 2
            if times[order[middle]] <= time:
                low = middle + 1
            else:
                high = middle
        return low

    def frame(self) -> pl.DataFrame:
        orders = [pl.Series(_order_column(mark), order) for mark, order in self._orders.items()]
        return self.rows.frame().hstack(orders)


def within(hashes: Hashes, ascending: Hashes) -> Flags:
    """Which hashes are among some ascending ones."""
    if not len(ascending):
        return np.zeros(len(hashes), np.bool_)
    here: Flags = ascending[np.minimum(np.searchsorted(ascending, hashes), len(ascending) - 1)] == hashes
    return here


def visible(hashes: Hashes, newer: Sequence[Run]) -> Flags:
    """Which rows with these hashes are not overridden by a newer run."""
    seen = np.ones(len(hashes), np.bool_)
    for run in newer:
        seen &= ~run.covers(hashes)
    return seen


def sorted_rows(content: pl.DataFrame, hashes: Hashes, marks: dict[str, Times], gone: Hashes) -> Rows:
    """Rows in order of hash; `gone` are hashes that had rows before and have none now."""
    marks = {name: times for name, times in marks.items() if len(times) and times.min() < ABSENT}
    if not len(gone):
        rows = Rows(content, hashes, None, marks)
        return rows if _is_ascending(hashes) else rows.at(hash_order(hashes))
    live = len(hashes)
    hashes = np.concatenate([hashes, gone])
    order = hash_order(hashes)
    dead = order >= live
    # One gather for both: a dead row has no position among the rows, and nulls in all columns.
    content = content.select(pl.all().gather(pl.Series(np.where(dead, 0, order)).set(pl.Series(dead), None)))
    nothing = np.full(len(gone), ABSENT, np.int64)
    return Rows(
        content,
        hashes[order],
        dead,
        {name: np.concatenate([times, nothing])[order] for name, times in marks.items()},
    )


def hash_order(hashes: Hashes) -> Places:
    """The positions in order of hash, equal ones as they are. A sort that is not stable takes a fifth of the time."""
    order: Places = np.argsort(hashes)
    ordered = hashes[order]
    return np.argsort(hashes, kind="stable") if (ordered[1:] == ordered[:-1]).any() else order


def _is_ascending(hashes: Hashes) -> bool:
    return bool((hashes[1:] >= hashes[:-1]).all())


def merged(runs: Sequence[Rows], *, oldest: bool) -> Rows:
    """Merges several runs, newest first. If there is nothing below the oldest, no dead rows are needed."""
    start, kept = 0, []
    for number, rows in enumerate(runs):
        keep = np.ones(len(rows), np.bool_)
        if oldest and rows.dead is not None:
            keep = ~rows.dead
        run = Run(rows, {})
        for newer in runs[:number] if len(rows) else ():
            keep[run.find(newer.covered_hashes())[1]] = False
        kept.append(np.flatnonzero(keep) + start)
        start += len(rows)
    places = np.concatenate(kept)
    if (
        len(places) == len(kept[0]) == len(runs[0])
    ):  # the newest overrides all others, as it does in a bundle of all keys
        rows = runs[0]
    else:
        together = _joined(runs)
        rows = together.at(places[hash_order(together.hashes[places])])
    if rows.dead is not None and not rows.dead.any():
        rows = replace(rows, dead=None)
    return rows


def _joined(parts: Sequence[Rows]) -> Rows:
    names = [mark for mark in MARKS if any(mark in rows.marks for rows in parts)]
    dead = None
    if any(rows.dead is not None for rows in parts):
        dead = np.concatenate([np.zeros(len(rows), np.bool_) if rows.dead is None else rows.dead for rows in parts])
    return Rows(
        pl.concat([rows.content for rows in parts]),
        np.concatenate([rows.hashes for rows in parts]),
        dead,
        {name: np.concatenate([rows.times(name) for rows in parts]) for name in names},
    )


# ---------------------------------------------------------------- as bytes


def write(run: Run, target: IO[bytes]) -> None:
    """Writes an Arrow file, which can be mapped and used in place."""
    run.frame().rechunk().write_ipc(target, compression="uncompressed", record_batch_size=max(1, len(run)))


def content_of(path: Path) -> pa.Buffer:
    """The content of a file, mapped."""
    with pa.memory_map(str(path)) as source:
        return source.read_buffer()


def mapped(path: Path, size_bytes: int, checksum: int, empty: pl.DataFrame) -> Run:
    """A run from its file. Raises ValueError, OSError or an Arrow error if the file has changed."""
    content = content_of(path)
    if content.size != size_bytes or crc32c(memoryview(content)) != checksum:
        raise ValueError(f"{path} has changed since it was written")
    return decoded(content, empty)


def decoded(content: pa.Buffer, empty: pl.DataFrame) -> Run:
    try:
        frame = pl.from_arrow(pa.ipc.open_file(pa.BufferReader(content)).read_all(), rechunk=False)
    except pa.ArrowNotImplementedError:  # a type that polars has and Arrow does not
        frame = pl.read_ipc(content.to_pybytes())
    if not isinstance(frame, pl.DataFrame):
        raise ValueError("not the file of a run")
    orders = {mark: frame[_order_column(mark)].to_numpy() for mark in MARKS if _order_column(mark) in frame.columns}
    return Run(rows_of(frame, empty), orders)


def rows_of(frame: pl.DataFrame, empty: pl.DataFrame, defaults: Mapping[str, Any] | None = None) -> Rows:
    """The inverse of `Rows.frame`. Raises ValueError if the columns are not those of the state.

    With `defaults`, the frame may be of an earlier version of the step: columns that it lacks get these, or null.
    """
    if defaults is not None:
        missing = [name for name in empty.columns if name not in frame.columns]
        frame = frame.with_columns(pl.lit(defaults.get(name), empty.schema[name]).alias(name) for name in missing)
        frame = frame.select(*empty.columns, *(name for name in frame.columns if name.startswith(OWN)))
    named = frame.columns
    own = [name for name in named if not name.startswith(OWN)]
    if own != empty.columns or HASH_COLUMN not in named:
        raise ValueError(f"the columns are {', '.join(own)} and not {', '.join(empty.columns)}")
    content = frame[own]
    return Rows(
        content if content.schema == empty.schema else content.cast(empty.schema),
        frame[HASH_COLUMN].to_numpy(),
        frame[DEAD_COLUMN].to_numpy() if DEAD_COLUMN in named else None,
        {mark: frame[mark_column(mark)].to_numpy() for mark in MARKS if mark_column(mark) in named},
    )


def mark_column(mark: str) -> str:
    return OWN + mark


def _order_column(mark: str) -> str:
    return f"{OWN}by_{mark}"


def distinct(ascending: npt.NDArray[Any]) -> npt.NDArray[Any]:
    firsts = np.ones(len(ascending), np.bool_)
    firsts[1:] = ascending[1:] != ascending[:-1]
    return ascending if firsts.all() else ascending[firsts]
