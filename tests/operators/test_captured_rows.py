"""The rows of a captured table are those that DuckDB finds among all changes, truncations included."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.local import LocalState
from millstream.operators.tables.captured_rows import TRUNCATIONS
from millstream.operators.tables.latest import VERSIONS
from millstream.plan.captured_rows import captured_rows
from millstream.reference.tables import frozen

from .table_scripts import CHECKED, NOW, ROW, Plan, bundles

DELETED, EMPTIED = "v = 0", "v = 3"
PLANS = {
    "by arrival": (Plan(lambda s: captured_rows(s, ["k"], DELETED, EMPTIED, ["id"])), "t, n"),
    "by place": (Plan(lambda s: captured_rows(s, ["k"], DELETED, EMPTIED, ["v"])), "t, coalesce(v, -1), n"),
}


@CHECKED
@given(st.sampled_from(sorted(PLANS)), bundles)
def test_a_truncation_deletes_all_keys_and_no_later_row(kind: str, script: list[Any]) -> None:
    plan, order = PLANS[kind]
    seen = plan.played(script, ids=True)
    found: Counter[Any] = Counter()
    for step, rows in enumerate(seen.sent):
        for row in rows:
            for later in range(step, len(seen.sent)):
                found[later, *frozen([row.values[name] for name in ROW])] += row.weight
    sql = f"""
        , timed as (select *, ({order}) as place from came where t is not null and t < {NOW})
        select step, id, k, v, tags from (
            select * from timed where not coalesce({EMPTIED}, false)
            qualify row_number() over (partition by step, k order by place desc) = 1
        ) as newest where not coalesce({DELETED}, false) and not exists
            (select 1 from timed where step = newest.step and {EMPTIED} and place > newest.place)"""
    assert {key: n for key, n in found.items() if n} == Counter(map(frozen, seen.query(sql)))


@pytest.mark.parametrize("moves", [0, 5])
def test_nothing_is_kept_of_keys_that_were_truncated(moves: int) -> None:
    """Goal: the state of a table that is truncated again and again does not grow."""
    plan, _ = PLANS["by arrival"]
    script = []
    for round in range(4):
        rows = [({"k": f"{round}.{n}", "v": 1, "tags": None}, round) for n in range(50)]
        script += [(rows, 0), ([({"k": None, "v": 3, "tags": None}, round)], moves and 1)]
    seen = plan.played([*script, ([], moves)], ids=True)
    assert [sum(row.weight for row in rows) for rows in seen.sent] == [50, -50] * 4 + [0]
    (state,) = (state for state in plan.local._states.values() if isinstance(state, LocalState))
    rows = {name: table.rows for name, table in state.tables.items()}
    assert rows == ({VERSIONS: 0, TRUNCATIONS: 1} if moves else {VERSIONS: 400, TRUNCATIONS: 4})
