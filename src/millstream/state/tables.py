"""The state of one step: rows found by key and by deadline, at a cost that depends only on what is touched.

Each table is a list of runs, newest first, and the newest run that has a key's hash has all rows of that hash. A step
reads the rows of the keys it asks for and of those that are due, and writes their replacements into its own run; runs
of similar size are merged. `keep` decides where runs are stored: in memory, or in files (`runs.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import polars as pl

from millstream.state.hashing import key_hashes
from millstream.state.sorted_run import (
    ABSENT,
    CLOCK,
    EVENT,
    HOLD,
    MARKS,
    NO_HASHES,
    Hashes,
    Places,
    Rows,
    Run,
    distinct,
    mark_column,
    merged,
    sorted_rows,
    visible,
    within,
)

NEVER = 1 << 62
RUNS_MAX = 8
LARGE_ROWS, LARGE_ALIKE = 50_000, 6
MANY_ASKED = 1000
CLOSE = 8
"""Distinct integers are found by marking if their range is at most this many times their count."""
LIKE = 1.5
"""Runs up to this many times as large as a new one are merged with it."""
PLACE = "__state.place"
EVERY_KEY = "__state.every_key"
"""A requested frame with a column of this name requests all keys that have rows, besides its own."""


@dataclass(frozen=True, slots=True)
class Marks:
    """When a row is due in event time and in processing time, and where it holds the watermark; null is never."""

    event: pl.Expr
    clock: pl.Expr
    hold: pl.Expr | None = None


@dataclass(frozen=True, slots=True)
class RunFile:
    """Where a run is stored, and how to verify its bytes."""

    file: str
    size_bytes: int
    checksum: int


@dataclass(slots=True)
class Entry:
    """A run of a table, and for each mark how many of the first rows in its order are known to be replaced."""

    run: Run
    cursors: dict[str, int] = field(default_factory=dict)
    stored: RunFile | None = None


@dataclass(slots=True)
class Table:
    """A table's runs, newest first, and its number of live rows."""

    empty: pl.DataFrame
    keys: list[str]
    stays: bool = False
    """Whether rows that were looked up stay unless another row of their key replaces them."""
    entries: list[Entry] = field(default_factory=list)
    rows: int = 0
    empty_keys: pl.DataFrame = field(init=False)

    def __post_init__(self) -> None:
        self.empty_keys = self.empty[self.keys]

    def copy(self) -> Table:
        entries = [Entry(entry.run, dict(entry.cursors), entry.stored) for entry in self.entries]
        return Table(self.empty, self.keys, self.stays, entries, self.rows)

    def runs(self) -> list[Run]:
        return [entry.run for entry in self.entries]


@dataclass(slots=True)
class Touched:
    """What a step read from a table: hashes, those of them that had rows, and rows with colliding hashes."""

    hashes: Hashes = field(default_factory=lambda: NO_HASHES)
    found: Hashes = field(default_factory=lambda: NO_HASHES)
    rows: int = 0
    aside: Rows | None = None
    kept: list[Rows] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Change:
    """The effect of a step on the tables; they are untouched until the change is adopted."""

    tables: dict[str, Table]
    written: dict[str, Rows]
    first: dict[str, int]
    """The smallest mark of each kind over the whole state."""

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables.values())


def in_memory(run: Run, empty: pl.DataFrame) -> Entry:
    return Entry(run)


class Tables:
    def __init__(
        self,
        keys: list[str],
        empty: Mapping[str, pl.DataFrame],
        own_keys: Mapping[str, list[str]] = MappingProxyType({}),
        *,
        keep: Callable[[Run, pl.DataFrame], Entry] = in_memory,
        like: float = LIKE,
    ) -> None:
        """`own_keys` are those of tables whose rows are found by other columns, and stay unless they are replaced.

        A table whose own keys are no columns has one key, and is replaced as a whole.
        """
        self.empty = {name: frame.clear() for name, frame in empty.items()}
        self._keys = keys
        self._own_keys = own_keys
        self._keep = keep
        self._like = like
        self._touched: dict[str, Touched] = {}
        self.tables = self.no_tables()

    def no_tables(self) -> dict[str, Table]:
        return {
            name: Table(empty, self._own_keys.get(name, self._keys), bool(self._own_keys.get(name)))
            for name, empty in self.empty.items()
        }

    def become(self, tables: dict[str, Table]) -> None:
        """Replaces the whole state."""
        self.tables, self._touched = tables, {}

    # ------------------------------------------------------------ reading

    def held(
        self, keys: Mapping[str, pl.DataFrame], before: tuple[int, int], now: tuple[int, int]
    ) -> dict[str, pl.DataFrame]:
        """All rows of the requested keys, by table, and of keys with a row that is due.

        Due is an event deadline in (before[0], now[0]] or a clock deadline in (before[1], now[1]]. Without key columns
        there is one key; a frame that has rows or has no columns requests it.
        """
        self._touched = {}
        return {name: self._held_of(name, keys.get(name), before, now) for name in self.tables}

    def whole(self, name: str) -> pl.DataFrame:
        """All rows of a table, to be looked at: a step replaces only what it has requested."""
        runs = [run.rows for run in self.tables[name].runs()]
        return merged(runs, oldest=True).content if runs else self.tables[name].empty

    def _held_of(
        self, name: str, asked: pl.DataFrame | None, before: tuple[int, int], now: tuple[int, int]
    ) -> pl.DataFrame:
        table = self.tables[name]
        asked, asked_hashes = self._asked(asked, table)
        due = self._due(table, before, now)
        hashes = distinct(np.sort(np.concatenate([asked_hashes, *(run.rows.hashes[here] for run, here in due)])))
        if not len(hashes):
            return table.empty
        left, found, places = hashes, [], []
        for run in table.runs():
            hit, here = run.find(left)
            here = run.rows.live(here)
            if len(here):
                found.append(run.rows.at(here))
                places.append(found[-1].covered_hashes())
            left = left[~hit]
            if not len(left):
                break
        content = pl.concat([table.empty, *(rows.content for rows in found)], rechunk=True)
        touched = Touched(hashes, np.sort(np.concatenate([NO_HASHES, *places])), len(content))
        self._touched[name] = touched
        keys = table.keys
        if keys and self._collide(keys, asked, asked_hashes, found):
            wanted = pl.concat([asked, *(run.rows.content[keys][here] for run, here in due)]).unique()
            content = self._set_aside(keys, touched, found, wanted)
        if table.stays:
            touched.kept = found
        return content

    def _asked(self, asked: pl.DataFrame | None, table: Table) -> tuple[pl.DataFrame, Hashes]:
        """The requested keys in order of their hashes."""
        if asked is None:
            return table.empty_keys, NO_HASHES
        if not table.keys:
            return table.empty_keys, np.zeros(1 if len(asked) or not asked.width else 0, np.uint64)
        every = EVERY_KEY in asked.columns
        asked = _fitting(asked, table.empty_keys)
        if every:
            asked = pl.concat([asked, *(run.rows.live_content()[table.keys] for run in table.runs())])
        if len(asked) > MANY_ASKED:  # many rows have the same key
            asked = asked.unique() if asked.width > 1 else _distinct_values(asked.to_series()).to_frame()
        hashes = key_hashes(asked, table.keys)
        order = np.argsort(hashes)  # searching in order is several times as fast
        return asked[order], hashes[order]

    def _due(self, table: Table, before: tuple[int, int], now: tuple[int, int]) -> list[tuple[Run, Places]]:
        """The rows that are due and not replaced, by run."""
        due, runs = [], table.runs()
        for number, entry in enumerate(table.entries):
            by_event = entry.run.due(EVENT, before[0], now[0], entry.cursors.get(EVENT, 0))
            by_clock = entry.run.due(CLOCK, before[1], now[1], entry.cursors.get(CLOCK, 0))
            if len(by_event) or len(by_clock):
                places = distinct(np.sort(np.concatenate([by_event, by_clock])))
                due.append((entry.run, places[visible(entry.run.rows.hashes[places], runs[:number])]))
        return due

    @staticmethod
    def _collide(keys: list[str], asked: pl.DataFrame, asked_hashes: Hashes, found: list[Rows]) -> bool:
        """Whether rows were found of keys that share their hash with another one, requested or found."""
        for rows in found:
            own = rows.content.select(keys)
            first = np.minimum(np.searchsorted(rows.hashes, asked_hashes), len(rows) - 1)
            hit = rows.hashes[first] == asked_hashes
            if not (asked if hit.all() else asked.filter(hit)).equals(own[first[hit]], null_equal=True):
                return True
            same = np.flatnonzero(rows.hashes[1:] == rows.hashes[:-1])
            if len(same) and not own[same].equals(own[same + 1], null_equal=True):
                return True
        return False

    @staticmethod
    def _set_aside(keys: list[str], touched: Touched, found: list[Rows], wanted: pl.DataFrame) -> pl.DataFrame:
        """Only the rows of the wanted keys; those of others are put back when the step is applied."""
        rows = merged(found, oldest=False)
        numbered = rows.content.with_row_index(PLACE)
        given = numbered.join(wanted, on=keys, how="semi", nulls_equal=True, maintain_order="left")[PLACE]
        given_places = given.to_numpy().astype(np.int64)
        others = np.setdiff1d(np.arange(len(rows)), given_places)
        if len(others):
            touched.aside = rows.at(others)
        return rows.content[given_places]

    # ------------------------------------------------------------ writing

    def changed(self, changes: Mapping[str, pl.DataFrame], marks: Mapping[str, Marks]) -> Change:
        """The tables after these rows replace what was last held. Nothing is changed yet.

        In a table that is named, keys that were requested or held and have no row now are deleted, unless it has its
        own keys: then rows that were looked up stay. A table that is not named stays as it is.
        """
        changed = {name: self._changed(name, rows, marks.get(name)) for name, rows in changes.items()}
        tables = {name: table.copy() for name, table in self.tables.items()}
        for name, rows in changed.items():
            touched = self._touched.get(name, Touched())
            tables[name].rows += rows.live_count() - touched.rows
            if len(rows):
                self._add(tables[name], rows)
        written = {name: rows for name, rows in changed.items() if len(rows)}
        return Change(tables, written, _first_marks(tables))

    def _changed(self, name: str, changes: pl.DataFrame, marks: Marks | None) -> Rows:
        table, touched = self.tables[name], self._touched.get(name, Touched())
        rows = _fitting(changes, table.empty)
        hashes = key_hashes(rows, table.keys)
        ascending = np.sort(hashes)
        if not within(ascending, touched.hashes).all():
            raise ValueError(f"rows of keys that were not requested cannot be put into {name}")
        if table.stays:
            return self._put(table, rows, hashes, touched)
        times = _times(rows, marks) if marks and len(rows) else {}
        if aside := touched.aside:
            times = {
                mark: np.concatenate([times.get(mark, np.full(len(rows), ABSENT, np.int64)), aside.times(mark)])
                for mark in MARKS
            }
            rows, hashes = pl.concat([rows, aside.content]), np.concatenate([hashes, aside.hashes])
            ascending = np.sort(hashes)
        gone = touched.found[~within(touched.found, ascending)]
        return sorted_rows(rows, hashes, times, gone)

    @staticmethod
    def _put(table: Table, rows: pl.DataFrame, hashes: Hashes, touched: Touched) -> Rows:
        """Only new rows. A run has all rows of a hash, so it gets a copy of those that collide."""
        sharing = within(touched.found, np.sort(hashes))
        touched.rows = 0
        if sharing.any():
            before = merged(touched.kept, oldest=False)
            before = before.at(np.flatnonzero(within(before.hashes, touched.found[sharing])))
            touched.rows = len(before)
            numbered = before.content.with_row_index(PLACE)
            others = numbered.join(rows, on=table.keys, how="anti", nulls_equal=True)[PLACE].to_numpy()
            before = before.at(np.sort(others).astype(np.int64))
            rows, hashes = pl.concat([rows, before.content]), np.concatenate([hashes, before.hashes])
        return sorted_rows(rows, hashes, {}, NO_HASHES)

    def _add(self, table: Table, rows: Rows) -> None:
        merging = self.merging(len(rows), [len(entry.run) for entry in table.entries])
        oldest = merging == len(table.entries)
        if merging or rows.dead is not None:
            rows = merged([rows, *(entry.run.rows for entry in table.entries[:merging])], oldest=oldest)
        table.entries = table.entries[merging:]
        if len(rows):
            table.entries.insert(0, self._keep(Run(rows), table.empty))

    def merging(self, size: int, older: list[int]) -> int:
        """How many older runs to merge with a new one: those of about its size, and more if there are too many.

        Large ones wait until several are of similar size: searching one more run costs less than rewriting it.
        """
        merging = 0
        while merging < len(older):
            alike = 0
            while merging + alike < len(older) and self._like * size >= older[merging + alike]:
                alike += 1
            if alike < (LARGE_ALIKE if size >= LARGE_ROWS else 1):
                alike = int(len(older) - merging >= RUNS_MAX)
            if not alike:
                break
            size += sum(older[merging : merging + alike])
            merging += alike
        return merging


def _fitting(frame: pl.DataFrame, empty: pl.DataFrame) -> pl.DataFrame:
    """The columns of a table, in its order and types."""
    if frame.columns != empty.columns:
        frame = frame[empty.columns]
    return frame if frame.schema == empty.schema else frame.cast(empty.schema)


def _distinct_values(values: pl.Series) -> pl.Series:
    """In any order. Integers close to each other are marked in an array, in a sixth of the time that hashing takes."""
    if values.dtype in (pl.Int64, pl.Int32, pl.Int16) and len(values) and not values.null_count():
        low: Any = values.min()
        high: Any = values.max()
        if high - low < CLOSE * len(values):
            seen = np.zeros(high - low + 1, np.bool_)
            seen[values.to_numpy().astype(np.int64, copy=False) - low] = True
            return pl.Series(values.name, np.flatnonzero(seen) + low, values.dtype)
    return values.unique()


def _first_marks(tables: dict[str, Table]) -> dict[str, int]:
    first = dict.fromkeys(MARKS, NEVER)
    for table in tables.values():
        runs = table.runs()
        for number, entry in enumerate(table.entries):
            for mark in MARKS:
                cursor = entry.cursors.get(mark, 0)
                entry.cursors[mark], first[mark] = entry.run.first(mark, cursor, runs[:number], first[mark])
    return first


def _times(rows: pl.DataFrame, marks: Marks) -> dict[str, Any]:
    expressions = {EVENT: marks.event, CLOCK: marks.clock, HOLD: marks.hold}
    given = {name: expression.cast(pl.Int64) for name, expression in expressions.items() if expression is not None}
    frame = rows.with_columns(
        expression.fill_null(ABSENT).alias(mark_column(name)) for name, expression in given.items()
    )
    return {name: frame[mark_column(name)].to_numpy() for name in given}
