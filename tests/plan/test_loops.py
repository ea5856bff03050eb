"""A flow may read what it writes, if it says so."""

from __future__ import annotations

import pytest

import millstream as ms
from millstream.errors import InvalidInput, InvalidPlan
from millstream.jobs.results.renaming import renamed

SCHEMA = "account string, amount bigint"


def test_a_flow_that_reads_what_it_writes_must_say_so() -> None:
    flow = ms.Flow("bank")
    with pytest.raises(InvalidPlan, match="consume its own output") as refused:
        flow.read("messages", SCHEMA).write("messages")
    assert "loop=True" in str(refused.value.next_step)


@pytest.mark.parametrize("written_first", [False, True])
def test_a_loop_is_built_in_any_order(written_first: bool) -> None:
    flow = ms.Flow("bank")
    orders = flow.read("orders", SCHEMA)
    if written_first:
        orders.write("messages")
    messages = flow.read("messages", SCHEMA, loop=True)
    if not written_first:
        orders.union(messages).write("messages")
    messages.write("copies")
    assert [str(output.sink) for output in flow.check()] == ["messages", "copies"]


def test_only_a_topic_of_the_log_can_be_looped(tmp_path: object) -> None:
    with pytest.raises(InvalidPlan, match="cannot be part of a loop"):
        ms.Flow("bank").read(ms.files(f"{tmp_path}/messages"), SCHEMA, loop=True)


def test_results_of_a_loop_are_not_recomputed_beside_them() -> None:
    flow = ms.Flow("bank")
    flow.read("messages", SCHEMA, loop=True).write("messages")
    with pytest.raises(InvalidInput, match="reads what it writes"):
        renamed(flow.check(), "messages.v2")
