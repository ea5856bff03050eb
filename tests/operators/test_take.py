"""The first rows that came are those that DuckDB finds."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from .table_scripts import CHECKED, Plan, bundles

TAKE = {(2, "k"): Plan(lambda s: s.take(2, per="k")), (3, ""): Plan(lambda s: s.take(3))}


@CHECKED
@given(st.sampled_from(sorted(TAKE)), bundles)
def test_take_sends_the_first_rows(taken: tuple[int, str], script: list[Any]) -> None:
    count, key = taken
    per = f"step, {key}" if key else "step"
    sql = f"select step, id from came qualify row_number() over (partition by {per} order by n) <= {count}"
    TAKE[taken].played(script, ids=True).expect(sql, "id")
