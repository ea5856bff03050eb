"""A step is given the rows of the keys it asks for, whatever their values and types are."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import polars as pl
import pytest

from millstream.state import tables as tables_module
from millstream.state.tables import MANY_ASKED, Marks, Tables

NEVER_DUE = {"rows": Marks(pl.lit(None), pl.lit(None))}
START = (0, 0)


def tables_of(keys: list[Any], kind: Any) -> Tables:
    """One row for each key."""
    empty = pl.DataFrame(schema={"key": kind, "value": pl.Int64})
    made = Tables(["key"], {"rows": empty})
    column = pl.Series("key", keys, kind)
    made.held({"rows": column.to_frame()}, START, START)
    rows = pl.DataFrame([column, pl.Series("value", range(len(keys)), pl.Int64)])
    made.become(made.changed({"rows": rows}, NEVER_DUE).tables)
    return made


WHOLE_NUMBERS = [pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt64, pl.Int128]


@pytest.mark.parametrize("kind", WHOLE_NUMBERS, ids=str)
@pytest.mark.parametrize("edge", ["smallest", "largest"])
def test_many_rows_of_few_keys_ask_for_each_key_once(kind: Any, edge: str) -> None:
    bound = pl.select(pl.lit(0, kind).lower_bound() if edge == "smallest" else pl.lit(0, kind).upper_bound()).item()
    keys = [bound + place if edge == "smallest" else bound - place for place in range(3)]
    tables = tables_of(keys, kind)
    asked = pl.Series("key", keys[:2] * MANY_ASKED, kind).to_frame()
    held = tables.held({"rows": asked}, START, START)["rows"]
    assert sorted(held.rows()) == sorted([(keys[0], 0), (keys[1], 1)])
    assert held.schema["key"] == kind


def test_keys_far_apart_and_null_ones_are_asked_for_too() -> None:
    far = [-(1 << 63), 0, (1 << 63) - 1]
    assert tables_of(far, pl.Int64).held(_many(far), START, START)["rows"].height == 3
    assert tables_of([None, 7], pl.Int64).held(_many([None, 7]), START, START)["rows"].height == 2


@pytest.mark.parametrize("kind", [pl.Int16, pl.Int32, pl.Int64], ids=str)
def test_distinct_values_are_those_that_polars_finds(kind: Any) -> None:
    for low, high in pairwise([-32_768, -300, -1, 0, 1, 299, 32_767]):
        values = pl.Series("key", [low, high, low] + [low] * 5_000, kind)
        found = tables_module._distinct_values(values)
        assert (found.name, found.dtype) == ("key", kind)
        assert sorted(found) == sorted(values.unique())
    assert tables_module._distinct_values(pl.Series("key", [], kind)).len() == 0


def test_close_integers_are_not_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(column: pl.Series) -> pl.Series:
        raise AssertionError("hashing takes six times as long")

    monkeypatch.setattr(pl.Series, "unique", refuse)
    assert sorted(tables_module._distinct_values(pl.Series([5, 3, 5]))) == [3, 5]


def _many(keys: list[Any]) -> dict[str, pl.DataFrame]:
    return {"rows": pl.DataFrame({"key": pl.Series(keys * MANY_ASKED, dtype=pl.Int64)})}
