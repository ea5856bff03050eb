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
        made = _log_of(opened)
        _prepare_topic(opened, name)
        contents = Contents(changes, None if keys is None else Keys(keys))
        return EventStore(opened, made(name), name, contents, owns_broker=owns)
    except BaseException:
        if owns:
            opened.close()
        raise


def _log_of(broker: Broker) -> Callable[[str], EventLog]:
    if isinstance(broker, EmbeddedLog):
        return lambda name: EmbeddedEventLog(broker, name)
    from millstream.events.kafka_log import KafkaEventLog  # imported lazily: the embedded log needs no Kafka client
    from millstream.log.kafka.log import KafkaLog

    if isinstance(broker, KafkaLog):
        return lambda name: KafkaEventLog(broker, name)
    raise InvalidInput(
        "an event store is in a folder or on Kafka, not on a log server",
        where=repr(broker),
        next_step="open it where the folder of that server is: millstream.event_store(FOLDER, NAME); "
        "consumers can read its topic from the server",
    )


def _prepare_topic(broker: Broker, name: str) -> None:
    settings = prepared_topic(broker, name, SCHEMA, refused="is not an event store")
    if settings.compaction:
        raise InvalidInput(
            f"topic '{name}' is compacted: it would lose events",
            next_step=f"turn compaction off: millstream topics change {name} --no-compaction",
        )
    is_limited = settings.retention is not None or settings.retention_bytes is not None
    if is_limited and settings.retention_archive is None:
        raise InvalidInput(
            f"topic '{name}' has a retention: it would delete events, and with them the versions of streams",
            next_step=f"turn it off: millstream topics change {name} --retention none --retention-bytes none; "
            "limit single streams with keep() and scavenge(), or add an archive in a folder (--retention-archive)",
        )
