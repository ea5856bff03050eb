"""A topic of a fixed schema that belongs to a part of Millstream: created when it is missing."""

from __future__ import annotations

import time
from typing import Any

from millstream.errors import AlreadyExists, InvalidInput, UnknownTopic
from millstream.log.broker import Broker
from millstream.log.embedded import EmbeddedLog
from millstream.log.topics import TopicSettings
from millstream.records import Schema

CREATION_SECONDS = 10.0


def prepared_topic(broker: Broker, name: str, schema: str, *, refused: str, **settings: Any) -> TopicSettings:
    """The settings of the topic, which has one partition; another topic of that name is refused with this text."""
    try:
        found = broker.topic(name).settings
    except UnknownTopic:
        try:
            found = broker.create_topic(name, schema=schema, **settings).settings
        except AlreadyExists:
            found = broker.topic(name).settings
    patience = time.monotonic() + CREATION_SECONDS
    while found.schema is None and not isinstance(broker, EmbeddedLog) and time.monotonic() < patience:
        time.sleep(0.1)  # on Kafka another process may have created the topic, and be about to describe it
        found = broker.topic(name).settings
    if found.schema != Schema.of(schema) or found.partitions != 1:
        raise InvalidInput(
            f"topic '{name}' {refused}",
            where=f"{found.partitions} partitions, schema: {found.schema.ddl if found.schema else 'none'}",
            next_step="choose another name: the topic is created when it is missing",
        )
    return found
