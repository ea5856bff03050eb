"""Opens the event store of a name on any broker; its topic is created when it is missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from millstream.errors import InvalidInput
from millstream.events.contents import Contents
from millstream.events.embedded_log import EmbeddedEventLog
from millstream.events.keys import Keys
from millstream.events.layout import SCHEMA
from millstream.events.ports import EventLog
from millstream.events.store import EventStore
from millstream.events.upcasters import Upcaster, Upcasters
from millstream.log import Broker, EmbeddedLog, connect
from millstream.log.preparing import prepared_topic


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
    settings = prepared_topic(broker, name, SCHEMA, refused="is not an event store")
    if settings.compaction:
        raise InvalidInput(
            f"topic '{name}' is compacted: it would lose events",
            next_step=f"turn compaction off: millstream topics change {name} --no-compaction",
        )
