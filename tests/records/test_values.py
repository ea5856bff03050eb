"""Goal: columns become the Python values that Arrow itself would make of them, whichever way is taken."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from millstream.records.values import column_to_values, python_values, rows_of, values_or_raw

INSTANT = pa.timestamp("us", "UTC")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("numbers", [[], [7], [7, 7, 7], [7, 7, 8, 7], [None, 7, 7], [-1, 0, 1, 1]])
def test_instants_in_runs(numbers: list[int | None]) -> None:
    found = python_values(pa.array(numbers, pa.int64()).cast(INSTANT))
    assert found == [None if us is None else EPOCH + timedelta(microseconds=us) for us in numbers]
    assert all(each is None or each.tzinfo is UTC for each in found)


def test_an_instant_beyond_python_is_a_number() -> None:
    assert values_or_raw(pa.array([5, 2**60], pa.int64()).view(INSTANT)) == [EPOCH + timedelta(microseconds=5), 2**60]


NAMES = [("a", "b"), ("a b", "c"), ("class", "x"), ("__len__", "_y"), ("self", "cls"), ("é", ""), ("None", "a-b")]


@pytest.mark.parametrize("names", NAMES)
def test_rows_by_any_names(names: tuple[str, ...]) -> None:
    expected: list[dict[str, Any]] = [{names[0]: 1, names[1]: "x"}, {names[0]: None, names[1]: "y"}]
    assert rows_of(names, [[1, None], ["x", "y"]]) == expected
    assert [list(row) for row in rows_of(names, [[1, None], ["x", "y"]])] == [list(names)] * 2
    struct = pa.StructArray.from_arrays([pa.array([1, None]), pa.array(["x", "y"])], list(names))
    assert column_to_values(struct, values_or_raw, values_or_raw) == expected


def test_the_last_of_two_columns_of_a_name_counts() -> None:
    assert rows_of(("a", "a"), [[1], [2]]) == [{"a": 2}]
