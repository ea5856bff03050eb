"""A format turns one file into rows, each with its number in the file; what cannot be read becomes a dead letter.

Rows of Parquet and Avro are counted from 0. Those of CSV and JSON have the number of their line, as editors show it.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from millstream.errors import InvalidInput, InvalidSchema
from millstream.records import Failure, Schema, align, can_evolve, codec
from millstream.records.columns import Columns
from millstream.records.rows import PythonRules
from millstream.sources.base import SLAB_ROWS
from millstream.sources.letters import nullable

LINES_PER_CHUNK = 20_000
CSV_RECORD_LINES_MAX = 1000  # a quote that is still open after so many lines was never meant to be one
WHOLE_FILE = 0  # the number in the letter of a file of which nothing can be read


class Unreadable(Exception):
    """The bytes of a file are damaged."""


class Part(NamedTuple):
    """Some rows of a file, their numbers in it, and what could not be read."""

    rows: pa.Table
    numbers: npt.NDArray[np.int64]
    bad: Sequence[tuple[int, bytes | None, str]] = ()  # number, content and reason


def parts_of(path: Path, format: str, schema: Schema, first: int, end: int | None) -> Iterator[Part]:
    """The rows of a file; `first` and `end` bound those of Parquet, the others are always read whole."""
    readers = {"avro": avro_parts, "csv": csv_parts, "json": json_parts}
    parts = parquet_parts(path, schema, first, end) if format == "parquet" else readers[format](path, schema)
    reached = first
    try:
        for part in parts:
            reached = max([reached, *part.numbers[-1:] + 1, *(number + 1 for number, _, _ in part.bad[-1:])])
            yield part
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


def parquet_parts(path: Path, schema: Schema, first: int, end: int | None) -> Iterator[Part]:
    try:
        # Not mapped: where somebody cuts a mapped file short, the process dies instead of telling it.
        file = pq.ParquetFile(path, pre_buffer=False)
    except (FileNotFoundError, PermissionError):
        raise
    except (pa.ArrowException, OSError) as error:
        yield _unreadable(schema, f"not a Parquet file: {str(error).splitlines()[0]}")
        return
    with file:
        _check_columns(path, file.schema_arrow, schema)
        names = [name for name in schema.names if name in file.schema_arrow.names]
        groups, at = [], 0
        for number in range(file.num_row_groups):
            if first <= at and (end is None or at < end):
                groups.append(number)
            at += file.metadata.row_group(number).num_rows
        number = first
        target = nullable(schema.arrow)
        for batch in _intact(file.iter_batches(SLAB_ROWS, row_groups=groups, columns=names, use_threads=False)):
            rows = pa.Table.from_batches([align(batch, target)])
            yield Part(rows, np.arange(number, number + rows.num_rows, dtype=np.int64))
            number += rows.num_rows


def _intact(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except OSError as damage:  # what Arrow raises for bytes that make no sense
        raise Unreadable(str(damage)) from None


def _check_columns(path: Path, there: pa.Schema, wanted: Schema) -> None:
    for field in wanted.arrow:
        place = there.get_field_index(field.name)
        if place < 0:
            if not field.nullable:
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


def avro_parts(path: Path, schema: Schema) -> Iterator[Part]:
    import fastavro

    number = 0
    with path.open("rb") as file:
        try:
            records = fastavro.reader(file)
        except Exception as error:  # the bytes are anyone's, and so is what a parser makes of them
            yield _unreadable(schema, f"not an Avro file: {error}")
            return
        source = _readable(records)
        while chunk := list(islice(source, LINES_PER_CHUNK)):
            damage = chunk.pop() if isinstance(chunk[-1], Unreadable) else None
            columns = Columns(schema.arrow, _AvroRules())
            values = ([_plain(record.get(name)) for record in chunk] for name in schema.names)
            batch, kept = columns.batch(values, len(chunk))
            bad = [(number + index, None, reason) for index, reason in sorted(columns.faults.items())]
            yield Part(pa.Table.from_batches([batch]), kept + number, bad)
            number += len(chunk)
            if damage is not None:
                raise damage


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


def json_parts(path: Path, schema: Schema) -> Iterator[Part]:
    decoder = codec("json", schema)
    with _opened(path) as file:
        lines = _lines(file)
        while chunk := list(islice(lines, LINES_PER_CHUNK)):
            yield _decoded(decoder, chunk, schema)


def csv_parts(path: Path, schema: Schema) -> Iterator[Part]:
    with _opened(path) as file:
        records = _records(_lines(file))
        header = next(records, None)
        if header is None:
            return
        names = next(csv.reader([header[1].removeprefix(b"\xef\xbb\xbf").decode(errors="replace")]))
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidInput(f"the header line names column '{twice[0]}' twice", where=str(path))
        for field in schema.arrow:
            if field.name not in names and not field.nullable:
                raise _missing(path, field.name, names)
        fields = [schema.field(name) if name in schema else pa.field(name, pa.string()) for name in names]
        decoder = codec("csv", Schema.of(pa.schema(fields)))
        while chunk := list(islice(records, LINES_PER_CHUNK)):
            yield _decoded(decoder, chunk, schema)


def _decoded(decoder: Any, chunk: Sequence[Line], schema: Schema) -> Part:
    decoded = decoder.decode([line for _, line in chunk])
    failures: Sequence[Failure] = decoded.failures
    numbers = np.array([number for number, _ in chunk], dtype=np.int64)
    bad = [(chunk[failure.index][0], chunk[failure.index][1], failure.reason) for failure in failures]
    return Part(pa.Table.from_batches([align(decoded.rows, schema.arrow)]), numbers[decoded.indices], bad)


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
