"""What every sink promises: a batch is written once, however often and in whatever process it comes."""

import shutil

import pyarrow as pa
import pytest

import millstream as ms
from millstream.connectors.opening import open_sink
from millstream.errors import InvalidInput
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


def test_a_repeated_batch_has_no_second_effect(target):
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


def test_a_job_that_starts_over_writes_its_batches_again(target):
    """Goal: batch 0 of a new run is not taken for batch 0 of the one before. Method: the job's folder is deleted."""
    for run in range(2):
        sink = target.open()
        sink.write(0, table(SCORES, [A]), None)
        sink.write(1, table(SCORES, [B]), None)
        sink.close()
        if run == 0:
            shutil.rmtree(target.folder / "job")
    assert sorted(row["score"] for row in target.rows()) == [1, 1, 2, 2]


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


@pytest.mark.parametrize("place", [ms.rate(5), ms.socket("localhost", 9), ms.files("x", "avro"), 17])
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
