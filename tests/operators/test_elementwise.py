"""Element-wise steps on frames from which columns that no later step uses were left out."""

from __future__ import annotations

import polars as pl

import millstream as ms
from millstream.operators.aggregates.accumulators import TIME, WEIGHT
from millstream.operators.elementwise import OFFSET, conditions_of, project, where
from millstream.plan.nodes import Project, Where


def test_a_projection_none_of_whose_columns_were_read_keeps_the_rows() -> None:
    step = ms.Flow("f").read("rows", "a int, b string").select("b").node
    assert isinstance(step, Project)
    hidden = {TIME: [5, None], WEIGHT: [1, -1], OFFSET: [7, 8]}
    made = project(pl.DataFrame({"a": [1, 2], **hidden}), step)
    assert made.to_dict(as_series=False) == hidden


def conditions(*texts: str) -> list[Where]:
    rows = ms.Flow("f").read("rows", "a int, b string")
    found = [rows.where(text).node for text in texts]
    assert all(isinstance(each, Where) for each in found)
    return found  # type: ignore[return-value]


ROWS = pl.DataFrame({"a": [1, 2, None], "b": ["1", "x", "3"], TIME: [5, 6, 7], WEIGHT: [1, 1, -1]}).cast(
    {"a": pl.Int32}
)


def test_conditions_computed_together_keep_what_each_keeps_alone() -> None:
    steps = conditions("a > 1", "b = '3'", "a > 1", "a % 2 = 1 OR b = 'x'")
    found = conditions_of(ROWS, steps)
    for step in steps:
        assert ROWS.filter(found[step]).equals(where(ROWS, step))


def test_of_conditions_one_of_which_fails_none_is_known() -> None:
    assert conditions_of(ROWS, conditions("a > 1", "CAST(b AS INT) > 0")) == {}
