"""Questions to a running job on Spark, from many callers at the same time: each is answered once."""

from __future__ import annotations

from collections import Counter

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.errors import AskFailed
from millstream.log import EmbeddedLog
from waiting import until

from .support import put, read, scores

PATIENCE = "5 minutes"


def sums(requests: ms.Stream, totals: ms.Stream) -> ms.Stream:
    """The sum of a user, and ten divided by a number."""
    found = requests.join(totals, on="user", how="left", as_of="now")
    return (
        found.select("request", "total", tenth="10 / by")
        .group_by("request")
        .agg(total=ms.max("total"), tenth=ms.max("tenth"))
    )


def asked_flow() -> ms.Flow:
    flow = ms.Flow("sums")
    totals = scores(flow, watermark=ms.ascending()).group_by("user").agg(total=ms.sum("n"))
    flow.ask("total", "user string, by int", lambda requests: sums(requests, totals))
    return flow


@pytest.mark.more
def test_a_running_job_answers_many_callers_each_once(log: EmbeddedLog, spark: SparkSession) -> None:
    put(log, "scores", [("ann", 1, 0), ("bob", 2, 4)])
    job = asked_flow().start(broker=log.path, key_groups=1)
    try:
        with ms.client("sums", broker=log.path) as client:
            until(lambda: client.call("total", PATIENCE, user="bob", by=5) == [{"total": 2, "tenth": 2.0}], "the rows")
            assert client.call("total", PATIENCE, user="eve", by=4) == [{"total": None, "tenth": 2.5}]
            numbers = [1 + n % 10 for n in range(1_000)]  # all in flight
            calls = [client.submit("total", PATIENCE, user="ann", by=n) for n in numbers]
            failing = client.submit("total", PATIENCE, user="ann", by=0)
            assert client.submit("total", PATIENCE, user="ann", by=1).cancel()
            assert [call.result() for call in calls] == [[{"total": 1, "tenth": 10 / n}] for n in numbers]
            with pytest.raises(AskFailed, match=r"(?i)division by zero"):
                failing.result()
        answers = Counter(row["request"] for row in read(log, "sums.total.answers"))
        assert set(answers.values()) == {1}
        assert sum(job.progress.rows_held.values()) == 4  # the table, and its copy in the join: nothing of requests
    finally:
        job.stop()
    put(log, "scores", [("ann", 4, 5)])
    later = asked_flow().run(broker=log.path, until="caught up")  # the state of a job with one stage fits
    assert sum(later.progress.rows_held.values()) == 4
