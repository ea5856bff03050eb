"""A plan that travels to workers stays one plan there, however many others they serve."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import polars as pl
import pytest

import millstream as ms
from jobs.support import per_user, scores
from millstream.errors import DamagedState
from millstream.operators.aggregates.accumulators import TIME, WEIGHT
from millstream.operators.stateful import SENT
from millstream.spark.query.packing import from_bytes
from millstream.spark.query.physical_plan import PhysicalPlan, labels
from millstream.spark.query.slot_states import SlotDeltas, SlotHead
from millstream.spark.query.state_runner import PLANS_KEPT, Shipment, StepRunner
from millstream.spark.query.task_messages import SourceControl
from millstream.spark.query_failures import Failed
from spark.test_query_failures import Touch


def shipment(name: str) -> Shipment:
    flow = ms.Flow("sent")
    per_user(scores(flow)).write("totals")
    return Shipment(name, PhysicalPlan(flow.check(), groups=4), 2, "runs")


def test_a_worker_unpacks_a_plan_once() -> None:
    sent = pickle.dumps(shipment("one"))
    assert pickle.loads(sent) is pickle.loads(sent)


def test_what_is_read_belongs_to_the_plan_it_is_read_for() -> None:
    """Also after the worker has served so many other queries that it has forgotten the first."""
    sent = pickle.dumps(shipment("two"))
    first = pickle.loads(sent)
    assert first.worker_plan.physical_plan.ends(first.physical_plan.fed_sources[0])
    for number in range(PLANS_KEPT + 1):
        pickle.loads(pickle.dumps(shipment(f"other {number}")))
    again = pickle.loads(sent)
    assert again is not first
    assert again.worker_plan.physical_plan.ends(again.physical_plan.fed_sources[0])


def test_key_groups_are_spread_evenly_over_partitions() -> None:
    """As Spark's own hash spreads their labels; the values of the hash are Spark's."""
    from millstream.spark.query.physical_plan import _spark_hash

    assert [_spark_hash(number) for number in (0, 1, 42, -7)] == [933211791, -559580957, 29417773, -1618159745]
    for groups, partitions in ((4, 2), (8, 3), (7, 7), (1, 4)):
        found = labels(groups, partitions)
        assert len(set(found)) == groups
        taken = [_spark_hash(label) % partitions for label in found]
        assert max(map(taken.count, set(taken))) <= -(-groups // partitions)


class Stored:
    """A state as Spark keeps it for a key group, without Spark: one value, or values by key."""

    def __init__(self) -> None:
        self.values: dict[Any, Any] = {}

    def get(self) -> Any:
        return self.values.get(None)

    def update(self, value: Any) -> None:
        self.values[None] = value

    def getValue(self, key: Any) -> Any:  # noqa: N802 as Spark calls it
        return self.values.get(key)

    def updateValue(self, key: Any, value: Any) -> None:  # noqa: N802
        self.values[key] = value

    def keys(self) -> list[Any]:
        return list(self.values)

    def removeKey(self, key: Any) -> None:  # noqa: N802
        del self.values[key]

    def clear(self) -> None:
        self.values.clear()


def own_states(_: Stored) -> tuple[Any, Any]:
    return Stored(), Stored()


def shared_states(shared: Stored) -> tuple[Any, Any]:
    """Slot 1 of states that another slot uses, too."""
    shared.updateValue((2, 7), (b"another slot's",))
    return SlotHead(cast(Any, Stored()), 1), SlotDeltas(cast(Any, shared), 1)


@pytest.mark.parametrize("states", [own_states, shared_states])
@pytest.mark.parametrize("piece_bytes", [50, 1 << 20])
def test_state_is_rebuilt_from_changes_stored_in_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int, states: Callable[[Stored], tuple[Any, Any]]
) -> None:
    """Goal: nothing is lost between pieces. Method: the same rows with files beside the worker and without."""
    monkeypatch.setattr("millstream.spark.query.state_runner.PIECE_BYTES", piece_bytes)
    flow = ms.Flow("kept")
    scores(flow).group_by("user").agg(total=ms.sum("n")).write("totals")
    physical_plan = PhysicalPlan(flow.check(), groups=1)
    found: list[list[pl.DataFrame]] = []
    for lost in (False, True):
        sent = Shipment(f"kept {lost} {piece_bytes} {states}", physical_plan, 1, str(tmp_path / str(lost)))
        shared = Stored()
        (source,), (head, deltas) = physical_plan.sources, states(shared)
        found.append([])
        for batch in range(4):
            packer = sent.worker_plan.packer(source, task=0)
            users = pl.DataFrame(
                {"user": [f"{'u' * 30}{n % 7}" for n in range(20)], "n": [batch] * 20, "at": [None] * 20}
            )
            hidden = [pl.lit(batch).cast(pl.Int64).alias(TIME), pl.lit(1, pl.Int32).alias(WEIGHT)]
            packer.add({SENT: users.with_columns(*hidden)}, batch)
            mine = [
                (kind, task, blob)
                for _, step, kind, task, blob in packer.pack(SourceControl(source.name, 0, {"": (None, True)}))
                if step == 0
            ]
            runner = StepRunner(sent, 0, head, deltas)
            made = runner.run(sent.worker_plan.labels[0], mine)
            found[-1] += [from_bytes(cast(bytes, blob)) for _, step, _, _, blob in made if step == 1]
            if lost:
                shutil.rmtree(tmp_path / str(lost))
        assert len(list(deltas.keys())) >= (20 if piece_bytes == 50 else 4)
        deltas.clear()
        assert shared.values in ({}, {(2, 7): (b"another slot's",)})
    kept, rebuilt = (pl.concat(frames).sort(pl.all()) for frames in found)
    assert rebuilt.equals(kept)
    assert len(kept) == 7 + 3 * 14  # one row of each user, then the old one back and the new one


def test_a_head_that_is_a_pickle_runs_nothing(tmp_path: Path) -> None:
    head = Stored()
    head.update((pickle.dumps(Touch(tmp_path / "proof")),))
    runner = StepRunner(shipment("planted"), 0, cast(Any, head), cast(Any, Stored()))
    with pytest.raises(Failed, match="cannot be read"):
        runner.run(runner._plan.labels[0], [])
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize("kept", [[b"MSd1 as it was kept before"], [b"+one", b"+two"]])
def test_incomplete_changes_raise(tmp_path: Path, kept: list[bytes]) -> None:
    deltas = Stored()
    for number, piece in enumerate(kept):
        deltas.updateValue((number,), (piece,))
    runner = StepRunner(shipment(f"damaged {kept}"), 0, cast(Any, Stored()), cast(Any, deltas))
    with pytest.raises(DamagedState, match="cannot be read"):
        list(runner._stored_deltas())
