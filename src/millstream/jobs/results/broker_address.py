"""The address at which other processes open the same broker."""

from __future__ import annotations

from millstream.errors import InvalidInput
from millstream.log import Broker, EmbeddedLog


def address_of(log: Broker) -> str:
    if isinstance(log, EmbeddedLog):
        return str(log.path)
    from millstream.log.kafka.log import KafkaLog

    if isinstance(log, KafkaLog):
        return log.address
    raise InvalidInput(
        "flows run on a log in a folder or on Kafka, not on a log server",
        where=repr(log),
        next_step="run the flow where the folder of that server is, and name the folder",
    )
