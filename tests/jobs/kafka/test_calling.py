"""Questions to a flow, stored queries and models, whose topics are on Kafka."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest

import millstream as ms
from answering import answering
from millstream.errors import AskFailed, AskTimedOut
from millstream.jobs.ask_topics import RETENTION
from millstream.log.kafka.log import KafkaLog
from times import t

PATIENCE = "5 minutes"
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
