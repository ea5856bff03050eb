"""`millstream jobs`: handles jobs that cannot resume, using only their folders."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from millstream.connectors.file_ledger import FileLedger
from millstream.jobs.job_folder import DESCRIPTION, JobFolder
from millstream.jobs.results.rebuilding import Rebuild, requested_rebuild
from millstream.log import EmbeddedLog
from millstream.metrics.history import History
from millstream.metrics.samples import Sample, StepPlan, StepSample

from .conftest import Run

KEPT = {"identity": "a" * 32, "groups": 4, "partitions": 1}


@pytest.fixture
def job(log: EmbeddedLog) -> JobFolder:
    """A job without state that has done three batches, as Spark leaves it."""
    made = JobFolder(log.path / "jobs" / "copies", "copies")
    with made.held():
        (made.path / DESCRIPTION).write_text(json.dumps(KEPT))
    FileLedger(made.path / "sinks" / "w", "w")
    for folder in ("offsets", "commits"):
        (made.checkpoint / folder).mkdir(parents=True)
    (made.checkpoint / "metadata").write_text('{"id":"x"}')
    for batch in range(3):
        (made.checkpoint / "offsets" / str(batch)).write_text(f'v1\n{{}}\n{{"clock": {batch + 1}, "sources": {{}}}}')
        (made.checkpoint / "commits" / str(batch)).write_text("v1\n{}")
    return made


def test_a_damaged_commit_is_repaired(ms: Run, job: JobFolder) -> None:
    (job.checkpoint / "commits" / "2").write_text("")
    done = ms("jobs", "repair", "copies")
    assert done.code == 0
    assert "checkpoint/commits/2 is empty" in done.err
    assert "the next run continues with batch 2" in done.err
    assert not (job.checkpoint / "commits" / "2").exists()
    assert "is not damaged" in ms("jobs", "repair", "copies").err


def test_what_cannot_be_repaired_is_refused_with_a_next_step(ms: Run, job: JobFolder) -> None:
    (job.checkpoint / "offsets" / "2").write_text("garbage")
    done = ms("jobs", "repair", "copies")
    assert done.code == 5
    assert "checkpoint/offsets/2 cannot be read: it starts with 'garbage'" in done.err
    assert "millstream jobs rebuild copies" in done.err


def test_a_rebuild_asks_and_says_what_the_next_run_does(ms: Run, job: JobFolder) -> None:
    done = ms("jobs", "rebuild", "copies")
    assert done.code == 2
    assert "and start over with its next run?" in done.err
    assert requested_rebuild(job) is None
    done = ms("jobs", "rebuild", "copies", "--allow-loss", "--yes")
    assert done.code == 0
    assert "'copies' empties its outputs and starts over with its next run: millstream run" in done.err
    assert requested_rebuild(job) == Rebuild(allows_loss=True)
    assert job.checkpoint.exists()


def test_a_job_with_a_folder_of_its_own_is_named_by_it(ms: Run, job: JobFolder, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    job.path.rename(elsewhere)
    (elsewhere / "checkpoint" / "offsets" / "2").unlink()
    done = ms("jobs", "repair", "copies", "--folder", str(elsewhere))
    assert f"millstream jobs rebuild copies --folder {elsewhere}" in done.err
    assert ms("jobs", "rebuild", "copies", "--folder", str(elsewhere), "--yes").code == 0
    assert ms("jobs", "rebuild", "copies", "--folder", str(tmp_path), "--yes").code == 3


def test_a_job_whose_note_is_damaged_does_not_hide_the_others(ms: Run, job: JobFolder, log: EmbeddedLog) -> None:
    other = JobFolder(log.path / "jobs" / "other", "other")
    (other.path / DESCRIPTION).write_text("garbage")
    states = {each["name"]: each["state"] for each in json.loads(ms("jobs", "list", "--json").out)}
    assert states == {"copies": "stopped", "other": "damaged"}
    done = ms("jobs", "rebuild", "other", "--yes")
    assert done.code == 0, done.err


def test_metrics_of_a_job(ms: Run, job: JobFolder) -> None:
    assert "has no metrics yet" in ms("jobs", "metrics", "copies").err
    history = History(job.path)
    history.begin_run(1.0, [StepPlan("read", "source", "read in"), StepPlan("write", "output", "write out", ("read",))])
    steps = {"read": StepSample(1200, 1200, lag_records=7, lag_s=2.5), "write": StepSample(1200, 1200)}
    history.add(Sample(time.time(), 3, 1200, waits_for="write: it is down", steps=steps), [])
    history.close()
    done = ms("jobs", "metrics", "copies")
    assert done.lines[1].split()[:3] == ["read", "1200", "1200"]
    assert "it waits for write: it is down" in done.err
    assert len(ms("jobs", "metrics", "copies", "--last", "1 hour").lines) == 5
    found = ms("jobs", "metrics", "copies", "--step", "read", "--json").json
    assert found["samples"][0]["steps"]["read"]["lag_records"] == 7
    assert ms("jobs", "metrics", "copies", "--step", "nowhere").code == 2
    assert "there is no job 'other'" in ms("jobs", "metrics", "other").err


def test_why_nothing_comes_out_of_a_job(ms: Run, job: JobFolder) -> None:
    done = ms("why-silent", "copies")
    assert done.lines[0] == "the job is stopped"
    assert "millstream jobs start copies" in done.lines[1]
    assert ms("why-silent", "copies", "--json").json["findings"][0]["kind"] == "not_running"
    with job.held():
        assert "it is starting" in ms("why-silent", "copies").out
