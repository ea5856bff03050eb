"""State on disk: at every moment, what a version names is what was held when that version was made.

The state of one key group of one step is a few named tables. Each is a list of runs, and the newest run that speaks for
a hash of a key speaks for all its rows. A step reads the rows of the keys it asks for and of those that are due, and
writes what takes their place into a run of its own; runs of like size are merged. So the cost follows what is touched.

The files are only a faster form of the deltas, which are kept elsewhere: nothing is synced, and a version whose files
are gone or damaged is made anew from its deltas.
"""

from __future__ import annotations

import json
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import IO, Any

import numpy as np
import polars as pl
import pyarrow as pa
from crc32c import crc32c

from millstream.errors import DamagedState, StorageError
from millstream.state.deltas import from_delta, to_delta
from millstream.state.hashing import key_hashes
from millstream.state.run import (
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
    content_of,
    decoded,
    distinct,
    mapped,
    mark_column,
    merged,
    sorted_rows,
    visible,
    within,
    write,
)

NEVER = 1 << 62
RUNS_MAX = 8
LARGE_ROWS, LARGE_ALIKE = 50_000, 6
MANY_ASKED = 1000
DELTA_BYTES = 12 << 20
MAPPED_BYTES = 1 << 18  # smaller runs stay in memory after they were written
CACHED_RUNS = 256
VERSIONS_KEPT = 3
TIDYING = frozenset("0")  # a version that begins so has the folder tidied: one in sixteen
YOUNG_SECONDS = 10.0  # a younger file may belong to a version that another process is about to name
PLACE = "__state.place"
UNREADABLE = (OSError, ValueError, KeyError, TypeError, pa.ArrowException, pl.exceptions.PolarsError)

opened: OrderedDict[Path, Run] = OrderedDict()
opened_lock = Lock()


@dataclass(frozen=True, slots=True)
class Marks:
    """When a row is due in event time and by the clock, and what it holds the watermark at; null is never."""

    event: pl.Expr
    clock: pl.Expr
    hold: pl.Expr | None = None


@dataclass(frozen=True, slots=True)
class Applied:
    """What a step has left behind. An empty delta need not be kept: the version is the one before."""

    version: str
    delta: bytes
    next_event: int
    next_clock: int
    hold: int
    rows: int
    delta_rows: int


@dataclass(slots=True)
class Entry:
    """A run of a version, and for each mark how many of the first rows in its order are known to be replaced."""

    file: str
    size_bytes: int
    checksum: int
    cursors: dict[str, int]
    run: Run


@dataclass(slots=True)
class Table:
    """Its runs, newest first, and how many rows are to be seen in them."""

    empty: pl.DataFrame
    keys: list[str]
    stays: bool = False
    """Whether what is found stays unless another row of its key takes its place."""
    entries: list[Entry] = field(default_factory=list)
    rows: int = 0

    def copy(self) -> Table:
        entries = [replace(entry, cursors=dict(entry.cursors)) for entry in self.entries]
        return replace(self, entries=entries)

    def runs(self) -> list[Run]:
        return [entry.run for entry in self.entries]


@dataclass(slots=True)
class Touched:
    """What a step was given of a table: hashes, those of them that had rows, and the rows that share one by chance."""

    hashes: Hashes = field(default_factory=lambda: NO_HASHES)
    found: Hashes = field(default_factory=lambda: NO_HASHES)
    rows: int = 0
    aside: Rows | None = None
    kept: list[Rows] = field(default_factory=list)


class Runs:
    def __init__(
        self,
        folder: Path,
        keys: list[str],
        empty: dict[str, pl.DataFrame],
        own_keys: Mapping[str, list[str]] = MappingProxyType({}),
    ) -> None:
        """`own_keys` are those of tables whose rows are found by other columns, and stay unless they are replaced."""
        self._folder = folder
        self._keys = keys
        self._own_keys = own_keys
        self._empty = {name: frame.clear() for name, frame in empty.items()}
        self._version: str | None = None
        self._tables = self._no_tables()
        self._touched: dict[str, Touched] = {}
        # Key groups grow alike; each merges at a size of its own, so that they do not all stop in the same step.
        self._like = 1.5 + crc32c(str(folder).encode()) % 256 / 256

    # ------------------------------------------------------------ a version

    def open(self, version: str | None, deltas: Callable[[], Iterable[bytes]]) -> None:
        """Makes a version the current one; with None nothing is held.

        If its files cannot be read it is rebuilt from the deltas: all of them in order, from the beginning or from the
        last snapshot on.
        """
        self._touched = {}
        if version is not None and version == self._version:
            return
        if version is None:
            self._tables = self._no_tables()
        else:
            try:
                self._tables = self._read(version)
            except UNREADABLE:
                tables = self._rebuilt(deltas())
                self._name(version, tables)
                self._tables = tables
        self._version = version

    def _read(self, version: str) -> dict[str, Table]:
        checksum, _, content = (self._folder / f"{version}.json").read_bytes().partition(b"\n")
        if int(checksum) != crc32c(content):
            raise ValueError("the list of runs is not as it was written")
        described: dict[str, Any] = json.loads(content)
        if described.keys() != self._empty.keys():
            raise ValueError("the state has other tables")
        tables = self._no_tables()
        for name, table in tables.items():
            table.rows = described[name]["rows"]
            for run in described[name]["runs"]:
                run["run"] = self._opened(run["file"], run["size_bytes"], run["checksum"], table.empty)
                table.entries.append(Entry(**run))
        return tables

    def _opened(self, file: str, size_bytes: int, checksum: int, empty: pl.DataFrame) -> Run:
        path = self._folder / file
        run = opened.get(path)
        if run is None or run.rows.content.schema != empty.schema:
            run = mapped(path, size_bytes, checksum, empty)
        self._remember(path, run)
        return run

    def _remember(self, path: Path, run: Run) -> None:
        with opened_lock:
            opened[path] = run
            opened.move_to_end(path)
            if len(opened) > CACHED_RUNS:
                opened.popitem(last=False)

    def _rebuilt(self, deltas: Iterable[bytes]) -> dict[str, Table]:
        runs: dict[str, list[Rows]] = {name: [] for name in self._empty}
        for number, delta in enumerate(deltas):
            for name, rows in self._from_delta(delta, number).items():
                older = runs[name]
                merging = self._merging(len(rows), [len(run) for run in older])
                rows = merged([rows, *older[:merging]], oldest=merging == len(older))
                runs[name] = [rows, *older[merging:]] if len(rows) else older[merging:]
        tables = self._no_tables()
        for name, table in tables.items():
            rows = merged(runs[name], oldest=True) if runs[name] else Rows(table.empty, NO_HASHES)
            table.rows = len(rows)
            if len(rows):
                table.entries.append(self._written(Run(rows), table.empty))
        return tables

    def _no_tables(self) -> dict[str, Table]:
        return {
            name: Table(empty, self._own_keys.get(name, self._keys), name in self._own_keys)
            for name, empty in self._empty.items()
        }

    # ------------------------------------------------------------ reading

    def held(
        self, keys: dict[str, pl.DataFrame], before: tuple[int, int], now: tuple[int, int]
    ) -> dict[str, pl.DataFrame]:
        """All rows of the keys asked for, table by table, and of those of which some row is due.

        Due is an event deadline in (before[0], now[0]] or a clock deadline in (before[1], now[1]]. Without key columns
        there is one key; a frame that has rows or has no columns asks for it.
        """
        self._touched = {}
        return {name: self._held_of(name, keys.get(name), before, now) for name in self._tables}

    def _held_of(
        self, name: str, asked: pl.DataFrame | None, before: tuple[int, int], now: tuple[int, int]
    ) -> pl.DataFrame:
        table = self._tables[name]
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
                places.append(found[-1].spoken_for())
            left = left[~hit]
            if not len(left):
                break
        content = pl.concat([table.empty, *(rows.content for rows in found)], rechunk=True)
        touched = Touched(hashes, np.sort(np.concatenate([NO_HASHES, *places])), len(content))
        self._touched[name] = touched
        found_hashes = np.concatenate([NO_HASHES, *(rows.hashes for rows in found)])
        keys = table.keys
        if found and keys and self._collide(keys, asked, asked_hashes, content, found_hashes):
            wanted = pl.concat([asked, *(run.rows.content[keys][here] for run, here in due)]).unique()
            content = self._set_aside(keys, touched, found, wanted)
        if table.stays:
            touched.kept = found
        return content

    def _asked(self, asked: pl.DataFrame | None, table: Table) -> tuple[pl.DataFrame, Hashes]:
        if asked is None:
            asked = table.empty
        elif not table.keys:
            return table.empty[table.keys], np.zeros(1 if len(asked) or not asked.width else 0, np.uint64)
        asked = _fitting(asked, table.empty[table.keys])
        if len(asked) > MANY_ASKED:  # many rows ask for the same
            asked = asked.unique()
        return asked, key_hashes(asked, table.keys)

    def _due(self, table: Table, before: tuple[int, int], now: tuple[int, int]) -> list[tuple[Run, Places]]:
        """The rows that are due and have not been replaced, run by run."""
        due, runs = [], table.runs()
        for number, entry in enumerate(table.entries):
            by_event = entry.run.due(EVENT, before[0], now[0], entry.cursors.get(EVENT, 0))
            by_clock = entry.run.due(CLOCK, before[1], now[1], entry.cursors.get(CLOCK, 0))
            if len(by_event) or len(by_clock):
                places = distinct(np.sort(np.concatenate([by_event, by_clock])))
                due.append((entry.run, places[visible(entry.run.rows.hashes[places], runs[:number])]))
        return due

    @staticmethod
    def _collide(
        keys: list[str], asked: pl.DataFrame, asked_hashes: Hashes, found: pl.DataFrame, found_hashes: Hashes
    ) -> bool:
        """Whether different keys have one hash. In order of hash, they would stand side by side."""
        hashes = np.concatenate([asked_hashes, found_hashes])
        order = np.argsort(hashes)
        same = hashes[order][1:] == hashes[order][:-1]
        together = pl.concat([asked, found[keys]])
        return not together[order[1:][same]].equals(together[order[:-1][same]], null_equal=True)

    @staticmethod
    def _set_aside(keys: list[str], touched: Touched, found: list[Rows], wanted: pl.DataFrame) -> pl.DataFrame:
        """Only the rows of the keys that are wanted; those of others come back when the step is applied."""
        rows = merged(found, oldest=False)
        numbered = rows.content.with_row_index(PLACE)
        given = numbered.join(wanted, on=keys, how="semi", nulls_equal=True, maintain_order="left")[PLACE]
        given_places = given.to_numpy().astype(np.int64)
        others = np.setdiff1d(np.arange(len(rows)), given_places)
        if len(others):
            touched.aside = rows.at(others)
        return rows.content[given_places]

    # ------------------------------------------------------------ writing

    def apply(self, changes: dict[str, pl.DataFrame], marks: dict[str, Marks]) -> Applied:
        """Puts these rows in the place of what was last held, and names the result with a version.

        Of a table that is named, keys that were asked for or held and have no row now are gone, unless it has keys of
        its own: in that what was found stays. One that is not named stays as it is.
        """
        changed = {name: self._changed(name, rows, marks.get(name)) for name, rows in changes.items()}
        tables = {name: table.copy() for name, table in self._tables.items()}
        for name, rows in changed.items():
            touched = self._touched.get(name, Touched())
            tables[name].rows += rows.live_count() - touched.rows
            if len(rows):
                self._add(tables[name], rows)
        written = {name: rows for name, rows in changed.items() if len(rows)}
        first = _first_marks(tables)
        version = self._version
        if written or version is None:
            version = uuid.uuid4().hex
            self._name(version, tables)
        # Until here nothing has changed in memory: who could not write can try again.
        self._version, self._tables, self._touched = version, tables, {}
        if version[0] in TIDYING:
            with suppress(OSError):
                self._tidy()
        return Applied(
            version=version,
            delta=to_delta(written) if written else b"",
            next_event=first[EVENT],
            next_clock=first[CLOCK],
            hold=first[HOLD],
            rows=sum(table.rows for table in self._tables.values()),
            delta_rows=sum(len(rows) for rows in written.values()),
        )

    def _changed(self, name: str, changes: pl.DataFrame, marks: Marks | None) -> Rows:
        table, touched = self._tables[name], self._touched.get(name, Touched())
        rows = _fitting(changes, table.empty)
        hashes = key_hashes(rows, table.keys)
        if not within(hashes, touched.hashes).all():
            raise ValueError(f"rows of keys that were not asked for cannot be put into {name}")
        if table.stays:
            return self._put(table, rows, hashes, touched)
        times = _times(rows, marks) if marks and len(rows) else {}
        if aside := touched.aside:
            times = {
                mark: np.concatenate([times.get(mark, np.full(len(rows), ABSENT, np.int64)), aside.times(mark)])
                for mark in MARKS
            }
            rows, hashes = pl.concat([rows, aside.content]), np.concatenate([hashes, aside.hashes])
        gone = touched.found[~within(touched.found, np.sort(hashes))]
        return sorted_rows(rows, hashes, times, gone)

    @staticmethod
    def _put(table: Table, rows: pl.DataFrame, hashes: Hashes, touched: Touched) -> Rows:
        """New rows alone. A run speaks for all rows of a hash: of others that share one by chance it has a copy."""
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
        merging = self._merging(len(rows), [len(entry.run) for entry in table.entries])
        oldest = merging == len(table.entries)
        if merging or rows.dead is not None:
            rows = merged([rows, *(entry.run.rows for entry in table.entries[:merging])], oldest=oldest)
        table.entries = table.entries[merging:]
        if len(rows):
            table.entries.insert(0, self._written(Run(rows), table.empty))

    def _merging(self, size: int, older: list[int]) -> int:
        """How many older runs to merge with a new one: those of about its size, and more if there are too many.

        Large ones wait until several are alike: a look into one more costs less than to write so much again.
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

    def _written(self, run: Run, empty: pl.DataFrame) -> Entry:
        file = f"{uuid.uuid4().hex}.arrow"
        self._write(file, partial(write, run))
        content = content_of(self._folder / file)
        entry = Entry(file, content.size, crc32c(memoryview(content)), {}, run)
        if content.size >= MAPPED_BYTES:
            entry.run = decoded(content, empty)
        self._remember(self._folder / file, entry.run)
        return entry

    def _name(self, version: str, tables: dict[str, Table]) -> None:
        described = {
            name: {
                "rows": table.rows,
                "runs": [
                    {
                        "file": entry.file,
                        "size_bytes": entry.size_bytes,
                        "checksum": entry.checksum,
                        "cursors": entry.cursors,
                    }
                    for entry in table.entries
                ],
            }
            for name, table in tables.items()
        }
        content = json.dumps(described).encode()
        checked = b"%d\n%s" % (crc32c(content), content)
        self._write(f"{version}.json", lambda target: target.write(checked))

    def _write(self, file: str, fill: Callable[[IO[bytes]], object]) -> None:
        temporary = self._folder / f"{uuid.uuid4().hex}.tmp"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as target:
                fill(target)
            temporary.replace(self._folder / file)
        except OSError as why:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise StorageError(
                f"the state of a step cannot be written: {why.strerror or why}",
                where=str(self._folder),
                next_step="see that the folder can be written and its disk has room, then start the job again",
            ) from why

    def _tidy(self) -> None:
        """Deletes what no recent version names. Who has a file mapped keeps it; who comes too late rebuilds."""
        ages = {}
        for path in self._folder.iterdir():
            with suppress(FileNotFoundError):
                ages[path] = path.stat().st_mtime
        current = self._folder / f"{self._version}.json"
        newest = sorted((path for path in ages if path.suffix == ".json"), key=lambda path: ages[path])[-VERSIONS_KEPT:]
        kept = {current, *newest, *(self._folder / entry.file for t in self._tables.values() for entry in t.entries)}
        for path in newest:
            kept |= self._named_by(path)
        for path, written in ages.items():
            if path not in kept and written <= ages.get(current, written) - YOUNG_SECONDS:
                path.unlink(missing_ok=True)
                with opened_lock:
                    opened.pop(path, None)

    def _named_by(self, manifest: Path) -> set[Path]:
        try:
            described = json.loads(manifest.read_bytes().partition(b"\n")[2])
            return {self._folder / run["file"] for table in described.values() for run in table["runs"]}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return set()

    # ------------------------------------------------------------ deltas

    def snapshot(self) -> Iterator[bytes]:
        """All that is held, as deltas that take the place of all earlier ones. Each speaks for a range of hashes."""
        for name, table in self._tables.items():
            runs = [entry.run.rows for entry in table.entries]
            parts = 1 + sum(entry.size_bytes for entry in table.entries) // DELTA_BYTES
            edges = [(part << 64) // parts for part in range(parts + 1)]
            for low, high in pairwise(edges):
                inside = [part for rows in runs if len(part := rows.between(low, high - 1))]
                if inside and len(rows := merged(inside, oldest=True)):
                    yield to_delta({name: rows})

    def _from_delta(self, delta: bytes, number: int) -> dict[str, Rows]:
        try:
            return from_delta(delta, self._empty) if delta else {}
        except UNREADABLE as why:
            raise DamagedState(
                f"change {number} of the state of a step cannot be read: {why}",
                where=str(self._folder),
                next_step="start the job from an older checkpoint, or without one from the beginning of its topics",
            ) from why


def _fitting(frame: pl.DataFrame, empty: pl.DataFrame) -> pl.DataFrame:
    """The columns of a table, in its order and its types."""
    frame = frame[empty.columns]
    return frame if frame.schema == empty.schema else frame.cast(empty.schema)


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
