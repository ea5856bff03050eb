"""A format turns one file into numbered rows; what cannot be decoded becomes a dead letter.

Rows of Parquet and Avro are numbered from 0. Those of CSV and JSON have their line number, as shown by editors.
Values in folder names fill columns that the file does not have.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millstream.connectors.dead_letters import nullable
from millstream.connectors.files.avro_file import AvroFile, Block
from millstream.connectors.files.bounds import FileBounds, Unreadable
from millstream.connectors.files.lines import CHUNK_LINES, DAMAGE, Line, chunks, csv_records, lines, opened
from millstream.connectors.files.parquet_pages import ROWS_MAX, group_batches, invalid_rows, parquet_file
from millstream.errors import InvalidInput, InvalidSchema
from millstream.plan.steps.partition_folders import folder_value
from millstream.records import Codec, Schema, align, can_evolve, codec
from millstream.records.bounds import CHUNK_BYTES
from millstream.records.codecs.csv import header_names, name_given_twice
from millstream.records.columns import Columns, Refused
from millstream.records.rows import PythonRules

FolderValues = Mapping[str, str | None]
EMPTY: FolderValues = {}
WHOLE_FILE = 0  # the row number in the dead letter of an unreadable file


class WrongFolder(Exception):
    """The value in a folder name does not fit its column."""


class Part(NamedTuple):
    """Some rows of a file, their numbers, and what could not be decoded."""

    rows: pa.Table
    numbers: npt.NDArray[np.int64]
    bad: Sequence[tuple[int, bytes | None, str]] = ()  # number, content and reason


@dataclass(frozen=True)
class Filling:
    """Values for columns that are not in a file. Until filled in, these are null, even if declared NOT NULL."""

    schema: pa.Schema
    values: Mapping[str, pa.Scalar]

    @classmethod
    def of(cls, schema: Schema, folders: FolderValues, there: Container[str]) -> Filling:
        """`folders` are the values in folder names; `there` are the columns of the file."""
        fields, values = [], {}
        for field in schema.arrow:
            if field.name in folders and field.name not in there:
                try:
                    values[field.name] = folder_value(folders[field.name], field.type)
                except Refused as refusal:
                    raise WrongFolder(f"column '{field.name}': {refusal}") from None
            fields.append(field.with_nullable(field.nullable or field.name in values))
        return cls(pa.schema(fields), values)

    def filled(self, batch: pa.RecordBatch) -> pa.Table:
        """All columns of the schema; values from folder names replace nulls."""
        rows = pa.Table.from_batches([align(batch, self.schema)])
        for name, value in self.values.items():
            if value.is_valid:
                index = rows.schema.get_field_index(name)
                rows = rows.set_column(index, rows.schema.field(index), pc.fill_null(rows.column(index), value))
        return rows


def parts_of(
    path: Path,
    format: str,
    schema: Schema,
    first: int,
    end: int | None,
    bounds: FileBounds,
    folders: FolderValues = EMPTY,
) -> Iterator[Part]:
    """The rows of a file; `first` and `end` limit those of Parquet, other formats are always read whole.

    `folders` are the values in folder names, by column.
    """
    readers = {"avro": avro_parts, "csv": csv_parts, "json": json_parts}
    parts = (
        parquet_parts(path, schema, first, end, bounds, folders)
        if format == "parquet"
        else readers[format](path, schema, bounds, folders)
    )
    reached = first
    try:
        for part in parts:
            reached = max([reached, *part.numbers[-1:] + 1, *(number + 1 for number, _, _ in part.bad[-1:])])
            yield part
    except WrongFolder as refusal:
        if first == 0:  # once for all slices of the file
            yield _unreadable(schema, str(refusal))
    except InvalidSchema as refusal:
        raise InvalidInput(refusal.what, where=str(path), next_step="read the column as it is stored") from None
    except (pa.ArrowException, *DAMAGE) as damage:
        reason = f"from here on the file cannot be read: {str(damage).partition(chr(10))[0]}"
        yield Part(schema.arrow.empty_table(), np.empty(0, np.int64), [(reached, None, reason)])


def _unreadable(schema: Schema, reason: str) -> Part:
    return Part(schema.arrow.empty_table(), np.empty(0, np.int64), [(WHOLE_FILE, None, reason)])


# ---------------------------------------------------------------- parquet


def row_groups(path: Path) -> list[tuple[int, int]]:
    """Rows and bytes of each row group; empty if the file cannot be read."""
    try:
        about = pq.read_metadata(path)
    except (pa.ArrowException, OSError):
        return []
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    return [(group.num_rows, group.total_byte_size) for group in groups]


def parquet_parts(
    path: Path, schema: Schema, first: int, end: int | None, bounds: FileBounds, folders: FolderValues = EMPTY
) -> Iterator[Part]:
    try:
        file = parquet_file(path)
    except (FileNotFoundError, PermissionError):
        raise
    except (pa.ArrowException, OSError) as error:
        yield _unreadable(schema, f"not a Parquet file: {str(error).splitlines()[0]}")
        return
    with file:
        filling = Filling.of(Schema(nullable(schema.arrow)), folders, file.schema_arrow.names)
        _check_columns(path, file.schema_arrow, schema, filling.values)
        names = [name for name in schema.names if name in file.schema_arrow.names]
        groups, at = [], 0
        for number in range(file.num_row_groups):
            if first <= at and (end is None or at < end):
                groups.append(number)
            at += file.metadata.row_group(number).num_rows
        if at >= ROWS_MAX:
            raise Unreadable(f"it has {at} rows, more than can be numbered")
        number = first
        for group in groups:
            for batch in _intact(group_batches(path, file, group, names)):
                bounds.unpack(batch.nbytes)
                numbers = np.arange(number, number + batch.num_rows, dtype=np.int64)
                number += batch.num_rows
                invalid = invalid_rows(batch)
                if invalid:
                    bad = [(int(numbers[row]), None, "a text in the row is not valid UTF-8") for row in invalid]
                    kept = np.delete(np.arange(batch.num_rows), invalid)
                    yield Part(filling.filled(batch.take(pa.array(kept))), numbers[kept], bad)
                else:
                    yield Part(filling.filled(batch), numbers)


def _intact(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except OSError as damage:  # what Arrow raises for invalid bytes
        raise Unreadable(str(damage)) from None


def _check_columns(path: Path, there: pa.Schema, wanted: Schema, filled: Container[str]) -> None:
    for field in wanted.arrow:
        index = there.get_field_index(field.name)
        if index < 0:
            if not field.nullable and field.name not in filled:
                raise _missing(path, field.name, there.names)
            continue
        found = Schema.of(pa.schema([there.field(index)]))
        if can_evolve(found, pa.schema([field.with_nullable(True)])):
            raise InvalidInput(
                f"column '{field.name}' is {_kind(found)} in the file and cannot be read as "
                f"{_kind(Schema.of(pa.schema([field])))}",
                where=str(path),
                next_step="read it as it is stored, and cast it in the flow",
            )


def _kind(schema: Schema) -> str:
    return schema.ddl.partition(" ")[2]


def _missing(path: Path, name: str, there: Sequence[str]) -> InvalidInput:
    return InvalidInput(
        f"the file has no column '{name}', which the schema declares NOT NULL",
        where=str(path),
        next_step=f"the file's columns: {', '.join(there)}",
    )


# ---------------------------------------------------------------- avro


class _AvroRules(PythonRules):
    refuses_unknown_fields = False


def avro_parts(path: Path, schema: Schema, bounds: FileBounds, folders: FolderValues = EMPTY) -> Iterator[Part]:
    with path.open("rb") as file:
        try:
            stored = AvroFile(file, bounds)
        except Unreadable as refusal:
            yield _unreadable(schema, f"not an Avro file that can be read: {refusal}")
            return
        filling = Filling.of(schema, folders, stored.names)
        held = _AvroRows(schema, filling)
        try:
            for block in stored.blocks():
                held.add(block)
                if held.is_full:
                    yield held.part()
                    held = _AvroRows(schema, filling, held.number)
        except Unreadable:
            yield held.part()
            raise
        yield held.part()


class _AvroRows:
    """The records of a file, reduced to the columns of the schema."""

    def __init__(self, schema: Schema, filling: Filling, first: int = 0) -> None:
        self._filling = filling
        self._numbers: list[int] = []
        self._columns: dict[str, list[Any]] = {name: [] for name in schema.names}
        self._bad: list[tuple[int, bytes | None, str]] = []
        self._size_bytes = 0
        self.number = first  # of the next one

    @property
    def is_full(self) -> bool:
        return len(self._numbers) >= CHUNK_LINES or self._size_bytes >= CHUNK_BYTES or len(self._bad) >= CHUNK_LINES

    def add(self, block: Block) -> None:
        self._numbers += range(self.number, self.number + len(block.records))
        self._size_bytes += block.size_bytes
        for name, column in self._columns.items():
            column += [_plain(record.get(name)) for record in block.records]
        self.number += len(block.records) + block.lost
        if block.fault is not None:
            self._bad.append((self.number - block.lost, None, block.fault))

    def part(self) -> Part:
        columns = Columns(self._filling.schema, _AvroRules())
        batch, kept = columns.batch(iter(self._columns.values()), len(self._numbers))
        numbers = np.array(self._numbers, dtype=np.int64)
        bad = self._bad + [(self._numbers[index], None, reason) for index, reason in columns.faults.items()]
        return Part(self._filling.filled(batch), numbers[kept], sorted(bad, key=itemgetter(0)))


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, UUID) else value


# ---------------------------------------------------------------- lines


def json_parts(path: Path, schema: Schema, bounds: FileBounds, folders: FolderValues = EMPTY) -> Iterator[Part]:
    filling = Filling.of(schema, folders, there=())  # lines may have different columns
    decoder = codec("json", Schema(filling.schema))
    with opened(path) as file:
        for chunk in chunks(lines(file, bounds)):
            yield _decoded(decoder, chunk, filling, bounds)


def csv_parts(path: Path, schema: Schema, bounds: FileBounds, folders: FolderValues = EMPTY) -> Iterator[Part]:
    with opened(path) as file:
        records = csv_records(chain.from_iterable(lines(file, bounds)), bounds.record_bytes_max)
        begin = next(records, None)
        if begin is None:
            return
        names = _header_names(path, begin[0])
        filling = Filling.of(schema, folders, names)
        for field in filling.schema:
            if field.name not in names and not field.nullable:
                raise _missing(path, field.name, names)
        fields = [schema.field(name) if name in schema else pa.field(name, pa.string()) for name in names]
        decoder = codec("csv", Schema.of(pa.schema(fields)))
        for chunk in chunks(chain([begin[1:]], records)):
            yield _decoded(decoder, chunk, filling, bounds)


def _header_names(path: Path, header: Line) -> list[str]:
    _, content, fault = header
    try:
        if fault is not None:
            raise Refused(fault)
        names = header_names(content)
    except Refused as refusal:
        raise Unreadable(str(refusal)) from None
    if twice := name_given_twice(names):
        raise InvalidInput(f"duplicate column '{twice}' in the header line", where=str(path))
    return names


def _decoded(decoder: Codec, chunk: list[Line], filling: Filling, bounds: FileBounds) -> Part:
    too_long = [(number, content, fault) for number, content, fault in chunk if fault is not None]
    good = [line for line in chunk if line[2] is None] if too_long else chunk
    decoded = decoder.decode([content for _, content, _ in good], size_bytes_max=bounds.record_bytes_max)
    numbers = np.array([number for number, _, _ in good], dtype=np.int64)
    bad: list[tuple[int, bytes | None, str]] = [*too_long]
    bad += [(*good[failure.index][:2], failure.reason) for failure in decoded.failures]
    return Part(filling.filled(decoded.rows), numbers[decoded.indices], sorted(bad, key=itemgetter(0)))
