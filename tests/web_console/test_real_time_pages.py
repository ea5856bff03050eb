"""The pages of a job in real-time mode: its plan with what it measures, and why it has no time plane."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import Row

import millstream as ms
from millstream.jobs.measuring.real_time_metrics import RealTimeMetrics
from millstream.jobs.real_time_plan import RealTimePlan, real_time_plan
from millstream.jobs.versions.real_time_document import write_real_time_plan
from millstream.metrics.history import History
from millstream.plan.run_settings import Settings
from millstream.supervision.specification import JobSpecification
from millstream.supervision.store import Observed

from .axe import violations
from .conftest import Console
from .pictures import picture

if TYPE_CHECKING:
    from playwright.sync_api import Page

NOON = 1_770_000_000.0


def alerts() -> RealTimePlan:
    flow = ms.Flow("alerts")
    readings = flow.read(ms.kafka("host:9092", topic="readings"), "sensor string, celsius double, at timestamp")
    doors = flow.read(ms.kafka("host:9092", topic="doors"), "sensor string, celsius double, at timestamp")
    hot = readings.where("celsius > 90", name="hot")
    hot.union(doors).write(ms.kafka("host:9092", topic="alerts"))
    readings.dead.write(ms.kafka("host:9092", topic="readings.dead"))
    return real_time_plan(flow, Settings(mode="real time"))


def started(console: Console, plan: RealTimePlan) -> Path:
    console.supervisor.store.add(
        JobSpecification("alerts", "/nowhere/flow.py", "alerts"), "ann", Observed.STOPPED, None
    )
    folder = console.supervisor.jobs / "alerts"
    folder.mkdir(parents=True)
    write_real_time_plan(folder, plan, {"read_kafka_readings": 3, "read_kafka_doors": 1})
    return folder


def measured(folder: Path, metrics: RealTimeMetrics, batches: int) -> None:
    """What Spark reports of some seconds: 40 readings, of which one is bad and 10 are hot, and a door."""
    counts = {"read_kafka_readings": 39, "hot": 10, "read_kafka_readings.dead": 1, "write_readings.dead": 1}
    with closing(History(folder)) as history:
        history.begin_run(NOON, metrics.plan)
        for number in range(batches):
            places = {each.name: str(place) for place, each in enumerate(metrics.plan)}
            observed = {places[name]: count for name, count in counts.items() if name in places}
            report = {
                "batchId": number,
                "batchDuration": 5000,
                "sources": [{"numInputRows": 40}, {"numInputRows": 1}],
                "observedMetrics": {"millstream-rows-0": Row(**observed)},
            }
            offsets = {"read_kafka_readings": {"0": 40 * (number + 1)}, "read_kafka_doors": {"0": number + 1}}
            metrics.take(report, offsets)
            ends = {("read_kafka_readings", "0"): 40 * batches + 7, ("read_kafka_doors", "0"): batches}
            history.add(*metrics.sample(NOON + 5 * number, ends))


def test_the_plan_has_a_task_for_each_partition(console: Console) -> None:
    started(console, alerts())
    status, _, plan = console.ask("GET", "/v1/jobs/alerts/plan", **console.logged_in())
    assert status == 200
    assert (plan["mode"], plan["tasks"]) == ("real time", 4)
    assert {step["process"] for step in (*plan["logical"], *plan["physical"])} == {"jvm"}
    stages = {stage["name"]: stage for stage in plan["physical"]}
    assert stages["read_kafka_readings"]["runs"] == "3 tasks without end, by partition"
    assert "then hot" in stages["read_kafka_readings"]["does"]
    assert stages["write_kafka_alerts"]["inputs"] == ["read_kafka_readings", "read_kafka_doors"]
    assert {stage["kind"] for stage in plan["physical"]} == {"source", "sink"}
    of_step = {step["name"]: step["stages"] for step in plan["logical"]}
    assert of_step["hot"] == ["read_kafka_readings"]
    assert set(plan["read"]) <= {"readings", "doors"}


def test_masks_and_dashboards_of_the_file_hold(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.jobs.versions.real_time_document.masked_columns", lambda: ["sensor"])
    started(console, alerts())
    assert console.supervisor.masking.now().hides("sensor")


def test_a_lag_is_unknown_until_spark_has_reported() -> None:
    metrics = RealTimeMetrics(alerts())
    sample, _ = metrics.sample(NOON, {("read_kafka_readings", "0"): 100})
    assert (sample.lag_records, sample.lag_s, sample.rows_per_s) == (None, None, None)
    assert sample.steps["hot"].rows_out == 0


def test_an_unreachable_broker_leaves_the_counts() -> None:
    metrics = RealTimeMetrics(alerts())
    report = {"batchId": 0, "batchDuration": 5000, "sources": [{"numInputRows": 4}], "observedMetrics": {}}
    metrics.take(report, {"read_kafka_readings": {"0": 4}})
    assert metrics.has_news
    sample, _ = metrics.sample(NOON, {})
    assert (sample.rows, sample.lag_records) == (4, None)
    assert not metrics.has_news


def test_a_partition_is_active_while_its_offset_grows() -> None:
    metrics, place = RealTimeMetrics(alerts()), ("read_kafka_readings", "0")
    found = []
    for number, offset in enumerate((4, 4, 6, 6)):
        report = {"batchId": number, "batchDuration": 5000, "sources": [], "observedMetrics": {}}
        metrics.take(report, {place[0]: {place[1]: offset}})
        [partition] = metrics.sample(NOON + number, {place: 6})[1]
        found.append((partition.active_at, partition.lag_s))
    assert found == [(NOON, 0.0), (NOON, 1.0), (NOON + 2, 0.0), (NOON + 2, 0.0)]


@pytest.mark.more
def test_the_plan_of_a_job_in_real_time(console: Console, page: Page) -> None:
    plan = alerts()
    folder, metrics = started(console, plan), RealTimeMetrics(plan)
    measured(folder, metrics, 2)
    page.goto(f"{console.url}/console/#/jobs/alerts/plan")
    page.get_by_role("note", name="Real time").get_by_text("the last time after 5 s").wait_for()
    logical, physical = (page.get_by_role("region", name=each) for each in ("Logical", "in 4 tasks that do not end"))
    for view in (logical, physical):
        source = view.get_by_role("button", name="read_kafka_readings").filter(has_text="8 rows/s · lag 7")
        source.first.wait_for()
        view.get_by_role("button", name="hot").filter(has_text="in the JVM").first.wait_for()
    assert physical.locator(".flow").all_text_contents() == ["2 rows"], "the one output with one input: of dead letters"
    physical.get_by_role("button", name="read_kafka_readings").filter(has_text="3 tasks without end").first.focus()
    page.keyboard.press("Enter")
    page.get_by_text("Runs as 3 tasks without end").wait_for()
    row = page.get_by_role("row", name="hot")
    assert row.get_by_role("cell").nth(2).inner_text() == "20"
    picture(page, "plan-real-time")
    assert violations(page) == []
    page.get_by_role("link", name="Time plane", exact=True).click()
    page.get_by_role("note", name="No time plane").get_by_text("no row waits for another").wait_for()
    page.get_by_role("row", name="read_kafka_readings source 80 78 8 7").wait_for()
    picture(page, "plane-real-time")
    assert violations(page) == []
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
