"""Stored queries in jobs: a job that continues knows the queries of the runs before."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.log import EmbeddedLog
from times import t

from .support import CAUGHT_UP, read

ARTICLES = "title string, at timestamp"


def sent(log: EmbeddedLog, *articles: tuple[str, datetime]) -> None:
    with log.producer() as producer:
        for title, at in articles:
            producer.send("articles", {"title": title, "at": at})


def found(log: EmbeddedLog) -> list[tuple[str, str]]:
    return sorted((row["query"], row["title"]) for row in read(log, "found"))


@pytest.mark.more
def test_a_job_continues_with_the_queries_and_documents_of_the_run_before(
    log: EmbeddedLog, spark: SparkSession
) -> None:
    """Method: the second run reads its state from files, and has no index in memory."""
    log.create_topic("articles", schema=ARTICLES)
    stored = ms.queries(log, "alerts")

    def run() -> Any:
        flow = ms.Flow("alerts")
        articles = flow.read("articles", ARTICLES, event_time="at", watermark=ms.ascending())
        articles.match_queries(stored, text="title", history="1 hour").write("found")
        return flow.run(broker=log.path, until=CAUGHT_UP, progress="none")

    stored.put("a", "spark", at=t(0))
    stored.put("b", "flink", at=t(0))
    sent(log, ("spark 1", t(1)), ("flink 2", t(2)), ("spark 3", t(3)))
    run()
    assert set(found(log)) <= {("a", "spark 1"), ("b", "flink 2")}  # the third waits for the watermark
    stored.remove("b", at=t(4))
    stored.put("c", "spark AND 1", since=t(0), at=t(4))
    sent(log, ("spark flink 5", t(5)), ("the end", t(60)))
    run()
    sent(log, ("the very end", t(120)))
    run()
    assert found(log) == [
        ("a", "spark 1"),
        ("a", "spark 3"),
        ("a", "spark flink 5"),
        ("b", "flink 2"),
        ("c", "spark 1"),
    ]
    stored.close()
