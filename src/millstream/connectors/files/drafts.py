"""Drafts: files that are not yet visible, written by the driver or a worker, and renamed by the sink when it commits.

Drafts are in a hidden folder of the run, next to the files they become, so that a rename is enough. Only the driver
creates that folder: a worker that does not find it does not share the disk, and sends its rows to the driver instead.
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
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from millstream.connectors.files.partitioned import by_folder, without_folder
from millstream.connectors.flat_rows import flat_rows
from millstream.connectors.refusals import AS_TEXT, kept, unfit, without
from millstream.connectors.sink import Prepared, Preparer
from millstream.connectors.weights import aligned, one_batch, with_weights
from millstream.plan.steps.partition_folders import NAME_BYTES_MAX
from millstream.records import Schema, align, codec

WRITING = min(4, os.cpu_count() or 1)
"""Threads that write files: most of the work releases the GIL."""
PATH_BYTES_MAX = 4095
FILE_BYTES_MAX = 32
"""The part of a file name after step and run."""

Draft = tuple[str, str]
"""The name of a draft, and its target folder below that of the sink."""


@dataclass(frozen=True)
class Drafting(Preparer):
    """Writes rows as drafts."""

    sink_folder: Path
    name: str
    format: str
    partition_by: tuple[str, ...]
    schema: Schema
    name_bytes_max: int = NAME_BYTES_MAX

    @property
    def folder(self) -> Path:
        return self.sink_folder / self.name

    def prepare(self, batch: int, shard: int, rows: pa.Table, weights: pa.Array | None) -> Prepared | None:
        """None if the disk is not shared: then the folder for drafts does not exist."""
        return self.drafted(shard, rows, weights) if self.folder.is_dir() else None

    def drafted(self, shard: int, rows: pa.Table, weights: pa.Array | None) -> Prepared:
        refused = self.unfit(rows)
        fit = without(rows, refused)
        fit_weights = weights.filter(kept(rows.num_rows, refused)) if refused and weights is not None else weights
        drafts = self.draft(fit, fit_weights) if fit.num_rows else []
        return Prepared({"shard": shard, "drafts": [list(draft) for draft in drafts]}, refused)

    def unfit(self, rows: pa.Table) -> dict[int, str]:
        """The rows that cannot be stored in a file, with the reasons."""
        written = rows if self.format != "parquet" else rows.select(list(self.partition_by))
        found = unfit(written, AS_TEXT)
        if not self.partition_by:
            return found
        # The path also contains the name of the file: step, run, batch, number and suffix.
        taken = len(os.fsencode(self.sink_folder)) + len(os.fsencode(self.name)) + FILE_BYTES_MAX
        room_bytes = PATH_BYTES_MAX - taken
        return found | without_folder(rows, self.partition_by, self.name_bytes_max, room_bytes)

    def draft(self, rows: pa.Table, weights: pa.Array | None) -> list[Draft]:
        """Writes rows to one file per target folder: durable when this returns, and none remain if it fails."""
        rows = with_weights(aligned(rows, self.schema), weights)
        parts = [(f"{uuid.uuid4().hex}.tmp", str(below), part) for below, part in by_folder(rows, self.partition_by)]
        try:
            with ThreadPoolExecutor(WRITING, thread_name_prefix="millstream-files") as writing:
                for done in [writing.submit(self._write, name, part) for name, _, part in parts]:
                    done.result()
        except BaseException:
            for name, _, _ in parts:
                with suppress(OSError):
                    self._remove(name)
            raise
        return [(name, below) for name, below, _ in parts]

    def _write(self, name: str, rows: pa.Table) -> None:
        with (self.folder / name).open("wb") as file:
            self._encode(rows, file)
            file.flush()
            os.fsync(file.fileno())

    def _remove(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def _encode(self, rows: pa.Table, file: BinaryIO) -> None:
        if self.format == "parquet":
            pq.write_table(rows, file)
        else:
            file.write(json_lines(rows) if self.format == "json" else csv_file(rows))


def json_lines(rows: pa.Table) -> bytes:
    schema = Schema.of(rows.schema)
    lines: list[bytes] = codec("json", schema).encode(align(one_batch(rows), schema.arrow)).to_pylist()
    return b"\n".join([*lines, b""])


def csv_file(rows: pa.Table) -> bytes:
    """With a header; structs are flattened, arrays and maps are JSON."""
    flat = flat_rows(one_batch(rows))
    heading = io.StringIO()
    csv.writer(heading, lineterminator="").writerow(flat.schema.names)
    lines: list[bytes] = codec("csv", Schema.of(flat.schema)).encode(flat).to_pylist()
    return b"\n".join([heading.getvalue().encode(), *lines, b""])
