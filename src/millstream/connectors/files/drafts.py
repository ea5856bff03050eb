"""Files that are not visible yet: rows are drafted where they are, in the driver or in a worker, and the sink moves all
drafts of a batch into place.

Drafts lie in a hidden folder of the run, beside the files they become, so that one rename is all. The driver alone
makes that folder: a worker that does not find it is on a machine that does not share the disk, and sends its rows
instead.
"""

from __future__ import annotations

import csv
import io
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from millstream.connectors.files.partitioned import by_folder, without_folder
from millstream.connectors.flat_rows import flat_rows
from millstream.connectors.refusals import AS_TEXT, unfit
from millstream.connectors.weights import aligned, one_batch, with_weights
from millstream.plan.partition_folders import NAME_BYTES_MAX
from millstream.records import Schema, align, codec

WRITING = min(4, os.cpu_count() or 1)
"""Threads that write files: most of it is done where the interpreter does not hold it up."""
PATH_BYTES_MAX = 4095
FILE_BYTES_MAX = 32
"""What the name of a file has besides step and run."""

Draft = tuple[str, str]
"""The name of a draft, and the folder it is for, below that of the sink."""


@dataclass(frozen=True)
class Drafting:
    sink_folder: Path
    name: str
    format: str
    partition_by: tuple[str, ...]
    schema: Schema
    name_bytes_max: int = NAME_BYTES_MAX

    @property
    def folder(self) -> Path:
        return self.sink_folder / self.name

    def unfit(self, rows: pa.Table) -> dict[int, str]:
        """The rows that cannot be in a file, and why."""
        written = rows if self.format != "parquet" else rows.select(list(self.partition_by))
        found = unfit(written, AS_TEXT)
        if not self.partition_by:
            return found
        # Below the folder of the sink there is also the name of the file: step, run, batch, number and ending.
        taken = len(os.fsencode(self.sink_folder)) + len(os.fsencode(self.name)) + FILE_BYTES_MAX
        room_bytes = PATH_BYTES_MAX - taken
        return found | without_folder(rows, self.partition_by, self.name_bytes_max, room_bytes)

    def draft(self, rows: pa.Table, weights: pa.Array | None) -> list[Draft]:
        """Rows as files, one for each folder they are for: on disk when this returns, and none if it fails."""
        rows = with_weights(aligned(rows, self.schema), weights)
        parts = [(f"{uuid.uuid4().hex}.tmp", str(below), part) for below, part in by_folder(rows, self.partition_by)]
        try:
            with ThreadPoolExecutor(WRITING, thread_name_prefix="millstream-files") as writing:
                for done in [writing.submit(self._write, name, part) for name, _, part in parts]:
                    done.result()
        except BaseException:
            for name, _, _ in parts:
                with suppress(OSError):
                    (self.folder / name).unlink(missing_ok=True)
            raise
        return [(name, below) for name, below, _ in parts]

    def _write(self, name: str, rows: pa.Table) -> None:
        with (self.folder / name).open("wb") as file:
            if self.format == "parquet":
                pq.write_table(rows, file)
            else:
                file.write(json_lines(rows) if self.format == "json" else csv_file(rows))
            file.flush()
            os.fsync(file.fileno())


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
