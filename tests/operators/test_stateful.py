"""What a windowed step emits: late rows, whether or not somebody takes them, and what its panes cost."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

import millstream as ms
from millstream.local import Flowing, LocalState
from millstream.operators.clock import Clock
from millstream.operators.elementwise import frame_of
from millstream.operators.stateful import LATE, SENT, stateful
from millstream.plan.time.bundles import moment


@pytest.mark.parametrize("whole_rows", [True, False])
def test_late_rows_without_an_output_are_counted(whole_rows: bool) -> None:
    flow = ms.Flow("late")
    stream = flow.read("rows", "k string, reason string, at timestamp", "at")
    panes = stream.key_by("k").window(ms.fixed("10 seconds")).agg(n=ms.count())
    step = stateful(panes.node, whole_rows=whole_rows)
    assert step is not None
    rows = [{"k": "a", "reason": "mine", "at": moment(second), "__time": second, "__weight": 1} for second in (1, 2)]
    passed = Clock(20_000_000, 20_000_000, 0, 0)
    state = LocalState(step, passes_on=False)
    state.run([Flowing(frame_of(rows, stream.node), passed)])
    late = state.sent[LATE]
    assert len(late) == 2
    assert late["reason"].to_list() == ["expired", "expired"]
    assert ("k" in late.columns) == whole_rows


def test_schemas_are_not_made_again_for_each_column_of_panes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    schema = pl.DataFrame.schema

    def counted(frame: pl.DataFrame) -> pl.Schema:
        nonlocal made
        made += 1
        return schema.fget(frame)  # type: ignore[attr-defined, no-any-return]

    monkeypatch.setattr(pl.DataFrame, "schema", property(counted))
    counts = []
    for width in (1, 20):
        flow = ms.Flow("panes")
        stream = flow.read("rows", "k string, at timestamp", "at")
        columns: dict[str, Any] = {f"n{place}": ms.count() for place in range(width)}
        panes = stream.key_by("k").window(ms.fixed("10 seconds")).agg(**columns)
        step = stateful(panes.node)
        assert step is not None
        state = LocalState(step, passes_on=False)
        rows = frame_of([{"k": "a", "at": moment(1), "__time": 1, "__weight": 1}], stream.node)
        made = 0
        state.run([Flowing(rows, Clock(0, 20_000_000, 0, 0))])
        assert len(state.sent[SENT]) == 1
        counts.append(made)
    assert counts[0] == counts[1]
