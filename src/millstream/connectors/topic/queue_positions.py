"""Where the readers of a queue are: each job that reads it stores its offsets as those of a group on the broker.

A job stores the offsets up to which its batches are complete, so a record counts as waiting until its results are
written. Whoever writes to the queue counts what waits for the slowest reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.connectors.connector import Reading
from millstream.connectors.source import Offsets, Source
from millstream.connectors.topic.endpoint import Topic
from millstream.connectors.topic.queue_source import Limits
from millstream.errors import UnknownTopic
from millstream.log import EmbeddedLog, TopicPartition, open_embedded
from millstream.log.kafka.address import KafkaAddress
from millstream.records import Schema

if TYPE_CHECKING:
    from millstream.log.kafka.log import KafkaLog

BEGINNING = "queue."


def group_of(topic: str, job: str, step: str) -> str:
    """The group of a reader."""
    return f"{BEGINNING}{topic}.{job}.{step}".replace(":", ".")


@dataclass(frozen=True)
class Waiting:
    """What waits in a queue for its slowest reader."""

    records: int
    row_bytes: float | None
    reader: str | None
    """The group of the reader; None: nobody has read the queue yet."""

    def room(self, limits: Limits) -> int:
        """How many records more may wait."""
        found = [] if limits.at_most is None else [limits.at_most - self.records]
        if limits.size_bytes is not None:
            most = limits.size_bytes / self.row_bytes if self.row_bytes else limits.size_bytes
            found.append(max(1, int(most)) - self.records)
        return max(0, min(found)) if found else 1

    def __str__(self) -> str:
        whom = "nobody has read them yet" if self.reader is None else f"the slowest reader is '{self.reader}'"
        return f"{self.records:,} records wait, and {whom}"


class QueuePositions:
    """The positions in queues on one broker."""

    def __init__(self, broker: str | KafkaAddress | None) -> None:
        self._broker = broker
        self._log = _opened(broker)
        self._sources: dict[str, Source] = {}
        self._stored: dict[str, Mapping[TopicPartition, int]] = {}

    def store(self, topic: str, group: str, offsets: Offsets) -> None:
        """Stores how far a reader is, if it has moved."""
        found = {TopicPartition(topic, int(name)): offset for name, offset in offsets.items() if offset >= 0}
        if found and self._stored.get(group) != found:
            self._log.store_offsets(group, found)
            self._stored[group] = found

    def waiting(self, topic: str, schema: Schema) -> Waiting:
        """What waits in a queue; nothing, if the topic does not exist yet."""
        try:
            source = self._source(topic, schema)
            earliest, latest = source.earliest(), source.latest()
        except UnknownTopic:
            return Waiting(0, None, None)
        counts: list[tuple[int, str | None]] = []
        for group in self._log.groups():
            if group.startswith(f"{BEGINNING}{topic}."):
                places = self._log.committed_offsets(group)
                own = {str(place.partition): offset for place, offset in places.items() if place.topic == topic}
                if own:
                    counts.append((_between(earliest | own, earliest, latest), group))
        records, reader = max(counts, default=(_between(earliest, earliest, latest), None))
        return Waiting(records, source.row_bytes(), reader)

    def _source(self, topic: str, schema: Schema) -> Source:
        if topic not in self._sources:
            self._sources[topic] = Topic(topic).open_source(Reading(schema, topic, Path(), self._broker))
        return self._sources[topic]


def _opened(broker: str | KafkaAddress | None) -> EmbeddedLog | KafkaLog:
    if not isinstance(broker, KafkaAddress):
        return open_embedded(broker)
    from millstream.log.kafka.log import KafkaLog  # a job on the embedded log needs no Kafka client

    return KafkaLog(broker)


def _between(offsets: Offsets, earliest: Offsets, latest: Offsets) -> int:
    return sum(max(0, end - max(earliest.get(name, 0), offsets.get(name, 0))) for name, end in latest.items())
