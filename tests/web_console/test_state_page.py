"""A job that has run on Spark, in a real browser: its state before and after batches, and an upgrade rehearsed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import millstream as ms
from millstream.supervision.specification import JobSpecification
from millstream.supervision.store import Desired, Observed
from provenance.recorded import SCHEMA, score

from .axe import violations
from .conftest import Console
from .pictures import picture
from .test_time_plane import flow_of

if TYPE_CHECKING:
    from playwright.sync_api import Page
    from pyspark.sql import SparkSession

BATCHES = ([score("red", 1, 1), score("blue", 10, 2)], [score("red", 2, 3)], [score("blue", 20, 4)])


FLOW = f"""
import millstream as ms

flow = ms.Flow("totals")
scores = flow.read("scores", "{SCHEMA}", event_time="at", watermark=ms.bounded("10 seconds"))
windows = scores.key_by("team").window(ms.fixed("1 hour")).trigger(ms.each())
windows.agg(total=ms.sum("score")).write("totals")
"""


def has_run(console: Console) -> None:
    """A job `totals` with three batches, a savepoint after the first, and a changed file beside its own."""
    file = console.log.parent / "flow.py"
    file.write_text(FLOW)
    changed = FLOW.replace("scores = flow", "everything = flow").replace(
        "scores.key_by", "everything.where('score < 5').key_by"
    )
    (console.log.parent / "changed.py").write_text(changed)
    with ms.connect(console.log) as log:
        log.create_topic("scores", partitions=1, schema=SCHEMA)
        for number, rows in enumerate(BATCHES):
            with log.producer() as producer:
                for row in rows:
                    producer.send("scores", row)
            flow_of(FLOW).run(broker=log.path, until="caught up", progress="none")
            if number == 0:
                console.supervisor.saved.savepoint("totals", "first")
    job = JobSpecification("totals", str(file), "totals", folder=str(console.log.parent))
    console.supervisor.store.add(job, "ann", Observed.STOPPED, None)
    console.supervisor.store.update("totals", desired=Desired.STOPPED)


@pytest.mark.more
@pytest.mark.timeout(900)
def test_the_state_before_and_after_a_batch_and_a_rehearsal(console: Console, page: Page, spark: SparkSession) -> None:
    has_run(console)
    page.set_default_timeout(300_000)  # Spark runs in processes of their own
    page.goto(f"{console.url}/console/#/jobs/totals/state")
    page.get_by_label("Key").fill("team=red")
    page.get_by_role("button", name="Look up").click()
    page.get_by_role("region", name="windows", exact=True).get_by_role("cell", name="red").first.wait_for()
    section = page.get_by_role("region", name="Before and after a batch")
    changed = section.get_by_role("region", name="windows, before and after")
    earlier = section.get_by_role("button", name="Earlier batch")
    while changed.count() == 0:  # the newest batches are of blue, or without rows
        section.get_by_text("It changed none of these rows.").wait_for()
        earlier.click()
    rows = [row.inner_text().split("\t") for row in changed.get_by_role("row").all()]
    total = rows[0].index("fold.total.sum")
    assert [(row[0], row[total]) for row in rows[1:]] == [("\N{MINUS SIGN}", "1"), ("+", "3")]
    picture(page, "state")
    assert violations(page) == []
    section.get_by_role("button", name="Later batch").click()
    section.get_by_text("It changed none of these rows.").wait_for()
    page.goto(f"{console.url}/console/#/jobs/totals/plan")
    page.get_by_text("key groups in").first.wait_for()
    picture(page, "plan-state")
    assert violations(page) == []
    page.get_by_role("link", name="Upgrades").click()
    page.get_by_label("File of the new flow").fill(str(console.log.parent / "changed.py"))
    page.get_by_role("button", name="Rehearse").click()
    differ = page.get_by_role("region", name="that differ")
    differ.get_by_role("row", name="only old").get_by_text('"total":30').wait_for()
    assert differ.get_by_text('"team":"red"').count() == 0, "red is the same with both"
    picture(page, "rehearsal")
    assert violations(page) == []
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("button", name="Delete totals and the logs of its runs").click()
    page.get_by_text("0 of 0 jobs").wait_for()
