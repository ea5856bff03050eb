"""The newest changes of tables in databases: one SQLite file in the job's folder, which only the job writes.

A topic has the changes of a table in it; a database has only the current rows. So the job records what it writes: of
each table the newest changes, of each batch a bounded number, and how many it left out. Nothing reads the table.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa

from millstream import terminal
from millstream.connectors.catalog import TOPIC, Remembered
from millstream.connectors.flat_rows import flat_arrays
from millstream.connectors.weights import one_batch
from millstream.plan.nodes import Write
from millstream.plan.steps.flat_columns import FlatColumn, flat_columns
from millstream.records import Schema, align, codec
from millstream.sqlite_file import SqliteFile, reading

FILE = "table_changes.db"
KEPT = 10_000
"""Changes of each table."""
BATCH_MAX = 500
"""Changes recorded of one batch: those of the keys that came last."""
ROW_CHARACTERS_MAX = 8 << 10
"""Of a longer row, only the key is recorded."""
TABLES = """
create table if not exists changes (
    place text not null, number integer not null, batch integer not null, at real not null, key text, row text,
    weight integer not null, primary key (place, number)) without rowid;
create index if not exists changes_by_key on changes (place, key, number);
"""
NUMBER = "__number"
logger = terminal.logger(__name__)


@dataclass(frozen=True)
class Change:
    """One row that was written (weight 1) or deleted (-1); or, with weight 0, how many changes were left out."""

    number: int
    batch: int
    at: float
    key: str | None
    """Of the key columns, as JSON."""
    row: str | None
    """As JSON; None if it is too long. With weight 0, the number of changes."""
    weight: int


class TableChanges:
    """No batch fails because its changes cannot be recorded."""

    def __init__(self, folder: Path, log: Path | str) -> None:
        """`log` is a folder, or the address of Kafka."""
        self._folder, self._log = folder, log
        self._file: SqliteFile | None = None
        self._reached: dict[str, tuple[int, int]] = {}
        """By table, its newest batch and the number of its newest change."""
        self._has_failed = False

    def note(
        self, output: Write, batch: int, rows: pa.Table, weights: pa.Array | None, refused: Collection[int] | None
    ) -> None:
        """Records what a batch has changed. `refused` has the rows that were not written; None: that is not known."""
        if not rows.num_rows:
            return
        table = output.sink.remembered(output, self._log)
        if table is None or table.kind == TOPIC:
            return
        try:
            changes = [] if refused is None else list(_changes(output, table, rows, weights, refused))
            self._add(place_of(table), batch, changes, rows.num_rows - len(refused or ()))
        except (OSError, sqlite3.Error) as error:  # a full disk, say
            if not self._has_failed:
                logger.warning("changes of the table '%s' are not recorded: %s", table.name, error)
            self._has_failed = True

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _add(self, place: str, batch: int, changes: Sequence[tuple[str, str | None, int]], count: int) -> None:
        if self._file is None:  # what is newest was written by the job itself: it may be lost with the machine
            self._file = SqliteFile(self._folder / FILE, TABLES, is_durable=False)
        left_out, now = count - len(changes), time.time()
        with self._file.transaction() as connection:
            newest, number = self._reached.get(place) or _newest(connection, place)
            if batch <= newest:  # it is repeated
                connection.execute("delete from changes where place = ? and batch >= ?", (place, batch))
                _, number = _newest(connection, place)
            made: list[tuple[str | None, str | None, int]] = [(None, str(left_out), 0)] if left_out else []
            values = [
                (place, number + each, batch, now, *change) for each, change in enumerate([*made, *changes], start=1)
            ]
            connection.executemany("insert into changes values (?, ?, ?, ?, ?, ?, ?)", values)
            number += len(values)
            connection.execute("delete from changes where place = ? and number <= ?", (place, number - KEPT))
        self._reached[place] = batch, number


def place_of(table: Remembered) -> str:
    """What identifies a table in the file."""
    return f"{table.kind}:{table.where}:{table.name}"


def key_of(values: pa.RecordBatch) -> str:
    """A key as it is recorded, of a batch with its columns and one row."""
    return _texts(values)[0]


def read_changes(folder: Path, table: Remembered, *, key: str | None = None) -> Iterator[Change]:
    """The newest first, of one key or of all; and where changes were left out, which may be of any key."""
    of_key = "" if key is None else " and (key = ? or weight = 0)"
    chosen = f"select number, batch, at, key, row, weight from changes where place = ?{of_key} order by number desc"
    with suppress(OSError, sqlite3.Error), reading(folder / FILE) as connection:
        for row in connection.execute(chosen, (place_of(table), *([] if key is None else [key]))):
            yield Change(*row)


def _newest(connection: sqlite3.Connection, place: str) -> tuple[int, int]:
    found = connection.execute(
        "select batch, number from changes where place = ? order by number desc limit 1", (place,)
    ).fetchone()
    return (-1, 0) if found is None else (int(found[0]), int(found[1]))


def _changes(
    output: Write, table: Remembered, rows: pa.Table, weights: pa.Array | None, refused: Collection[int]
) -> Iterator[tuple[str, str | None, int]]:
    """Key, row and weight of each, as the database has them. A row comes right after the one that it replaces."""
    columns = flat_columns(output.schema)
    numbers = pl.int_range(rows.num_rows, dtype=pl.Int64, eager=True)
    if refused:
        numbers = numbers.filter(~numbers.is_in(list(refused)))
    if len(numbers) > BATCH_MAX:
        numbers = _last(rows, tuple(column for column in columns if column.name in table.key), numbers)
    chosen = numbers.to_arrow()
    batch = align(one_batch(rows.take(chosen)), output.schema.arrow)
    names = [column.name for column in columns]
    flat = pa.RecordBatch.from_arrays(flat_arrays(batch, columns), names=names)
    keys, texts = _texts(flat.select(list(table.key))), _texts(flat)
    signs = (
        [1] * len(numbers) if weights is None else [1 if each > 0 else -1 for each in weights.take(chosen).to_pylist()]
    )
    order = list(range(len(numbers)))
    if -1 in signs:
        first = {key: place for place, key in reversed(list(enumerate(keys)))}
        order = sorted(order, key=lambda place: first[keys[place]])
    for place in order:
        text = texts[place]
        yield keys[place], text if len(text) <= ROW_CHARACTERS_MAX else None, signs[place]


def _last(rows: pa.Table, key: tuple[FlatColumn, ...], numbers: pl.Series) -> pl.Series:
    """The rows of the keys that came last: each with what it replaces, however far before it that is."""
    batch = one_batch(rows.select(list({column.path[0]: None for column in key})))
    names = [column.name for column in key]
    keys = pl.DataFrame(pa.table(flat_arrays(batch, key), names=names)).with_columns(
        pl.int_range(pl.len(), dtype=pl.Int64).alias(NUMBER)
    )
    if len(numbers) < len(keys):
        keys = keys.filter(pl.col(NUMBER).is_in(numbers.implode()))
    last = keys.tail(BATCH_MAX // 2).select(names).unique()
    return keys.join(last, on=names, how="semi", nulls_equal=True)[NUMBER].sort().tail(BATCH_MAX)


def _texts(rows: pa.RecordBatch) -> list[str]:
    return [text.decode() for text in codec("json", Schema(rows.schema)).encode(rows).to_pylist()]
