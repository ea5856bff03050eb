"""The history of metrics in a job's folder: bounded, readable while it is written, and never in the way of a job."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from millstream.errors import InvalidInput
from millstream.metrics.history import FILE, History, read_metrics
from millstream.metrics.samples import METRICS, PartitionSample, Sample, StepPlan, StepSample, as_document

PLAN = [StepPlan("read", "source", "read scores"), StepPlan("agg", "stateful", "sum", ("read",), drops_late=True)]


def sample(at: float, rows: int = 0) -> Sample:
    return Sample(at, 3, rows, steps={"read": StepSample(rows, rows), "agg": StepSample(rows, 1, 2, 3, state_rows=7)})


def test_what_was_written_is_read(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.begin_run(50.0, PLAN)
    partition = PartitionSample("read", "0", 5, 9, 100.0, 51.0, 52.0, 50.0, 3.5)
    for second in range(3):
        history.add(sample(100.0 + second, second), [partition])
    found = read_metrics(tmp_path)
    assert found is not None
    assert (found.run_started, list(found.plan), list(found.partitions)) == (50.0, PLAN, [partition])
    assert list(found.samples) == [sample(102.0, 2)]
    later = read_metrics(tmp_path, since=100.5)
    assert later is not None
    assert [each.at for each in later.samples] == [101.0, 102.0]
    history.close()
    assert read_metrics(tmp_path) == found


def test_one_step_alone(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.begin_run(50.0, PLAN)
    history.add(sample(100.0), [])
    found = read_metrics(tmp_path, step="agg")
    assert found is not None
    assert [list(each["steps"]) for each in as_document(found, "job", "agg")["samples"]] == [["agg"]]
    with pytest.raises(InvalidInput, match="no step 'ag'") as raised:
        read_metrics(tmp_path, step="ag")
    assert "agg" in str(raised.value.next_step)
    history.close()


def test_old_samples_are_thinned_out(tmp_path: Path) -> None:
    """Goal: a day of samples stays small. Method: a sample per second, in large steps of time."""
    history = History(tmp_path)
    history.begin_run(0.0, PLAN)
    for number in range(1, 601):
        history.add(sample(float(number), number), [])
    history.add(sample(605.0 + 600, 601), [])  # all of the first tier are too old
    found = read_metrics(tmp_path, since=0.0)
    assert found is not None
    assert [each.rows for each in found.samples] == [*range(10, 601, 10), 601]
    history.add(sample(600.0 + 7200, 602), [])
    found = read_metrics(tmp_path, since=0.0)
    assert found is not None
    assert [each.rows for each in found.samples] == [*range(60, 601, 60), 602]
    history.close()


def test_partitions_of_a_source_that_left_the_flow_are_forgotten(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.begin_run(0.0, PLAN)
    history.add(sample(1.0), [PartitionSample("read", "0"), PartitionSample("other", "0")])
    history.close()
    again = History(tmp_path)
    again.begin_run(2.0, PLAN)
    assert [each.source for each in again.partitions()] == ["read"]
    again.close()


def test_a_folder_without_metrics(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) is None
    (tmp_path / FILE).write_bytes(b"not a database, but something else")
    assert read_metrics(tmp_path) is None
    with pytest.raises(sqlite3.Error):
        History(tmp_path)
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).symlink_to(tmp_path / "elsewhere")
    assert read_metrics(tmp_path) is None


def test_every_metric_of_a_step_is_described() -> None:
    assert set(METRICS) == set(StepSample.__dataclass_fields__)
