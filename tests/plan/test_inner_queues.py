"""A queue inside a flow: rows pass through in tests, and wait in a topic of the job."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.errors import InvalidInput, InvalidPlan
from millstream.plan.nodes import Read, Write
from millstream.plan.walking import in_order
from millstream.testing import Add, play

NUMBERS = "n int, at timestamp"


def a_flow(name: str = "logs", **limits: Any) -> ms.Flow:
    flow = ms.Flow(name)
    numbers = flow.read("numbers", NUMBERS, name="numbers")
    numbers.write(f"{name}.fast", name="fast")
    numbers.where("n > 1").queue("slow", **limits).select("n").write(ms.memory(f"{name}.slow"), name="out")
    return flow


def test_a_job_writes_and_reads_it() -> None:
    flow = a_flow(at_once=5)
    outputs = flow.check()
    assert [(each.name, str(each.sink)) for each in outputs][-1] == ("slow.in", "logs.slow")
    reads = {node.name: node for node in in_order(outputs) if isinstance(node, Read)}
    assert reads.keys() == {"numbers", "slow"}
    assert reads["slow"].label == "read logs.slow (at most 10,000 records, else its writers wait)"
    out = next(each for each in outputs if each.name == "out")
    assert [node.name for node in in_order([out]) if isinstance(node, Read)] == ["slow"]
    assert flow.check() == outputs  # the same steps


def test_a_run_beside_the_job_passes_rows_through() -> None:
    outputs = a_flow().check_at_once()
    assert [node.name for node in in_order(outputs) if isinstance(node, Read)] == ["numbers"]
    app = ms.app([a_flow("one"), a_flow("two")])
    assert [each.name for each in app.check() if each.name.endswith(".in")] == ["one:slow.in", "two:slow.in"]
    assert not [each for each in app.check_at_once() if each.name.endswith(".in")]


@pytest.mark.parametrize("on", ["reference", "local", pytest.param("spark", marks=pytest.mark.more)])
def test_rows_pass_in_a_test(on: str) -> None:
    def build(rows: Any) -> Any:
        queued = rows.queue("slow", at_most=1, priority="n", when_full="wait")
        return queued.where("n > 1")

    played = play(build, [Add([{"n": 1}, {"n": 2}, {"n": 3}])], schema="n int", on=on)
    assert list(played) == [[{"n": 2}, {"n": 3}]]


def test_what_cannot_wait_is_refused() -> None:
    flow = ms.Flow("refused")
    rows = flow.read("numbers", NUMBERS)
    with pytest.raises(InvalidInput, match="is not a topic"):
        rows.queue("no name")
    with pytest.raises(InvalidPlan, match="may be retracted"):
        rows.to_table(key="n").queue("table")
    with pytest.raises((InvalidPlan, InvalidInput), match="at_most"):
        rows.queue("slow", at_most=0)
    with pytest.raises(InvalidPlan, match="not a number"):
        rows.queue("slow", priority="at")
    with pytest.raises(InvalidPlan, match="that a sink rejects cannot wait"):
        rows.select("n").write(ms.sqlite("x.sqlite", "t")).dead.queue("dead")
    rows.queue("slow").write(ms.memory("refused"))
    with pytest.raises(InvalidPlan, match="two steps named 'slow'"):
        rows.queue("slow")
    assert all(isinstance(each, Write) for each in flow.check())
