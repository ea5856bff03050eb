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


@pytest.mark.more
def test_a_new_query_reads_the_log_once_and_goes_on_live(log: EmbeddedLog, spark: SparkSession) -> None:
    """Method: key groups share the partitions; a document that was late is found as well, and the state holds none."""
    log.create_topic("articles", schema=ARTICLES, partitions=3)
    stored = ms.queries(log, "alerts")

    def run() -> ms.Job:
        flow = ms.Flow("alerts", log=str(log.path))
        articles = flow.read("articles", ARTICLES, event_time="at", watermark=ms.ascending())
        kept = articles.map(upper, ARTICLES).where("title <> 'NOISE'")
        found = kept.match_queries(stored, text="title", history="log")
        found.write("found")
        found.late.write("late")
        return flow.run(broker=log.path, until=CAUGHT_UP, progress="none", key_groups=4)

    def fill(first: int, last: int) -> None:
        with log.producer() as producer:
            for number in range(first, last):
                rows = [{"title": f"spark {number}", "at": t(number)}, {"title": "noise", "at": t(number)}]
                for row in rows:
                    producer.send("articles", row, partition=number % 3)

    def numbers(query: str) -> list[int]:
        return sorted(int(title.split()[1]) for name, title in found(log) if name == query)

    fill(0, 100)
    run()
    assert numbers("new") == []
    with log.producer() as producer:
        producer.send("articles", {"title": "spark 1000", "at": t(3)}, partition=0)  # late
    stored.put("new", "spark", since=t(0), at=t(150))
    stored.put("part", "spark", since=t(90), at=t(160))
    fill(100, 200)
    run()
    fill(200, 300)
    job = run()
    fill(300, 310)
    run()
    assert numbers("new")[:290] == list(range(290))
    assert numbers("new")[-1] == 1000
    assert numbers("part")[:200] == list(range(90, 290))
    assert len(set(numbers("new"))) == len(numbers("new"))
    assert len(set(numbers("part"))) == len(numbers("part"))
    assert [row["title"] for row in read(log, "late")] == ["SPARK 1000"]
    assert sum(job.progress.rows_held.values()) < 200
    stored.close()


def upper(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "title": row["title"].upper()}
