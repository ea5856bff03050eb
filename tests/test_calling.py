"""Callers of a flow's questions: what they get, and that each request is answered once."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import pytest

import millstream as ms
from answering import answering, tenths
from millstream.errors import AskFailed, AskTimedOut, ClosedError, InvalidInput, NotFound, UnknownTopic
from millstream.jobs.asked.ask_topics import prepare_topics
from millstream.log import EmbeddedLog
from waiting import until

PATIENCE = "5 minutes"


def test_many_requests_are_in_flight_and_each_is_answered_once(log: EmbeddedLog) -> None:
    with answering(log) as ask, ms.client("sums", broker=log) as one, ms.client("sums", broker=log.path) as other:
        calls = [(n, client.submit("tenth", PATIENCE, n=n)) for n in range(1, 100) for client in (one, other)]
        failing = one.submit("tenth", PATIENCE, n=0)
        assert [call.result() for _, call in calls] == [[{"tenth": 10 / n}] for n, _ in calls]
        with pytest.raises(AskFailed, match=r"(?i)division by zero"):
            failing.result()
        assert one.call("tenth", PATIENCE, n=4) == [{"tenth": 2.5}]
        with log.consumer(ask.answers_topic) as consumer:
            answers = Counter(record.value["request"] for record in consumer.until_caught_up())
        assert set(answers.values()) == {1}
        assert len(answers) == len(calls) + 2


def test_a_call_ends_with_an_error_if_nobody_answers(log: EmbeddedLog) -> None:
    flow, _ = tenths()
    prepare_topics(flow.asks.values(), log)
    with ms.client("sums", broker=log) as client:
        with pytest.raises(AskTimedOut, match=r"was not answered within 0\.1 seconds"):
            client.call("tenth", "100 milliseconds", n=1)
        waiting = client.submit("tenth", PATIENCE, n=1)
        gone = client.submit("tenth", PATIENCE, n=1)
        assert gone.cancel()
    with pytest.raises(ClosedError):
        waiting.result()
    with pytest.raises(ClosedError, match="this client is closed"):
        client.call("tenth", n=1)


def test_a_request_that_cannot_be_stored_ends_with_the_error(log: EmbeddedLog) -> None:
    flow, ask = tenths()
    prepare_topics(flow.asks.values(), log)
    with ms.client("sums", broker=log) as client:
        with pytest.raises(AskTimedOut):  # it knows the topics now
            client.call("tenth", "1 millisecond", n=1)
        log.delete_topic(ask.requests_topic)
        with pytest.raises(UnknownTopic):
            client.submit("tenth", PATIENCE, n=1).result()


def test_a_request_whose_caller_has_given_up_is_not_answered(log: EmbeddedLog) -> None:
    flow, ask = tenths()
    prepare_topics(flow.asks.values(), log)
    with ms.client("sums", broker=log) as client:
        with pytest.raises(AskTimedOut):
            client.call("tenth", "1 millisecond", n=1)
        with answering(log), log.consumer(ask.answers_topic) as consumer:
            assert client.call("tenth", PATIENCE, n=5) == [{"tenth": 2.0}]
            answers = until(lambda: consumer.poll(0.1), "the answer")
            assert [record.value["rows"] for record in answers] == [[{"tenth": 2.0}]]


def test_what_is_no_request_of_a_client_is_skipped(log: EmbeddedLog) -> None:
    with answering(log) as ask, ms.client("sums", broker=log) as client, log.producer() as producer:
        for request in (None, "", "it's", "0" * 31):
            producer.send(ask.requests_topic, {"request": request, "expires": datetime.max.replace(tzinfo=UTC), "n": 0})
        assert client.call("tenth", PATIENCE, n=4) == [{"tenth": 2.5}]
        with log.consumer(ask.answers_topic) as consumer:
            assert len(list(consumer.until_caught_up())) == 1


def test_wrong_calls_are_refused_before_anything_is_sent(log: EmbeddedLog) -> None:
    with ms.client("sums", broker=log) as client:
        with pytest.raises(NotFound, match="has no question 'tenth', or has never run"):
            client.call("tenth", n=1)
        flow, ask = tenths()
        prepare_topics(flow.asks.values(), log)
        assert {name: columns.ddl for name, columns in client.asks().items()} == {"tenth": "n int"}
        with pytest.raises(NotFound, match="has no question 'tenths'") as unknown:
            client.call("tenths", n=1)
        assert "tenth" in str(unknown.value.next_step)
        with pytest.raises(InvalidInput, match="'tenth' takes n, not m, n"):
            client.call("tenth", m=1, n=1)
        with pytest.raises(InvalidInput, match="'tenth' cannot be asked"):
            client.call("tenth", n="many")
        assert log.describe_topic(ask.requests_topic).records_max == 0


def test_topics_of_another_question_are_refused(log: EmbeddedLog) -> None:
    log.create_topic("sums.tenth.answers", schema="n int")
    flow, _ = tenths()
    with pytest.raises(InvalidInput, match="does not fit the question 'tenth' of the flow 'sums'"):
        prepare_topics(flow.asks.values(), log)
