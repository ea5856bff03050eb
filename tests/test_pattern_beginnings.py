"""Which rows are ruled out as the first of a match before the search: none that could have been one."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import millstream as ms
from millstream.operators.aggregates.accumulators import ROW
from millstream.operators.patterns import beginnings
from millstream.operators.patterns.beginnings import Beginnings, Masks
from millstream.operators.patterns.columns import Columns, RowColumns
from millstream.plan.patterns.node import Match

SCHEMA = "name string, n int, at timestamp"
ABC = ms.pattern("a", "name = 'a'").next("b", "name = 'b'").next("c", "name = 'c'")


def kept(pattern: ms.Pattern, names: str) -> str:
    """The rows of a key, one letter each and a second apart, with a dot for those that are ruled out."""
    node = (
        ms.Flow("f").read("events", SCHEMA, "at", ms.ascending()).key_by("n").match(pattern, matches="preferred").node
    )
    assert isinstance(node, Match)
    count = len(names)
    times = np.arange(count) * 1_000_000
    content = pl.DataFrame({"name": list(names), "n": [1] * count, "at": times})
    content = content.with_columns(pl.col("n").cast(pl.Int32), pl.col("at").cast(pl.Datetime("us", "UTC")))
    rows = RowColumns(node.inputs[0].schema, pl.DataFrame([content.to_struct(ROW)]), np.zeros(count, np.int64))
    columns = Columns(node.search, rows)
    masks = Masks.of(columns.bits(slice(None)))
    found = Beginnings(node.search).among(np.arange(count), columns, masks, times, np.full(count, count))
    return "".join(name if may else "." for name, may in zip(names, found, strict=True))


def test_a_row_whose_search_fails_is_ruled_out() -> None:
    assert kept(ABC, "abcabdadxab") == "a........a."


def test_a_row_whose_search_may_go_on_with_rows_to_come_is_kept() -> None:
    assert kept(ABC, "abcab") == "a..a."
    assert kept(ABC, "aba") == "..a"


def test_a_row_whose_time_is_over_is_kept_because_it_may_time_out() -> None:
    assert kept(ABC.within("2 seconds"), "abxab") == "...a."
    assert kept(ABC.within("1 second"), "abxab") == "a..a."


def test_a_condition_on_the_rows_before_is_taken_to_hold() -> None:
    assert kept(ms.pattern("a", "name = 'a'").next("b", "n > a.n and name = 'b'"), "abac") == "a..."


def test_a_row_that_must_not_follow_rules_out() -> None:
    pattern = ms.pattern("a", "name = 'a'").not_followed_by("b", "name = 'b'").followed_by("c", "name = 'c'")
    assert kept(pattern, "axbcaxxc") == "....a..."


def test_no_more_rows_are_looked_at_than_the_limit() -> None:
    assert kept(ABC.next("d", "name = 'd'"), "abcx") == "...."
    long = ms.pattern("a", "name = 'a'").next("b", "name = 'b'").one_or_more().consecutive().next("c", "name = 'c'")
    rows = beginnings.ROWS_AHEAD
    assert kept(long, "a" + "b" * (rows - 2) + "x")[0] == "."
    assert kept(long, "a" + "b" * rows + "x")[0] == "a"


def test_what_has_too_many_states_is_left_to_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beginnings, "SETS_MAX", 4)
    assert kept(ABC, "abd") == "a.."
    monkeypatch.setattr(beginnings, "MASKS_MAX", 2)
    assert kept(ABC, "abd") == "abd"
