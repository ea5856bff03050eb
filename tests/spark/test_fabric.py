"""A plan that travels to workers stays one plan there, however many others they serve."""

from __future__ import annotations

import pickle

import millstream as ms
from millstream.spark.fabric import PLANS_KEPT, Shipment
from millstream.spark.layout import Layout, labels

from .support import per_user, scores


def shipment(name: str) -> Shipment:
    flow = ms.Flow("sent")
    per_user(scores(flow)).write("totals")
    return Shipment(name, Layout(flow.check(), groups=4), 2, "runs")


def test_a_worker_unpacks_a_plan_once() -> None:
    sent = pickle.dumps(shipment("one"))
    assert pickle.loads(sent) is pickle.loads(sent)


def test_what_is_read_belongs_to_the_plan_it_is_read_for() -> None:
    """Also after the worker has served so many other queries that it has forgotten the first."""
    sent = pickle.dumps(shipment("two"))
    first = pickle.loads(sent)
    assert first.plan.layout.ends(first.layout.fed_sources[0])
    for number in range(PLANS_KEPT + 1):
        pickle.loads(pickle.dumps(shipment(f"other {number}")))
    again = pickle.loads(sent)
    assert again is not first
    assert again.plan.layout.ends(again.layout.fed_sources[0])


def test_key_groups_are_spread_evenly_over_partitions() -> None:
    """As Spark's own hash spreads their labels; the values of the hash are Spark's."""
    from millstream.spark.layout import _spark_hash

    assert [_spark_hash(number) for number in (0, 1, 42, -7)] == [933211791, -559580957, 29417773, -1618159745]
    for groups, partitions in ((4, 2), (8, 3), (7, 7), (1, 4)):
        found = labels(groups, partitions)
        assert len(set(found)) == groups
        taken = [_spark_hash(label) % partitions for label in found]
        assert max(map(taken.count, set(taken))) <= -(-groups // partitions)
