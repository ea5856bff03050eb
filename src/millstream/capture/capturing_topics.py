"""The topics that a capture keeps for itself, beside those of the tables."""

from __future__ import annotations

import json

from millstream.capture.ports import Position
from millstream.errors import AlreadyExists, UnknownTopic
from millstream.log import Broker

POSITIONS = "_capture."
REQUESTS = "_capture_tables."
SEGMENT_BYTES = 1 << 20
LOOK_BACK = 1000


def newest_position(log: Broker, name: str) -> Position | None:
    """Where a capture of this name continues; None if it has stored nothing."""
    found = newest_record(log, POSITIONS + name)
    position: Position | None = None if found is None else json.loads(found)
    return position


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
            newest: bytes = found[-1]
            return newest
    return None


def create_if_missing(log: Broker, topic: str, **settings: object) -> bool:
    """Creates a topic; whether it is new."""
    try:
        log.create_topic(topic, **settings)
    except AlreadyExists:
        return False
    return True
