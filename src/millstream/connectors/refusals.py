"""Rows that a sink will never take, told apart from a sink that fails: each is named with its reason, the rest of the
batch is written, and the writer knows of them before anything of the batch is final.

A value that a sink cannot hold is found by its type alone, for whole columns. What only the sink itself knows, such as
a constraint of a table, is found by trying: a batch that it refuses is halved until single rows are left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import SinkFailed
from millstream.records.ranges import TIMESTAMP_US_MAX, TIMESTAMP_US_MIN

Flags = npt.NDArray[np.bool_]
Test = Callable[[pa.Array], pa.Array | None]
"""Which values of an array that is not nested a sink cannot hold; None where it can hold all of the type."""
T = TypeVar("T")
DAY_US = 86_400_000_000


@dataclass(frozen=True, order=True)
class Refusal:
    """A row by its place in the batch, and why it was refused."""

    row: int
    reason: str


Refuse = Callable[[Sequence[Refusal]], None]
"""Called once for a batch that is about to be written, before that is final, with the rows that will not be part of it.

What it raises keeps the whole batch from being written.
"""


class RowRefused(Exception):
    """Some row of what was tried is refused; if it was one row, this one, with this reason."""


def stop(refusals: Sequence[Refusal]) -> None:
    """What is done where nobody takes refused rows."""
    if refusals:
        first = refusals[0]
        raise SinkFailed(
            first.reason,
            where=f"row {first.row} of the batch" + (f", and {len(refusals) - 1} more" if len(refusals) > 1 else ""),
            next_step="see that the sink takes such rows, or keep them apart: write(…).dead.write(…)",
        )


def refusals_of(reasons: Mapping[int, str]) -> list[Refusal]:
    return [Refusal(row, reasons[row]) for row in sorted(reasons)]


def kept(count: int, refused: Mapping[int, str]) -> pa.Array:
    """A mask of the rows that are not refused."""
    flags = np.ones(count, np.bool_)
    flags[list(refused)] = False
    return pa.array(flags)


def without(rows: pa.Table, refused: Mapping[int, str]) -> pa.Table:
    return rows.filter(kept(rows.num_rows, refused)) if refused else rows


def narrowed(units: T, size: Callable[[T], int], part: Callable[[T, int, int], T], attempt: Callable[[T], None],
             refused: Callable[[T, str], None]) -> None:  # fmt: skip
    """Does the work on all units that it can be done on, in order. An attempt that fails must leave no trace."""
    try:
        attempt(units)
    except RowRefused as error:
        count = size(units)
        if count == 1:
            refused(units, str(error))
            return
        for start, end in ((0, count // 2), (count // 2, count)):
            narrowed(part(units, start, end), size, part, attempt, refused)


# ---------------------------------------------------------------- values that a sink cannot hold


def unfit(rows: pa.RecordBatch | pa.Table, tests: Mapping[str, Test]) -> dict[int, str]:
    """The rows with a value that a test finds, also one inside an array, a map or a struct: the reason of each."""
    found: dict[int, str] = {}
    for name in rows.schema.names:
        column = rows.column(name)
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        for reason, test in tests.items():
            flags = _rows_with(array, test)
            if flags is not None:
                for row in np.flatnonzero(flags):
                    found.setdefault(int(row), f"column '{name}' has {reason}")
    return found


def _rows_with(array: pa.Array, test: Test) -> Flags | None:
    """Which rows hold such a value at any depth; None if none does."""
    kind = array.type
    if pa.types.is_struct(kind):
        parts = [_rows_with(part, test) for part in array.flatten()]
        found = [part for part in parts if part is not None]
        return np.logical_or.reduce(found) if found else None
    if pa.types.is_map(kind):
        sides = [_below(array, side, test) for side in (array.keys, array.items)]
        found = [part for part in sides if part is not None]
        return np.logical_or.reduce(found) if found else None
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _below(array, array.values, test)
    tested = test(array)
    if tested is None:
        return None
    flags: Flags = tested.fill_null(False).to_numpy(zero_copy_only=False)
    return flags if flags.any() else None


def _below(array: Any, values: pa.Array, test: Test) -> Flags | None:
    """The rows of a list or map whose values include such a one. `values` are those of the whole buffer."""
    inside = _rows_with(values, test)
    if inside is None:
        return None
    offsets = array.offsets.to_numpy()
    counts = np.concatenate([[0], np.cumsum(inside)])
    flags: Flags = (counts[offsets[1:]] > counts[offsets[:-1]]) & array.is_valid().to_numpy(zero_copy_only=False)
    return flags if flags.any() else None


def has_nul(array: pa.Array) -> pa.Array | None:
    """Texts with a NUL character."""
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        return None
    return pc.match_substring(array, "\0")


def is_time_without_text(array: pa.Array) -> pa.Array | None:
    """Times before the year 1 or after 9999: ISO 8601, and most that reads it, has no text for them."""
    if pa.types.is_timestamp(array.type):
        numbers, first, last = (
            array.cast(pa.timestamp("us", array.type.tz)).view(pa.int64()),
            TIMESTAMP_US_MIN,
            TIMESTAMP_US_MAX,
        )
    elif pa.types.is_date32(array.type):
        numbers, first, last = array.view(pa.int32()), TIMESTAMP_US_MIN // DAY_US, TIMESTAMP_US_MAX // DAY_US
    else:
        return None
    return pc.or_(pc.less(numbers, first), pc.greater(numbers, last))


AS_TEXT: Mapping[str, Test] = {
    "a time outside the years 1 to 9999, which cannot be written as text": is_time_without_text
}
"""Of sinks that write times as texts."""
