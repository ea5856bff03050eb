"""What every sink promises: a batch is written once, however often and in whatever process it comes."""

import json
import shutil

import pyarrow as pa
import pytest

import millstream as ms
from millstream.connectors.sink import open_sink
from millstream.errors import InvalidInput, SinkFailed
from millstream.plan import endpoints as places
from millstream.records import Schema

from .support import KINDS, SCORES, Target, table

A, B, C = ({"team": "a", "score": 1}, {"team": "b", "score": 2}, {"team": "c", "score": 3})


@pytest.fixture(params=KINDS)
def target(request, tmp_path):
    dsn = request.getfixturevalue("dsn") if request.param == "postgres" else None
    return Target(request.param, tmp_path, dsn)


def test_batches_are_written_in_order(target):
    sink = target.open()
    sink.write(0, table(SCORES, [A, B]), None)
    sink.write(3, table(SCORES, [C]), None)
    sink.close()
    assert target.rows() == [A, B, C]


def test_a_batch_that_comes_again_has_no_second_effect(target):
    """Goal: neither in the same process nor in the next. Method: write batches again, the last and an older one."""
    sink = target.open()
    sink.write(0, table(SCORES, [A]), None)
    sink.write(1, table(SCORES, [B]), None)
    sink.write(1, table(SCORES, [B]), None)
    sink.close()
    sink = target.open()
    sink.write(0, table(SCORES, [A]), None)
    sink.write(1, table(SCORES, [B]), None)
    sink.write(2, table(SCORES, [C]), None)
    sink.close()
    assert target.rows() == [A, B, C]


def test_an_empty_batch_writes_nothing_and_counts_as_written(target):
    sink = target.open()
    sink.write(4, table(SCORES, []), None)
    sink.write(4, table(SCORES, [A]), None)
    sink.write(5, table(SCORES, [B]), None)
    sink.close()
    assert target.rows() == [B]


def test_a_job_that_begins_anew_writes_its_batches_again(target):
    """Goal: batch 0 of a new run is not taken for batch 0 of the one before. Method: the job's folder is deleted."""
    for run in range(2):
        sink = target.open()
        sink.write(0, table(SCORES, [A]), None)
        sink.write(1, table(SCORES, [B]), None)
        sink.close()
        if run == 0:
            shutil.rmtree(target.folder / "job")
    assert sorted(row["score"] for row in target.rows()) == [1, 1, 2, 2]


def test_a_sink_knows_its_newest_batch(target):
    sink = target.open()
    assert sink.newest() is None
    sink.write(0, table(SCORES, [A]), None)
    sink.write(4, table(SCORES, []), None)
    assert sink.newest() == 4
    sink.close()
    sink = target.open()
    assert sink.newest() == 4
    sink.close()


def test_what_earlier_runs_have_written_is_cleared(target):
    """Goal: a job that starts over leaves its rows once. Method: two runs, a third that clears what they wrote."""
    runs = []
    for number in range(3):
        sink = target.open()
        if number == 2:
            sink.clear(runs)
        sink.write(0, table(SCORES, [A]), None)
        sink.write(1, table(SCORES, [B]), None)
        sink.close()
        runs.append(json.loads(next((target.folder / "job").rglob("*.json")).read_text())["run"])
        if number < 2:
            shutil.rmtree(target.folder / "job")
    assert target.rows() == [A, B]


def test_a_topic_that_is_cleared_keeps_its_settings_and_gets_another_identity(tmp_path, log):
    log.create_topic("scores", schema=SCORES, partitions=3, retention="2 days")
    before = log.topic("scores")
    sink = open_sink("scores", SCORES, job="j", step="s", broker=log, folder=tmp_path / "j")
    sink.clear([])
    sink.close()
    after = log.topic("scores")
    assert after.settings == before.settings
    assert after.identity != before.identity


def test_a_topic_that_readers_were_switched_to_is_not_cleared(tmp_path, log):
    for name in ("scores", "scores.v2"):
        log.create_topic(name, schema=SCORES)
    log.switch("scores", "scores.v2")
    sink = open_sink("scores.v2", SCORES, job="j", step="s", broker=log, folder=tmp_path / "j")
    with pytest.raises(SinkFailed, match="readers were switched") as raised:
        sink.clear([])
    assert "millstream switch scores --off" in raised.value.next_step
    sink.close()


def test_of_files_only_those_of_the_runs_named_are_cleared(tmp_path, log):
    kept = ["w-20260101T000000-0123abcd-0000000000.parquet", "notes.txt", "w-20260102T000000-0123abcd-1.txt"]
    gone = ["w-20260102T000000-0123abcd-0000000000.parquet", "day=1/w-20260102T000000-0123abcd-0000000001-0002.json"]
    (tmp_path / "out" / "day=1").mkdir(parents=True)
    for name in (*kept, *gone):
        (tmp_path / "out" / name).touch()
    sink = open_sink(ms.files(tmp_path / "out"), SCORES, job="j", step="w", broker=log, folder=tmp_path / "j")
    sink.clear(["20260102T000000-0123abcd"])
    sink.close()
    left = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert sorted(path.name for path in left) == sorted(kept)


def test_what_a_function_has_done_is_not_cleared(tmp_path, log):
    place = ms.foreach(lambda rows, batch: None)
    sink = open_sink(place, SCORES, job="j", step="s", broker=log, folder=tmp_path / "j")
    with pytest.raises(SinkFailed, match="known to the function alone"):
        sink.clear([])


def test_steps_and_jobs_have_ledgers_of_their_own(tmp_path, log):
    for job, step in (("one", "x"), ("one", "y"), ("two", "x")):
        sink = open_sink("scores", SCORES, job=job, step=step, broker=log, folder=tmp_path / job)
        sink.write(0, table(SCORES, [A]), None)
        sink.close()
    with log.consumer("scores") as consumer:
        assert len(list(consumer.until_caught_up())) == 3


def test_several_chunks_and_other_encodings_of_the_same_values_are_taken(target):
    pieces = pa.chunked_array([pa.array(["a"]), pa.array(["b"])]).cast(pa.large_string())
    sink = target.open()
    sink.write(0, pa.table({"team": pieces, "score": pa.array([1, 2], pa.int32())}), None)
    sink.close()
    assert target.rows() == [A, B]


@pytest.mark.parametrize("place", [places.rate(5), places.socket("localhost", 9), places.files("x", "avro"), 17])
def test_what_cannot_be_written_is_refused(place, tmp_path, log):
    with pytest.raises(InvalidInput):
        open_sink(place, SCORES, job="j", step="s", broker=log, folder=tmp_path)


def test_memory_keeps_rows_once(tmp_path, log):
    kept = ms.memory("kept once")
    for _ in range(2):
        sink = open_sink(kept, Schema.of(SCORES), job="j", step="s", broker=log, folder=tmp_path)
        sink.write(0, table(SCORES, [A, B]), None)
        sink.close()
    assert ms.memory("kept once").rows() == [A, B]
    assert kept.arrow().num_rows == 2
    kept.clear()
    assert kept.rows() == []
    assert kept.arrow() is None
