"""The history of a job's metrics: one SQLite file in its folder, which only the job writes.

It is bounded: a sample about every second for ten minutes, one in ten for two hours, one a minute for a day. Counters
count from the start of the run, so dropping samples between two others loses no rows.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, fields, replace
from pathlib import Path
from typing import Any

from millstream.errors import InvalidInput
from millstream.metrics.samples import Metrics, PartitionSample, Sample, StepPlan, StepSample
from millstream.sqlite_file import SqliteFile, reading
from millstream.user_lines import what_exists

FILE = "metrics.db"
FORMAT = 2
TIERS = ((1, 600.0), (10, 7200.0), (60, 86400.0))
"""Of the samples, every n-th is kept for so many seconds."""
SAMPLE_COLUMNS = [each.name for each in fields(Sample) if each.name != "steps"]
STEP_COLUMNS = [each.name for each in fields(StepSample)]
PARTITION_COLUMNS = [each.name for each in fields(PartitionSample)]
TABLES = f"""
create table if not exists samples (number integer primary key, keep_until real not null, {", ".join(SAMPLE_COLUMNS)});
create index if not exists samples_by_time on samples (at);
create index if not exists samples_by_end on samples (keep_until);
create table if not exists steps (
    sample integer not null, step text not null, {", ".join(STEP_COLUMNS)}, primary key (sample, step)) without rowid;
create table if not exists partitions ({", ".join(PARTITION_COLUMNS)}, primary key (source, partition)) without rowid;
create table if not exists about (name text primary key, value text not null);
"""


class History(SqliteFile):
    """Written by the job. No run fails because its metrics cannot be written: callers ignore `sqlite3.Error`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / FILE, "", is_durable=False)  # metrics may be lost with the machine
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        version = self._connection.execute("pragma user_version").fetchone()[0]
        if version != FORMAT:  # of another version, and not worth converting
            for table in ("samples", "steps", "partitions", "about"):
                self._connection.execute(f"drop table if exists {table}")
        self._connection.executescript(TABLES)
        self._connection.execute(f"pragma user_version = {FORMAT}")
        newest = self._connection.execute("select max(number) from samples").fetchone()[0]
        self._number = 0 if newest is None else int(newest)

    def begin_run(self, at: float, plan: Sequence[StepPlan]) -> None:
        described = {"run_started": at, "plan": [asdict(each) for each in plan]}
        sources = [each.name for each in plan if each.kind == "source"]
        with self.transaction() as connection:
            for name, value in described.items():
                connection.execute("insert or replace into about values (?, ?)", (name, json.dumps(value)))
            known = ", ".join("?" * len(sources))
            connection.execute(f"delete from partitions where source not in ({known})", sources)

    def partitions(self) -> list[PartitionSample]:
        """Those that earlier runs knew."""
        with self._lock:
            return _partitions(self._connection)

    def add(self, sample: Sample, partitions: Sequence[PartitionSample]) -> None:
        self._number += 1
        kept_s = max(seconds for each, seconds in TIERS if self._number % each == 0)
        values = [getattr(sample, name) for name in SAMPLE_COLUMNS]
        steps = [(self._number, name, *astuple(step)) for name, step in sample.steps.items()]
        with self.transaction() as connection:
            connection.execute(_insert("samples", 2 + len(values)), (self._number, sample.at + kept_s, *values))
            connection.executemany(_insert("steps", 2 + len(STEP_COLUMNS)), steps)
            connection.executemany(
                _insert("partitions", len(PARTITION_COLUMNS)).replace("insert", "insert or replace", 1),
                [astuple(each) for each in partitions],
            )
            over = connection.execute("select number from samples where keep_until < ?", (sample.at,)).fetchall()
            connection.executemany("delete from steps where sample = ?", over)
            connection.executemany("delete from samples where number = ?", over)


def read_metrics(folder: Path, *, since: float | None = None, step: str | None = None) -> Metrics | None:
    """The metrics in a job's folder from an instant on, by default only the newest; None if there are none."""
    try:
        with reading(folder / FILE) as connection:
            about = dict(connection.execute("select name, value from about"))
            plan = tuple(_step_plan(each) for each in json.loads(about["plan"]))
            known = [each.name for each in plan]
            if step is not None and step not in known:
                raise InvalidInput(f"the job has no step '{step}'", next_step=what_exists(step, known, kind="steps"))
            return Metrics(
                float(json.loads(about["run_started"])),
                plan,
                tuple(_partitions(connection)),
                tuple(_samples(connection, known, since, step)),
            )
    except (OSError, sqlite3.Error, KeyError, ValueError, TypeError):  # nothing yet, or written by another version
        return None


def _samples(
    connection: sqlite3.Connection, order: Sequence[str], since: float | None, step: str | None
) -> Iterator[Sample]:
    newest = connection.execute("select max(number) from samples").fetchone()[0]
    where, bound = ("number = ?", newest) if since is None else ("at > ?", since)
    steps: dict[int, dict[str, StepSample]] = {}
    one = "" if step is None else " and step = ?"
    rows = connection.execute(
        f"select sample, step, {', '.join(STEP_COLUMNS)} from steps"
        f" where sample in (select number from samples where {where}){one} order by sample",
        (bound, *([] if step is None else [step])),
    )
    for number, name, *values in rows:
        steps.setdefault(number, {})[name] = StepSample(*values)
    selected = f"select number, {', '.join(SAMPLE_COLUMNS)} from samples where {where} order by number"
    for number, *values in connection.execute(selected, (bound,)):
        found = steps.get(number, {})
        yield replace(Sample(*values), steps={name: found[name] for name in order if name in found})


def _partitions(connection: sqlite3.Connection) -> list[PartitionSample]:
    selected = f"select {', '.join(PARTITION_COLUMNS)} from partitions order by source, length(partition), partition"
    return [PartitionSample(*row) for row in connection.execute(selected)]


def _step_plan(document: dict[str, Any]) -> StepPlan:
    return StepPlan(**{**document, "inputs": tuple(document["inputs"])})


def _insert(table: str, columns: int) -> str:
    return f"insert into {table} values ({', '.join('?' * columns)})"
