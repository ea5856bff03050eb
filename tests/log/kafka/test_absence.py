"""A broker goes away and comes back: records sent meanwhile are buffered, and all clients continue."""

from __future__ import annotations

import pytest

from kafka_cluster import KafkaCluster
from millstream.errors import KafkaUnavailable, MillstreamError
from millstream.log import Producer, connect
from waiting import until

from .support import filled, new, numbers, polled

pytestmark = pytest.mark.soak  # brokers are killed, for a minute in all


def flushed(producer: Producer) -> bool:
    try:
        producer.flush()
    except KafkaUnavailable:
        return False
    return True


def test_records_are_held_until_the_broker_is_back(
    kafka: KafkaCluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.log.kafka.chunk_sending.PATIENCE_SECONDS", 4.0)
    with connect(f"kafka://{kafka.bootstrap}") as log:
        topic = filled(log, 5)
        with log.producer() as producer, log.consumer(topic, group=new("g")) as consumer:
            assert numbers(polled(consumer, 5)) == [0, 1, 2, 3, 4]
            consumer.commit()
            kafka.kill(1)
            try:
                receipts = [producer.send(topic, str(number)) for number in range(5, 10)]
                with pytest.raises(KafkaUnavailable, match="the records are kept"):
                    producer.flush()
                assert producer.waiting == 5
                assert consumer.poll(0.5) == []
                impatient = log.producer()
                impatient.send(topic, b"lost")
                with pytest.raises(MillstreamError, match="1 records could not be stored and are lost"):
                    impatient.close()
            finally:
                kafka.restart(1)
            until(lambda: flushed(producer), "the records were stored")
            assert [receipt.offset for receipt in receipts] == [5, 6, 7, 8, 9]
            assert numbers(polled(consumer, 5)) == [5, 6, 7, 8, 9]
    printed = capfd.readouterr().err.splitlines()
    own = ("could not be stored yet", "  where: ", "  next:  ")
    assert [line for line in printed if not any(each in line for each in own)] == []  # nothing of Kafka's own library
