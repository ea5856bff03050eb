"""Questions to a flow, stored queries and models, whose topics are on Kafka."""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from answering import answering
from jobs.support import CAUGHT_UP, read
from millstream.errors import AskFailed, AskTimedOut
from millstream.jobs.asked.ask_topics import RETENTION
from millstream.log.kafka.log import KafkaLog
from times import t

PATIENCE = "5 minutes"
ARTICLES = "title string, n int, at timestamp"
pytestmark = pytest.mark.more


@pytest.fixture
def name() -> str:
    return f"f{uuid.uuid4().hex[:12]}"


def test_requests_are_answered_once_each(log: KafkaLog, name: str) -> None:
    with answering(log, name) as ask, ms.client(name, broker=log) as client:
        calls = [(n, client.submit("tenth", PATIENCE, n=n)) for n in range(1, 50)]
        assert [call.result() for _, call in calls] == [[{"tenth": 10 / n}] for n, _ in calls]
        with pytest.raises(AskFailed, match=r"(?i)division by zero"):
            client.call("tenth", PATIENCE, n=0)
        with log.consumer(ask.answers_topic) as consumer:
            answers = Counter(record.value["request"] for record in consumer.until_caught_up())
        assert sorted(answers.values()) == [1] * 50
        assert log.describe_topic(ask.requests_topic).settings.retention == RETENTION
    with ms.client(name, broker=log) as client, pytest.raises(AskTimedOut):
        client.call("tenth", "100 milliseconds", n=1)


def test_queries_and_models_are_stored(log: KafkaLog, name: str) -> None:
    with ms.queries(log, f"{name}.alerts") as stored:
        stored.put("a", "solar", owner="ann", at=t(0))
        stored.put("b", "wind", at=t(0))
        stored.put("a", "solar AND power", at=t(1))
        stored.remove("b", at=t(2))
        assert [(each.id, each.query, each.owner) for each in stored.list()] == [("a", "solar AND power", None)]
    with ms.models(f"{name}.models", log=log) as models:
        models.put({"coefficients": [1.0]})
        models.put({"coefficients": [2.0]})
    with log.consumer(f"{name}.models") as consumer:
        contents = [record.value["content"] for record in consumer.until_caught_up()]
    assert contents == [b'{"coefficients": [1.0]}', b'{"coefficients": [2.0]}']


def test_a_query_of_the_past_reads_the_log_and_models_change(
    log: KafkaLog, name: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the second run has a new query and a new model; the documents before it are read from Kafka again."""
    monkeypatch.setenv("MILLSTREAM_HOME", str(tmp_path / "home"))
    articles = f"{name}.articles"
    log.create_topic(articles, schema=ARTICLES, partitions=2)

    def run(first: int, last: int) -> None:
        with log.producer() as producer:
            for n in range(first, last):
                producer.send(articles, {"title": f"solar {n}", "n": n, "at": t(n)}, partition=n % 2)
        flow = ms.Flow(name, log=log.address)
        rows = flow.read(articles, ARTICLES, event_time="at", watermark=ms.ascending())
        with (
            ms.queries(log.address, f"{name}.alerts") as stored,
            ms.models(f"{name}.models", log=log.address) as models,
        ):
            found = rows.match_queries(stored, text="title", history="log").select("query", "n")
            found.write(f"{name}.found")
            rows.predict(models, "n", into="score").select("n", "score").write(f"{name}.scores")
        flow.run(broker=log.address, until=CAUGHT_UP, progress="none")

    with ms.queries(log, f"{name}.alerts") as stored, ms.models(f"{name}.models", log=log) as models:
        stored.put("live", "solar", at=t(0))
        models.put({"coefficients": [1.0]})
        run(0, 20)
        stored.put("new", "solar", since=t(5), at=t(30))
        models.put({"coefficients": [2.0]})
        run(20, 60)
        run(60, 61)
    found = Counter((row["query"], row["n"]) for row in read(log, f"{name}.found"))
    assert set(found.values()) == {1}
    assert {n for query, n in found if query == "live"} >= set(range(58))
    assert {n for query, n in found if query == "new"} >= set(range(5, 58))
    assert min(n for query, n in found if query == "new") == 5
    scores = {row["n"]: row["score"] for row in read(log, f"{name}.scores")}
    assert [scores[n] for n in (3, 19, 25, 60)] == [3.0, 19.0, 50.0, 120.0]
