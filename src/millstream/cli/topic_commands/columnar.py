"""Reads columnar files in batches of bounded size, whatever the size of the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from millstream.cli.topic_commands.lines import size_of
from millstream.connectors.files.arrow_messages import CheckedMessages, arrow_batches, arrow_schema
from millstream.connectors.files.bounds import FileBounds, Unreadable
from millstream.connectors.files.parquet_pages import group_batches, parquet_file
from millstream.errors import InvalidInput
from millstream.records import Schema

BATCH_ROWS = 65_536


def schema_of(path: Path, format: str) -> Schema:
    """The columns of a file; those of a CSV file are inferred from its beginning."""
    try:
        if format == "parquet":
            import pyarrow.parquet as pq

            return Schema.from_arrow(pq.read_schema(path))
        if format == "csv":
            import pyarrow.csv

            with pyarrow.csv.open_csv(path) as reader:
                return Schema.from_arrow(reader.schema)
        with path.open("rb") as stream:
            return Schema.from_arrow(arrow_schema(stream))
    except (pa.ArrowException, Unreadable) as error:
        raise _unreadable(format, path, error) from error


def batches(
    stream: BinaryIO, path: Path | None, format: str, max_expansion: int
) -> Iterator[tuple[pa.RecordBatch, float]]:
    """Batches of the file's rows, each with the share of the file read so far (0 if unknown)."""
    size_bytes = size_of(stream) or 0
    bounds = FileBounds(size_bytes, 0, max_expansion, allowed_with="--max-expansion")
    try:
        yield from _parquet(stream, bounds) if format == "parquet" else _arrow(stream, bounds, size_bytes)
    except (pa.ArrowException, OSError, Unreadable) as error:
        raise _unreadable(format, path, error) from error


def _parquet(stream: BinaryIO, bounds: FileBounds) -> Iterator[tuple[pa.RecordBatch, float]]:
    if not stream.seekable():
        raise InvalidInput("a Parquet file cannot be read from a pipe", next_step="name the file")
    file = parquet_file(stream)
    read = 0
    for group in range(file.num_row_groups):
        for whole in group_batches(stream, file, group, file.schema_arrow.names):
            bounds.unpack(whole.nbytes)
            for begin in range(0, whole.num_rows, BATCH_ROWS):
                batch = whole.slice(begin, BATCH_ROWS)
                read += batch.num_rows
                yield batch, read / file.metadata.num_rows


def _arrow(stream: BinaryIO, bounds: FileBounds, size_bytes: int) -> Iterator[tuple[pa.RecordBatch, float]]:
    messages = CheckedMessages(stream, bounds)
    for whole in arrow_batches(messages):
        for begin in range(0, whole.num_rows, BATCH_ROWS):
            yield whole.slice(begin, BATCH_ROWS), messages.read_bytes / size_bytes if size_bytes else 0.0


def _unreadable(format: str, path: Path | None, error: Exception) -> InvalidInput:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return InvalidInput(
        f"the input cannot be read as {format}: {reason}",
        where=str(path or "stdin"),
        next_step="check that the file is complete, or name its format with --format",
    )
