"""A truncation is one record, in one partition of a captured topic, and deletes what all partitions have before it.

A reader may be ahead of it in the other partitions. But each change knows its place in the change log of the database.
"""

from __future__ import annotations

from typing import Any

from millstream.capture.changes import SNAPSHOT, TRUNCATE
from millstream.log import Broker

Order = tuple[int, bool, int]


def offsets_after_newest(log: Broker, topic: str) -> dict[int, int]:
    """In each partition, the first offset after the newest truncation in the topic; it has to have one."""
    newest: Order | None = None
    with log.consumer(topic) as consumer:
        for record in consumer.until_caught_up():
            if record.value is not None and record.value["op"] == TRUNCATE:
                newest = max(newest or _order(record.value), _order(record.value))
    assert newest is not None
    found: dict[int, int] = {}
    with log.consumer(topic) as consumer:
        for record in consumer.until_caught_up():
            if record.partition not in found and record.value is not None and _order(record.value) > newest:
                found[record.partition] = record.offset
        ends = {place.partition: consumer.position(topic, place.partition) for place in consumer.assignment}
    return ends | found


def _order(change: dict[str, Any]) -> Order:
    """Rows of a snapshot are numbered by themselves, and come before the changes at their position."""
    return change["position"], change["op"] != SNAPSHOT, change["number"]
