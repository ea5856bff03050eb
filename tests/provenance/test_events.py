"""Events of batches: recorded by a run, read and searched, and what they are for once a checkpoint has forgotten."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import millstream as ms
from millstream.cli.app import app
from millstream.jobs.job_folder import DESCRIPTION, JobFolder
from millstream.jobs.measuring.batch_event import (
    BatchEvent,
    StepFigures,
    TaskFigures,
    events_topic,
    from_bytes,
    to_bytes,
)
from millstream.log import EmbeddedLog
from millstream.log.topics import INTERNAL
from millstream.plan.parameters import VARIABLE
from millstream.provenance.batches import recorded_batches
from millstream.provenance.events import Search, events_of
from millstream.provenance.history import History
from millstream.provenance.tracing import Place, Tracer
from provenance.recorded import SCHEMA, Batch, record, score

RUN = "a-run"


def event(batch: int, start: int, end: int, *, ticks: Sequence[int] = (), rows: int = 1) -> BatchEvent:
    """A batch that reads a range of the only partition, and writes rows behind those of the batches before."""
    steps = {
        "scores": StepFigures("source", end - start, end - start, target="scores", topic="scores"),
        "copied": StepFigures(
            "output", end - start, rows, target="copies", topic="copies", places={"0": (start, end)} if rows else {}
        ),
    }
    starts, ends = {"scores": {"0": start}}, {"scores": {"0": end}}
    task = TaskFigures("scores", 0, (("0", start, end),), end - start)
    return BatchEvent(
        RUN, batch, 1000.0 + batch, "plan", batch + 1, starts, ends, {}, False, tuple(ticks), steps, (task,)
    )


def send(folder: Path, job: str, events: Sequence[BatchEvent]) -> JobFolder:
    """Stores events as a run does."""
    found = JobFolder(folder / "jobs" / job, job)
    (found.path / DESCRIPTION).write_text(json.dumps({"identity": RUN, "groups": 4, "partitions": 2}))
    with ms.connect(folder) as log:
        log.create_topic(events_topic(found))
        with log.producer() as producer:
            for each in events:
                producer.send(events_topic(found), to_bytes(each))
    return found


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_an_event_is_one_small_document() -> None:
    made = event(3, 10, 20, ticks=(1, 2))
    assert from_bytes(to_bytes(made)) == made
    assert len(to_bytes(made)) < 500
    with pytest.raises(msgspec.MsgspecError):
        from_bytes(b"{}")


def test_the_topic_of_a_job_has_a_valid_name(tmp_path: Path) -> None:
    assert events_topic(JobFolder(tmp_path / "jobs" / "scores", "other")) == f"{INTERNAL}scores"
    assert events_topic(JobFolder(tmp_path / "elsewhere", "scores.batch")) == f"{INTERNAL}scores.batch"
    long = events_topic(JobFolder(tmp_path / "elsewhere", "x" * 300))
    assert len(long) <= 249
    with ms.connect(tmp_path / "log") as log:
        log.create_topic(long)
        log.create_topic(events_topic(JobFolder(tmp_path / "elsewhere", "a..b")))


def test_internal_topics_are_not_listed_and_still_kept_up(tmp_path: Path) -> None:
    with ms.connect(tmp_path) as log:
        assert isinstance(log, EmbeddedLog)
        log.create_topic(f"{INTERNAL}job")
        log.create_topic("scores")
        assert log.topics() == ["scores"]
        assert log.all_topics() == [f"{INTERNAL}job", "scores"]
        assert log.describe_topic(f"{INTERNAL}job").name == f"{INTERNAL}job"


def test_a_batch_counts_once_and_other_records_are_skipped(tmp_path: Path) -> None:
    repeated = msgspec.structs.replace(event(1, 1, 2), at=5000.0)
    job = send(tmp_path, "copy", [event(0, 0, 1), event(1, 1, 2), repeated])
    with ms.connect(tmp_path) as log:
        with log.producer() as producer:
            producer.send(events_topic(job), b"of another version")
        assert [(each.batch, each.at) for each in events_of(log, job)] == [(0, 1000.0), (1, 1001.0)]


def test_searches(tmp_path: Path) -> None:
    events = [event(0, 0, 10), event(1, 10, 10, rows=0), event(2, 10, 15)]

    def batches(**asked: Any) -> list[tuple[int, str]]:
        return [(each["batch"], each["step"]) for each in Search(**asked).found(iter(events))]

    assert batches(step="copied") == [(0, "copied"), (1, "copied"), (2, "copied")]
    assert batches(since=1002.0) == [(2, "scores"), (2, "copied")]
    assert batches(topic="copies", partition=0, offset=12) == [(2, "copied")]
    assert batches(offset=3) == [(0, "scores"), (0, "copied")]
    assert batches(partition=7) == []
    assert batches(topic="nothing") == []


def test_batches_are_known_after_the_checkpoint_has_forgotten_them(tmp_path: Path) -> None:
    """Idle batches are part of the next event, and the newest batch may be in the checkpoint alone."""
    with ms.connect(tmp_path) as log:
        log.create_topic("scores", partitions=1, schema=SCHEMA)
    rows = [score("red", number, number) for number in range(4)]
    record(tmp_path, "copy", "scores", "scores", [Batch(number, {0: [row]}) for number, row in enumerate(rows)])
    job = JobFolder(tmp_path / "jobs" / "copy", "copy")
    for number in (0, 1, 2):
        job.checkpoint.joinpath("offsets", str(number)).unlink()
    assert [batch.is_whole for batch in recorded_batches(job)] == [False]
    send(tmp_path, "copy", [event(0, 0, 1), event(2, 1, 3, ticks=(7,))])
    with ms.connect(tmp_path) as log:
        found = recorded_batches(job, list(events_of(log, job)))
    assert [batch.number for batch in found] == [0, 1, 2, 3]
    assert all(batch.is_whole for batch in found)
    assert (found[1].clock, found[1].starts, found[1].ends) == (7, {"scores": {"0": 1}}, {"scores": {"0": 1}})
    assert found[3].starts == {"scores": {"0": 3}}
    without_the_first = recorded_batches(job, [event(2, 1, 3, ticks=(7,))])
    assert [batch.is_whole for batch in without_the_first] == [False, True, True]


FLOW = f"""
import millstream as ms

flow = ms.Flow("copy")
scores = flow.read("scores", "{SCHEMA}", name="scores")
scores.write("copies", name="copied")
"""


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job that has copied equal rows in two batches, one each."""
    folder = tmp_path / "log"
    monkeypatch.setenv("MILLSTREAM_BROKER", str(folder))
    monkeypatch.setenv(VARIABLE, "{}")
    (tmp_path / "flow.py").write_text(FLOW)
    with ms.connect(folder) as log:
        for topic in ("scores", "copies"):
            log.create_topic(topic, partitions=1, schema=SCHEMA, segment_bytes=4096)
        with log.producer() as producer:
            for _ in range(2):
                producer.send("copies", score("red", 1, 1))
    batches = [Batch(number, {0: [score("red", 1, 1)]}) for number in (1, 2)]
    record(folder, "copy", "scores", "scores", batches)
    send(folder, "copy", [event(0, 0, 1), event(1, 1, 2)])
    return tmp_path


def tracer(project: Path) -> Tracer:
    import runpy

    return Tracer([History(runpy.run_path(str(project / "flow.py"))["flow"])])


def test_of_equal_rows_only_those_of_the_right_batch_are_followed(copied: Path) -> None:
    found = tracer(copied).trace(Place("copies", 0, 1), forward=False)["from"]
    assert [(each["batch"], [record["offset"] for record in each["records"]]) for each in found] == [(1, [1])]


def test_what_has_expired_is_still_known_by_its_batch(copied: Path) -> None:
    """Goal: content that is gone is reported as such. Method: both topics lose their records."""
    with ms.connect(copied / "log") as log:
        for topic in ("scores", "copies"):
            log.delete_topic(topic)
            log.create_topic(topic, partitions=1, schema=SCHEMA)
    back = tracer(copied).trace(Place("copies", 0, 1), forward=False)["from"]
    assert [(each["batch"], each["records"]) for each in back] == [(1, [])]
    assert back[0]["notes"] == [
        "the content has expired; the batch read scores 0: 1-1, and wrote 1 row to copies (copies 0: 1-1)"
    ]


def test_the_command_shows_and_searches_events(copied: Path) -> None:
    lines = run("provenance", "copy").splitlines()
    assert len(lines) == 1 + 4
    assert "scores 0: 1-1" in lines[3]
    [found] = json.loads(run("provenance", "copy", "--topic", "copies", "--offset", 1, "--json"))
    assert (found["batch"], found["step"], found["rows_out"], found["plan"]) == (1, "copied", 1, "plan")
    assert found["ranges"] == [{"topic": "copies", "partition": "0", "start": 1, "end": 2}]
    assert "0: 0-0" in run("provenance", "copy", "--tasks", "--step", "scores")
    newest = CliRunner().invoke(app, ["provenance", "copy", "--limit", "1"])
    assert "newest 1 of 4" in newest.output
    assert json.loads(run("provenance", "copy", "--since", "1 hour", "--json")) == []
    refused = CliRunner().invoke(app, ["provenance", "copy", "--since", "noon"])
    assert refused.exit_code != 0
    assert "'noon' is no time" in refused.output
    assert "time zone" in CliRunner().invoke(app, ["provenance", "copy", "--since", "2026-01-31T12:00:00"]).output


@pytest.mark.more
def test_a_run_records_its_batches_and_what_a_killed_one_missed(tmp_path: Path, spark: SparkSession) -> None:
    """Method: three batches, then the events are lost as by a kill, then one more batch."""
    with ms.connect(tmp_path) as log:
        log.create_topic("scores", partitions=2, schema=SCHEMA)
        with log.producer() as producer:
            for number in range(12):
                producer.send("scores", score("red", number, number), partition=number % 2)
    flow = ms.Flow("copy", log=tmp_path)
    scores = flow.read("scores", name="scores")
    scores.where("score >= 0", name="positive").where("score > 5", name="high").write("high", name="written")
    flow.run(until="caught up", batch_rows=4)
    job = JobFolder(tmp_path / "jobs" / "copy", "copy")
    with ms.connect(tmp_path) as log:
        events = list(events_of(log, job))
        assert log.topics() == ["high", "scores"]
    assert [each.batch for each in events] == [0, 1, 2]
    assert sum(each.steps["scores"].rows_out or 0 for each in events) == 12
    assert sum(each.steps["high"].rows_out or 0 for each in events) == 6
    written = [place for each in events for place in each.steps["written"].places.values()]
    assert sum(end - start for start, end in written) == 6
    assert events[-1].ends == {"scores": {"0": 6, "1": 6}}
    assert {each.plan for each in events} == {events[0].plan}
    read = sorted(each for event in events for task in event.tasks for each in task.read)
    assert sum(end - start for _, start, end in read) == 12
    shutil.rmtree(tmp_path / "topics" / events_topic(job))
    with ms.connect(tmp_path) as log, log.producer() as producer:
        producer.send("scores", score("red", 99, 99), partition=0)
    flow.run(until="caught up")
    again = History(flow).events
    assert [(each.batch, each.ends) for each in again[:3]] == [(each.batch, each.ends) for each in events]
    assert [each.batch for each in again] == [0, 1, 2, 3]
    assert again[3].starts == events[-1].ends
