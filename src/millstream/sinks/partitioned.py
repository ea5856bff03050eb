"""Rows of a batch by the folder that their values name: each row in one, in the order they came.

They are grouped once, however many folders there are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import SinkFailed
from millstream.plan.folders import NAME_BYTES_MAX, folder_name
from millstream.records.texts import to_texts

ROW = "row"


def by_folder(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[Path, pa.Table]]:
    """Each folder, below that of the sink, and its rows without the columns that it is named by."""
    if not columns:
        yield Path(), rows
        return
    keys = {str(place): _without_empty(rows.column(column)) for place, column in enumerate(columns)}
    numbered = pa.table({**keys, ROW: np.arange(rows.num_rows)})
    groups = numbered.group_by(list(keys), use_threads=False).aggregate([(ROW, "list")])
    members = groups.column(f"{ROW}_list").combine_chunks()
    grouped, order = rows.drop_columns(list(columns)), members.flatten()
    if not order.equals(numbered.column(ROW).combine_chunks()):  # rows most often come in the order of time
        grouped = grouped.combine_chunks().take(order)
    texts = [to_texts(groups.column(key).combine_chunks()) for key in keys]
    start = 0
    for values, count in zip(zip(*texts, strict=True), pc.list_value_length(members).to_pylist(), strict=True):
        names = [_fitting(folder_name(*named), named[0]) for named in zip(columns, values, strict=True)]
        yield Path(*names), grouped.slice(start, count)
        start += count


def _without_empty(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Empty text is null, since both have the same folder: two groups would mean two files of one name."""
    if not pa.types.is_string(column.type):
        return column
    return pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)


def _fitting(name: str, column: str) -> str:
    size_bytes = len(os.fsencode(name))
    if size_bytes > NAME_BYTES_MAX:
        raise SinkFailed(
            f"a value of '{column}' makes a folder's name of {size_bytes} bytes, and {NAME_BYTES_MAX} is the most",
            where=f"{name[:80]}…",
            next_step="partition by something shorter: make it with with_column(…)",
        )
    return name
