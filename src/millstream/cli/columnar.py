"""Files that hold columns come in batches of bounded size, whatever the size of the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from millstream.errors import InvalidInput
from millstream.records import Schema

BATCH_ROWS = 65_536


def schema_of(path: Path, format: str) -> Schema:
    """The columns a file has; those of a CSV file are guessed from its beginning."""
    try:
        if format == "parquet":
            import pyarrow.parquet as pq

            return Schema.from_arrow(pq.read_schema(path))
        if format == "csv":
            import pyarrow.csv

            with pyarrow.csv.open_csv(path) as reader:
                return Schema.from_arrow(reader.schema)
        with path.open("rb") as stream:
            return Schema.from_arrow(_arrow_reader(stream).schema)
    except pa.ArrowException as error:
        raise _unreadable(format, path, error) from error


def batches(stream: BinaryIO, path: Path | None, format: str) -> Iterator[tuple[pa.RecordBatch, float]]:
    """Batches of the file's rows, each with the share of the file that has been read by then (0 if unknown)."""
    try:
        yield from _parquet(stream) if format == "parquet" else _arrow(stream)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(format, path, error) from error


def _parquet(stream: BinaryIO) -> Iterator[tuple[pa.RecordBatch, float]]:
    from millstream.connectors.files.bounds import Unreadable  # not above: with it come all sources
    from millstream.connectors.files.parquet_pages import group_batches, parquet_file

    if not stream.seekable():
        raise InvalidInput("a Parquet file cannot be read from a pipe", next_step="name the file")
    file = parquet_file(stream)
    read = 0
    try:
        for group in range(file.num_row_groups):
            for whole in group_batches(stream, file, group, file.schema_arrow.names):
                for begin in range(0, whole.num_rows, BATCH_ROWS):
                    batch = whole.slice(begin, BATCH_ROWS)
                    read += batch.num_rows
                    yield batch, read / file.metadata.num_rows
    except Unreadable as refusal:
        raise pa.ArrowInvalid(str(refusal)) from None


def _arrow(stream: BinaryIO) -> Iterator[tuple[pa.RecordBatch, float]]:
    reader = _arrow_reader(stream)
    whole = isinstance(reader, pa.ipc.RecordBatchFileReader)
    count = reader.num_record_batches if whole else 0
    each = map(reader.get_batch, range(count)) if whole else reader
    for number, batch in enumerate(each, start=1):
        for begin in range(0, batch.num_rows, BATCH_ROWS):
            yield batch.slice(begin, BATCH_ROWS), number / count if count else 0.0


def _arrow_reader(stream: BinaryIO) -> Any:
    """Arrow IPC has a form for files and one for streams; a file can hold either."""
    if stream.seekable():
        try:
            return pa.ipc.open_file(stream)
        except pa.ArrowInvalid:
            stream.seek(0)
    return pa.ipc.open_stream(stream)


def _unreadable(format: str, path: Path | None, error: Exception) -> InvalidInput:
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    return InvalidInput(
        f"the input cannot be read as {format}: {said}",
        where=str(path or "stdin"),
        next_step="see that the file is whole, or say what it is with --format",
    )
