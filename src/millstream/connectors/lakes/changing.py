"""Rows of a lake table are changed by replacing the data files that have them: copy on write.

What a batch changes is computed from its own rows first (`databases/changes.py`, as for database tables). Only files
whose statistics allow one of these rows are read, and only those that have one are replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from millstream.connectors.databases.changes import COPIES, append_changes, upsert_changes
from millstream.connectors.flat_rows import flat_rows
from millstream.connectors.lakes.store import StoredFile
from millstream.connectors.weights import one_batch

ROW, CONTENT, KEY, TIMES = "__row", "__content", "__key", "__times"
MERGED_BYTES = 32 << 20
"""Files up to this size are joined with the new rows when they are replaced, so that small ones do not pile up."""


@dataclass
class Replaced:
    """What becomes of a table: files that go, and rows to write instead."""

    removed: list[StoredFile] = field(default_factory=list)
    written: list[pa.Table] = field(default_factory=list)
    missing: int = 0
    """Retracted rows that the table does not have."""


class Batch:
    """The changes of one batch. `rows` have the columns of the table, `key` those of an upsert, flattened."""

    def __init__(self, rows: pa.Table, weights: pa.Array | None, key: Sequence[str]) -> None:
        self._key = list(key)
        flat = _flat(rows)
        contents = _numbered(flat, flat.columns)
        place = {contents[row]: row for row in contents.arg_unique().to_list()}
        given = None if weights is None else pl.Series(weights)
        if self._key:
            numbers = pl.DataFrame({KEY: _numbered(flat, self._key), CONTENT: contents})
            changes = upsert_changes(numbers, given, [KEY])
        else:
            changes = append_changes(pl.DataFrame({CONTENT: contents}), given)

        def of(frame: pl.DataFrame) -> list[int]:
            return [place[content] for content in frame[CONTENT].to_list()]

        self.put = rows.take(pa.array(of(changes.put), pa.int64()))
        gone = flat[of(changes.deleted)].with_columns(pl.Series(COPIES, changes.deleted[COPIES].to_list(), pl.Int64))
        self._gone = gone
        self._left = dict(enumerate(gone[COPIES].to_list()))
        replaced = flat[of(changes.cleared) + of(changes.put)] if self._key else flat.clear()
        self._keys = replaced.select(self._key) if self._key else replaced
        looked_up = [self._keys, gone.select(self._key)] if self._key else [gone.drop(COPIES)]
        self._looked_up = pl.concat(looked_up)

    def replaced(self, files: Sequence[StoredFile], rows_of: Callable[[StoredFile], pa.Table]) -> Replaced:
        found = Replaced()
        small = [self.put] if self.put.num_rows else []
        for file in files:
            if not self._may_have(file):
                continue
            rows = rows_of(file)
            stay = self._stay(_flat(rows))
            if stay.all():
                continue
            found.removed.append(file)
            rest = rows.filter(pa.array(stay))
            if rest.num_rows:
                (small if file.size_bytes <= MERGED_BYTES else found.written).append(rest)
        if small:
            found.written.append(pa.concat_tables(small))
        if not self._key:
            found.missing = sum(self._left.values())
        return found

    def _may_have(self, file: StoredFile) -> bool:
        """Whether the bounds of a file's columns allow one of the rows."""
        if not self._looked_up.height:
            return False
        for name in self._looked_up.columns:
            if name not in file.lower or name not in file.upper:
                continue
            values = self._looked_up[name]
            fits = values.is_null() & file.may_be_null.get(name, True)
            try:
                fits |= values.is_between(file.lower[name], file.upper[name]).fill_null(False)
            except (pl.exceptions.PolarsError, TypeError, OverflowError):  # bounds of another type decide nothing
                continue
            if not fits.any():
                return False
        return True

    def _stay(self, rows: pl.DataFrame) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which rows of a file stay."""
        stay = np.ones(rows.height, np.bool_)
        numbered = rows.with_row_index(ROW)
        if self._keys.height:
            gone = numbered.join(self._keys.unique(), on=self._key, how="semi", nulls_equal=True)
            stay[gone[ROW].to_numpy()] = False
        if self._gone.height:
            wanted = self._gone.drop(COPIES).with_row_index(TIMES)
            equal = numbered.join(wanted, on=rows.columns, how="inner", nulls_equal=True).sort(ROW)
            if self._key:
                stay[equal[ROW].to_numpy()] = False
            else:
                for row, number in equal.select(ROW, TIMES).iter_rows():
                    if self._left[number]:
                        self._left[number] -= 1
                        stay[row] = False
        return stay


def _flat(rows: pa.Table) -> pl.DataFrame:
    """As database tables hold them: so that rows can be compared."""
    return pl.DataFrame(pa.Table.from_batches([flat_rows(one_batch(rows))]))


def _numbered(frame: pl.DataFrame, columns: Sequence[str]) -> pl.Series:
    """The same number for equal rows."""
    groups = frame.select(columns).with_row_index(ROW).group_by(columns, maintain_order=True).agg(ROW)
    return groups.select(ROW).with_row_index(CONTENT).explode(ROW).sort(ROW)[CONTENT].cast(pl.Int64)
