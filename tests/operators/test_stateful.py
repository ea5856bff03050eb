"""Late rows of a windowed step, whether or not somebody takes them."""

from __future__ import annotations

import pytest

import millstream as ms
from millstream.local import Flowing, LocalState
from millstream.operators.clock import Clock
from millstream.operators.elementwise import frame_of
from millstream.operators.stateful import LATE, stateful
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
