"""Partitions the rows of a batch by folder, in order of arrival.

They are grouped in one pass, however many folders there are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.plan.steps.partition_folders import folder_name
from millstream.records.texts import to_texts

ROW = "row"


def by_folder(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[Path, pa.Table]]:
    """Each folder below that of the sink, and its rows without the partition columns."""
    if not columns:
        yield Path(), rows
        return
    keys = {str(index): _without_empty(rows.column(column)) for index, column in enumerate(columns)}
    numbered = pa.table({**keys, ROW: np.arange(rows.num_rows)})
    groups = numbered.group_by(list(keys), use_threads=False).aggregate([(ROW, "list")])
    members = groups.column(f"{ROW}_list").combine_chunks()
    grouped, order = rows.drop_columns(list(columns)), members.flatten()
    if not order.equals(numbered.column(ROW).combine_chunks()):  # rows usually arrive in order of time
        grouped = grouped.combine_chunks().take(order)
    texts = [to_texts(groups.column(key).combine_chunks()) for key in keys]
    start = 0
    for values, count in zip(zip(*texts, strict=True), pc.list_value_length(members).to_pylist(), strict=True):
        names = [folder_name(*named) for named in zip(columns, values, strict=True)]
        yield Path(*names), grouped.slice(start, count)
        start += count


def _without_empty(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Empty text becomes null, since both have the same folder: two groups would write the same file."""
    if not pa.types.is_string(column.type):
        return column
    return pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)


def without_folder(rows: pa.Table, columns: Sequence[str], name_bytes_max: int, path_bytes_max: int) -> dict[int, str]:
    """The rows whose folder name or path would be too long, with the reasons."""
    found: dict[int, str] = {}
    total = np.zeros(rows.num_rows, np.int64)
    for column in columns:
        encoded = rows.column(column).combine_chunks().dictionary_encode(null_encoding="encode")
        names = [folder_name(column, text) for text in to_texts(encoded.dictionary)]
        sizes = np.array([len(os.fsencode(name)) for name in names], np.int64)[encoded.indices.to_numpy()]
        for row in np.flatnonzero(sizes > name_bytes_max):
            reason = f"makes a folder name of {sizes[row]} bytes, more than the limit of {name_bytes_max}"
            found.setdefault(int(row), f"its value of '{column}' {reason}")
        total += sizes + 1
    for row in np.flatnonzero(total > path_bytes_max):
        listed = ", ".join(f"'{column}'" for column in columns)
        found.setdefault(int(row), f"its values of {listed} make a path that is too long")
    return found
