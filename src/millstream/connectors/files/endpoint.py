"""A folder of files, as a source or a sink."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import ClassVar, Self

import pyarrow as pa

from millstream.connectors import arguments
from millstream.connectors.claims import Claim, Keeper
from millstream.connectors.connector import Connector, Reading, Writing
from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.sink import Sink
from millstream.connectors.source import Source
from millstream.errors import InvalidPlan
from millstream.log import Broker
from millstream.plan.steps.flat_columns import flat_columns
from millstream.plan.steps.partition_folders import check_partitions, partition_names
from millstream.private_files import make_folders
from millstream.records import Schema
from millstream.records.sizes import size_bytes
from millstream.remote_folders import RemoteFolder, check_address, check_options, local_path, scheme_of
from millstream.secrets import Secret, hidden_options, shown_address
from millstream.user_lines import users_line, what_exists

FORMATS = ("parquet", "json", "csv", "avro")
WRITTEN_FORMATS = ("parquet", "json", "csv")
MAX_RECORD_BYTES, MAX_RECORD_BYTES_LIMIT = 16 << 20, 1 << 30
MAX_EXPANSION = 1000


@dataclass(frozen=True)
class Files(Connector):
    path: str
    format: str
    files_per_batch: int | None = None
    partition_by: tuple[str, ...] = ()
    max_record_bytes: int = MAX_RECORD_BYTES
    max_expansion: int | None = MAX_EXPANSION
    """How many times its size a file may expand to; None: any number."""
    options: Mapping[str, str | Secret] = field(default_factory=dict, repr=False, hash=False)
    can_read: ClassVar[bool] = True
    can_write: ClassVar[bool] = True
    refuses_rows: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return f"files {_last_part(shown_address(self.path))}"

    @property
    def decodes(self) -> bool:
        return self.format != "parquet"

    def check_written(self, schema: Schema) -> None:
        if self.format not in WRITTEN_FORMATS:
            raise InvalidPlan(
                f"files can only be read as {self.format}, not written",
                where=users_line(),
                next_step=f"formats to write: {', '.join(WRITTEN_FORMATS)}",
            )
        if self.format == "csv":
            flat_columns(schema)
        check_partitions(self.partition_by, schema, self)

    def check_read(self) -> None:
        if self.partition_by:
            raise InvalidPlan(
                f"partition_by applies to writing, but {self} is read",
                where=users_line(),
                next_step="leave it out: folders such as dt=2024-03-01 are recognized, and fill the columns they name",
            )

    def open_source(self, reading: Reading) -> Source:
        from millstream.connectors.files.all_rows import source_of

        make_folders(reading.folder)
        return source_of(self, reading.schema, reading.folder, reading.columns)

    @property
    def is_remote(self) -> bool:
        return scheme_of(self.path) is not None

    def open_sink(self, writing: Writing) -> Sink:
        if self.is_remote:
            from millstream.connectors.files.remote_sink import RemoteFilesSink

            return RemoteFilesSink(self, writing)
        from millstream.connectors.files.sink import FilesSink

        return FilesSink(self, writing)

    def keeper(self, claim: Claim, ledger: FileLedger, broker: Broker) -> Keeper:
        if self.is_remote:
            from millstream.connectors.files.remote_claims import RemoteFilesKeeper

            return RemoteFilesKeeper(RemoteFolder(self.path.rstrip("/"), self.options), claim, ledger)
        from millstream.connectors.file_claims import FilesKeeper

        return FilesKeeper(self.path, claim, ledger)

    def load(self, schema: Schema) -> pa.Table:
        from millstream.connectors.files.all_rows import all_rows

        return all_rows(self, schema)

    def with_suffix(self, suffix: str) -> Self:
        return replace(self, path=self.path.rstrip("/") + suffix)

    def __str__(self) -> str:
        folders = f", by {', '.join(self.partition_by)}" if self.partition_by else ""
        return f"files({shown_address(self.path)}, {self.format}{folders})"


def files(
    path: str | PathLike[str],
    format: str = "parquet",
    *,
    files_per_batch: int | None = None,
    partition_by: str | Sequence[str] | None = None,
    max_record: str | int = MAX_RECORD_BYTES,
    max_expansion: int = MAX_EXPANSION,
    options: Mapping[str, str] | None = None,
) -> Files:
    """A folder of files, as a source or a sink.

    As a source: parquet, json (lines), csv or avro, at most `files_per_batch` new files at a time. A line or record
    larger than `max_record` becomes a dead letter, and a file that unpacks to more than 1 GiB and more than
    `max_expansion` times its size is not read further.
    As a sink: parquet, json (lines) or csv, one file per batch, or several for a large one. With `partition_by`, the
    names of columns, there is a folder for each of their values, such as `dt=2024-03-01`; a source recognizes such
    folders by itself.
    The path may be an address, such as s3://bucket/in. `options`, such as AWS_ENDPOINT_URL, are by default taken from
    the environment; keys and passwords among them are never shown or stored.
    """
    if format not in FORMATS:
        raise arguments.refused(f"there is no file format {format!r}", what_exists(format, FORMATS, kind="formats"))
    if files_per_batch is not None:
        arguments.whole_number(files_per_batch, "files_per_batch", "leave it out to read all new files")
    record_bytes = size_bytes(max_record, what="max_record")
    if not 0 < record_bytes <= MAX_RECORD_BYTES_LIMIT:
        raise arguments.refused(
            f"max_record must be between one byte and 1 GiB, not {max_record!r}", "max_record='64 MiB'"
        )
    arguments.whole_number(max_expansion, "max_expansion", f"default: {MAX_EXPANSION}")
    folder, folders = arguments.path(path, "files('data/in')"), partition_names(partition_by)
    check_address(folder)
    hidden = hidden_options(options)
    check_options(folder, hidden)
    return Files(local_path(folder), format, files_per_batch, folders, record_bytes, max_expansion, hidden)


def _last_part(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1] or path
