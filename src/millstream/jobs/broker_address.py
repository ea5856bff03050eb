"""The address at which other processes open the same broker."""

from __future__ import annotations

from millstream.log import Broker, EmbeddedLog


def address_of(log: Broker) -> str:
    if isinstance(log, EmbeddedLog):
        return str(log.path)
    from millstream.log.kafka.log import KafkaLog

    assert isinstance(log, KafkaLog)
    return log.address
