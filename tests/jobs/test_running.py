"""A job resumes where it stopped, with the current flow if that is compatible with its state."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.errors import JobChanged
from millstream.log import EmbeddedLog
from waiting import until

from .support import (
    CAUGHT_UP,
    SCHEMA,
    counted,
    expected,
    offsets_of,
    per_user,
    put,
    read,
    row,
    scores,
    seconds,
    unweighted,
)

pytestmark = pytest.mark.usefixtures("spark")


def totals(
    *,
    where: str | None = None,
    more: bool = False,
    key: str = "user",
    window: str = "10 seconds",
    name: str | None = None,
    **made: Any,
) -> ms.Flow:
    flow = ms.Flow("totals")
    stream = scores(flow)
    if where:
        stream = stream.where(where).with_column("n", "n * 1")
    panes = stream.key_by(key).window(ms.fixed(window)).agg(**(made or {"total": ms.sum("n")}), name=name)
    panes.write("totals")
    if more:
        stream.select("user", "n").write("plain")
    return flow


# ---------------------------------------------------------------- going on


def test_a_job_resumes_where_it_stopped(log: EmbeddedLog) -> None:
    """Its state, its watermark and its place in the topic are those of the run before."""
    put(log, "scores", [("ann", 1, 0), ("ann", 2, 4)])
    first = totals().run(broker=log.path, until=CAUGHT_UP)
    assert (first.progress.rows_read, read(log, "totals")) == (2, [])
    put(log, "scores", [("ann", 4, 9), ("bob", 8, 16)])
    second = totals().run(broker=log.path, until=CAUGHT_UP)
    assert second.progress.rows_read == 2
    assert seconds(read(log, "totals")) == [("ann", 0, 7)]
    third = totals().run(broker=log.path, until=CAUGHT_UP)
    assert third.progress.rows_read == 0
    assert len(read(log, "totals")) == 1


def test_progress_of_a_job(log: EmbeddedLog) -> None:
    put(log, "scores", [("ann", 1, 0), ("bob", 2, 30), ("ann", 3, 2)])
    flow = ms.Flow("watched")
    panes = per_user(scores(flow))
    panes.write("totals")
    panes.late.write("late")
    seen = []
    job = flow.run(broker=log.path, until=CAUGHT_UP, batch_rows=1, on_batch=lambda n, tables: seen.append((n, tables)))
    progress = job.progress
    assert (progress.batch, progress.rows_read, progress.rows_late) == (2, 3, 1)
    assert progress.offsets == {"read_scores": {"0": 3}}
    assert progress.written == {"write_totals": 1, "write_late": 1}
    assert job.lag() == 0
    assert [number for number, _ in seen] == [0, 1, 2]
    assert seen[1][1]["write_totals"].to_pylist() == read(log, "totals")
    put(log, "scores", [("ann", 1, 0)])
    assert job.lag() == 1


@pytest.mark.more
def test_stop_ends_with_a_whole_batch(log: EmbeddedLog) -> None:
    """No batch is begun and left: the next run has none to do again."""
    put(log, "scores", [("ann", n, n) for n in range(200)])
    job = totals().start(broker=log.path, batch_rows=5)
    until(lambda: job.progress.batch >= 2, "some batches")
    job.stop()
    assert not job.is_running
    folder = log.path / "jobs" / "totals"
    assert not job.folder.unfinished_batch()
    done = max(offsets_of(folder))
    again = totals().start(broker=log.path, batch_rows=50)
    until(lambda: again.progress.batch >= 0, "a batch")
    again.stop()
    assert again.progress.batch > done


def test_every_batch_is_what_the_reference_sends(log: EmbeddedLog) -> None:
    """Late rows, early panes by count, and retractions, over a restart."""

    def built() -> ms.Flow:
        flow = ms.Flow("exact")
        trigger = ms.after_watermark(early=ms.after_count(2), late=ms.each())
        panes = per_user(scores(flow), trigger=trigger, mode="retracting", allowed_lateness="15 seconds")
        panes.write("totals")
        panes.late.write("late")
        return flow

    rows = [(f"u{n % 3}", n, float((n * 37) % 90 if n % 4 else n)) for n in range(60)]
    put(log, "scores", rows[:30])
    built().run(broker=log.path, until=CAUGHT_UP, batch_rows=7)
    put(log, "scores", rows[30:])
    built().run(broker=log.path, until=CAUGHT_UP, batch_rows=11)
    batches = offsets_of(log.path / "jobs" / "exact")
    sent = expected(built(), [batches[n] for n in sorted(batches)], {"0": [row(*each) for each in rows]})
    panes, late = ([each for batch in sent for each in batch[topic]] for topic in ("totals", "late"))
    assert panes
    assert late
    assert counted(read(log, "totals")) == counted(panes)
    assert counted(unweighted(read(log, "late"))) == counted(late)


# ---------------------------------------------------------------- a flow that changed


@pytest.mark.more
def test_topics_that_a_job_creates_have_as_many_partitions_as_its_input(log: EmbeddedLog) -> None:
    log.create_topic("wide", schema=SCHEMA, partitions=3)
    for partition in range(3):
        put(log, "wide", [(f"user {partition} {n}", n, n) for n in range(4)], partition=partition)
    put(log, "scores", [("ann", 1, 0)])
    log.create_topic("there", schema=SCHEMA)
    flow = ms.Flow("wide")
    wide = scores(flow, "wide")
    wide.write("copy")
    wide.write("there")
    wide.write("chosen", partitions=2)
    wide.where("n >= 0").to_table(key="user").write("newest")
    panes = wide.union(scores(flow)).key_by("user").window(ms.fixed("10 seconds")).agg(total=ms.sum("n"))
    panes.write("totals")
    panes.late.write("totals.late")
    wide.dead.write("wide.dead")
    scores(flow, name="narrow").write("narrow")
    flow.run(broker=log.path, batch=True)
    made = ("copy", "there", "chosen", "newest", "totals", "totals.late", "wide.dead", "narrow")
    found = {topic: len(log.describe_topic(topic).partitions) for topic in made}
    assert found == dict.fromkeys(("copy", "newest", "totals", "totals.late", "wide.dead"), 3) | {
        "there": 1,
        "chosen": 2,
        "narrow": 1,
    }
    users = sorted(f"user {partition} {n}" for partition in range(3) for n in range(4))
    assert sorted(each["user"] for each in read(log, "newest")) == users
    assert sorted(each["user"] for each in read(log, "totals")) == sorted(["ann", *users])
    written = [part.end_offset for part in log.describe_topic("newest").partitions]
    assert len([end for end in written if end]) > 1


@pytest.fixture
def begun(log: EmbeddedLog) -> EmbeddedLog:
    """A job that has state."""
    put(log, "scores", [("ann", 1, 0), ("bob", 2, 3)])
    totals().run(broker=log.path, until=CAUGHT_UP)
    return log


@pytest.mark.more
def test_row_by_row_steps_and_outputs_may_change(begun: EmbeddedLog) -> None:
    put(begun, "scores", [("ann", 50, 5), ("ann", 4, 6), ("bob", 9, 20)])
    totals(where="n < 10", more=True).run(broker=begun.path, until=CAUGHT_UP)
    assert seconds(read(begun, "totals")) == [("ann", 0, 5), ("bob", 0, 2)]
    assert [each["n"] for each in read(begun, "plain")] == [4, 9]


def test_what_state_was_kept_for_may_not_change(begun: EmbeddedLog) -> None:
    changes: list[tuple[dict[str, Any], list[str]]] = [
        ({"key": "n"}, ["per user", "per n"]),
        ({"window": "20 seconds"}, ["fixed(10 seconds)", "fixed(20 seconds)"]),
        ({"total": ms.max("n")}, ["sum(n)", "max(n)"]),
    ]
    for change, said in changes:
        with pytest.raises(JobChanged) as found:
            totals(**change).run(broker=begun.path, until=CAUGHT_UP)
        for part in said:
            assert part in str(found.value)
        assert "replay(into=" in str(found.value)
    put(begun, "scores", [("ann", 4, 20)])
    totals().run(broker=begun.path, until=CAUGHT_UP)  # without the changes, it resumes
    assert seconds(read(begun, "totals")) == [("ann", 0, 1), ("bob", 0, 2)]


@pytest.mark.more
def test_a_source_may_be_added(begun: EmbeddedLog) -> None:
    begun.create_topic("others", schema=SCHEMA)
    put(begun, "others", [("eve", 1, 0)])
    flow = totals()
    scores(flow, "others").write("others.copy")
    put(begun, "scores", [("ann", 4, 20)])
    flow.run(broker=begun.path, until=CAUGHT_UP)
    assert seconds(read(begun, "totals")) == [("ann", 0, 1), ("bob", 0, 2)]
    assert len(read(begun, "others.copy")) == 1


# ---------------------------------------------------------------- the session


@pytest.mark.more
def test_a_job_leaves_the_session_as_it_was(spark: SparkSession, log: EmbeddedLog) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    put(log, "scores", [("ann", 1, 0)])
    totals().run(broker=log.path, until=CAUGHT_UP, key_groups=1)
    assert spark.conf.get("spark.sql.shuffle.partitions") == before
