"""Rows that a sink permanently rejects, as opposed to a sink that fails: each is reported with its reason before the
batch is committed, and the rest of the batch is written.

Values that a sink cannot store are found by type, for whole columns. What only the sink knows, such as a table
constraint, is found by bisection: a rejected batch is halved until single rows are left.
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
"""Finds the values of a flat array that a sink cannot store; None if it can store all values of the type."""
T = TypeVar("T")
DAY_US = 86_400_000_000


@dataclass(frozen=True, order=True)
class Refusal:
    """A rejected row, by its position in the batch, and the reason."""

    row: int
    reason: str


Refuse = Callable[[Sequence[Refusal]], None]
"""Called once per batch, before it is committed, with the rejected rows.

If it raises, the whole batch is not written.
"""


class RowRefused(Exception):
    """Some row of an attempt is rejected; if the attempt was a single row, that one, for this reason."""


def stop(refusals: Sequence[Refusal]) -> None:
    """The default without dead letters: raises."""
    if refusals:
        first = refusals[0]
        raise SinkFailed(
            first.reason,
            where=f"row {first.row} of the batch" + (f", and {len(refusals) - 1} more" if len(refusals) > 1 else ""),
            next_step="make the sink accept such rows, or redirect them: write(…).dead.write(…)",
        )


def refusals_of(reasons: Mapping[int, str]) -> list[Refusal]:
    return [Refusal(row, reasons[row]) for row in sorted(reasons)]


def kept(count: int, refused: Mapping[int, str]) -> pa.Array:
    """A mask of the rows that are not rejected."""
    flags = np.ones(count, np.bool_)
    flags[list(refused)] = False
    return pa.array(flags)


def without(rows: pa.Table, refused: Mapping[int, str]) -> pa.Table:
    return rows.filter(kept(rows.num_rows, refused)) if refused else rows


def narrowed(units: T, size: Callable[[T], int], part: Callable[[T, int, int], T], attempt: Callable[[T], None],
             refused: Callable[[T, str], None]) -> None:  # fmt: skip
    """Applies the work to all units that accept it, in order. A failed attempt must leave no trace."""
    try:
        attempt(units)
    except RowRefused as error:
        count = size(units)
        if count == 1:
            refused(units, str(error))
            return
        for start, end in ((0, count // 2), (count // 2, count)):
            narrowed(part(units, start, end), size, part, attempt, refused)


# ---------------------------------------------------------------- values that a sink cannot store


def unfit(rows: pa.RecordBatch | pa.Table, tests: Mapping[str, Test]) -> dict[int, str]:
    """The reasons for rows with a value that matches a test, also inside an array, a map or a struct."""
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
    """Which rows contain such a value at any depth; None if none does."""
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
    """The rows of a list or map that contain such a value. `values` are those of the whole buffer."""
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
    """Times before the year 1 or after 9999, which ISO 8601 cannot represent."""
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
"""For sinks that write times as text."""
