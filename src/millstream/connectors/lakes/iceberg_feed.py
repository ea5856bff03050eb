"""The changes of an Iceberg table, snapshot by snapshot, from its manifests.

Snapshots that only rewrite files (compaction) change no rows and are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from millstream.connectors.lakes.feed import DELETE, INSERT, SNAPSHOT, Feed, Piece
from millstream.connectors.lakes.iceberg import IcebergStore, numbered_batch
from millstream.connectors.lakes.library import pyiceberg_module
from millstream.connectors.source import SLAB_ROWS
from millstream.errors import InvalidInput, NotFound, OffsetLost
from millstream.records import Schema


class IcebergFeed(Feed):
    def __init__(self, store: IcebergStore) -> None:
        self._store = store
        self.where = store.where
        self._manifests = pyiceberg_module("pyiceberg.manifest")

    def schema(self) -> Schema:
        self._refresh()
        return self._store.schema

    def start(self) -> list[Piece]:
        self._refresh()
        current = self._store.table.current_snapshot()
        return self.of(current.snapshot_id, whole=True) if current is not None else []

    def of(self, version: int, *, whole: bool) -> list[Piece]:
        snapshot = self._snapshot(version)
        found = self._files(version) if whole else self._changes(snapshot)
        pieces = [Piece(path, version, snapshot.timestamp_ms, change, rows, {}) for path, change, rows in found]
        # Removed rows first: a table with a key must not delete the row that replaces them.
        return sorted(pieces, key=lambda piece: (piece.change != DELETE, piece.path))

    def after(self, version: int) -> list[int]:
        self._refresh()
        metadata = self._store.table.metadata
        found: list[int] = []
        current = metadata.current_snapshot()
        while current is not None and current.snapshot_id != version:
            found.append(current.snapshot_id)
            parent = current.parent_snapshot_id
            current = None if parent is None else metadata.snapshot_by_id(parent)
            if parent == version:
                return found[::-1]
        if current is None:
            raise self._lost(version)
        return found[::-1]

    def batches(self, piece: Piece, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if not self._store.is_loaded:
            self._refresh()
        wanted = self._store.written_schema()
        chosen = pa.schema([wanted.field(name) for name in columns if name in wanted.names])
        with self._store.table.io.new_input(piece.path).open() as stream, pq.ParquetFile(stream) as stored:
            for batch in stored.iter_batches(SLAB_ROWS):
                yield numbered_batch(batch, chosen)

    def explained(self, error: BaseException) -> tuple[str, bool] | None:
        return self._store.explained(error)

    def _refresh(self) -> None:
        if not self._store.refresh():
            raise NotFound("there is no such table", where=self.where, next_step="create it first, or check its name")

    def _snapshot(self, version: int) -> Any:
        found = self._store.table.metadata.snapshot_by_id(version)
        if found is None:
            raise self._lost(version)
        return found

    def _files(self, version: int) -> list[tuple[str, str, int]]:
        found = []
        for task in self._store.table.scan(snapshot_id=version).plan_files():
            if task.delete_files:
                raise self._has_deletes(version)
            found.append((task.file.file_path, SNAPSHOT, task.file.record_count))
        return found

    def _changes(self, snapshot: Any) -> list[tuple[str, str, int]]:
        if snapshot.summary is not None and snapshot.summary.operation.value == "replace":
            return []
        status, io = self._manifests.ManifestEntryStatus, self._store.table.io
        found = []
        for manifest in snapshot.manifests(io):
            if manifest.added_snapshot_id != snapshot.snapshot_id:
                continue
            if manifest.content != self._manifests.ManifestContent.DATA:
                raise self._has_deletes(snapshot.snapshot_id)
            for entry in manifest.fetch_manifest_entry(io, discard_deleted=False):
                if entry.snapshot_id == snapshot.snapshot_id and entry.status != status.EXISTING:
                    change = DELETE if entry.status == status.DELETED else INSERT
                    found.append((entry.data_file.file_path, change, entry.data_file.record_count))
        return found

    def _lost(self, version: int) -> OffsetLost:
        return OffsetLost(
            f"snapshot {version} was expired or rolled back before the next ones were read",
            where=self.where,
            next_step="keep snapshots for longer than the job may be behind; start over with the rows that are left: "
            "millstream run flow.py --start-over",
        )

    def _has_deletes(self, version: int) -> InvalidInput:
        return InvalidInput(
            f"snapshot {version} of the table has delete files, which Millstream does not read",
            where=self.where,
            next_step="write the table with copy-on-write (write.delete.mode), or rewrite its data files first",
        )
