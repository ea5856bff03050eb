"""One file per batch and folder: it appears under its name when it is complete, and never again.

    of each file that is not there: write a hidden draft; sync; rename
    sync the folders; note that the batch is written

The name holds the run of the job: a file of that name is this run's own, and complete.
"""

from __future__ import annotations

import csv
import io
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from millstream.errors import InvalidInput, SinkFailed
from millstream.log.disk import sync_folder
from millstream.plan.places import Files
from millstream.records import Schema, align, codec
from millstream.sinks.file_ledger import FileLedger, unavailable_if_refused
from millstream.sinks.flat import check_json, flat_rows
from millstream.sinks.partitioned import by_folder
from millstream.sinks.weights import aligned, one_batch, with_weights

WRITING = min(4, os.cpu_count() or 1)
"""Threads that write files: most of it is done where the interpreter does not hold it up."""


class FilesSink:
    def __init__(self, place: Files, schema: Schema, *, step: str, ledger: FileLedger) -> None:
        self._format = place.format
        self._schema = schema
        self._step = step
        self._folder = Path(place.path).expanduser()
        self._partition_by = place.partition_by
        self._ledger = ledger
        if self._format != "parquet":
            check_json(schema)
        if self._folder.exists() and not self._folder.is_dir():
            raise InvalidInput(
                "there is a file where the folder of files should be",
                where=str(self._folder),
                next_step="name another folder",
            )

    def write(self, batch: int, rows: pa.Table, weights: pa.Array | None) -> None:
        if self._ledger.has(batch):
            return
        if rows.num_rows:
            with unavailable_if_refused(str(self._folder), self._step):
                self._write_files(batch, with_weights(aligned(rows, self._schema), weights))
        self._ledger.record(batch)

    def close(self) -> None:
        """Nothing is held open between batches."""

    def _write_files(self, batch: int, rows: pa.Table) -> None:
        name = f"{self._step}-{self._ledger.run}-{batch:010d}.{self._format}"
        found: set[tuple[int, int]] = set()
        folders, files = {self._folder}, []
        for below, part in by_folder(rows, self._partition_by):
            path = self._folder / below / name
            path.parent.mkdir(parents=True, exist_ok=True)
            about = path.parent.stat()
            if (about.st_dev, about.st_ino) in found:
                raise SinkFailed(
                    f"the folder '{below}' is the same as another one here, and rows would be lost",
                    where=str(path.parent),
                    next_step="write to a disk that tells small letters from capitals, or make the values one spelling",
                )
            found.add((about.st_dev, about.st_ino))
            folders.update(self._folder / above for above in (below, *below.parents))
            if not path.exists():
                files.append((path, part))
        with ThreadPoolExecutor(WRITING, thread_name_prefix="millstream-files") as writing:
            for done in [writing.submit(self._write_file, path, part) for path, part in files]:
                done.result()
        for folder in folders:  # also of files that were there: who renamed them may have died before this
            sync_folder(folder)

    def _write_file(self, path: Path, rows: pa.Table) -> None:
        draft = path.with_name(f".{path.name}.tmp")
        with draft.open("wb") as file:
            if self._format == "parquet":
                pq.write_table(rows, file)
            else:
                file.write(json_lines(rows) if self._format == "json" else csv_file(rows))
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)


def json_lines(rows: pa.Table) -> bytes:
    schema = Schema.of(rows.schema)
    lines: list[bytes] = codec("json", schema).encode(align(one_batch(rows), schema.arrow)).to_pylist()
    return b"\n".join([*lines, b""])


def csv_file(rows: pa.Table) -> bytes:
    """With a heading; structs are taken apart, arrays and maps are JSON."""
    flat = flat_rows(one_batch(rows))
    heading = io.StringIO()
    csv.writer(heading, lineterminator="").writerow(flat.schema.names)
    lines: list[bytes] = codec("csv", Schema.of(flat.schema)).encode(flat).to_pylist()
    return b"\n".join([heading.getvalue().encode(), *lines, b""])
