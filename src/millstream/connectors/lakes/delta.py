"""A Delta Lake table: a commit carries an application transaction, whose version is the number of the batch.

Delta refuses a commit whose application has committed concurrently, so two processes of a run cannot both write a
batch. A commit that removes files must directly follow the version that it was computed from.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq

from millstream.connectors.lakes.library import deltalake_module
from millstream.connectors.lakes.store import Conflict, NewFile, Places, Run, Storage, Store, StoredFile
from millstream.errors import InvalidSchema
from millstream.plan.steps.partition_folders import folder_value
from millstream.records import Schema, align
from millstream.secrets import Secret, concealed, revealed, shown_address

if TYPE_CHECKING:
    from deltalake import DeltaTable as Table

WRITTEN_FEATURES = {
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "deletionVectors",
    "invariants",
    "timestampNtz",
    "v2Checkpoint",
}
"""Writer features that matter to no row, or whose use in a table is checked separately."""
PATIENCE = {"max_retries": "2", "retry_timeout": "20s", "connect_timeout": "5s", "timeout": "30s"}
"""The job retries by itself, and reports that it waits: the library must not do so for minutes."""
REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
PASSING = re.compile(
    r"error sending request|connect|timed? ?out|dns|503|500|502|504|SlowDown|No space left|Permission denied|"
    r"os error|Too many",
    re.IGNORECASE,
)
FOR_GOOD = re.compile(
    r"InvalidAccessKey|SignatureDoesNotMatch|AccessDenied|NoSuchBucket|Unauthorized|Forbidden|\b40[0134]\b|"
    r"Missing (bucket|region)|No such bucket",
    re.IGNORECASE,
)
COLORS = re.compile(r"\x1b\[[0-9;]*m|\\u001b\[[0-9;]*m|↳")
TEXT_MAX = 256
"""Longer texts are left out of a file's statistics."""


@dataclass(frozen=True)
class DeltaStorage(Storage):
    uri: str
    options: Mapping[str, str | Secret]

    def opened(self) -> Places:
        handler = deltalake_module("deltalake.fs").DeltaStorageHandler(self.uri, self.given())
        handler.open_output_stream = lambda path, metadata: pa.PythonFile(
            _TakesBytes(handler._handler.open_output_stream(path, metadata)), "w"
        )
        return Places(fs.PyFileSystem(handler), "")

    def given(self) -> dict[str, str]:
        options = revealed(self.options)
        return {**PATIENCE, **options} if REMOTE.match(self.uri) and not self.uri.startswith("file:") else options


class _TakesBytes:
    """A stream of the library, which takes bytes and not Arrow's buffers."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def write(self, content: Any) -> int:
        self._stream.write(bytes(content))
        return len(content)

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()


class DeltaStore(Store):
    leaves_out_partitions = True

    def __init__(self, uri: str, options: Mapping[str, str | Secret]) -> None:
        self._library = deltalake_module("deltalake")
        self._storage = DeltaStorage(uri, options)
        self._loaded: Table | None = None
        self.where = f"Delta table {shown_address(uri)}"

    @property
    def table(self) -> Table:
        assert self._loaded is not None
        return self._loaded

    @property
    def partition_by(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self.table.metadata().partition_columns)

    # ------------------------------------------------------------ the table

    def refresh(self) -> bool:
        uri, options = self._storage.uri, self._storage.given()
        if self._loaded is None:
            try:
                self._loaded = self._library.DeltaTable(uri, storage_options=options)
            except self._library.exceptions.TableNotFoundError:
                return False
            return True
        if not self._library.DeltaTable.is_deltatable(uri, storage_options=options):
            self._loaded = None
            return False
        self.table.update_incremental()
        return True

    def create(self, schema: Schema, partition_by: Sequence[str], properties: Mapping[str, str]) -> None:
        nullable = pa.schema([field.with_nullable(True) for field in schema.arrow])
        self._loaded = self._library.DeltaTable.create(
            self._storage.uri,
            nullable,
            partition_by=list(partition_by),
            configuration=dict(properties),
            storage_options=self._storage.given(),
            raise_if_key_not_exists=False,
        )

    @property
    def schema(self) -> Schema:
        return Schema.of(pa.schema(self.table.schema().to_arrow()))

    def as_stored(self, schema: Schema) -> Schema:
        return schema

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        made = self._library.Schema.from_arrow(pa.schema(list(fields)))
        self.table.alter.add_columns(list(made.fields))
        self.refresh()

    def reasons_against_writing(self, changes_rows: bool) -> list[str]:
        about, features = self.table.metadata().configuration, set(self.table.protocol().writer_features or ())
        reasons = [f"it uses the feature {name}" for name in sorted(features - WRITTEN_FEATURES)]
        reasons += [f"it has the constraint {name}" for name in about if name.startswith("delta.constraints.")]
        if about.get("delta.columnMapping.mode", "none") != "none":
            reasons.append("its columns are mapped to other names")
        if changes_rows and about.get("delta.appendOnly") == "true":
            reasons.append("rows can only be appended to it (delta.appendOnly)")
        for field in self.table.schema().fields:
            if rules := sorted(name for name in field.metadata if name.startswith("delta.")):
                reasons.append(f"column '{field.name}' has {', '.join(rules)}")
        return reasons

    @property
    def properties(self) -> Mapping[str, str]:
        return {name: value or "" for name, value in self.table.metadata().configuration.items()}

    def set_property(self, name: str, value: str) -> None:
        self.table.alter.set_table_properties({name: value}, raise_if_not_exists=False)
        self.refresh()

    def newest(self, run: Run) -> int | None:
        return self.table.transaction_version(run.id)

    def opened(self) -> Table:
        """The table once more, for reading an older version."""
        made: Table = self._library.DeltaTable(self._storage.uri, storage_options=self._storage.given())
        return made

    def storage(self) -> DeltaStorage:
        return self._storage

    def places(self) -> Places:
        return self._storage.opened()

    def written_schema(self) -> pa.Schema:
        return self.schema.arrow

    # ------------------------------------------------------------ files

    def files(self) -> list[StoredFile]:
        found = []
        schema = self.schema
        for each in pa.table(self.table.get_add_actions()).to_pylist():
            nulls = each.get("null_count") or {}
            found.append(
                StoredFile(
                    unquote(each["path"]),
                    each["size_bytes"],
                    dict(each.get("partition") or {}),
                    _bounds(each.get("min"), schema, upper=False),
                    _bounds(each.get("max"), schema, upper=True),
                    {name: count != 0 for name, count in nulls.items()},
                )
            )
        return found

    def rows(self, file: StoredFile) -> pa.Table:
        if "deletionVectors" in (self.table.protocol().writer_features or ()):
            self._check_whole(file)
        with self.places().files.open_input_file(file.path) as stream, pq.ParquetFile(stream) as stored:
            rows = stored.read()
        return with_partition(rows, file.partition, self.schema)

    def _check_whole(self, file: StoredFile) -> None:
        vectors = pa.table(self.table.deletion_vectors())
        if any(file.path in unquote(str(path)) for path in vectors.column(0).to_pylist()):
            raise InvalidSchema(
                "a data file of the table has a deletion vector, so its rows cannot be changed by Millstream",
                where=f"{self.where}, {file.path}",
                next_step="apply it first: REORG TABLE … APPLY (PURGE), or write to another table",
            )

    def commit(self, run: Run, batch: int, added: Sequence[NewFile], removed: Sequence[StoredFile]) -> None:
        now_ms = time.time_ns() // 1_000_000
        actions: list[Any] = [
            self._library.transaction.AddAction(
                file.path,
                file.size_bytes,
                dict(file.partition),
                now_ms,
                True,
                json.dumps(statistics(file.metadata)),
            )
            for file in added
        ]
        actions += [
            self._library.transaction.RemoveAction(file.path, True, now_ms, file.size_bytes, _texts(file.partition))
            for file in removed
        ]
        properties = self._library.CommitProperties(
            custom_metadata={"millstream.run": run.id, "millstream.batch": batch},
            max_commit_retries=0 if removed else None,
            app_transactions=[self._library.Transaction(run.id, batch)],
        )
        try:
            self.table.create_write_transaction(
                actions, "append", self.table.schema(), list(self.partition_by) or None, commit_properties=properties
            )
        except self._library.exceptions.CommitFailedError as error:
            if PASSING.search(str(error)) or FOR_GOOD.search(str(error)):
                raise
            raise Conflict(str(error)) from error

    def is_empty(self) -> bool:
        return not self.table.file_uris()

    def clear(self) -> None:
        self.table.delete()
        self.refresh()

    def explained(self, error: BaseException) -> tuple[str, bool] | None:
        if not isinstance(error, self._library.exceptions.DeltaError | OSError | pa.ArrowException):
            return None
        message = " ".join(COLORS.sub("", concealed(str(error))).split())
        passing = isinstance(error, OSError) or PASSING.search(message) is not None
        return shown_address(message), passing and FOR_GOOD.search(message) is None


def partition_scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """The value of a partition: a text from the log, or already of its type."""
    return folder_value(value or None, kind) if isinstance(value, str) else pa.scalar(value, kind)


def with_partition(rows: pa.Table, partition: Mapping[str, Any], schema: Schema) -> pa.Table:
    """The rows of a data file with all columns of the table: those of the partition, and null for later ones."""
    for name, value in partition.items():
        if name in schema and name not in rows.schema.names:
            rows = rows.append_column(name, pa.repeat(partition_scalar(value, schema.field(name).type), rows.num_rows))
    columns = [name for name in schema.names if name in rows.schema.names]
    loose = pa.schema([field.with_nullable(True) for field in schema.arrow])
    batches = [align(batch, loose) for batch in rows.select(columns).to_batches()]
    return pa.Table.from_batches(batches, loose)


# ---------------------------------------------------------------- statistics


def statistics(about: pq.FileMetaData) -> dict[str, Any]:
    """Of a file, as Delta's log has them: the number of rows, and bounds of columns where these are exact enough."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index in range(about.num_columns):
        name = about.schema.column(index).path
        if "." in name:
            continue
        found = [about.row_group(group).column(index).statistics for group in range(about.num_row_groups)]
        if not found or any(each is None or not each.has_null_count for each in found):
            continue
        nulls[name] = sum(each.null_count for each in found)
        ranges = [each for each in found if each.has_min_max]
        if len(ranges) != sum(1 for each in found if each.num_values):
            continue
        bounds = [(_said(each.min, up=False), _said(each.max, up=True)) for each in ranges]
        if bounds and all(low is not None and high is not None for low, high in bounds):
            least[name] = min(low for low, _ in bounds)
            most[name] = max(high for _, high in bounds)
    return {"numRecords": about.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _said(value: Any, *, up: bool) -> Any:
    """A bound as JSON; None if there is none. Times have milliseconds in Delta, so an upper one is rounded up."""
    if isinstance(value, bool | float | bytes | Decimal):
        return None
    if isinstance(value, datetime):
        whole = value.replace(microsecond=value.microsecond // 1000 * 1000)
        if up and whole != value:
            if whole.year == datetime.max.year:
                return None
            whole += timedelta(milliseconds=1)
        text = whole.astimezone(UTC).replace(tzinfo=None) if whole.tzinfo else whole
        return text.isoformat(timespec="milliseconds") + ("Z" if whole.tzinfo else "")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str):
        return value if len(value) <= TEXT_MAX else None
    return value if isinstance(value, int) else None


def _bounds(values: Mapping[str, Any] | None, schema: Schema, *, upper: bool) -> dict[str, Any]:
    """Bounds that a comparison may rely on: those of text may be shortened, and those of times rounded."""
    found = {}
    for name, value in (values or {}).items():
        if value is None or name not in schema:
            continue
        kind = schema.field(name).type
        if pa.types.is_integer(kind) or pa.types.is_date(kind):
            found[name] = value
        elif pa.types.is_timestamp(kind) and isinstance(value, datetime) and value.year < datetime.max.year:
            found[name] = value + timedelta(milliseconds=1) if upper else value
        elif pa.types.is_string(kind) and isinstance(value, str):
            found[name] = value + "\U0010ffff" * 2 if upper else value
    return found


def _texts(partition: Mapping[str, Any]) -> dict[str, str | None]:
    from millstream.records.texts import to_texts

    return {name: None if value is None else to_texts(pa.array([value]))[0] for name, value in partition.items()}
