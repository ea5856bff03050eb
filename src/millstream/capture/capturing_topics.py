"""The topics that a capture keeps for itself, beside those of the tables."""

from __future__ import annotations

import json
from typing import NamedTuple

from millstream.capture.ports import Position
from millstream.errors import AlreadyExists, UnknownTopic
from millstream.log import Broker

POSITIONS = "_capture."
REQUESTS = "_capture_tables."
SEGMENT_BYTES = 1 << 20
LOOK_BACK = 1000
OWNER = "owner"
"""Of a stored position: what the capture is called in the database, which no capture into another log has."""


class Stored(NamedTuple):
    """What the log has of a capture. Its owner is stored before the database is changed, and so before any position."""

    position: Position | None
    owner: str | None
    """None also if an older version has stored the position."""


def newest(log: Broker, name: str) -> Stored:
    found = newest_record(log, POSITIONS + name)
    if found is None:
        return Stored(None, None)
    document: Position = json.loads(found)
    return Stored(document if "tables" in document else None, document.get(OWNER))


def newest_position(log: Broker, name: str) -> Position | None:
    """Where a capture of this name continues; None if it has stored no changes."""
    return newest(log, name).position


def newest_record(log: Broker, topic: str) -> bytes | None:
    """The value of the newest record of a topic that is compacted."""
    try:
        info = log.describe_topic(topic).partitions[0]
    except UnknownTopic:
        return None
    for start in (max(info.start_offset, info.end_offset - LOOK_BACK), info.start_offset):
        with log.consumer(topic, start=start) as consumer:
            found = [record.value for record in consumer.until_caught_up()]
        if found:
            value: bytes = found[-1]
            return value
    return None


def create_if_missing(log: Broker, topic: str, **settings: object) -> bool:
    """Creates a topic; whether it is new."""
    try:
        log.create_topic(topic, **settings)
    except AlreadyExists:
        return False
    return True
