"""Failures of workers as text: what a run's own mark stands before is an error, everything else is text."""

from __future__ import annotations

import base64
import errno
import os
import pickle
from pathlib import Path

import pytest

import small_disk
from millstream import errors
from millstream.errors import DiskFull, MillstreamError, SparkFailed, StepFailed
from millstream.spark.query_failures import Failed, marked, new_mark, of_query

MARK = new_mark()
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, MillstreamError)]


class Touch:
    """What a pickle would run."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.proof),)


def through_spark(said: str) -> RuntimeError:
    """As Spark wraps what a worker raised."""
    return RuntimeError(
        f"Job aborted: Lost task 0.0 (TID 7)\nTraceback (most recent call last):\n  …\n{said}\n\tat org.x"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_arrives_as_it_was_raised(kind: type[MillstreamError]) -> None:
    error = kind("what: \x1b[2J «ü» \n second line", where='a "place"', next_step=None)
    back = of_query(through_spark(str(Failed(error, MARK))), MARK)
    assert type(back) is kind
    assert (back.what, back.where, back.next_step) == (error.what, error.where, error.next_step)


def test_an_error_of_a_class_elsewhere_arrives_as_its_nearest_kind() -> None:
    class Special(StepFailed):
        pass

    back = of_query(through_spark(str(Failed(Special("odd"), MARK))), MARK)
    assert type(back) is StepFailed


def test_a_record_that_imitates_a_failure_is_text(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    pickled = base64.b64encode(pickle.dumps(Touch(proof))).decode()
    plain = base64.b64encode(b'["DiskFull", "forged", null, null]').decode()
    for forged in (pickled, plain):
        for mark in ("MILLSTREAM-FAILURE:", "MILLSTREAM-FAILURE-:", new_mark()):
            said = f"ValueError: invalid literal for int() with base 10: '{mark}{forged}'"
            assert type(of_query(through_spark(said), MARK)) is SparkFailed
            with pytest.raises(Failed) as raised, marked(MARK, "map"):
                raise ValueError(said)
            found = of_query(through_spark(str(raised.value)), MARK)
            assert type(found) is StepFailed
            assert "the step 'map' failed: ValueError" in found.what
    assert not proof.exists()


NO_ROOM = [
    "java.io.IOException: No space left on device\n=== Streaming Query ===\nIdentifier: …",
    "Job aborted.\n\tat x\nCaused by: org.x.FSError: java.io.IOException: No space left on device\n\tat x",
    "java.io.FileNotFoundException: /job/checkpoint/.7.tmp (No space left on device)",
]


@pytest.mark.parametrize("said", NO_ROOM)
def test_a_full_disk_is_named_if_it_is_full(tmp_path: Path, said: str) -> None:
    """Spark's text may quote a record: with room on the disks it writes to, it is only text."""
    error = RuntimeError(said)
    with small_disk.mounted(tmp_path / "jobs", "1m") as job:
        assert type(of_query(error, MARK, folder=job)) is SparkFailed
        small_disk.fill(job)
        found = of_query(error, MARK, folder=job)
        assert type(found) is DiskFull
        assert found.where == str(job)
        assert "run it again" in str(found.next_step)


def test_a_worker_or_the_driver_without_room(tmp_path: Path) -> None:
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/runs/7")
    with pytest.raises(Failed) as raised, marked(MARK, "total"):
        raise error
    for found in (of_query(through_spark(str(raised.value)), MARK), of_query(error, MARK, folder=tmp_path)):
        assert type(found) is DiskFull
        assert found.where == "/tmp/runs/7"
    without = of_query(OSError(errno.ENOSPC, "full"), MARK, folder=tmp_path)
    assert without.where == str(tmp_path)


def test_every_run_has_a_mark_of_its_own() -> None:
    assert len({new_mark() for _ in range(100)}) == 100
