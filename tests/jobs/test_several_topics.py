"""A job that reads several topics: watermarks per topic, new topics while it runs, and dead letters by topic."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

import millstream as ms
from millstream.errors import MillstreamError
from millstream.log import Broker, EmbeddedLog
from times import t
from waiting import until

from .support import CAUGHT_UP, SCHEMA, read, row

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.more)])
def address(request: pytest.FixtureRequest) -> str:
    if request.param == "kafka":
        return f"kafka://{request.getfixturevalue('kafka').bootstrap}"
    return str(request.getfixturevalue("log").path)


@pytest.fixture
def broker(address: str) -> Iterator[Broker]:
    with ms.connect(address) as opened:
        yield opened


def test_a_topic_that_comes_while_the_job_runs_is_read(broker: Broker, address: str, log: EmbeddedLog) -> None:
    own = f"t{uuid.uuid4().hex[:8]}"
    broker.create_topic(f"{own}.a")
    with broker.producer() as producer:
        producer.send(f"{own}.a", b"first")
        producer.send(f"{own}.a", b"\xff")
    flow = ms.Flow(own)
    lines = flow.read(ms.topics(f"{own}[.].*"), "value string, topic string", format="string")
    lines.select("value", topic="substr(topic, -1)").write(f"out.{own}")
    lines.dead.select("topic", "partition", "offset").write(f"dead.{own}")
    job = flow.start(broker=address, folder=log.path / "job", tick_s=0.1)
    try:
        until(lambda: rows(broker, f"out.{own}") == [("first", "a")], "the first row")
        broker.create_topic(f"{own}.b")
        with broker.producer() as producer:
            producer.send(f"{own}.b", b"second")
        until(lambda: rows(broker, f"out.{own}") == [("first", "a"), ("second", "b")], "the second row")
    finally:
        job.stop()
    with broker.consumer(f"dead.{own}") as consumer:
        assert [record.value for record in consumer.until_caught_up()] == [
            {"topic": f"{own}.a", "partition": 0, "offset": 1}
        ]


def rows(broker: Broker, topic: str) -> list[tuple[str, str]]:
    if topic not in broker.topics():
        return []
    with broker.consumer(topic) as consumer:
        return [(record.value["value"], record.value["topic"]) for record in consumer.until_caught_up()]


@pytest.mark.more
def test_each_topic_has_a_watermark_of_its_own(log: EmbeddedLog) -> None:
    """The slower topic holds windows open; a job goes on from its offsets in both."""
    flow = ms.Flow("totals")
    scores = flow.read(["eu", "us"], SCHEMA, event_time="at", watermark=ms.bounded("0 seconds"))
    scores.key_by("user").window(ms.fixed("10 seconds")).agg(total=ms.sum("n")).select("user", "total").write("totals")
    for topic in ("eu", "us"):
        log.create_topic(topic, schema=SCHEMA, partitions=2 if topic == "us" else 1)
    with pytest.raises(MillstreamError, match="the flow reads and writes 'us'"):
        flow.replay(into="us", broker=log.path)
    with log.producer() as producer:
        producer.send("eu", row("ann", 1, 1))
        producer.send("eu", row("ann", 8, 11))
        producer.send("us", row("ann", 2, 2), partition=0)
        producer.send("us", row("bob", 4, 3), partition=1)
    flow.run(broker=log.path, until=CAUGHT_UP)
    assert read(log, "totals") == []
    with log.producer() as producer:
        for partition in (0, 1):
            producer.send("us", {"user": "ann", "n": 0, "at": t(12)}, partition=partition)
    flow.run(broker=log.path, until=CAUGHT_UP)
    assert sorted(each.items() for each in read(log, "totals")) == sorted(
        each.items() for each in [{"user": "ann", "total": 3}, {"user": "bob", "total": 4}]
    )
    assert log.topic("totals").settings.partitions == 2
