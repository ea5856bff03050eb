"""Data files are written before any version of the table refers to them, by the driver or by tasks.

They are in a folder of their run and batch. So after a commit, what the folder has besides the committed files was left
by failed attempts, and is removed.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as fs
import pyarrow.parquet as pq

from millstream.connectors.lakes.store import NewFile, Places, Storage
from millstream.connectors.refusals import is_time_without_text, kept, unfit, without
from millstream.connectors.sink import Prepared, Preparer
from millstream.connectors.weights import WEIGHT, one_batch
from millstream.plan.steps.partition_folders import folder_name
from millstream.records import Schema, align
from millstream.records.texts import to_texts

FILE_BYTES = 128 << 20
FAR_TIMES = {"a time outside the years 1 to 9999": is_time_without_text}
ROW = "row"


@dataclass(frozen=True)
class Shape:
    """The columns of a table: how rows become rows of it, and how those are split into files."""

    rows: Schema
    """Of the step."""
    table: Schema
    file: pa.Schema
    partition_by: tuple[str, ...]
    leaves_out_partitions: bool

    def unfit(self, rows: pa.Table) -> dict[int, str]:
        """The rows that the table cannot store: readers disagree on far times, and a column may be NOT NULL."""
        found = unfit(rows, FAR_TIMES)
        for each in self.table.arrow:
            if not each.nullable and each.name in rows.schema.names:
                for row in np.flatnonzero(rows.column(each.name).is_null().to_numpy()):
                    found.setdefault(int(row), f"column '{each.name}' is null, and the table declares it NOT NULL")
        return found

    def fitted(self, rows: pa.Table, weights: pa.Array | None) -> pa.Table:
        """The rows with the columns of the table."""
        batch = align(one_batch(rows), self.rows.arrow)
        if weights is not None and WEIGHT in self.rows:
            # A retraction equals its row except for the weight: tables contain the row as it arrived.
            came = pa.repeat(pa.scalar(1, self.rows.field(WEIGHT).type), batch.num_rows)
            batch = batch.set_column(self.rows.arrow.get_field_index(WEIGHT), self.rows.field(WEIGHT), came)
        arrays = [
            batch.column(each.name).cast(each.type)
            if each.name in batch.schema.names
            else pa.nulls(batch.num_rows, each.type)
            for each in self.table.arrow
        ]
        return pa.Table.from_arrays(arrays, schema=self.table.arrow)

    def parts(self, rows: pa.Table) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
        """The rows of each partition, in order of arrival, with the values of the partition as texts."""
        if not self.partition_by:
            yield {}, rows
            return
        keys = {str(index): rows.column(column) for index, column in enumerate(self.partition_by)}
        numbered = pa.table({**keys, ROW: np.arange(rows.num_rows)})
        groups = numbered.group_by(list(keys), use_threads=False).aggregate([(ROW, "list")])
        members = groups.column(f"{ROW}_list").combine_chunks()
        grouped = rows.combine_chunks().take(members.flatten())
        texts = [to_texts(groups.column(key).combine_chunks()) for key in keys]
        start = 0
        for values, count in zip(zip(*texts, strict=True), pc.list_value_length(members).to_pylist(), strict=True):
            yield dict(zip(self.partition_by, values, strict=True)), grouped.slice(start, count)
            start += count

    def stored(self, rows: pa.Table) -> pa.Table:
        """The rows as a data file has them."""
        names = [each.name for each in self.file]
        if self.leaves_out_partitions:
            names = [name for name in names if name not in self.partition_by]
        chosen = pa.schema([self.file.field(name) for name in names])
        return pa.Table.from_arrays([rows.column(each.name).cast(each.type) for each in chosen], schema=chosen)


@dataclass(frozen=True)
class DataFiles(Preparer):
    """Writes the data files of a run."""

    storage: Storage
    folder: str
    shape: Shape

    def prepare(self, batch: int, shard: int, rows: pa.Table, weights: pa.Array | None) -> Prepared | None:
        """None if rows may be retracted: what they retract may be in another task, or in the table."""
        places = self.storage.opened() if weights is None else None
        return None if places is None else self.prepared(places, batch, rows)

    def prepared(self, places: Places, batch: int, rows: pa.Table) -> Prepared:
        refused = self.shape.unfit(rows)
        fit = self.shape.fitted(without(rows, refused), None)
        return Prepared(self.receipt(self.write(places, batch, fit)), refused)

    @staticmethod
    def receipt(files: Sequence[NewFile]) -> dict[str, Any]:
        return {"files": [file.receipt() for file in files]}

    def write(self, places: Places, batch: int, rows: pa.Table) -> list[NewFile]:
        """The rows, with the columns of the table, as one file or more per partition; none for no rows."""
        return [
            self._file(places, batch, piece, values)
            for values, part in (self.shape.parts(rows) if rows.num_rows else ())
            for piece in _pieces(part)
        ]

    def _file(self, places: Places, batch: int, rows: pa.Table, partition: Mapping[str, str | None]) -> NewFile:
        # Some readers take the values of Delta's partitions from the names of folders, not from its log.
        below = [folder_name(*each) for each in partition.items()] if self.shape.leaves_out_partitions else []
        folder = "/".join([self.folder_of(batch), *below])
        path = f"{folder}/{uuid.uuid4().hex}.parquet"
        about: list[pq.FileMetaData] = []
        made, footer = pa.BufferOutputStream(), io.BytesIO()
        pq.write_table(self.shape.stored(rows), made, metadata_collector=about, compression="zstd")
        about[0].write_metadata_file(footer)
        content = made.getvalue().to_pybytes()
        if places.files.type_name != "s3":  # where Arrow would write an empty object for each folder
            places.files.create_dir(places.path(folder), recursive=True)
        with places.files.open_output_stream(places.path(path)) as stream:
            stream.write(content)
        return NewFile(path, len(content), footer.getvalue(), partition)

    def folder_of(self, batch: int) -> str:
        return f"{self.folder}/{batch:010d}"

    def tidy(self, places: Places, batch: int, committed: Sequence[NewFile]) -> None:
        """Removes what failed attempts at a batch have left."""
        own = {places.path(file.path) for file in committed}
        folder = fs.FileSelector(places.path(self.folder_of(batch)), allow_not_found=True, recursive=True)
        with suppress(OSError, pa.ArrowException):  # leftovers are harmless
            for about in places.files.get_file_info(folder):
                if about.type == fs.FileType.File and about.path not in own:
                    places.files.delete_file(about.path)


def taken(rows: pa.Table, weights: pa.Array | None, refused: Mapping[int, str]) -> tuple[pa.Table, pa.Array | None]:
    """Without the refused rows."""
    if not refused:
        return rows, weights
    return without(rows, refused), None if weights is None else weights.filter(kept(rows.num_rows, refused))


def _pieces(rows: pa.Table) -> Iterator[pa.Table]:
    count = max(1, -(-rows.nbytes // FILE_BYTES))
    size = -(-rows.num_rows // count)
    for start in range(0, rows.num_rows, size):
        yield rows.slice(start, size)
