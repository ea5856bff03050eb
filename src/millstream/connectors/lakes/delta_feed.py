"""The changes of a Delta table, version by version, from its log.

A version with change data has exactly that. Other versions have added and removed files, from which their changes
follow, so tables without a change feed can be read as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from millstream.connectors.lakes.delta import DeltaStorage, DeltaStore, partition_scalar
from millstream.connectors.lakes.feed import CHANGE_TYPE, DELETE, INSERT, MIXED, SNAPSHOT, Feed, Piece
from millstream.connectors.source import SLAB_ROWS
from millstream.errors import InvalidInput, NotFound, OffsetLost
from millstream.records import Schema
from millstream.records.texts import to_texts


class DeltaFeed(Feed):
    def __init__(self, store: DeltaStore) -> None:
        self._store = store
        self.where = store.where
        self._storage: DeltaStorage = store.storage()
        self._kinds: Schema | None = None

    def schema(self) -> Schema:
        if self._kinds is None:
            self._refresh()
            if self._store.properties.get("delta.columnMapping.mode", "none") != "none":
                raise InvalidInput(
                    "the columns of the table are mapped to other names, which Millstream does not read",
                    where=self.where,
                    next_step="read a table without column mapping",
                )
            self._kinds = self._store.schema
        return self._kinds

    def start(self) -> list[Piece]:
        self._refresh()
        return self._files(self._store.table)

    def of(self, version: int, *, whole: bool) -> list[Piece]:
        if whole:
            table = self._store.opened()
            table.load_as_version(version)
            return self._files(table)
        actions = self._actions(version)
        committed_ms = next((each["commitInfo"].get("timestamp", 0) for each in actions if "commitInfo" in each), 0)
        found = [self._piece(each["cdc"], version, committed_ms, MIXED) for each in actions if "cdc" in each]
        if not found:
            changes = ((name, each[name]) for each in actions for name in ("remove", "add") if name in each)
            found = [
                self._piece(file, version, committed_ms, DELETE if name == "remove" else INSERT)
                for name, file in changes
                if file.get("dataChange", True)
            ]
        # Removed rows first: a table with a key must not delete the row that replaces them.
        return sorted(found, key=lambda piece: (piece.change != DELETE, piece.path))

    def after(self, version: int) -> list[int]:
        self._refresh()
        return list(range(version + 1, self._store.table.version() + 1))

    def batches(self, piece: Piece, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        wanted = dict.fromkeys([*columns, CHANGE_TYPE] if piece.change == MIXED else columns)
        kinds = self.schema()
        with self._storage.opened().files.open_input_file(piece.path) as stream, pq.ParquetFile(stream) as stored:
            # At least one, for the number of rows.
            names = [name for name in wanted if name in stored.schema_arrow.names] or stored.schema_arrow.names[:1]
            for batch in stored.iter_batches(SLAB_ROWS, columns=names):
                for name, value in piece.partition.items():
                    if name in columns and name not in names:
                        scalar = partition_scalar(value, kinds.field(name).type)
                        batch = batch.append_column(name, pa.repeat(scalar, batch.num_rows))
                yield batch

    def explained(self, error: BaseException) -> tuple[str, bool] | None:
        return self._store.explained(error)

    def _refresh(self) -> None:
        if not self._store.refresh():
            raise NotFound("there is no such table", where=self.where, next_step="create it first, or check the path")

    def _files(self, table: Any) -> list[Piece]:
        vectors = pa.table(table.deletion_vectors()).num_rows if _has_vectors(table) else 0
        if vectors:
            raise self._has_deleted(table.version())
        found = []
        for each in pa.table(table.get_add_actions()).to_pylist():
            values = {name: _text(value) for name, value in (each.get("partition") or {}).items()}
            rows = each.get("num_records") or 1
            found.append(Piece(unquote(each["path"]), table.version(), 0, SNAPSHOT, rows, values))
        return sorted(found, key=lambda piece: piece.path)

    def _actions(self, version: int) -> list[dict[str, Any]]:
        try:
            with self._storage.opened().files.open_input_stream(f"_delta_log/{version:020d}.json") as stream:
                return [json.loads(line) for line in stream.read().splitlines() if line.strip()]
        except FileNotFoundError:
            raise OffsetLost(
                f"version {version} of the table was removed from its log before it was read",
                where=self.where,
                next_step="keep the log for longer than the job may be behind (delta.logRetentionDuration); start over "
                "with the rows that are left: millstream run flow.py --start-over",
            ) from None

    def _piece(self, file: Mapping[str, Any], version: int, committed_ms: int, change: str) -> Piece:
        if file.get("deletionVector"):
            raise self._has_deleted(version)
        statistics = json.loads(file.get("stats") or "{}")
        rows, partition = int(statistics.get("numRecords") or 1), dict(file.get("partitionValues") or {})
        return Piece(unquote(file["path"]), version, committed_ms, change, rows, partition)

    def _has_deleted(self, version: int) -> InvalidInput:
        return InvalidInput(
            f"version {version} of the table has deletion vectors, which Millstream does not read",
            where=self.where,
            next_step="turn on the change feed before rows are deleted (delta.enableChangeDataFeed), or apply them: "
            "REORG TABLE … APPLY (PURGE)",
        )


def _has_vectors(table: Any) -> bool:
    return "deletionVectors" in (table.protocol().reader_features or ())


def _text(value: Any) -> str | None:
    return None if value is None else to_texts(pa.array([value]))[0]
