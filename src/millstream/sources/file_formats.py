"""A format turns one file into rows, each with its number in the file; what cannot be read becomes a dead letter.

Rows of Parquet and Avro are counted from 0. Those of CSV and JSON have the number of their line, as editors show it.
What the names of a file's folders say fills columns that the file does not have.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millstream.errors import InvalidInput, InvalidSchema
from millstream.plan.folders import folder_value
from millstream.records import Failure, Schema, align, can_evolve, codec
from millstream.records.columns import Columns, Refused
from millstream.records.rows import PythonRules
from millstream.sources.base import SLAB_ROWS
from millstream.sources.letters import nullable

LINES_PER_CHUNK = 20_000
CSV_RECORD_LINES_MAX = 1000  # a quote that is still open after so many lines was never meant to be one
Said = Mapping[str, str | None]
EMPTY: Said = {}
WHOLE_FILE = 0  # the number in the letter of a file of which nothing can be read


class Unreadable(Exception):
    """The bytes of a file are damaged."""


class WrongFolder(Exception):
    """What a folder's name says is no value of its column."""


class Part(NamedTuple):
    """Some rows of a file, their numbers in it, and what could not be read."""

    rows: pa.Table
    numbers: npt.NDArray[np.int64]
    bad: Sequence[tuple[int, bytes | None, str]] = ()  # number, content and reason


@dataclass(frozen=True)
class Filling:
    """Values for columns that are not in a file. Until they are filled in these are null, whatever the schema says."""

    schema: pa.Schema
    values: Mapping[str, pa.Scalar]

    @classmethod
    def of(cls, schema: Schema, said: Said, there: Container[str]) -> Filling:
        """`said` by the folders of a file that has the columns `there`."""
        fields, values = [], {}
        for field in schema.arrow:
            if field.name in said and field.name not in there:
                try:
                    values[field.name] = folder_value(said[field.name], field.type)
                except Refused as refusal:
                    raise WrongFolder(f"column '{field.name}': {refusal}") from None
            fields.append(field.with_nullable(field.nullable or field.name in values))
        return cls(pa.schema(fields), values)

    def filled(self, batch: pa.RecordBatch) -> pa.Table:
        """All columns of the schema; where a value is said, it stands in for null."""
        rows = pa.Table.from_batches([align(batch, self.schema)])
        for name, value in self.values.items():
            if value.is_valid:
                place = rows.schema.get_field_index(name)
                rows = rows.set_column(place, rows.schema.field(place), pc.fill_null(rows.column(place), value))
        return rows


def parts_of(
    path: Path, format: str, schema: Schema, first: int, end: int | None, said: Said = EMPTY
) -> Iterator[Part]:
    """The rows of a file; `first` and `end` bound those of Parquet, the others are always read whole.

    `said` is what the names of its folders say, by column.
    """
    readers = {"avro": avro_parts, "csv": csv_parts, "json": json_parts}
    parts = (
        parquet_parts(path, schema, first, end, said) if format == "parquet" else readers[format](path, schema, said)
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
    except (pa.ArrowException, EOFError, zlib.error, gzip.BadGzipFile, Unreadable) as damage:
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


def parquet_parts(path: Path, schema: Schema, first: int, end: int | None, said: Said = EMPTY) -> Iterator[Part]:
    try:
        # Not mapped: where somebody cuts a mapped file short, the process dies instead of telling it.
        file = pq.ParquetFile(path, pre_buffer=False)
    except (FileNotFoundError, PermissionError):
        raise
    except (pa.ArrowException, OSError) as error:
        yield _unreadable(schema, f"not a Parquet file: {str(error).splitlines()[0]}")
        return
    with file:
        filling = Filling.of(Schema(nullable(schema.arrow)), said, file.schema_arrow.names)
        _check_columns(path, file.schema_arrow, schema, filling.values)
        names = [name for name in schema.names if name in file.schema_arrow.names]
        groups, at = [], 0
        for number in range(file.num_row_groups):
            if first <= at and (end is None or at < end):
                groups.append(number)
            at += file.metadata.row_group(number).num_rows
        number = first
        for batch in _intact(file.iter_batches(SLAB_ROWS, row_groups=groups, columns=names, use_threads=False)):
            rows = filling.filled(batch)
            yield Part(rows, np.arange(number, number + rows.num_rows, dtype=np.int64))
            number += rows.num_rows


def _intact(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except OSError as damage:  # what Arrow raises for bytes that make no sense
        raise Unreadable(str(damage)) from None


def _check_columns(path: Path, there: pa.Schema, wanted: Schema, filled: Container[str]) -> None:
    for field in wanted.arrow:
        place = there.get_field_index(field.name)
        if place < 0:
            if not field.nullable and field.name not in filled:
                raise _missing(path, field.name, there.names)
            continue
        found = Schema.of(pa.schema([there.field(place)]))
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
        f"the file has no column '{name}', which the schema says is NOT NULL",
        where=str(path),
        next_step=f"the file's columns: {', '.join(there)}",
    )


# ---------------------------------------------------------------- avro


class _AvroRules(PythonRules):
    refuses_unknown_fields = False


def avro_parts(path: Path, schema: Schema, said: Said = EMPTY) -> Iterator[Part]:
    import fastavro

    number = 0
    with path.open("rb") as file:
        try:
            records = fastavro.reader(file)
        except Exception as error:  # the bytes are anyone's, and so is what a parser makes of them
            yield _unreadable(schema, f"not an Avro file: {error}")
            return
        filling = Filling.of(schema, said, _avro_names(records.writer_schema))
        source = _readable(records)
        while chunk := list(islice(source, LINES_PER_CHUNK)):
            damage = chunk.pop() if isinstance(chunk[-1], Unreadable) else None
            columns = Columns(filling.schema, _AvroRules())
            values = ([_plain(record.get(name)) for record in chunk] for name in schema.names)
            batch, kept = columns.batch(values, len(chunk))
            bad = [(number + index, None, reason) for index, reason in sorted(columns.faults.items())]
            yield Part(filling.filled(batch), kept + number, bad)
            number += len(chunk)
            if damage is not None:
                raise damage


def _avro_names(stored: Any) -> set[str]:
    return {field["name"] for field in stored.get("fields", [])} if isinstance(stored, dict) else set()


def _readable(records: Any) -> Iterator[Any]:
    """The records, and what stopped the reading as the last of them: those before it are good."""
    try:
        yield from records
    except Exception as error:
        yield Unreadable(str(error) or type(error).__name__)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, UUID) else value


# ---------------------------------------------------------------- lines


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    if path.suffix == ".gz":
        with gzip.open(path, "rb") as unpacked:
            yield cast(BinaryIO, unpacked)
    else:
        with path.open("rb") as file:
            yield file


Line = tuple[int, bytes]


def _lines(file: BinaryIO) -> Iterator[Line]:
    """The lines that are not empty, with their numbers."""
    for number, line in enumerate(file, start=1):
        if stripped := line.rstrip(b"\r\n"):
            yield number, stripped


def json_parts(path: Path, schema: Schema, said: Said = EMPTY) -> Iterator[Part]:
    filling = Filling.of(schema, said, there=())  # each line has what it has
    decoder = codec("json", Schema(filling.schema))
    with _opened(path) as file:
        lines = _lines(file)
        while chunk := list(islice(lines, LINES_PER_CHUNK)):
            yield _decoded(decoder, chunk, filling)


def csv_parts(path: Path, schema: Schema, said: Said = EMPTY) -> Iterator[Part]:
    with _opened(path) as file:
        records = _records(_lines(file))
        header = next(records, None)
        if header is None:
            return
        names = next(csv.reader([header[1].removeprefix(b"\xef\xbb\xbf").decode(errors="replace")]))
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidInput(f"the header line names column '{twice[0]}' twice", where=str(path))
        filling = Filling.of(schema, said, names)
        for field in filling.schema:
            if field.name not in names and not field.nullable:
                raise _missing(path, field.name, names)
        fields = [schema.field(name) if name in schema else pa.field(name, pa.string()) for name in names]
        decoder = codec("csv", Schema.of(pa.schema(fields)))
        while chunk := list(islice(records, LINES_PER_CHUNK)):
            yield _decoded(decoder, chunk, filling)


def _decoded(decoder: Any, chunk: Sequence[Line], filling: Filling) -> Part:
    decoded = decoder.decode([line for _, line in chunk])
    failures: Sequence[Failure] = decoded.failures
    numbers = np.array([number for number, _ in chunk], dtype=np.int64)
    bad = [(chunk[failure.index][0], chunk[failure.index][1], failure.reason) for failure in failures]
    return Part(filling.filled(decoded.rows), numbers[decoded.indices], bad)


def _records(lines: Iterator[Line]) -> Iterator[Line]:
    """CSV records: a line whose quotes are still open goes on in the next one."""
    for number, line in lines:
        if line.count(b'"') % 2 == 0:
            yield number, line
            continue
        held = [(number, line)]
        for more in islice(lines, CSV_RECORD_LINES_MAX):
            held.append(more)
            if more[1].count(b'"') % 2:
                yield number, b"\n".join(text for _, text in held)
                break
        else:  # it is never closed: only the line it is in is lost by that
            yield from held
