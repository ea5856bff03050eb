"""A lake table as a sink: data files first, then one commit that also records the batch.

    write data files, in tasks and here
    commit: add them, remove replaced ones, record the batch; one atomic version of the table
    remove what failed attempts have left

A batch that the table already has is skipped. Rows that are only added are written in the tasks. Changes of rows are
computed from the newest version and written in the driver; if another writer commits in between, they are computed
again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from millstream.connectors.claims import Claim
from millstream.connectors.connector import Writing
from millstream.connectors.databases.tables import warn_of_missing
from millstream.connectors.flat_rows import check_json
from millstream.connectors.lakes.changing import Batch
from millstream.connectors.lakes.claims import property_of, recorded_claim
from millstream.connectors.lakes.data_files import DataFiles, Shape, taken
from millstream.connectors.lakes.endpoints import LakeTable
from millstream.connectors.lakes.store import Conflict, NewFile, Run, Store, StoredFile
from millstream.connectors.sink import Prepared, TwoPhaseSink
from millstream.errors import InvalidSchema, MillstreamError, SinkFailed, SinkUnavailable
from millstream.records import Schema


class LakeSink(TwoPhaseSink):
    def __init__(self, endpoint: LakeTable, store: Store, writing: Writing) -> None:
        self._store = store
        self._ledger = writing.ledger
        self._where = f"step '{writing.step}', {store.where}"
        self._key = list(endpoint.key_columns(writing.schema))
        self._run = Run(writing.job, writing.step, writing.run)
        self._claim = recorded_claim(writing.ledger, Claim(writing.job, writing.step, writing.run))
        check_json(writing.schema)  # as which arrays and maps are compared
        self._removed: dict[str, StoredFile] = {}
        with self._explained(None):
            self._make_table(endpoint, writing.schema)
            self._files = DataFiles(store.storage(), self._run.folder, self._shape(writing.schema))

    def preparer(self) -> DataFiles | None:
        return None if self._key else self._files

    def is_decided(self, batch: int) -> bool:
        if self._ledger.has(batch):
            return True
        with self._explained(batch):
            self._refresh()
            return self._has(batch)

    def _has(self, batch: int) -> bool:
        newest = self._store.newest(self._run)
        return newest is not None and batch <= newest

    def prepare(self, batch: int, shard: int, rows: pa.Table, weights: pa.Array | None) -> Prepared:
        with self._explained(batch):
            if not self._key and weights is None:
                return self._files.prepared(self._store.places(), batch, rows)
            refused = self._files.shape.unfit(rows)
            fit, signs = taken(rows, weights, refused)
            return Prepared(self._changed(batch, self._files.shape.fitted(fit, signs), signs), refused)

    def commit(self, batch: int, receipts: Sequence[Any]) -> None:
        added = [NewFile.of(file) for receipt in receipts for file in receipt["files"]]
        removed = [self._removed[path] for receipt in receipts for path in receipt.get("removed", ())]
        if self._ledger.has(batch):
            return
        if not added and not removed:
            self._ledger.record(batch)  # not a version of the table for each batch without rows
            return
        with self._explained(batch):
            if not self._has(batch):
                self._store.commit(self._run, batch, added, removed)
                self._files.tidy(self._store.places(), batch, added)

    def _changed(self, batch: int, rows: pa.Table, weights: pa.Array | None) -> dict[str, Any]:
        changes = Batch(rows, weights, self._key).replaced(self._store.files(), self._store.rows)
        warn_of_missing(changes.missing, self._store.where)
        self._removed = {file.path: file for file in changes.removed}
        places = self._store.places()
        files = [file for part in changes.written for file in self._files.write(places, batch, part)]
        return {**self._files.receipt(files), "removed": list(self._removed)}

    # ------------------------------------------------------------ the table

    def _refresh(self) -> None:
        if not self._store.refresh():
            raise SinkFailed(
                "the table is gone",
                where=self._where,
                next_step="restore it; or start over, which creates it: millstream run flow.py --start-over",
            )

    def _make_table(self, endpoint: LakeTable, schema: Schema) -> None:
        """Creates the table, or adds the columns that it lacks."""
        store = self._store
        if not store.refresh():
            stored = store.as_stored(schema)
            store.create(
                stored, endpoint.partition_by, {self._run.claim_property: property_of(self._claim, created=True)}
            )
            return
        store.check_writable(bool(self._key))
        if endpoint.partition_by and endpoint.partition_by != store.partition_by:
            by = f"by {', '.join(store.partition_by)}" if store.partition_by else "by nothing"
            raise InvalidSchema(
                f"the existing table is partitioned {by}, not by {', '.join(endpoint.partition_by)}",
                where=self._where,
                next_step="leave out partition_by=, or write to another table",
            )
        new = difference(store.schema, store.as_stored(schema), self._where)
        if new:
            store.add_columns([field.with_nullable(True) for field in new])

    def _shape(self, schema: Schema) -> Shape:
        store = self._store
        return Shape(schema, store.schema, store.written_schema(), store.partition_by, store.leaves_out_partitions)

    @contextmanager
    def _explained(self, batch: int | None) -> Iterator[None]:
        try:
            yield
        except MillstreamError:
            raise
        except Conflict as error:
            raise SinkUnavailable(
                f"another writer has changed the table during batch {batch}: {error}",
                where=self._where,
                next_step="the batch is computed again from the new version",
            ) from error
        except Exception as error:
            found = self._store.explained(error)
            if found is None:
                raise
            message, passing = found
            if passing:
                raise SinkUnavailable(
                    f"the table cannot be written: {message}",
                    where=self._where,
                    next_step="check that its storage is up, reachable from here and writable",
                ) from error
            what = "the table is refused" if batch is None else f"batch {batch} is refused"
            raise SinkFailed(
                f"{what}: {message}", where=self._where, next_step="check the address, the permissions and the table"
            ) from error


def difference(there: Schema, wanted: Schema, where: str) -> list[pa.Field]:
    """The columns to add to a table. Raises InvalidSchema, with the differences, if that is not enough."""
    own = {field.name: _kind(field) for field in wanted.arrow}
    found = {field.name: _kind(field) for field in there.arrow}
    spelled = {name.lower(): name for name in found}
    reasons = [f"the rows have no column '{name}' ({kind})" for name, kind in found.items() if name not in own]
    reasons += [
        f"column '{name}' is {found[name]} in the table and {kind} in the rows"
        for name, kind in own.items()
        if name in found and found[name] != kind
    ]
    reasons += [
        f"column '{name}' is spelled '{spelled[name.lower()]}' in the table"
        for name in own
        if name not in found and name.lower() in spelled
    ]
    if reasons:
        raise InvalidSchema(
            f"the existing table does not fit the rows: {'; '.join(reasons)}",
            where=where,
            next_step="only new columns are added to a table: convert the rows with select(…), or write to another one",
        )
    return [field for field in wanted.arrow if field.name not in found]


def _kind(field: pa.Field) -> str:
    return Schema.of(pa.schema([field.with_nullable(True).with_name("column")])).ddl.partition(" ")[2]
