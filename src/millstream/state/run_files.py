"""The state of a step in files: a version always identifies exactly the state at the time it was created.

The state of one key group of one step is a few tables of runs (`tables.py`), each run in an immutable file. The files
are only a faster form of the deltas, which are stored elsewhere: nothing is synced, and a version whose files are
missing or damaged is rebuilt from its deltas.
"""

from __future__ import annotations

import json
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import IO, Any

import polars as pl
import pyarrow as pa
from crc32c import crc32c

from millstream.errors import DamagedState, StorageError
from millstream.state.deltas import from_delta, to_delta
from millstream.state.sorted_run import (
    CLOCK,
    EVENT,
    HOLD,
    NO_HASHES,
    Rows,
    Run,
    content_of,
    decoded,
    mapped,
    merged,
    write,
)
from millstream.state.tables import LIKE, Entry, Marks, RunFile, Table, Tables

DELTA_BYTES = 12 << 20
MAPPED_BYTES = 1 << 18  # smaller runs stay in memory after they were written
CACHED_RUNS = 256
VERSIONS_KEPT = 3
TIDYING = frozenset("0")  # a version that starts with it cleans up the folder: one in sixteen
YOUNG_SECONDS = 10.0  # a younger file may belong to a version that another process is about to create
UNREADABLE = (OSError, ValueError, KeyError, TypeError, pa.ArrowException, pl.exceptions.PolarsError)

opened: OrderedDict[Path, Run] = OrderedDict()
opened_lock = Lock()


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of a step. An empty delta need not be stored: the version is the previous one."""

    version: str
    delta: bytes
    next_event: int
    next_clock: int
    hold: int
    rows: int
    size_bytes: int
    """In files, where a replaced row counts until its run is merged."""
    delta_rows: int


class Runs:
    def __init__(
        self,
        folder: Path,
        keys: list[str],
        empty: dict[str, pl.DataFrame],
        own_keys: Mapping[str, list[str]] = MappingProxyType({}),
        defaults: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """With `defaults`, by table, deltas may be of an earlier version of the step, which had fewer columns."""
        self._folder = folder
        self._defaults = defaults
        self._version: str | None = None
        # Key groups grow alike; each merges at its own size, so that they do not all pause in the same step.
        like = LIKE + crc32c(str(folder).encode()) % 256 / 256
        self._tables = Tables(keys, empty, own_keys, keep=self._written, like=like)

    # ------------------------------------------------------------ a version

    def open(self, version: str | None, deltas: Callable[[], Iterable[bytes]]) -> None:
        """Loads a version; None is the empty state.

        If its files cannot be read, it is rebuilt from the deltas: all of them in order, from the beginning or from the
        last snapshot.
        """
        if version is not None and version == self._version:
            self._tables.become(self._tables.tables)
            return
        if version is None:
            tables = self._tables.no_tables()
        else:
            try:
                tables = self._read(version)
            except UNREADABLE:
                tables = self._rebuilt(deltas())
                self._name(version, tables)
        self._tables.become(tables)
        self._version = version

    def _read(self, version: str) -> dict[str, Table]:
        checksum, _, content = (self._folder / f"{version}.json").read_bytes().partition(b"\n")
        if int(checksum) != crc32c(content):
            raise ValueError("the list of runs has changed since it was written")
        described: dict[str, Any] = json.loads(content)
        if described.keys() != self._tables.empty.keys():
            raise ValueError("the state has other tables")
        tables = self._tables.no_tables()
        for name, table in tables.items():
            table.rows = described[name]["rows"]
            for run in described[name]["runs"]:
                stored = RunFile(run["file"], run["size_bytes"], run["checksum"])
                table.entries.append(Entry(self._opened(stored, table.empty), run["cursors"], stored))
        return tables

    def _opened(self, stored: RunFile, empty: pl.DataFrame) -> Run:
        path = self._folder / stored.file
        run = opened.get(path)
        if run is None or run.rows.content.schema != empty.schema:
            run = mapped(path, stored.size_bytes, stored.checksum, empty)
        self._remember(path, run)
        return run

    def _remember(self, path: Path, run: Run) -> None:
        with opened_lock:
            opened[path] = run
            opened.move_to_end(path)
            if len(opened) > CACHED_RUNS:
                opened.popitem(last=False)

    def _rebuilt(self, deltas: Iterable[bytes]) -> dict[str, Table]:
        runs: dict[str, list[Rows]] = {name: [] for name in self._tables.empty}
        for number, delta in enumerate(deltas):
            for name, rows in self._from_delta(delta, number).items():
                older = runs[name]
                merging = self._tables.merging(len(rows), [len(run) for run in older])
                rows = merged([rows, *older[:merging]], oldest=merging == len(older))
                runs[name] = [rows, *older[merging:]] if len(rows) else older[merging:]
        tables = self._tables.no_tables()
        for name, table in tables.items():
            rows = merged(runs[name], oldest=True) if runs[name] else Rows(table.empty, NO_HASHES)
            table.rows = len(rows)
            if len(rows):
                table.entries.append(self._written(Run(rows), table.empty))
        return tables

    def held(
        self, keys: Mapping[str, pl.DataFrame], before: tuple[int, int], now: tuple[int, int]
    ) -> dict[str, pl.DataFrame]:
        return self._tables.held(keys, before, now)

    def whole(self, name: str) -> pl.DataFrame:
        return self._tables.whole(name)

    def apply(self, changes: Mapping[str, pl.DataFrame], marks: Mapping[str, Marks]) -> Applied:
        """Replaces the rows that were last held by these, and gives the result a version."""
        change = self._tables.changed(changes, marks)
        version = self._version
        if change.written or version is None:
            version = uuid.uuid4().hex
            self._name(version, change.tables)
        # Nothing has changed in memory so far: a caller whose write failed can try again.
        self._version = version
        self._tables.become(change.tables)
        if version[0] in TIDYING:
            with suppress(OSError):
                self._tidy()
        return Applied(
            version=version,
            delta=to_delta(change.written) if change.written else b"",
            next_event=change.first[EVENT],
            next_clock=change.first[CLOCK],
            hold=change.first[HOLD],
            rows=change.rows,
            size_bytes=sum(stored.size_bytes for _, stored in self._stored()),
            delta_rows=sum(len(rows) for rows in change.written.values()),
        )

    # ------------------------------------------------------------ files

    def _written(self, run: Run, empty: pl.DataFrame) -> Entry:
        file = f"{uuid.uuid4().hex}.arrow"
        self._write(file, partial(write, run))
        content = content_of(self._folder / file)
        if content.size >= MAPPED_BYTES:
            run = decoded(content, empty)
        self._remember(self._folder / file, run)
        return Entry(run, stored=RunFile(file, content.size, crc32c(memoryview(content))))

    def _name(self, version: str, tables: dict[str, Table]) -> None:
        described = {
            name: {
                "rows": table.rows,
                "runs": [
                    {**asdict(entry.stored), "cursors": entry.cursors}
                    for entry in table.entries
                    if entry.stored is not None
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
                next_step="check that the folder is writable and its disk has free space, then restart the job",
            ) from why

    def _tidy(self) -> None:
        """Deletes files that no recent version uses. A process that has one mapped keeps it; others rebuild."""
        ages = {}
        for path in self._folder.iterdir():
            with suppress(FileNotFoundError):
                ages[path] = path.stat().st_mtime
        current = self._folder / f"{self._version}.json"
        newest = sorted((path for path in ages if path.suffix == ".json"), key=lambda path: ages[path])[-VERSIONS_KEPT:]
        kept = {current, *newest, *(self._folder / stored.file for _, stored in self._stored())}
        for path in newest:
            kept |= self._named_by(path)
        for path, written in ages.items():
            if path not in kept and written <= ages.get(current, written) - YOUNG_SECONDS:
                path.unlink(missing_ok=True)
                with opened_lock:
                    opened.pop(path, None)

    def _stored(self) -> Iterator[tuple[Table, RunFile]]:
        for table in self._tables.tables.values():
            for entry in table.entries:
                if entry.stored is not None:
                    yield table, entry.stored

    def _named_by(self, manifest: Path) -> set[Path]:
        try:
            described = json.loads(manifest.read_bytes().partition(b"\n")[2])
            return {self._folder / run["file"] for table in described.values() for run in table["runs"]}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return set()

    # ------------------------------------------------------------ deltas

    def snapshot(self) -> Iterator[bytes]:
        """The whole state, as deltas that replace all earlier ones. Each covers a range of hashes."""
        for name, table in self._tables.tables.items():
            runs = [entry.run.rows for entry in table.entries]
            parts = 1 + sum(stored.size_bytes for home, stored in self._stored() if home is table) // DELTA_BYTES
            edges = [(part << 64) // parts for part in range(parts + 1)]
            for low, high in pairwise(edges):
                inside = [part for rows in runs if len(part := rows.between(low, high - 1))]
                if inside and len(rows := merged(inside, oldest=True)):
                    yield to_delta({name: rows})

    def _from_delta(self, delta: bytes, number: int) -> dict[str, Rows]:
        try:
            return from_delta(delta, self._tables.empty, self._defaults) if delta else {}
        except UNREADABLE as why:
            raise DamagedState(
                f"change {number} of the state of a step cannot be read: {why}",
                where=str(self._folder),
                next_step="restart the job from an older checkpoint, or without one from the beginning of its topics",
            ) from why
