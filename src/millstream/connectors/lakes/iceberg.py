"""An Iceberg table: the number of the batch is in the snapshot's summary and, per run, in a property of the table.

Both change in one commit of the catalog. Snapshots expire, the property does not. A commit must directly follow the
snapshot that it was computed from: pyiceberg would repeat a failed commit by itself, even if the other process has
written the same batch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from millstream.connectors.lakes.library import pyiceberg_module
from millstream.connectors.lakes.store import Conflict, NewFile, Places, Run, Storage, Store, StoredFile
from millstream.errors import InvalidSchema, NotFound
from millstream.records import Schema, align
from millstream.secrets import Secret, concealed, is_likely_secret, revealed, shown_address

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

BATCH = "millstream.batch."
"""The prefix of the table properties with the newest batch of a run."""
OF_STORAGE = ("s3.", "gcs.", "adls.", "hdfs.", "client.")
"""Prefixes of the properties that reach data files; others, such as the catalog's address, may have a password."""
PASSING = re.compile(
    r"connect|timed? ?out|locked|unable to open|503|502|504|SlowDown|curlCode|NETWORK_CONNECTION|No space left|"
    r"Permission denied|Too many",
    re.IGNORECASE,
)
FOR_GOOD = re.compile(
    r"ACCESS_DENIED|AccessDenied|NO_SUCH_BUCKET|InvalidAccessKey|SignatureDoesNotMatch", re.IGNORECASE
)


@dataclass(frozen=True)
class IcebergStorage(Storage):
    location: str
    properties: Mapping[str, str | Secret]
    is_complete: bool
    """Whether tasks may use it: credentials that a catalog lends to the driver are not sent anywhere."""

    def opened(self) -> Places | None:
        return self.places() if self.is_complete else None

    def places(self, lent: Mapping[str, str] | None = None) -> Places:
        opened = pyiceberg_module("pyiceberg.io.pyarrow").PyArrowFileIO({**revealed(self.properties), **(lent or {})})
        scheme, host, path = opened.parse_location(self.location)
        return Places(opened.fs_by_scheme(scheme, host), path)


class IcebergStore(Store):
    leaves_out_partitions = False

    def __init__(self, catalog: str, table: str, settings: Mapping[str, str | Secret]) -> None:
        self._catalogs = pyiceberg_module("pyiceberg.catalog")
        self._arrow = pyiceberg_module("pyiceberg.io.pyarrow")
        self._errors = pyiceberg_module("pyiceberg.exceptions")
        self._catalog_name, self._name, self._settings = catalog, table, settings
        self._catalog: Catalog | None = None
        self._loaded: Table | None = None
        self.where = f"Iceberg table {table} of the catalog '{catalog}'"

    @property
    def catalog(self) -> Catalog:
        if self._catalog is None:
            self._catalog = self._catalogs.load_catalog(self._catalog_name, **revealed(self._settings))
        return self._catalog

    @property
    def is_loaded(self) -> bool:
        return self._loaded is not None

    @property
    def table(self) -> Table:
        assert self._loaded is not None
        return self._loaded

    @property
    def partition_by(self) -> tuple[str, ...]:  # type: ignore[override]
        schema = self.table.schema()
        return tuple(schema.find_column_name(each.source_id) or "" for each in self.table.spec().fields)

    # ------------------------------------------------------------ the table

    def refresh(self) -> bool:
        try:
            self._loaded = self.catalog.load_table(self._name)
        except (self._errors.NoSuchTableError, self._errors.NoSuchNamespaceError):
            self._loaded = None
            return False
        # Not stored: a commit sends its changes alone. See the top of the module.
        once = {**self.table.metadata.properties, "commit.retry.num-retries": "0"}
        self.table.metadata = self.table.metadata.model_copy(update={"properties": once})
        return True

    def create(self, schema: Schema, partition_by: Sequence[str], properties: Mapping[str, str]) -> None:
        nullable = pa.schema([field.with_nullable(True) for field in schema.arrow])
        self.catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        with self.catalog.create_table_transaction(self._name, nullable, properties=dict(properties)) as made:
            if partition_by:
                with made.update_spec() as spec:
                    for name in partition_by:
                        spec.add_identity(name)
        if not self.refresh():
            raise NotFound("the table was created and is gone", where=self.where, next_step="run the job again")

    @property
    def schema(self) -> Schema:
        return Schema.of(self._arrow.schema_to_pyarrow(self.table.schema(), include_field_ids=False))

    def as_stored(self, schema: Schema) -> Schema:
        """Iceberg has no integers of 8 or 16 bits."""
        return Schema.of(pa.schema([field.with_type(_widened(field.type)) for field in schema.arrow]))

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        with self.table.update_schema() as update:
            update.union_by_name(pa.schema(list(fields)))
        self.refresh()

    def reasons_against_writing(self, changes_rows: bool) -> list[str]:
        reasons = [
            f"it is partitioned by {each.transform} of '{self.table.schema().find_column_name(each.source_id)}'"
            for each in self.table.spec().fields
            if str(each.transform) != "identity"
        ]
        if (written := self.table.properties.get("write.format.default", "parquet")) != "parquet":
            reasons.append(f"its data files are in {written}")
        return reasons

    @property
    def properties(self) -> Mapping[str, str]:
        return self.table.properties

    def set_property(self, name: str, value: str) -> None:
        with self.table.transaction() as changes:
            changes.set_properties({name: value})
        self.refresh()

    def newest(self, run: Run) -> int | None:
        found = self.table.properties.get(BATCH + run.folder)
        return None if found is None else int(found)

    def storage(self) -> IcebergStorage:
        base = self.table.properties.get("write.data.path") or f"{self.table.location().rstrip('/')}/data"
        given = self.table.io.properties.items()
        held = {name: str(value) for name, value in given if value is not None and name.startswith(OF_STORAGE)}
        own = {name: value for name, value in held.items() if not is_likely_secret(name)}
        lent = [name for name, value in held.items() if name not in own and name not in self._settings]
        chosen = {name: value for name, value in self._settings.items() if name.startswith(OF_STORAGE)}
        return IcebergStorage(base, {**own, **chosen}, not lent)

    def places(self) -> Places:
        return self.storage().places(self.table.io.properties)

    def written_schema(self) -> pa.Schema:
        return self._arrow.schema_to_pyarrow(self.table.schema(), include_field_ids=True)

    # ------------------------------------------------------------ files

    def files(self) -> list[StoredFile]:
        conversions = pyiceberg_module("pyiceberg.conversions")
        schema = self.table.schema()
        found = []
        for task in self.table.scan().plan_files():
            if task.delete_files:
                raise InvalidSchema(
                    "a data file of the table has delete files, so its rows cannot be changed by Millstream",
                    where=f"{self.where}, {task.file.file_path}",
                    next_step="rewrite the data files first, or write to another table",
                )
            bounds: list[dict[str, Any]] = [{}, {}]
            nulls: dict[str, bool] = {}
            for each in schema.fields:
                for kept, stored in zip(bounds, (task.file.lower_bounds, task.file.upper_bounds), strict=True):
                    if each.field_type.is_primitive and stored and each.field_id in stored:
                        value = conversions.from_bytes(each.field_type, stored[each.field_id])
                        kept[each.name] = _bound(value, str(each.field_type), upper=kept is bounds[1])
                nulls[each.name] = (task.file.null_value_counts or {}).get(each.field_id, 1) != 0
            lower, upper = ({name: value for name, value in each.items() if value is not None} for each in bounds)
            found.append(StoredFile(task.file.file_path, task.file.file_size_in_bytes, {}, lower, upper, nulls))
        return found

    def rows(self, file: StoredFile) -> pa.Table:
        return self.rows_of(file.path)

    def rows_of(self, path: str) -> pa.Table:
        """The rows of a data file, by the numbers of its columns, which outlive their names."""
        with self.table.io.new_input(path).open() as stream, pq.ParquetFile(stream) as stored:
            return numbered_columns(stored.read(), self.written_schema(), self.schema)

    def commit(self, run: Run, batch: int, added: Sequence[NewFile], removed: Sequence[StoredFile]) -> None:
        noted = {"millstream.run": run.id, "millstream.batch": str(batch)}
        gone = {file.path for file in removed}
        try:
            with self.table.transaction() as changes:
                changes.set_properties({BATCH + run.folder: str(batch)})
                update = changes.update_snapshot(noted)
                with update.overwrite() if gone else update.fast_append() as snapshot:
                    for file in added:
                        snapshot.append_data_file(self._data_file(file))
                    for task in self.table.scan().plan_files() if gone else ():
                        if task.file.file_path in gone:
                            snapshot.delete_data_file(task.file)
        except (self._errors.CommitFailedException, self._errors.ValidationException) as error:
            raise Conflict(str(error)) from error

    def _data_file(self, file: NewFile) -> DataFile:
        manifests, tables = pyiceberg_module("pyiceberg.manifest"), self.table.metadata
        statistics = self._arrow.data_file_statistics_from_parquet_metadata(
            parquet_metadata=file.metadata,
            stats_columns=self._arrow.compute_statistics_plan(tables.schema(), tables.properties),
            parquet_column_mapping=self._arrow.parquet_path_to_id_mapping(tables.schema()),
        )
        made: DataFile = manifests.DataFile.from_args(
            content=manifests.DataFileContent.DATA,
            file_path=f"{self.storage().location}/{file.path}",
            file_format=manifests.FileFormat.PARQUET,
            partition=statistics.partition(tables.spec(), tables.schema()),
            file_size_in_bytes=file.size_bytes,
            sort_order_id=None,
            spec_id=tables.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )
        return made

    def is_empty(self) -> bool:
        return not any(True for _ in self.table.scan().plan_files())

    def clear(self) -> None:
        self.table.delete()
        self.refresh()

    def explained(self, error: BaseException) -> tuple[str, bool] | None:
        if not type(error).__module__.startswith(("pyiceberg", "sqlalchemy", "requests", "urllib3", "botocore")) and (
            not isinstance(error, OSError | pa.ArrowException | ValueError)
        ):
            return None
        self._catalog = None  # a broken connection is not used again
        message = " ".join(shown_address(concealed(str(error))).split())
        away = (OSError, self._errors.ServiceUnavailableError, self._errors.ServerError)
        passing = isinstance(error, away) or PASSING.search(message) is not None
        return message or type(error).__name__, passing and FOR_GOOD.search(message) is None


def numbered_columns(rows: pa.Table, wanted: pa.Schema, schema: Schema) -> pa.Table:
    """The columns of the table, found in a file by their field ids, or by name in a file without ids."""
    loose = pa.schema([field.with_nullable(True) for field in schema.arrow])
    batches = [align(numbered_batch(batch, wanted), loose) for batch in rows.to_batches()]
    return pa.Table.from_batches(batches, loose)


def numbered_batch(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """These columns, as far as the file has them."""
    by_id = {_number(field): index for index, field in enumerate(batch.schema) if _number(field) is not None}
    chosen = []
    for field in wanted:
        index = by_id.get(_number(field)) if by_id else batch.schema.get_field_index(field.name)
        if index is not None and index >= 0:
            chosen.append((field.name, batch.column(index)))
    if not chosen:
        return batch  # for the number of its rows
    return pa.RecordBatch.from_arrays([array for _, array in chosen], [name for name, _ in chosen])


def _number(field: pa.Field) -> int | None:
    found = (field.metadata or {}).get(b"PARQUET:field_id")
    return None if found is None else int(found)


def _bound(value: Any, kind: str, *, upper: bool) -> Any:
    """A bound as polars compares it; None where that is not safe. Texts may have been shortened."""
    if kind in ("int", "long"):
        return value
    if kind == "date":
        return datetime(1970, 1, 1).date() + timedelta(days=value)
    if kind in ("timestamp", "timestamptz"):
        zone = UTC if kind == "timestamptz" else None
        return datetime(1970, 1, 1, tzinfo=zone) + timedelta(microseconds=value)
    if kind == "string":
        return value + "\U0010ffff" * 2 if upper else value
    return None


def _widened(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_int8(kind) or pa.types.is_int16(kind):
        return pa.int32()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_widened(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_widened(kind.key_type), kind.item_field.with_type(_widened(kind.item_type)))
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_widened(each.type)) for each in kind])
    return kind
