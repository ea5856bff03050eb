"""Goal: a damaged checkpoint is named, and what the error offers works. Method: a real job runs once; each test damages
a copy of what it left, and where Spark runs again, all outputs are compared with those of a run without damage."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.errors import DamagedState, OutputMismatch, StartOverRefused
from millstream.jobs import checkpoint_reader as checkpoints
from millstream.jobs.job_folder import DESCRIPTION, JobFolder
from millstream.jobs.measuring.job_progress import FILE as PROGRESS
from millstream.jobs.measuring.job_progress import read_progress
from millstream.jobs.repairing import check_checkpoint, check_ledgers, repair
from millstream.jobs.results.rebuilding import REBUILD, Rebuild, request_rebuild
from millstream.jobs.results.refused_rows import FILE as REFUSED
from millstream.jobs.results.refused_rows import RefusedRows
from millstream.log import EmbeddedLog
from millstream.plan.time.bundles import END
from millstream.spark.query.batch_offsets import REACHED, REDO, JobFeed
from millstream.spark.query.physical_plan import PhysicalPlan
from millstream.spark.query.state_runner import Shipment

from .support import CAUGHT_UP, SCHEMA, put, read, t

Results = tuple[list[Any], list[Any], list[Any]]
FIRST, ALL, BATCH_ROWS = 30, 48, 5
LAST = FIRST // BATCH_ROWS - 1


@dataclass(frozen=True)
class Place:
    """A log with one job, beside a copy of how it was."""

    path: Path
    copy: Path

    @property
    def job(self) -> JobFolder:
        return JobFolder(self.path / "log" / "jobs" / "job", "job")

    @property
    def checkpoint(self) -> Path:
        return self.job.checkpoint

    def restore(self) -> None:
        shutil.rmtree(self.path)
        shutil.copytree(self.copy, self.path)

    def flow(self) -> ms.Flow:
        flow = ms.Flow("job")
        rows = flow.read("scores", SCHEMA, event_time="at", watermark=ms.bounded("1 second"))
        totals = rows.key_by("user").window(ms.fixed("10 seconds")).agg(total=ms.sum("n"))
        totals.write("totals", name="to_topic")
        totals.write(ms.sqlite(self.path / "out.db", table="totals"), name="to_sqlite")
        totals.write(ms.files(self.path / "out"), name="to_files")
        return flow

    def run(self) -> None:
        self.flow().run(broker=self.path / "log", until=CAUGHT_UP, batch_rows=BATCH_ROWS, progress="none")

    def put(self, start: int, end: int) -> None:
        with ms.connect(self.path / "log") as log:
            put(log, "scores", [("abc"[number % 3], number, number) for number in range(start, end)])

    def results(self) -> Results:
        """The rows of every output, in order."""
        with ms.connect(self.path / "log") as log:
            panes = sorted((row["user"], row["window"]["start"], row["total"]) for row in read(log, "totals"))
        with closing(sqlite3.connect(self.path / "out.db")) as db:
            stored = sorted(db.execute("select user, window_start, total from totals"))
        files = [pl.read_parquet(path) for path in (self.path / "out").glob("to_files-*.parquet")]
        written = [(row["user"], row["window"]["start"], row["total"]) for row in pl.concat(files).to_dicts()]
        return panes, stored, sorted(written)


def right_results() -> list[tuple[Any, ...]]:
    """Of all rows: windows that end before the last row less a second are closed."""
    sums: dict[tuple[str, int], int] = {}
    for number in range(ALL):
        window = number // 10 * 10
        if window + 10 <= ALL - 1 - 1:
            sums["abc"[number % 3], window] = sums.get(("abc"[number % 3], window), 0) + number
    return sorted((user, t(window), total) for (user, window), total in sums.items())


def assert_right(results: Results) -> None:
    panes, stored, written = results
    assert panes == written == right_results()
    assert stored == [(user, f"{start:%Y-%m-%dT%H:%M:%S}.000000Z", total) for user, start, total in right_results()]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Place:
    place = Place(tmp_path_factory.mktemp("checkpoint") / "now", tmp_path_factory.mktemp("copies") / "before")
    place.path.mkdir()
    with ms.connect(place.path / "log") as log:
        log.create_topic("scores", schema=SCHEMA)
    place.put(0, FIRST)
    place.run()
    assert checkpoints.Checkpoint(place.checkpoint, 1, 1).complete == LAST
    shutil.copytree(place.path, place.copy)
    return place


@pytest.fixture
def place(made: Place) -> Place:
    made.restore()
    return made


# ---------------------------------------------------------------- how files are damaged


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def overwrite(path: Path) -> None:
    path.write_bytes(b"garbage")
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


NEWEST = f"0/{LAST + 1}.changelog"
GO_BACK, REBUILD_ONLY = "millstream jobs repair job", None


@pytest.mark.parametrize(
    ("file", "damage", "why", "offer"),
    [
        ("metadata", empty, "metadata is empty", GO_BACK),
        ("metadata", overwrite, "metadata cannot be read: it is not JSON", GO_BACK),
        ("metadata", remove, "metadata is missing", GO_BACK),
        (f"offsets/{LAST}", cut, f"offsets/{LAST} is truncated: it has", REBUILD_ONLY),
        (f"offsets/{LAST}", flip, f"offsets/{LAST} does not match its checksum in .{LAST}.crc", REBUILD_ONLY),
        (f"offsets/{LAST}", overwrite, "it starts with 'garbage' instead of a version such as v1", REBUILD_ONLY),
        (f"offsets/{LAST}", remove, f"offsets/{LAST} is missing, though batch {LAST} is complete", REBUILD_ONLY),
        ("offsets", remove, f"offsets/{LAST} is missing, though batch {LAST} is complete", REBUILD_ONLY),
        (f"commits/{LAST}", empty, f"commits/{LAST} is empty", f"batch {LAST} from the intact files"),
        (f"commits/{LAST}", overwrite, f"commits/{LAST} cannot be read", GO_BACK),
        ("commits", remove, f"commits/{LAST - 1} is missing, though batch {LAST} has started", "go back to batch 0"),
        (f"state/0/{NEWEST}", empty, f"state/0/{NEWEST} is empty", f"continue with batch {LAST}"),
        (f"state/0/{NEWEST}", overwrite, "it is not compressed as changelogs are", GO_BACK),
        (
            "state/0/1/3.changelog",
            flip,
            "3.changelog does not match its checksum",
            "go back to batch 2 and repeat it and",
        ),
        ("state/0/1/3.changelog", remove, "state/0/1/3.changelog is missing", f"the {LAST - 2} after it"),
        ("state/0/0/*.zip", flip, ".zip does not match its checksum", f"continue with batch {LAST + 1}"),
        ("state/0/0/*.zip", overwrite, ".zip cannot be read: File is not a zip file", GO_BACK),
        ("state/0/0/SSTs/*.sst", remove, ".sst is missing", GO_BACK),
        ("state/0/0/SSTs/*.sst", overwrite, ".sst has 7 bytes instead of", GO_BACK),
        ("state/0/0", remove, "state/0/0 is missing", "go back to batch 0"),
        ("state", remove, "state/0/_metadata/v2/0 is missing", REBUILD_ONLY),
        ("state/0/_metadata/v2/0", overwrite, "_metadata/v2/0 cannot be read", REBUILD_ONLY),
        ("state/0/_stateSchema/default/0_*", cut, "is truncated", REBUILD_ONLY),
        ("state/0/_stateSchema/default/0_*", overwrite, "it is not a state schema", REBUILD_ONLY),
        ("../job.json", remove, "job.json is missing", REBUILD_ONLY),
    ],
)
def test_a_damaged_file_is_named_with_what_is_wrong_and_what_helps(
    place: Place, file: str, damage: Callable[[Path], None], why: str, offer: str | None
) -> None:
    damaged = next(place.checkpoint.glob(file)) if ".." not in file else place.job.path / DESCRIPTION
    damage(damaged)
    with pytest.raises(DamagedState) as raised:
        check_checkpoint(place.job)
    assert "the checkpoint of the job 'job' is damaged: " in raised.value.what
    assert why in raised.value.what
    assert raised.value.next_step is not None
    assert "millstream jobs rebuild job" in raised.value.next_step
    assert (offer or "jobs repair") in raised.value.next_step or offer is REBUILD_ONLY
    if offer is REBUILD_ONLY:
        assert "jobs repair" not in raised.value.next_step
        with pytest.raises(DamagedState, match="is damaged"):
            repair(place.job)
    else:
        assert repair(place.job) is not None
        check_checkpoint(place.job)


def test_a_checkpoint_as_a_job_leaves_it_is_not_damaged(place: Place) -> None:
    check_checkpoint(place.job)
    assert repair(place.job) is None
    remove(place.checkpoint / "commits" / str(LAST))  # as after a kill
    check_checkpoint(place.job, thorough=True)
    remove(place.checkpoint)
    check_checkpoint(place.job)


def test_offsets_of_a_batch_that_is_not_complete_are_planned_again(place: Place) -> None:
    remove(place.checkpoint / "commits" / str(LAST))
    empty(place.checkpoint / "offsets" / str(LAST))
    done = repair(place.job)
    assert done is not None
    assert (done.recovery.batch, done.recovery.is_replanned) == (LAST, True)
    check_checkpoint(place.job)


@pytest.mark.parametrize("renamed_max", [0, 3, 9, 15, 21, 24])
def test_a_repair_that_was_cut_short_can_be_done_again(
    place: Place, monkeypatch: pytest.MonkeyPatch, renamed_max: int
) -> None:
    remove(place.checkpoint / "state/0/1/3.changelog")
    renamed: list[Path] = []
    original = Path.rename

    def rename(path: Path, target: Path) -> Path:
        if len(renamed) == renamed_max:
            raise KeyboardInterrupt
        renamed.append(path)
        return original(path, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(KeyboardInterrupt):
        repair(place.job)
    monkeypatch.undo()
    repair(place.job)
    check_checkpoint(place.job)
    assert checkpoints.Checkpoint(place.checkpoint, 1, 2).started == 2
    redone = json.loads((place.job.path / REDO).read_text())["batches"]
    assert [entry["batch"] for entry in redone] == list(range(3, LAST + 1))


# ---------------------------------------------------------------- other documents


def test_a_damaged_ledger_is_named_before_spark_starts(place: Place) -> None:
    ledger = next((place.job.path / "sinks" / "to_files").glob("*.json"))
    ledger.write_text("{")
    with pytest.raises(DamagedState, match="the batches of the output 'to_files' are unknown") as raised:
        check_ledgers(place.job, ["to_topic", "to_files"])
    assert raised.value.where == str(ledger)
    assert "millstream jobs rebuild job" in (raised.value.next_step or "")
    check_ledgers(place.job, ["to_topic"])


def test_damaged_dead_letters_are_named(tmp_path: Path) -> None:
    (tmp_path / REFUSED).write_bytes(b"garbage" * 10)
    with pytest.raises(DamagedState, match="refused in batch 3 cannot be read") as raised:
        RefusedRows(tmp_path, "w").of(3)
    assert raised.value.where == str(tmp_path / REFUSED)


def test_notes_that_a_job_can_do_without_do_not_stop_it(place: Place) -> None:
    (place.job.path / PROGRESS).write_text("garbage")
    assert read_progress(place.job.path) == {}
    shipment = Shipment("s", PhysicalPlan(place.flow().check(), 1), 1, "runs")
    feed = JobFeed(shipment, str(place.job.path), None, tasks_max=1, limit_rows=None, tick_s=1, starts={})
    for content in ("garbage", "[]", "{}", '{"clock": "x", "watermark": 1}'):
        (place.job.path / REACHED).write_text(content)
        assert feed._watermark_max(7) == END


# ---------------------------------------------------------------- on Spark


@pytest.mark.more
def test_after_a_repair_every_output_is_right(place: Place) -> None:
    place.put(FIRST, ALL)
    flip(next(place.checkpoint.glob("state/0/0/*.zip")))
    cut(place.checkpoint / "state/0/1/3.changelog")
    with pytest.raises(DamagedState, match="and repeat it and the"):
        place.run()
    with place.job.held():
        done = repair(place.job)
    assert done is not None
    assert done.recovery.batch == 2
    assert (done.aside / "checkpoint/state/0/1/3.changelog").exists()
    place.run()
    assert_right(place.results())


@pytest.mark.more
def test_after_a_rebuild_every_output_is_right(place: Place) -> None:
    place.put(FIRST, ALL)
    foreign = place.path / "out" / "notes.parquet"
    foreign.write_bytes(b"somebody else's")
    empty(place.checkpoint / "offsets" / str(LAST))
    with pytest.raises(DamagedState, match=rf"offsets/{LAST} is empty"):
        place.run()
    next((place.job.path / "sinks" / "to_files").glob("*.json")).write_text("{")
    with place.job.held():
        request_rebuild(place.job, Rebuild())
    place.run()
    assert_right(place.results())
    assert foreign.exists()
    assert not (place.job.path / REBUILD).exists()
    place.run()
    assert_right(place.results())


def test_a_checkpoint_that_is_older_than_the_outputs_is_refused(place: Place) -> None:
    before = place.results()
    for name in ("offsets", "commits"):
        remove(place.checkpoint / name / str(LAST))
    place.put(FIRST, ALL)
    with pytest.raises(OutputMismatch, match=rf"up to batch {LAST} .* checkpoint ends at batch {LAST - 1}"):
        place.run()
    assert place.results() == before


def test_what_only_spark_reads_is_named_after_it_failed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "CHECKED_BYTES_MAX", 0)
    place.put(FIRST, ALL)
    for changelog in place.checkpoint.glob(f"state/0/*/{LAST + 1}.changelog"):
        flip(changelog)
    with pytest.raises(DamagedState, match=rf"{LAST + 1}.changelog does not match its checksum"):
        place.run()


# ---------------------------------------------------------------- what a rebuild refuses


def test_results_whose_sources_have_lost_records_are_not_emptied(place: Place) -> None:
    before = place.results()
    with place.job.held():
        request_rebuild(place.job, Rebuild())
    with ms.connect(place.path / "log") as log:
        assert isinstance(log, EmbeddedLog)
        log.change_topic("scores", segment_bytes=4096, retention_bytes=4096)
        with log.producer() as producer:
            for number in range(300):
                producer.send("scores", {"user": "x" * 200, "n": number, "at": t(100)})
                producer.flush()
        log.clean("scores")
        assert log.topic("scores").partition(0).start_offset() > 0
    with pytest.raises(
        StartOverRefused, match=r"the records of its partition \d+ before offset \d+ are gone"
    ) as raised:
        place.run()
    assert "millstream jobs rebuild job --allow-loss" in (raised.value.next_step or "")
    assert place.results() == before
