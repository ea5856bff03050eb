"""Opens the event store of a name on any broker; its topic is created when it is missing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

from millstream.errors import AlreadyExists, InvalidInput, UnknownTopic
from millstream.events.contents import Contents
from millstream.events.embedded_log import EmbeddedEventLog
from millstream.events.keys import Keys
from millstream.events.layout import SCHEMA
from millstream.events.ports import EventLog
from millstream.events.store import EventStore
from millstream.events.upcasters import Upcaster, Upcasters
from millstream.log import Broker, EmbeddedLog, connect
from millstream.records import Schema

CREATION_SECONDS = 10.0


def event_store(
    broker: str | os.PathLike[str] | Broker,
    name: str,
    *,
    upcasters: Iterable[Upcaster] = (),
    keys: str | os.PathLike[str] | None = None,
) -> EventStore:
    """Opens an event store: `broker` is a folder, kafka://host:9092, or an open broker; `name` is also its topic.

    `keys` is the file of the keys for personal data, outside of the log.
    """
    changes = Upcasters(upcasters)
    owns = isinstance(broker, str | os.PathLike)
    opened: Broker = connect(broker) if isinstance(broker, str | os.PathLike) else broker
    try:
        _prepare_topic(opened, name)
        log = _log_of(opened)(name)
        contents = Contents(changes, None if keys is None else Keys(keys))
        return EventStore(opened, log, name, contents, owns_broker=owns)
    except BaseException:
        if owns:
            opened.close()
        raise


def _log_of(broker: Broker) -> Callable[[str], EventLog]:
    if isinstance(broker, EmbeddedLog):
        return lambda name: EmbeddedEventLog(broker, name)
    from millstream.events.kafka_log import KafkaEventLog  # imported lazily: the embedded log needs no Kafka client
    from millstream.log.kafka.log import KafkaLog

    assert isinstance(broker, KafkaLog)
    return lambda name: KafkaEventLog(broker, name)


def _prepare_topic(broker: Broker, name: str) -> None:
    try:
        settings = broker.topic(name).settings
    except UnknownTopic:
        try:
            settings = broker.create_topic(name, schema=SCHEMA).settings
        except AlreadyExists:
            settings = broker.topic(name).settings
    patience = time.monotonic() + CREATION_SECONDS
    while settings.schema is None and not isinstance(broker, EmbeddedLog) and time.monotonic() < patience:
        time.sleep(0.1)  # on Kafka another process may have created the topic, and be about to describe it
        settings = broker.topic(name).settings
    if settings.schema != Schema.of(SCHEMA) or settings.partitions != 1:
        raise InvalidInput(
            f"topic '{name}' is not an event store",
            where=f"{settings.partitions} partitions, schema: {settings.schema.ddl if settings.schema else 'none'}",
            next_step="choose another name: the store creates its topic itself",
        )
    if settings.compaction:
        raise InvalidInput(
            f"topic '{name}' is compacted: it would lose events",
            next_step=f"turn compaction off: millstream topics change {name} --no-compaction",
        )
