"""An app runs several flows as one job: each has its own results, state and failures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.connectors.catalog import jobs_folder
from millstream.errors import DamagedState, InvalidInput, JobChanged, StepFailed
from millstream.jobs.apps import flows as app_flows
from millstream.jobs.apps.flows import FILE, AppFlow, FlowState, read_flows
from millstream.jobs.apps.owed_batches import OwedBatches
from millstream.jobs.apps.rewinds import settle_rewinds
from millstream.jobs.job_folder import DESCRIPTION, JobDescription, JobFolder
from millstream.jobs.versions.plan_document import read_plan
from millstream.jobs.versions.savepoints import _refuse_failed_flows
from millstream.jobs.versions.state_rows import state_of
from millstream.local import Local
from millstream.log import EmbeddedLog
from millstream.log.storage.disk import write_document
from millstream.plan.apps import flow_of
from millstream.plan.nodes import Read, Write
from millstream.plan.time.bundles import BEGINNING, Bundle, Row, micros
from millstream.plan.walking import in_order
from millstream.reference import Reference
from millstream.spark.query.physical_plan import PhysicalPlan
from millstream.spark.query.rewinding import Rewind, read_rewinds, rewound, write_rewinds
from times import t
from waiting import until

from .support import CAUGHT_UP, put, read, row, scores, seconds

TEN = ms.fixed("10 seconds")


def totals(name: str) -> ms.Flow:
    flow = ms.Flow(name)
    scores(flow).key_by("user").window(TEN).agg(total=ms.sum("n")).write(f"totals.{name}")
    return flow


def two_shuffles(name: str) -> ms.Flow:
    flow = ms.Flow(name)
    panes = scores(flow).key_by("user").window(TEN).agg(total=ms.sum("n"))
    panes.window(TEN).agg(total=ms.sum("total")).write(f"totals.{name}")
    return flow


def passed_on(name: str, check: Any = None) -> ms.Flow:
    flow = ms.Flow(name)
    stream = scores(flow)
    (stream if check is None else stream.map(check, schema=stream.schema)).write(f"rows.{name}")
    return flow


def numbers(log: EmbeddedLog, topic: str) -> list[int]:
    return sorted(each["n"] for each in read(log, topic))


def batch(first: int, last: int) -> list[tuple[str, int, float]]:
    return [("ann", n, float(n)) for n in range(first, last)]


@pytest.fixture
def app() -> ms.App:
    return ms.app([passed_on("plain"), totals("sums")], name="both")


class Shaky:
    """Fails on every row while a file is there."""

    def __init__(self, fails: Path) -> None:
        self._fails = fails
        self.__name__ = "shaky"

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        if self._fails.exists():
            raise ValueError("not today")
        return row


@pytest.mark.more
def test_a_flow_fails_alone_and_others_are_added_and_removed(
    log: EmbeddedLog, app: ms.App, tmp_path: Path, spark: SparkSession
) -> None:
    fails = tmp_path / "fails"
    app.add(passed_on("shaky", Shaky(fails)))
    put(log, "scores", batch(0, 5))
    job = app.start(broker=log.path, key_groups=2)
    try:
        until(lambda: numbers(log, "rows.shaky") == list(range(5)), "the first rows")
        queries = [(each.id, each.runId) for each in spark.streams.active]
        app.add(totals("added"))
        app.remove("plain")
        app.add(passed_on("plain"))
        assert [(each.id, each.runId) for each in spark.streams.active] == queries, "the others were not stopped"
        fails.touch()
        put(log, "scores", batch(5, 8))
        until(lambda: numbers(log, "rows.plain") == list(range(8)), "rows of the flow that works")
        until(lambda: {each.name: each for each in job.flows}["shaky"].failures > 0, "the failure")
        assert "not today" in str({each.name: each for each in job.flows}["shaky"].reason)
        assert {each.name for each in job.flows if each.state is FlowState.RUNNING} == {"plain", "sums", "added"}
        fails.unlink()
        app.add(totals("late"))
        with pytest.raises(JobChanged, match="2 shuffles"):
            app.add(two_shuffles("wide"))
        app.remove("plain")
        put(log, "scores", batch(8, 21))
        until(lambda: numbers(log, "rows.shaky") == list(range(21)), "the flow that failed")
        until(lambda: len(read(log, "totals.sums")) == len(read(log, "totals.late")) == 1, "the flow that was added")
    finally:
        job.stop()
    assert numbers(log, "rows.plain") == list(range(8))
    assert {each["name"] for each in read_flows(job.folder.path)} == {"sums", "shaky", "late", "added"}
    description = job.folder.description()
    assert description is not None
    states = [state_of(job.folder, step, {})["tables"] for step in description.steps if flow_of(step) != "late"]
    held = [sorted(map(repr, state["windows"])) for state in states]
    assert held[0] == held[1]
    assert [len(each) for each in held] == [2, 2]
    put(log, "scores", batch(21, 32))
    # A changed file: another order, and the flow that was removed, which continues.
    changed = ms.app(
        [totals("late"), passed_on("plain"), totals("sums"), passed_on("shaky", Shaky(fails)), totals("added")],
        name="both",
    )
    job = changed.run(broker=log.path, until=CAUGHT_UP, progress="none")
    assert {each.state for each in job.flows} == {FlowState.STOPPED}
    assert numbers(log, "rows.plain") == numbers(log, "rows.shaky") == list(range(32))
    expected = [("ann", 0.0, sum(range(10))), ("ann", 10.0, sum(range(10, 20)))]
    sent = [seconds(read(log, f"totals.{name}")) for name in ("sums", "late", "added")]
    assert sent == [expected] * 3


@pytest.mark.more
@pytest.mark.usefixtures("spark")
def test_a_bounded_run_retries_and_reports_a_flow_that_keeps_failing(
    log: EmbeddedLog, app: ms.App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside it, a sink fails once: its flow writes the same batch later."""
    monkeypatch.setattr(app_flows, "RESTARTS_MAX", 1)
    taken: list[int] = []
    refused: list[int] = []

    def take(rows: pa.Table, number: int) -> None:
        if not refused:
            refused.append(number)
            raise ValueError("the disk is away")
        taken.extend(rows["n"].to_pylist())

    stuck = ms.Flow("stuck")
    scores(stuck).write(ms.foreach_batch(take))
    fails = tmp_path / "fails"
    fails.touch()
    app.add(passed_on("shaky", Shaky(fails)))
    app.add(stuck)
    put(log, "scores", batch(0, 5))
    with pytest.raises(StepFailed, match=r"1 of 4 flows failed: 'shaky': .*not today"):
        app.run(broker=log.path, until=CAUGHT_UP, progress="none", key_groups=2)
    assert taken == numbers(log, "rows.plain") == list(range(5))
    assert numbers(log, "rows.shaky") == []
    folder = jobs_folder(log) / "both"
    assert OwedBatches(folder).flows() == []
    shown = {each["name"]: (each["state"], each["reason"]) for each in read_flows(folder)}
    assert shown["shaky"][0] == "failed"
    assert "the disk is away" in shown["stuck"][1]
    fails.unlink()
    app.run(broker=log.path, until=CAUGHT_UP, progress="none")
    assert taken == numbers(log, "rows.plain") == numbers(log, "rows.shaky") == list(range(5))


# ---------------------------------------------------------------- without Spark


def test_batches_that_are_owed_are_kept_in_order(tmp_path: Path) -> None:
    owed = OwedBatches(tmp_path)
    assert (owed.flows(), owed.numbers("a")) == ([], [])
    for number in (10, 9):
        owed.keep("a", number, {"a:out": pl.DataFrame({"n": [number]})})
    assert (owed.flows(), owed.numbers("a")) == (["a"], [9, 10])
    assert owed.of("a", 9)["a:out"]["n"].to_list() == [9]
    owed.done("a", 9)
    assert owed.numbers("a") == [10]
    (tmp_path / "owed" / "a" / "10.rows").write_bytes(b"?")
    with pytest.raises(DamagedState, match="batch 10, which the flow 'a' has not written"):
        owed.of("a", 10)


@pytest.mark.parametrize("engine", [Local, Reference])
def test_flows_of_an_app_send_the_same_as_each_alone(engine: Any) -> None:
    flows = [totals("sums"), passed_on("plain"), totals("late")]

    def sent(outputs: Sequence[Write]) -> list[list[Any]]:
        """What each output gets in two steps, of which the second completes a window."""
        runner = engine(outputs)
        sources = [node for node in in_order(outputs) if isinstance(node, Read)]
        found: list[list[Any]] = [[] for _ in outputs]
        ends = [BEGINNING, micros(t(4)), micros(t(15))]
        for first, (before, after) in zip((0, 5), pairwise(ends), strict=True):
            rows = [Row(row(*each), micros(t(each[2] or 0))) for each in batch(first, first + 5)]
            made = runner.step(dict.fromkeys(sources, Bundle(rows, before, after, 0, 1)))
            for number, output in enumerate(outputs):
                found[number] += [each.values for each in made[output].rows]
        return found

    together = sent(ms.app(flows).check())
    assert together == [sent(flow.check())[0] for flow in flows]
    assert [len(rows) for rows in together] == [1, 10, 1]


def test_what_only_a_single_flow_can_do_is_refused(log: EmbeddedLog, app: ms.App) -> None:
    with pytest.raises(InvalidInput, match="into='other' is for a single flow"):
        app.start(broker=log.path, into="other")
    with pytest.raises(InvalidInput, match="mode='real time' is for a single flow"):
        app.start(broker=log.path, mode="real time")


def test_steps_that_read_the_same_topic_share_a_source() -> None:
    flow = ms.Flow("one")
    scores(flow, name="first").select("user").write("users")
    scores(flow, name="second").select("n").write("numbers")
    scores(flow, "others").select("n").write("others.n")
    plan = PhysicalPlan(flow.check(), 1)
    first, second, others = plan.fed_sources
    assert plan.reads_as[first] == plan.reads_as[second] != plan.reads_as[others]
    assert plan.shared_reading[first].names == plan.shared_reading[second].names == ("user", "n", "at")
    assert "n" not in plan.reading[first].names


def test_a_flow_that_fails_waits_longer_each_time_and_is_given_up() -> None:
    flow = AppFlow("a", FlowState.RUNNING, 0.0)
    pauses = []
    for _ in range(5):
        flow = flow.failed("why", 10.0)
        assert flow.next_start is not None
        pauses.append(flow.next_start - 10.0)
        flow = flow.started(10.0)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert flow.failed("why", 10.0).state is FlowState.FAILED
    assert flow.failed("why", 10_000.0).failures == 1


def test_sources_go_back_behind_the_batch_that_was_repeated_without_their_flow(tmp_path: Path) -> None:
    write_rewinds(tmp_path, [Rewind("a", 3, 30, {"a:read": {"0": 5}})])
    found = read_rewinds(tmp_path)
    start = {"clock": 30, "sources": {"a:read": {"0": 9}, "b:read": {"0": 9}}}
    assert rewound(start, found) == {"a:read": {"0": 5}, "b:read": {"0": 9}}
    assert rewound({**start, "clock": 31}, found) == start["sources"]


def unfinished(folder: Path, ends: list[dict[str, int]]) -> JobFolder:
    """A job whose last batch is unfinished; each batch ends at these offsets."""
    made = JobFolder(folder, "both")
    write_document(folder / DESCRIPTION, asdict(JobDescription("id", 2, 1)))
    for part in ("offsets", "commits"):
        (folder / "checkpoint" / part).mkdir(parents=True)
    for number, end in enumerate(ends):
        sources = {name: {"0": offset} for name, offset in end.items()}
        offset = {"clock": 10 * (number + 1), "ended": False, "sources": sources}
        (folder / "checkpoint" / "offsets" / str(number)).write_text(f"v1\n{{}}\n{json.dumps(offset)}")
        if number < len(ends) - 1:
            (folder / "checkpoint" / "commits" / str(number)).write_text("v1\n{}")
    return made


def test_flows_that_are_absent_when_a_batch_is_repeated_go_back(tmp_path: Path) -> None:
    folder = unfinished(tmp_path, [{"a:read": 5, "b:read": 5}, {"a:read": 9, "b:read": 9}])
    OwedBatches(tmp_path).keep("a", 1, {})
    settle_rewinds(folder, {"b"})
    assert read_rewinds(tmp_path) == [Rewind("a", 1, 20, {"a:read": {"0": 5}})]
    assert OwedBatches(tmp_path).flows() == []
    settle_rewinds(folder, {"a", "b"})  # the batch is repeated with both
    assert read_rewinds(tmp_path) == []


def test_an_app_is_not_saved_while_a_flow_has_to_go_back_or_owes_a_batch(tmp_path: Path) -> None:
    folder = unfinished(tmp_path, [{"a:read": 5}])
    _refuse_failed_flows(folder, 7)
    write_rewinds(tmp_path, [Rewind("a", 7, 30, {"a:read": {"0": 5}})])
    OwedBatches(tmp_path).keep("b", 7, {})
    with pytest.raises(InvalidInput, match="flows of it have failed: a, b"):
        _refuse_failed_flows(folder, 7)
    OwedBatches(tmp_path).done("b", 7)
    _refuse_failed_flows(folder, 8)  # the next batch is complete, and with it the new positions


def test_a_flow_that_fails_again_in_the_first_batch_it_repeats_goes_back_as_far(tmp_path: Path) -> None:
    folder = unfinished(tmp_path, [{"a:read": 5}, {"a:read": 9}, {"a:read": 12}])
    first = Rewind("a", 1, 20, {"a:read": {"0": 5}})
    write_rewinds(tmp_path, [first])
    settle_rewinds(folder, {"b"})
    assert read_rewinds(tmp_path) == [first, Rewind("a", 2, 30, {"a:read": {"0": 5}})]


def test_the_flows_of_a_job_that_is_no_app(tmp_path: Path) -> None:
    assert read_flows(tmp_path) == []
    (tmp_path / FILE).write_text("{")
    assert read_flows(tmp_path) == []


@pytest.mark.more
@pytest.mark.usefixtures("spark")
def test_the_plan_has_the_topics_of_a_flow_that_failed(log: EmbeddedLog, tmp_path: Path) -> None:
    """They may have masked columns, whether the flow runs or not."""
    fails = tmp_path / "fails"
    fails.touch()
    shaky = ms.Flow("shaky")
    orders = shaky.read("orders", schema="email string")
    orders.map(Shaky(fails), schema=orders.schema).write("rows.shaky")
    log.create_topic("orders", partitions=1)
    put(log, "scores", batch(0, 5))
    with log.producer() as producer:
        producer.send("orders", b'{"email": "ann@example.org"}')
    job = ms.app([passed_on("plain"), shaky], name="both").start(broker=log.path, key_groups=2)

    def plan() -> dict[str, Any]:
        return read_plan(job.folder.path) or {}

    try:
        until(lambda: "orders" not in [step["topic"] for step in plan()["logical"]], "a query without the flow")
        assert plan()["read"]["orders"] == ["email"]
    finally:
        job.stop()
