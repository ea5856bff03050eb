"""Goal: an upgrade keeps all state that it can, says what becomes of every step, and loses none silently.

Method: flows are compared with the description of a job that never ran; one job is upgraded on Spark, with a step that
gets another name and another aggregate, and two that are dropped together with their shuffle.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import millstream as ms
from millstream.errors import InvalidInput, JobChanged
from millstream.jobs.job_folder import DESCRIPTION, JobDescription, JobFolder
from millstream.jobs.versions.evolution import columns_in, is_wider
from millstream.jobs.versions.kept_steps import first_fit
from millstream.jobs.versions.upgrading import (
    DROPPED,
    EVOLVES,
    KEEPS,
    STARTS_EMPTY,
    UpgradePlan,
    compared,
    refuse_dropped,
)
from millstream.jobs.versions.upgrading import upgraded as apply
from millstream.log import EmbeddedLog
from millstream.log.storage.disk import write_document
from millstream.spark.query.physical_plan import PhysicalPlan
from millstream.state.run_files import Runs

from .support import CAUGHT_UP, put, read, scores
from .test_savepoints import complete

TEN = ms.fixed("10 seconds")


def plan_of(flow: ms.Flow) -> PhysicalPlan:
    return PhysicalPlan(flow.check(), 4)


def compare(folder: Path, before: ms.Flow, after: ms.Flow, groups: int = 4, **mapping: str) -> UpgradePlan:
    """Compares a flow with the job of another one, of which three batches are complete."""
    job = JobFolder(folder / "jobs" / "job", "job")
    fit = first_fit(PhysicalPlan(before.check(), groups, one_stage=groups == 1))
    write_document(job.path / DESCRIPTION, asdict(JobDescription("identity", groups, 2, fit.steps)))
    for batch in range(3):
        complete(job, batch)
    plan = compared(job, plan_of(after), mapping)
    with job.held():
        apply(job, plan.description)
    job.check(plan_of(after), {})  # the flow now fits its job
    return plan


def flow(*, topic: str = "out", name: str | None = None, schema: str | None = None, **aggregates: Any) -> ms.Flow:
    made = ms.Flow("job")
    schema = schema or "user string, n int, at timestamp"
    rows = made.read("scores", schema, event_time="at", watermark=ms.bounded("5 seconds"))
    aggregates = aggregates or {"total": ms.sum("n")}
    rows.key_by("user").window(TEN).agg(**aggregates, **({} if name is None else {"name": name})).write(topic)
    return made


def changes(plan: UpgradePlan) -> list[str]:
    return [each.change for each in plan.steps]


def test_the_same_flow_keeps_everything(tmp_path: Path) -> None:
    plan = compare(tmp_path, flow(), flow())
    assert (changes(plan), plan.dropped) == ([KEEPS], [])


def test_steps_of_a_job_with_one_key_group_stay_in_their_stage(tmp_path: Path) -> None:
    def counted() -> ms.Flow:
        made = ms.Flow("job")
        totals = made.read("scores", "user string, n int").group_by("user").agg(total=ms.sum("n"))
        totals.group_by("total").agg(users=ms.count()).write("out")
        return made

    plan = compare(tmp_path, counted(), counted(), groups=1)
    assert (changes(plan), plan.dropped) == ([KEEPS, KEEPS], [])


def test_an_added_aggregate_keeps_the_others(tmp_path: Path) -> None:
    (step,) = compare(tmp_path, flow(), flow(total=ms.sum("n"), k=ms.count())).steps
    assert step.change == EVOLVES
    assert step.details.endswith("aggregate k=count() starts empty")
    assert step.before != step.step, "its default name has changed"


def test_a_removed_aggregate_is_dropped_state(tmp_path: Path) -> None:
    plan = compare(tmp_path, flow(total=ms.sum("n"), k=ms.count(), name="sums"), flow(name="sums"))
    assert plan.dropped == ["sums: drops aggregate k=count()"]
    with pytest.raises(JobChanged, match="would drop state: sums: drops aggregate k"):
        refuse_dropped("job", plan.dropped)


def test_a_wider_type_is_widened(tmp_path: Path) -> None:
    wide = "user string, n bigint, at timestamp"
    (step,) = compare(tmp_path, flow(top=ms.max("n")), flow(top=ms.max("n"), schema=wide)).steps
    assert (step.change, step.details) == (EVOLVES, "column fold.top.value is widened from Int32 to Int64")


def test_a_renamed_step_is_mapped(tmp_path: Path) -> None:
    plan = compare(tmp_path, flow(name="sums"), flow(name="totals"), sums="totals")
    assert [(each.step, each.before, each.change) for each in plan.steps] == [("totals", "sums", KEEPS)]


def test_without_a_mapping_a_renamed_step_is_dropped_and_another_starts_empty(tmp_path: Path) -> None:
    plan = compare(tmp_path, flow(name="sums"), flow(name="totals"))
    assert [(each.step, each.change) for each in plan.steps] == [("totals", STARTS_EMPTY), ("sums", DROPPED)]
    assert plan.description.steps["totals"]["place"] == "1", "the slot of a dropped step is not used again"
    assert list(plan.description.dropped) == ["sums"]


def test_new_and_ended_outputs_are_listed(tmp_path: Path) -> None:
    (tmp_path / "jobs" / "job" / "sinks" / "write_out").mkdir(parents=True)
    plan = compare(tmp_path, flow(), flow(topic="other"))
    assert (plan.new_outputs, plan.ended_outputs) == (("write_other",), ("write_out",))


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (flow(name="s"), flow(total=ms.sum("n * 2"), name="s"), "give its result another name"),
        (flow(name="s"), flow(rows=ms.collect("n"), total=ms.sum("n"), name="s"), "'elements' of the rows so far"),
        (flow(top=ms.max("n"), name="s", schema="user string, n bigint, at timestamp"), flow(top=ms.max("n"), name="s"),
         "was Int64 and is Int32"),
        (flow(name="s"), flow(name="s", schema="user int, n int, at timestamp"), "'key.user' of its state was String"),
    ],
)  # fmt: skip
def test_what_state_does_not_survive_is_refused(tmp_path: Path, before: ms.Flow, after: ms.Flow, why: str) -> None:
    with pytest.raises(JobChanged, match="the step 's' cannot keep its state") as raised:
        compare(tmp_path, before, after)
    assert why in str(raised.value)


def test_a_mapping_of_unknown_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="the job has no step 'sun'"):
        compare(tmp_path, flow(name="sums"), flow(name="totals"), sun="totals")
    with pytest.raises(InvalidInput, match="the flow has no step 'total'"):
        compare(tmp_path, flow(name="sums"), flow(name="totals"), sums="total")


def test_types_and_columns_are_read_from_descriptions() -> None:
    assert columns_in("a Int64, b List(Struct({'c': Int64, 'd': String})), e Float32") == {
        "a": "Int64",
        "b": "List(Struct({'c': Int64, 'd': String}))",
        "e": "Float32",
    }
    assert is_wider("Decimal(precision=10, scale=2)", "Decimal(precision=12, scale=3)")
    assert not is_wider("Decimal(precision=10, scale=2)", "Decimal(precision=10, scale=3)")
    assert not is_wider("Int64", "Float64")


def test_state_of_an_earlier_version_is_read_with_defaults(tmp_path: Path) -> None:
    narrow = pl.DataFrame(schema={"key": pl.String, "sum": pl.Int32, "old": pl.Int64})
    wide = pl.DataFrame(schema={"key": pl.String, "count": pl.Int64, "sum": pl.Int64, "best": pl.Int64})
    before = Runs(tmp_path / "before", ["key"], {"t": narrow})
    before.open(None, list)
    row = pl.DataFrame([("a", 7, 1)], narrow.schema, orient="row")
    before.held({"t": row}, (0, 0), (0, 0))
    made = before.apply({"t": row}, {})
    after = Runs(tmp_path / "after", ["key"], {"t": wide}, defaults={"t": {"count": 0}})
    after.open(made.version, lambda: [made.delta])
    held = after.held({"t": row.select("key")}, (0, 0), (0, 0))["t"]
    assert held.rows() == [("a", 0, 7, None)]


@pytest.mark.more
@pytest.mark.usefixtures("spark")
def test_an_upgraded_job_continues_with_its_state(log: EmbeddedLog) -> None:
    def then() -> ms.Flow:
        made = ms.Flow("job")
        rows = scores(made)
        rows.key_by("user").window(TEN).agg(total=ms.sum("n"), name="sums").write("totals")
        rows.key_by("n").window(TEN).agg(k=ms.count(), name="counts").window(TEN).agg(k=ms.sum("k"), name="all").write(
            "ks"
        )
        return made

    def now() -> ms.Flow:
        made = ms.Flow("job")
        by_user = scores(made).key_by("user").window(TEN)
        by_user.agg(k=ms.count(), total=ms.sum("n"), name="totals_of_users").write("totals", name="write_totals")
        return made

    put(log, "scores", [("a", 1, 1.0), ("b", 2, 2.0)])
    then().run(broker=log.path, until=CAUGHT_UP)
    folder = JobFolder(Path(log.path) / "jobs" / "job", "job")
    with pytest.raises(JobChanged):
        now().run(broker=log.path, until=CAUGHT_UP)
    plan = compared(folder, plan_of(now()), {"sums": "totals_of_users"})
    assert changes(plan) == [EVOLVES, DROPPED, DROPPED]
    with folder.held():
        apply(folder, plan.description)
    schema = str(log.describe_topic("totals").settings.schema)
    log.change_topic("totals", schema=f"{schema}, k bigint")
    put(log, "scores", [("a", 10, 3.0), ("c", 0, 40.0)])
    now().run(broker=log.path, until=CAUGHT_UP)
    found = sorted((row["user"], row["total"], row["k"]) for row in read(log, "totals"))
    assert found == [("a", 11, 1), ("b", 2, 0)]
    put(log, "scores", [("c", 5, 41.0), ("d", 0, 90.0)])
    now().run(broker=log.path, until=CAUGHT_UP)
    assert sorted((row["user"], row["total"], row["k"]) for row in read(log, "totals"))[2:] == [("c", 5, 2)]
