"""A lake table as a source: the files of the table when the job starts, then what each version changes.

Every data file gets the next offset, which is recorded in a journal before it is read; offsets inside a slice are
`file << 40 | row`. Data files never change, so the same offsets are the same rows, as long as the files are retained.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.connectors.files.journal import Journal
from millstream.connectors.lakes.feed import CHANGE_TYPE, DELETE, INSERT, MIXED, SNAPSHOT, Feed, Piece
from millstream.connectors.source import Offsets, Slab, Slice, Source, balanced
from millstream.errors import InvalidInput, InvalidSchema, MillstreamError, OffsetLost, SourceUnavailable
from millstream.records import Schema, align, can_evolve
from millstream.user_lines import what_exists

PARTITION = "table"
ROW_BITS = 40
LOOK_SECONDS = 1.0
WEIGHT, VERSION, COMMITTED = "weight", "_commit_version", "_commit_timestamp"
MADE = {
    WEIGHT: pa.int32(),
    CHANGE_TYPE: pa.string(),
    VERSION: pa.int64(),
    COMMITTED: pa.timestamp("us", "UTC"),
}
"""Columns that the table does not have, and that a schema may ask for."""
REMOVALS = pa.array(["delete", "update_preimage"])


class LakeSource(Source):
    def __init__(self, feed: Feed, schema: Schema, *, folder: Path, columns: Schema | None = None) -> None:
        self._feed = feed
        self._wanted = schema
        self._schema = schema if columns is None else columns
        self._reads_changes = WEIGHT in schema or CHANGE_TYPE in schema
        self._journal = Journal(folder / "table.journal", Piece)
        self._reached: int | None = None
        self._looked_at = 0.0

    def earliest(self) -> Offsets:
        return {PARTITION: 0}

    def latest(self) -> Offsets:
        if self._reached is None or time.monotonic() - self._looked_at >= LOOK_SECONDS:
            with self._explained():
                self._discover()
            self._looked_at = time.monotonic()
        return {PARTITION: len(self._journal)}

    def _discover(self) -> None:
        """Adds the files of new versions to the journal."""
        if self._reached is None:
            self._check_columns(self._feed.schema())
            self._journal.refresh()
            self._complete()
        if self._reached is None:
            found = self._feed.start()
            self._journal.append(self._checked(found))
            self._reached = found[-1].version if found else None
            return
        for version in self._feed.after(self._reached):
            self._journal.append(self._checked(self._feed.of(version, whole=False)))
            self._reached = version

    def _complete(self) -> None:
        """Adds the files of the newest version in the journal that a killed process did not add."""
        if not len(self._journal):
            return
        last = self._journal.entry(len(self._journal) - 1)
        known = set()
        for number in range(len(self._journal) - 1, -1, -1):
            entry = self._journal.entry(number)
            if entry.version != last.version:
                break
            known.add((entry.path, entry.change))
        found = self._feed.of(last.version, whole=last.change == SNAPSHOT)
        self._journal.append(piece for piece in found if (piece.path, piece.change) not in known)
        self._reached = last.version

    def _checked(self, pieces: list[Piece]) -> list[Piece]:
        changed = next((piece for piece in pieces if piece.change in (DELETE, MIXED)), None)
        if changed is not None and not self._reads_changes:
            raise InvalidInput(
                f"version {changed.version} of the table updates or deletes rows, and the flow reads added rows only",
                where=self._feed.where,
                next_step="read the changes: add 'weight int' to the schema, and read(…, changes=True)",
            )
        return pieces

    def _check_columns(self, there: Schema) -> None:
        for field in self._wanted.arrow:
            if field.name in there:
                found = Schema.of(pa.schema([there.field(field.name)]))
                if reasons := can_evolve(found, pa.schema([field.with_nullable(True)])):
                    raise InvalidSchema(
                        f"the table does not fit the schema: {'; '.join(reasons)}",
                        where=self._feed.where,
                        next_step=f"read the column as it is stored: {found.ddl}",
                    )
            elif field.name not in MADE or field.type != MADE[field.name]:
                raise InvalidSchema(
                    f"the table has no column '{field.name}'",
                    where=self._feed.where,
                    next_step=what_exists(field.name, [*there.names, *MADE]),
                )

    # ------------------------------------------------------------ planning a batch

    def limited(self, start: Offsets, limit_rows: int | None) -> Offsets:
        """A file is read whole, so a batch may exceed the limit by the rows of one."""
        begun, end = start.get(PARTITION, 0), self.latest()[PARTITION]
        rows, number = 0, begun
        while number < end and (limit_rows is None or rows < limit_rows):
            rows, number = rows + self._journal.entry(number).rows, number + 1
        return {PARTITION: max(begun, number)}

    def slices(self, start: Offsets, end: Offsets, tasks: int) -> list[list[Slice]]:
        numbers = range(start.get(PARTITION, 0), end[PARTITION])
        units = [
            (Slice(PARTITION, n << ROW_BITS, (n + 1) << ROW_BITS), self._journal.entry(n).rows + 1) for n in numbers
        ]
        return balanced(units, tasks) if units else []

    # ------------------------------------------------------------ reading

    def read(self, slice: Slice) -> Iterator[Slab]:
        number = slice.start >> ROW_BITS
        piece = self._journal.entry(number)
        row = 0
        with self._explained(piece):
            for batch in self._feed.batches(piece, self._schema.names):
                offsets = np.arange(row, row + batch.num_rows, dtype=np.int64) + slice.start
                row += batch.num_rows
                yield Slab(PARTITION, self._rows(piece, batch), offsets)

    def _rows(self, piece: Piece, batch: pa.RecordBatch) -> pa.Table:
        loose = pa.schema([field.with_nullable(True) for field in self._schema.arrow])
        rows = pa.Table.from_batches([align(batch, loose)])
        for name in MADE:
            if name in self._schema and (name not in batch.schema.names or name == CHANGE_TYPE):
                rows = rows.set_column(loose.get_field_index(name), loose.field(name), _made(name, piece, batch))
        return rows.cast(self._schema.arrow)

    @contextmanager
    def _explained(self, piece: Piece | None = None) -> Iterator[None]:
        try:
            yield
        except MillstreamError:
            raise
        except FileNotFoundError as error:
            if piece is None:
                raise
            raise OffsetLost(
                f"a data file of version {piece.version} was deleted before it was read",
                where=f"{self._feed.where}, {piece.path}",
                next_step="keep files for longer than the job may be behind (VACUUM, expire_snapshots); start over "
                "with the rows that are left: millstream run flow.py --start-over",
            ) from error
        except Exception as error:
            found = self._feed.explained(error)
            if found is None:
                raise
            message, passing = found
            kind: type[MillstreamError] = SourceUnavailable if passing else InvalidInput
            raise kind(
                f"the table cannot be read: {message}",
                where=self._feed.where,
                next_step="check the address, the permissions, and that its storage is up",
            ) from error


def _made(name: str, piece: Piece, batch: pa.RecordBatch) -> pa.Array:
    count = batch.num_rows
    if name == VERSION:
        return pa.repeat(pa.scalar(piece.version, pa.int64()), count)
    if name == COMMITTED:
        return pa.repeat(pa.scalar(piece.committed_ms * 1000, pa.int64()), count).cast(MADE[name])
    if piece.change != MIXED:
        value: Any = (DELETE if piece.change == DELETE else INSERT) if name == CHANGE_TYPE else None
        return pa.repeat(pa.scalar(value or (-1 if piece.change == DELETE else 1), MADE[name]), count)
    kinds = batch.column(CHANGE_TYPE).cast(pa.string())
    if name == CHANGE_TYPE:
        return kinds
    return pc.if_else(pc.is_in(kinds, REMOVALS), pa.scalar(-1, pa.int32()), pa.scalar(1, pa.int32()))
