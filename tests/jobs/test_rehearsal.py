"""A rehearsal compares the results of two flows over the same records, and touches nothing."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

import millstream as ms
from millstream.errors import InvalidInput
from millstream.jobs.versions.differences import difference
from millstream.jobs.versions.rehearsal import rehearsed
from millstream.jobs.versions.saved_jobs import SavedJobs
from millstream.log import EmbeddedLog

from .support import CAUGHT_UP, put, read, scores


def test_rows_are_the_same_changed_or_in_one_run_only() -> None:
    old = [{"k": 1, "n": 1}, {"k": 1, "n": 2}, {"k": 2, "n": 5}, {"k": 3, "n": 1}, {"k": 5, "n": 0}]
    new = [{"k": 1, "n": 2, "m": 0}, {"k": 1, "n": 9, "m": 0}, {"k": 2, "n": 5, "m": 0}, {"k": 4, "n": 1, "m": 0}]
    made = difference("out", old, new, ["k"])
    assert made.counts == {"same": 2, "changed": 1, "only old": 2, "only new": 1}
    assert made.added_columns == ("m",)
    assert [(each["what"], each["key"]["k"]) for each in made.rows] == [
        ("changed", 1),
        ("only old", 3),
        ("only old", 5),
        ("only new", 4),
    ]
    unkeyed = difference("out", old, new, [])
    assert unkeyed.counts == {"same": 2, "changed": 0, "only old": 3, "only new": 2}


def test_without_rows_nothing_differs() -> None:
    assert difference("out", [], [], ["k"]).counts == {"same": 0, "changed": 0, "only old": 0, "only new": 0}
    assert difference("out", [], [{"k": 1}], ["k"]).counts["only new"] == 1


@pytest.mark.more
@pytest.mark.usefixtures("spark")
def test_two_flows_are_compared_from_a_savepoint(log: EmbeddedLog) -> None:
    def flow(least: int) -> ms.Flow:
        made = ms.Flow("job")
        rows = scores(made).where(f"n >= {least}")
        rows.key_by("user").window(ms.fixed("10 seconds")).agg(total=ms.sum("n"), name="sums").write("totals")
        return made

    put(log, "scores", [("a", 1, 1.0), ("b", 5, 2.0)])
    flow(0).run(broker=log.path, until=CAUGHT_UP)
    saved = SavedJobs(Path(log.path) / "jobs")
    with pytest.raises(InvalidInput, match="no savepoint of the job 'job'"):
        rehearsed(saved.all, "job", flow(0), flow(2), broker=log.path, last=timedelta(hours=1), mapping={})
    saved.savepoint("job", "early")
    put(log, "scores", [("a", 1, 3.0), ("b", 5, 4.0), ("c", 0, 5.0), ("a", 0, 40.0)])
    before = saved.job("job").newest_batches()
    done = rehearsed(saved.all, "job", flow(0), flow(1), broker=log.path, last=timedelta(hours=1), mapping={})
    (output,) = done["outputs"]
    assert output["counts"] == {"same": 2, "changed": 0, "only old": 1, "only new": 0}
    assert output["rows"][0]["key"]["user"] == "c"
    done = rehearsed(saved.all, "job", flow(0), flow(2), broker=log.path, last=timedelta(hours=1), mapping={})
    (output,) = done["outputs"]
    assert output["counts"] == {"same": 1, "changed": 1, "only old": 1, "only new": 0}
    changed = next(each for each in output["rows"] if each["what"] == "changed")
    assert (changed["old"]["total"], changed["new"]["total"]) == (2, 1), "the state of the savepoint has the first row"
    assert (done["records"], done["savepoint"]) == (4, "early")
    assert read(log, "totals") == []
    assert saved.job("job").newest_batches() == before
    assert [entry.name for entry in saved.all.folder.iterdir()] == ["early"]
