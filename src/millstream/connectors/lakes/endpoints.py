"""Tables of a lake, Delta Lake and Apache Iceberg, as sinks and as sources."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import ClassVar, Self

import pyarrow as pa

from millstream.connectors import arguments
from millstream.connectors.claims import Claim, Keeper
from millstream.connectors.connector import Reading, WorkerNeeds, Writing
from millstream.connectors.databases.endpoints import DatabaseTable, TableMode, mode_of
from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.lakes.feed import Feed
from millstream.connectors.lakes.store import Store
from millstream.connectors.sink import Sink
from millstream.connectors.source import Source
from millstream.errors import InvalidPlan
from millstream.log import Broker
from millstream.plan.steps.partition_folders import check_partitions, partition_names
from millstream.private_files import make_folders
from millstream.records import Schema
from millstream.secrets import Secret, hidden_options, shown_address
from millstream.user_lines import users_line


@dataclass(frozen=True)
class LakeTable(DatabaseTable):
    partition_by: tuple[str, ...]
    can_read: ClassVar[bool] = True

    @abstractmethod
    def store(self) -> Store: ...

    @abstractmethod
    def feed(self) -> Feed: ...

    @property
    def target(self) -> Hashable:
        return replace(self, mode="append", key=(), partition_by=())

    def check_read(self) -> None:
        if self.key or self.partition_by:
            raise InvalidPlan(
                f"key and partition_by apply to writing, but {self} is read",
                where=users_line(),
                next_step="leave them out",
            )

    def check_written(self, schema: Schema) -> None:
        super().check_written(schema)
        check_partitions(self.partition_by, schema, self)
        for each in schema.arrow:
            if _has_duration(each.type):
                raise InvalidPlan(
                    f"column '{each.name}' is an interval, which tables of a lake cannot store",
                    where=users_line(),
                    next_step="convert it to a number with with_column(…)",
                )

    def own_schema(self, broker: str | None) -> Schema:
        from millstream.connectors.lakes.reading import table_schema

        return table_schema(self)

    def open_source(self, reading: Reading) -> Source:
        from millstream.connectors.lakes.source import LakeSource

        make_folders(reading.folder)
        return LakeSource(self.feed(), reading.schema, folder=reading.folder, columns=reading.columns)

    def load(self, schema: Schema) -> pa.Table:
        from millstream.connectors.lakes.reading import all_rows

        return all_rows(self, schema)

    def open_sink(self, writing: Writing) -> Sink:
        from millstream.connectors.lakes.sink import LakeSink

        return LakeSink(self, self.store(), writing)

    def keeper(self, claim: Claim, ledger: FileLedger, broker: Broker) -> Keeper:
        from millstream.connectors.lakes.claims import LakeKeeper

        return LakeKeeper(self.store(), claim, ledger)


@dataclass(frozen=True)
class DeltaTable(LakeTable):
    options: Mapping[str, str | Secret] = field(repr=False, hash=False)
    uri: str = field(init=False, repr=False, compare=False)
    """The absolute address: tasks may run in another folder than the flow was built in."""

    def __post_init__(self) -> None:
        uri = self.table if "://" in self.table else str(Path(self.table).expanduser().absolute())
        object.__setattr__(self, "uri", uri)

    @property
    def name(self) -> str:
        return f"delta {shown_address(self.table).rstrip('/').rpartition('/')[2]}"

    @property
    def target(self) -> Hashable:
        return ("delta", self.uri.rstrip("/"))

    def store(self) -> Store:
        from millstream.connectors.lakes.delta import DeltaStore

        return DeltaStore(self.uri, self.options)

    def feed(self) -> Feed:
        from millstream.connectors.lakes.delta import DeltaStore
        from millstream.connectors.lakes.delta_feed import DeltaFeed

        return DeltaFeed(DeltaStore(self.uri, self.options))

    def worker_needs(self, broker: str) -> WorkerNeeds:
        return WorkerNeeds(libraries={"deltalake": "deltalake"})

    def with_suffix(self, suffix: str) -> Self:
        return replace(self, table=self.table.rstrip("/") + suffix)

    def __str__(self) -> str:
        return f"delta_table({shown_address(self.table)}{_more(self)})"


@dataclass(frozen=True)
class Iceberg(LakeTable):
    catalog: str
    settings: Mapping[str, str | Secret] = field(repr=False, hash=False)

    @property
    def name(self) -> str:
        return f"iceberg {self.table}"

    @property
    def target(self) -> Hashable:
        return ("iceberg", self.catalog, self.table)

    def store(self) -> Store:
        from millstream.connectors.lakes.iceberg import IcebergStore

        return IcebergStore(self.catalog, self.table, self.settings)

    def feed(self) -> Feed:
        from millstream.connectors.lakes.iceberg import IcebergStore
        from millstream.connectors.lakes.iceberg_feed import IcebergFeed

        return IcebergFeed(IcebergStore(self.catalog, self.table, self.settings))

    def worker_needs(self, broker: str) -> WorkerNeeds:
        return WorkerNeeds(libraries={"pyiceberg": "pyiceberg"})

    def __str__(self) -> str:
        return f"iceberg({self.catalog}, {self.table}{_more(self)})"


def delta_table(
    path: str | PathLike[str],
    *,
    mode: TableMode | None = None,
    key: str | Sequence[str] | None = None,
    partition_by: str | Sequence[str] | None = None,
    options: Mapping[str, str] | None = None,
) -> DeltaTable:
    """A Delta Lake table in a folder or an object store ("s3://bucket/table"), as a source or a sink.

    As a sink: every row, or with `key` the newest row of each key. `partition_by` are the columns that a new table is
    partitioned by. As a source: the rows of the table, then what is added to it, or what is changed in it, if the
    schema has a column `weight int`: see `changes` of `Flow.read`. `options` are those of the deltalake library, such
    as AWS_ENDPOINT_URL; by default they come from the environment. Keys and passwords among them are never shown or
    stored.
    """
    made, columns = mode_of(mode, key)
    place = arguments.path(path, "delta_table('lake/scores')")
    return DeltaTable(place, made, columns, partition_names(partition_by), hidden_options(options))


def iceberg(
    catalog: str,
    table: str,
    *,
    mode: TableMode | None = None,
    key: str | Sequence[str] | None = None,
    partition_by: str | Sequence[str] | None = None,
    settings: Mapping[str, str] | None = None,
) -> Iceberg:
    """A table ("namespace.table") of an Iceberg catalog, as a source or a sink.

    `catalog` is its name in pyiceberg's configuration; `settings`, such as type, uri and warehouse, are added to it.
    As a sink: every row, or with `key` the newest row of each key. `partition_by` are the columns that a new table is
    partitioned by. As a source: the rows of the table, then what is added to it, or what is changed in it, if the
    schema has a column `weight int`: see `changes` of `Flow.read`. Keys and passwords among the
    settings are never shown or stored.
    """
    made, columns = mode_of(mode, key)
    example = "iceberg('lake', 'games.scores', settings={'type': 'sql', 'uri': …, 'warehouse': …})"
    where = arguments.text(catalog, "a catalog is the name of one", example)
    name = arguments.text(table, "a table name must be a string", example)
    if "." not in name or not all(name.split(".")):
        raise arguments.refused(f"{name!r} is not the name of a table", "write 'namespace.table'")
    return Iceberg(name, made, columns, partition_names(partition_by), where, hidden_options(settings, ("uri",)))


def _more(table: LakeTable) -> str:
    folders = f", by {', '.join(table.partition_by)}" if table.partition_by else ""
    return f", upsert by {', '.join(table.key)}{folders}" if table.mode == "upsert" else folders


def _has_duration(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_duration(kind.field(index).type) for index in range(kind.num_fields))
    return bool(pa.types.is_duration(kind))
