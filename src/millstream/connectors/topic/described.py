"""The schema that a topic itself has, asked of its broker while a flow is being built."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

from millstream.errors import InvalidPlan, MillstreamError, NotFound
from millstream.log import ADDRESS_VARIABLE, DEFAULT_FOLDER, Broker, EmbeddedLog, connect
from millstream.log.kafka.address import address_of
from millstream.plan.endpoints import Kafka
from millstream.records import Schema
from millstream.user_lines import users_line

GIVE_ONE = "give the schema: read(source, 'user string, at timestamp')"


def schema_of_topic(place: str | Kafka, broker: str | None) -> Schema:
    """`broker` is the address of the log, by default MILLSTREAM_BROKER, else `.millstream` here. Creates nothing."""
    topic = place if isinstance(place, str) else place.topic
    address = broker or os.environ.get(ADDRESS_VARIABLE) or DEFAULT_FOLDER
    if isinstance(place, Kafka) and place.format != "json":
        raise _unknown(topic, f"its values are {place.format}, and only its writers know their columns", GIVE_ONE)
    if isinstance(place, Kafka) and place.registry is not None:
        raise _unknown(topic, "its schemas are in a registry, which has one for each version of its writers", GIVE_ONE)
    try:
        with _opened(place, address) as log:
            schema = log.topic(topic).settings.schema
            where = str(log.path) if isinstance(log, EmbeddedLog) else address
    except MillstreamError as error:
        if isinstance(error, InvalidPlan):
            raise
        step = f"{GIVE_ONE}; or name the log that has the topic: Flow(…, log=…), {ADDRESS_VARIABLE} or run --log"
        raise _unknown(topic, f"it cannot be asked: {error.what}", step) from error
    if schema is None:
        raise _unknown(topic, f"it has none itself (its values in {where} are bytes)", GIVE_ONE)
    return schema


def _opened(place: str | Kafka, address: str) -> Broker:
    from millstream.log.kafka.log import KafkaLog

    if isinstance(place, Kafka):
        found = address_of(place.servers, place.settings, address, topic=place.topic, step="read")
        return cast(Broker, KafkaLog(found))
    if not address.startswith("kafka://"):
        folder = Path(address.removeprefix("file://")).expanduser()
        if not (folder / "millstream.json").exists():  # opening it would make one
            raise NotFound(f"there is no log in '{folder}'")
    return connect(address)


def _unknown(topic: str, why: str, next_step: str) -> InvalidPlan:
    return InvalidPlan(f"no schema says what is in topic '{topic}': {why}", where=users_line(), next_step=next_step)
