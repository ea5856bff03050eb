"""Questions to a running job: the row of a key, and how far the job had come."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.errors import InvalidInput, NotFound
from millstream.log import EmbeddedLog
from times import t
from waiting import until

from .support import put, scores


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
        assert ms.ask(job, table="totals", key="ann", broker=log.path).batch > first.batch
        assert ms.ask(job, table="totals", key="eve", broker=log.path).row is None
        # Another process knows the job by its name, a second or two later.
        until(lambda: ms.ask("sums", table="totals", key="ann", broker=log.path).batch >= first.batch, "progress")
        with pytest.raises(InvalidInput, match="keeps no table 'total'"):
            ms.ask(job, table="total", key="ann", broker=log.path)
        with pytest.raises(NotFound, match="no job 'sum'"):
            ms.ask("sum", table="totals", key="ann", broker=log.path)
    finally:
        job.stop()
