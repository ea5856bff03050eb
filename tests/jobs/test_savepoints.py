"""Goal: a savepoint is whole or not there, and a restored job neither loses a row nor writes one twice.

Method: most tests make the files of a job without state by hand; one runs a real job with three kinds of outputs.
"""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.errors import AlreadyExists, DamagedState, InvalidInput, JobRunning, NotFound
from millstream.jobs.job_folder import JobDescription, JobFolder
from millstream.jobs.repairing import newest_batches
from millstream.jobs.versions import restoring, savepoints, swapping
from millstream.jobs.versions.restoring import restore
from millstream.jobs.versions.saved_jobs import SavedJobs
from millstream.jobs.versions.state_rows import state_of
from millstream.log.storage.disk import write_document
from millstream.spark.query.batch_offsets import redo_entries

from .support import SCHEMA
from .test_checkpoint_reader import ALL, FIRST, Place, assert_right


def offsets(batch: int) -> dict[str, object]:
    return {"clock": 1000 * (batch + 1), "ended": False, "sources": {"read_in": {"0": 10 * (batch + 1)}}}


def complete(job: JobFolder, batch: int, *, is_complete: bool = True) -> None:
    """Adds a batch to the checkpoint of a job without state, as Spark does."""
    for folder, text in (("offsets", f"v1\n{{}}\n{json.dumps(offsets(batch))}"), ("commits", "v1\n{}")):
        if folder == "offsets" or is_complete:
            (job.checkpoint / folder).mkdir(parents=True, exist_ok=True)
            (job.checkpoint / folder / str(batch)).write_text(text)


def made_job(folder: Path, name: str = "job", batches: int = 3) -> JobFolder:
    job = JobFolder(folder / "jobs" / name, name)
    write_document(job.path / "job.json", asdict(JobDescription(f"identity-{name}", 4, 2)))
    (job.path / "lock").touch()
    job.checkpoint.mkdir()
    (job.checkpoint / "metadata").write_text('{"id": "1"}')
    for batch in range(batches):
        complete(job, batch)
    return job


@pytest.fixture
def job(tmp_path: Path) -> JobFolder:
    return made_job(tmp_path)


@pytest.fixture
def saved(job: JobFolder) -> SavedJobs:
    return SavedJobs(job.path.parent)


def test_savepoints_are_taken_listed_and_removed(job: JobFolder, saved: SavedJobs) -> None:
    with job.held():  # as while it runs
        first = saved.savepoint("job", "first")
    complete(job, 3, is_complete=False)
    second = saved.savepoint("job")
    assert (first["batch"], second["batch"], second["sources"]) == (2, 2, {"read_in": {"0": 30}})
    assert second["name"].startswith("job-20")
    assert [each["name"] for each in saved.savepoints("job")] == [second["name"], "first"]
    assert saved.savepoints("other") == []
    saved.remove_savepoint("first")
    assert [each["name"] for each in saved.savepoints()] == [second["name"]]


def test_a_savepoint_stays_when_the_job_is_gone(job: JobFolder, saved: SavedJobs) -> None:
    saved.savepoint("job", "kept")
    job.remove()
    assert not saved.all.checkpoint("kept").damage()


def test_wrong_requests_are_refused_and_leave_nothing(job: JobFolder, saved: SavedJobs) -> None:
    saved.savepoint("job", "taken")
    with pytest.raises(AlreadyExists, match="already a savepoint 'taken'"):
        saved.savepoint("job", "taken")
    with pytest.raises(InvalidInput, match="cannot be the name"):
        saved.savepoint("job", "../outside")
    with pytest.raises(NotFound, match="no job 'jop'"):
        saved.savepoint("jop")
    with pytest.raises(NotFound, match="no savepoint 'takem'"):
        saved.restore("takem")
    made_job(job.path.parents[1], "empty", batches=0)
    with pytest.raises(InvalidInput, match="not completed a batch"):
        saved.savepoint("empty")
    with job.held(), pytest.raises(JobRunning):
        saved.restore("taken")
    assert [entry.name for entry in saved.all.folder.iterdir()] == ["taken"]


def test_a_savepoint_is_never_there_in_part(job: JobFolder, saved: SavedJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(savepoints, "sync_folder", lambda _: None)
    for step in ("write_document", "link"):
        with monkeypatch.context() as patch:
            patch.setattr(savepoints, step, killed)
            patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # a killed process does not clean up
            with pytest.raises(Killed):
                saved.savepoint("job", "half")
        assert saved.savepoints() == []
    assert saved.savepoint("job", "half")["batch"] == 2
    monkeypatch.setattr(savepoints, "DRAFT_AGE_S_MAX", -1)
    saved.savepoint("job", "whole")
    assert sorted(entry.name for entry in saved.all.folder.iterdir()) == ["half", "whole"]


def test_a_file_that_vanishes_meanwhile_is_tried_again(
    job: JobFolder, saved: SavedJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, missing = savepoints.link, [FileNotFoundError(2, "gone", "state"), FileNotFoundError(2, "gone", "state")]

    def vanishing(path: Path, place: Path) -> None:
        if missing:
            complete(job, 5 - len(missing))
            raise missing.pop()
        link(path, place)

    monkeypatch.setattr(savepoints, "link", vanishing)
    assert saved.savepoint("job")["batch"] == 4
    (job.checkpoint / "metadata").unlink()
    with pytest.raises(DamagedState, match="metadata is missing"):
        saved.savepoint("job")


def test_later_batches_are_repeated_under_the_numbers_that_outputs_know(
    job: JobFolder, saved: SavedJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved.savepoint("job", "early")
    for batch in range(3, 9):
        complete(job, batch)
    complete(job, 9, is_complete=False)
    monkeypatch.setattr(restoring, "CATCH_UP_ROWS", 25)
    done = saved.restore("early")
    assert (done["batches"], done["records"]) == (4, 70)
    entries = redo_entries(job.path)
    assert [(each["batch"], each["after"], each["end"]["sources"]["read_in"]["0"]) for each in entries] == [
        (3, 3000, 50),
        (4, 5000, 70),
        (5, 7000, 90),
        (6, 9000, 100),  # some outputs may have this one: it is repeated exactly
    ]
    description = job.description()
    assert description is not None
    assert 5 + description.shift == 8, "the last batch that all outputs have"
    newest = newest_batches(job)
    assert (newest.started, newest.complete) == (9, 5)
    assert saved.restore("early")["batches"] == 4, "nothing has run meanwhile, so it is the same again"
    assert [each["why"] for each in saved.savepoints()][:2] == ["before 'early' was restored"] * 2
    saved.restore(done["before"])
    again = job.description()
    assert again is not None
    assert (again.shift, job.newest_batches()) == (0, (8, 8))
    assert [each["end"]["sources"]["read_in"]["0"] for each in redo_entries(job.path)] == [100]


def test_another_job_starts_behind_the_savepoint(job: JobFolder, saved: SavedJobs) -> None:
    saved.savepoint("job", "early")
    assert saved.restore("early", into="copy")["records"] == 0
    copy = saved.job("copy")
    own, of_copy = job.description(), copy.description()
    assert own is not None
    assert of_copy is not None
    assert of_copy.identity != own.identity
    assert copy.newest_batches() == (2, 2)
    with pytest.raises(AlreadyExists, match="progress of its own"):
        saved.restore("early", into="copy")
    made_job(job.path.parents[1], "other")
    with pytest.raises(AlreadyExists, match="'other' has progress of its own"):
        saved.restore("early", into="other")


@pytest.mark.parametrize("killed_after", range(7))
def test_a_restore_that_was_killed_is_completed(
    job: JobFolder, saved: SavedJobs, monkeypatch: pytest.MonkeyPatch, killed_after: int
) -> None:
    saved.savepoint("job", "early")
    complete(job, 3)
    rename, left = Path.rename, [killed_after]

    def renamed(path: Path, target: Path) -> Path:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return rename(path, target)

    with job.held(), monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(Path, "rename", renamed)
        restore(saved.all, "early", job)
    is_ready = swapping.is_swapping(job)
    with job.held():
        swapping.complete_swap(job)
    assert not swapping.is_swapping(job)
    assert job.newest_batches() == ((2, 2) if killed_after else (3, 3))
    assert len(redo_entries(job.path)) == (1 if killed_after else 0)
    assert is_ready == (0 < killed_after < 6)
    assert saved.savepoint("job")["batch"] == (2 if killed_after else 3)


def test_a_damaged_savepoint_is_refused(job: JobFolder, saved: SavedJobs) -> None:
    saved.savepoint("job", "early")
    (saved.all.path("early") / "checkpoint" / "commits" / "2").unlink()
    with pytest.raises(DamagedState, match="the savepoint 'early' is damaged: batch 2 is not complete"):
        saved.restore("early")
    (saved.all.path("early") / "savepoint.json").write_text("{")
    with pytest.raises(DamagedState, match="the savepoint 'early' cannot be read"):
        saved.savepoints()


@pytest.mark.more
def test_a_restored_job_writes_every_row_once(tmp_path: Path, spark: SparkSession) -> None:
    place = Place(tmp_path / "now", tmp_path / "copy")
    place.path.mkdir()
    with ms.connect(place.path / "log") as log:
        log.create_topic("scores", schema=SCHEMA)
    place.put(0, FIRST)
    place.run()
    saved = SavedJobs(place.job.path.parent)
    taken = saved.savepoint("job", "early")
    held = state_of(place.job, taken["steps"][0], {"user": "a"})["tables"]["windows"]
    assert sorted((row["key.user"], row["fold.total.sum"]) for row in held) == [("a", 72)]
    place.put(FIRST, ALL)
    place.run()
    before = place.results()
    saved.restore("early")
    place.run()
    assert place.results() == before
    assert_right(before)
