"""Element-wise steps on frames from which columns that no later step uses were left out."""

from __future__ import annotations

import polars as pl

import millstream as ms
from millstream.operators.aggregates.accumulators import TIME, WEIGHT
from millstream.operators.elementwise import OFFSET, project
from millstream.plan.nodes import Project


def test_a_projection_none_of_whose_columns_were_read_keeps_the_rows() -> None:
    step = ms.Flow("f").read("rows", "a int, b string").select("b").node
    assert isinstance(step, Project)
    hidden = {TIME: [5, None], WEIGHT: [1, -1], OFFSET: [7, 8]}
    made = project(pl.DataFrame({"a": [1, 2], **hidden}), step)
    assert made.to_dict(as_series=False) == hidden
