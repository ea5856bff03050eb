"""Questions to a running job: the row of a key, and how far the job had come."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.errors import InvalidInput, NotFound, SourceUnavailable
from millstream.log import EmbeddedLog
from millstream.plan.time.bundles import micros
from times import t
from waiting import until

from .support import put, read, scores


@pytest.mark.more
def test_a_running_job_answers_with_its_batch_and_watermark(log: EmbeddedLog, spark: SparkSession) -> None:
    flow = ms.Flow("sums")
    scores(flow, watermark=ms.ascending()).group_by("user").agg(total=ms.sum("n")).write("totals")
    put(log, "scores", [("ann", 1, 0), ("bob", 2, 4)])
    job = flow.start(broker=log.path)
    try:

        def asked(who: str) -> object:
            return job.progress.batch >= 0 and ms.ask(job, table="totals", key=who, broker=log.path).row

        until(lambda: asked("bob") == {"user": "bob", "total": 2}, "bob's row")
        until(lambda: asked("ann") == {"user": "ann", "total": 1}, "ann's row")
        first = ms.ask(job, table="totals", key="ann", broker=log.path)
        assert first.row == {"user": "ann", "total": 1}
        put(log, "scores", [("ann", 5, 9)])
        until(lambda: asked("ann") == {"user": "ann", "total": 6}, "ann's new row")
        until(lambda: ms.ask(job, table="totals", key="ann", broker=log.path).watermark == t(9), "watermark")
        later = ms.ask(job, table="totals", key="ann", broker=log.path)
        assert later.batch > first.batch
        assert first.as_of is not None
        assert later.as_of is not None
        assert first.as_of < later.as_of < datetime.now(UTC)
        assert ms.ask(job, table="totals", key="eve", broker=log.path).row is None
        # Another process knows the job by its name, a second or two later.
        until(lambda: ms.ask("sums", table="totals", key="ann", broker=log.path).batch >= first.batch, "progress")
        with pytest.raises(InvalidInput, match="keeps no table 'total'"):
            ms.ask(job, table="total", key="ann", broker=log.path)
        with pytest.raises(NotFound, match="no job 'sum'"):
            ms.ask("sum", table="totals", key="ann", broker=log.path)
    finally:
        job.stop()


@pytest.mark.more
def test_steps_are_asked_for_what_they_hold_and_have_not_sent(log: EmbeddedLog, spark: SparkSession) -> None:
    flow = ms.Flow("sums")
    rows = scores(flow)
    window = rows.key_by("user").window(ms.fixed("10 seconds"))
    window.agg(total=ms.sum("n"), all=ms.collect("n"), name="panes").write("panes")
    rows.group_by("user").agg(total=ms.sum("n"), users=ms.count_distinct("n"), name="totals").write("totals")
    rows.to_table("user", name="latest").write("latest")
    rows.group_by().agg(total=ms.sum("n"), name="all").write("all")
    rows.distinct("user", name="users").write("users")
    put(log, "scores", [("ann", 1, 1), ("bob", 2, 4), ("ann", 5, 6), ("ann", 7, 12)])
    job = flow.start(broker=log.path)
    try:
        until(lambda: job.progress.batch >= 0 and job.progress.watermark == micros(t(7)), "the first batch")
        first, second = ({"start": t(start), "end": t(start + 10)} for start in (0, 10))
        for running in (job, "sums"):  # of this process, and as another process asks it
            windows = ms.ask(running, step="panes", key="ann", broker=log.path)
            assert sorted(windows.rows, key=lambda row: row["total"]) == [
                {"user": "ann", "window": first, "total": 6, "all": [1, 5]},
                {"user": "ann", "window": second, "total": 7, "all": [7]},
            ]
            assert (windows.batch, windows.watermark) == (job.progress.batch, t(7))
            assert windows.as_of == job.progress.as_of
            one = ms.ask(running, table="panes", key={"user": "ann"}, window=t(10), broker=log.path)
            assert one.row == {"user": "ann", "window": second, "total": 7, "all": [7]}
            assert ms.ask(running, table="panes", key="bob", window=t(10), broker=log.path).row is None
            totals = ms.ask(running, step="totals", key="ann", broker=log.path)
            assert totals.rows == [{"user": "ann", "total": 13, "users": 3}]
            assert ms.ask(running, step="totals", key="eve", broker=log.path).rows == []
            assert ms.ask(running, step="latest", key="ann", broker=log.path).row == {
                "user": "ann",
                "n": 7,
                "at": t(12),
            }
            assert ms.ask(running, step="all", broker=log.path).rows == [{"total": 15}]
            with pytest.raises(InvalidInput, match="the step 'all' has no key"):
                ms.ask(running, step="all", key="ann", broker=log.path)
            with pytest.raises(NotFound, match="no step 'pane' with state"):
                ms.ask(running, step="pane", key="ann", broker=log.path)
            with pytest.raises(InvalidInput, match="the state of the step 'users' cannot be asked for"):
                ms.ask(running, step="users", key="ann", broker=log.path)
            with pytest.raises(InvalidInput, match="'totals' is not written by a step with windows"):
                ms.ask(running, table="totals", key="ann", window=t(0), broker=log.path)
        assert read(log, "panes") == []  # nothing of that has been written yet
    finally:
        job.stop()
    with pytest.raises(SourceUnavailable, match="the job 'sums' does not answer"):
        ms.ask("sums", step="totals", key="ann", broker=log.path)


def test_a_question_names_a_table_or_a_step_and_a_window_with_a_time_zone(log: EmbeddedLog) -> None:
    with pytest.raises(InvalidInput, match="ask for a table or for a step"):
        ms.ask("sums", key="ann", broker=log.path)
    with pytest.raises(InvalidInput, match="window is the start of a window"):
        ms.ask("sums", step="panes", key="ann", window=t(0).replace(tzinfo=None), broker=log.path)
