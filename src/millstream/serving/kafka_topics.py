"""Kafka topics, looked up by key: an answer reflects everything committed at the time of the request.

Values are kept encoded, and decoded on lookup with the topic's current schema.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from millstream.connectors.lookups import PlainRow, Row, TableUnavailable, TypedRow
from millstream.errors import KafkaUnavailable, OffsetLost, UnknownTopic
from millstream.log import TopicPartition
from millstream.log.kafka.clients import END, OPEN_SECONDS, READER_DEFAULTS, Clients
from millstream.log.kafka.failures import admin_module, translated, translated_errors
from millstream.log.kafka.log import KafkaLog
from millstream.log.kafka.messages import nearest_us, times_ms
from millstream.log.kafka.topics import KafkaTopic, as_kafka, described, offsets
from millstream.log.storage.layout import TIMESTAMP
from millstream.records import codec
from millstream.serving.newest import Found, Index, KeyedTopic, News, home_of, newer

READ_AT_ONCE = 10_000
READ_SECONDS = 0.1
STANDSTILL_SECONDS = 15.0
LOOK_SECONDS = 2.0  # changes of topics may go unnoticed for this long

Messages: TypeAlias = Sequence[Any]


class KafkaTopicTable(KeyedTopic[KafkaLog, KafkaTopic]):
    """A Kafka topic."""

    def _topic(self) -> KafkaTopic:
        """Checks that it is still the same topic: the log's metadata may be some seconds old."""
        topic = self._log.topic(self._log.resolve(self.name))
        with suppress(UnknownTopic):
            if described(self._log.clients, topic.name, OPEN_SECONDS) == (topic.identity, topic.settings.partitions):
                return topic
        return self._log.topic(topic.name, fresh=True)

    def _index_of(self, topic: KafkaTopic) -> KafkaIndex:
        return KafkaIndex(self._log.clients, topic, self._clock)

    def _scanned(self, topic: KafkaTopic, key: bytes) -> Found | None:
        clients, places = self._log.clients, topic.places()
        home = places.pop(home_of(key, len(places)))
        with Reading(clients) as reading:
            reading.add(offsets(clients, [home], "earliest", seconds=OPEN_SECONDS))
            found = self._newest(reading, key)
            since: str | int = "earliest" if found is None else found[0] // 1000
            reading.add(offsets(clients, places, since, seconds=OPEN_SECONDS))
            return newer(found, self._newest(reading, key))

    def _newest(self, reading: Reading, key: bytes) -> Found | None:
        """The last record of a key among unread records."""
        of_place: dict[TopicPartition, Any] = {}
        for place, messages in reading.up_to_now():
            for message in messages:
                if message.key() == key:
                    of_place[place] = message
        found = None
        for _, message in sorted(of_place.items()):
            found = newer(found, (message.timestamp()[1] * 1000, pa.scalar(message.value(), pa.binary())))
        return found

    def _row(self, value: pa.Scalar, topic: KafkaTopic) -> Row:
        schema = topic.settings.schema
        if schema is None:
            return PlainRow(value.as_py())
        decoded = codec("json", schema).decode([value.as_py()])
        if decoded.failures:
            raise TableUnavailable(
                f"the newest record of this key does not fit the schema of its topic: {decoded.failures[0].reason}",
                where=f"topic '{topic.name}', {self._log.address}",
                next_step="it was not written through Millstream; write the row again",
            )
        return TypedRow(decoded.rows)


class KafkaIndex(Index[KafkaTopic]):
    def __init__(self, clients: Clients, topic: KafkaTopic, clock: Callable[[], float]) -> None:
        super().__init__(topic, clock)
        self._clients = clients
        self._reading = Reading(clients)
        self._known = 0

    def _news(self) -> Iterator[News]:
        fresh = self._topic.places()[self._known :]
        self._reading.add(offsets(self._clients, fresh, "earliest", seconds=OPEN_SECONDS))
        self._known += len(fresh)
        for place, messages in self._reading.up_to_now():
            columns = {
                "key": pa.array([message.key() for message in messages], pa.binary()),
                "value": pa.array([message.value() for message in messages], pa.binary()),
                "timestamp": pa.array(nearest_us(times_ms(messages))).cast(TIMESTAMP),
            }
            found = np.array([message.offset() for message in messages], np.int64)
            yield place.partition, pa.RecordBatch.from_pydict(columns), found

    def _first_offsets(self) -> list[int]:
        firsts = offsets(self._clients, self._topic.places(), "earliest", seconds=OPEN_SECONDS)
        return [firsts[place] for place in self._topic.places()]

    def close(self) -> None:
        self._reading.close()


class Reading:
    """A client of some partitions, without a group. It prefetches; records are taken on request."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._reached: dict[TopicPartition, int] = {}
        self._client = clients.consumer(
            defaults=READER_DEFAULTS,
            group_id="millstream-tables",
            enable_auto_commit=False,
            enable_partition_eof=True,
            auto_offset_reset="error",
            isolation_level="read_committed",
            allow_auto_create_topics=False,
        )

    def add(self, starts: Mapping[TopicPartition, int]) -> None:
        if starts:
            self._reached |= starts
            with translated_errors(self._clients.where):
                self._client.incremental_assign(list(as_kafka(starts)))

    def up_to_now(self) -> Iterator[tuple[TopicPartition, Messages]]:
        """All committed records that were not read yet."""
        ends = offsets(self._clients, self._reached, "latest", committed=True, seconds=OPEN_SECONDS)
        if any(end < self._reached[place] for place, end in ends.items()):
            raise OffsetLost("a partition ends before what was read of it", where=self._clients.where)
        moved, refusal = time.monotonic(), None
        while any(self._reached[place] < end for place, end in ends.items()):
            with translated_errors(self._clients.where):
                first: Any = self._client.poll(READ_SECONDS)  # `consume` would wait for the full number
                messages = [] if first is None else [first, *self._client.consume(READ_AT_ONCE, 0)]
            together: dict[TopicPartition, list[Any]] = {}
            for message in messages:
                error, place = message.error(), TopicPartition(message.topic() or "", message.partition() or 0)
                if error is None:
                    together.setdefault(place, []).append(message)
                elif error.name() == END:  # after transaction markers, which are not returned
                    self._reached[place] = max(self._reached[place], message.offset())
                elif error.name() == "_AUTO_OFFSET_RESET":
                    raise OffsetLost("records were deleted before they were read", where=str(place))
                else:
                    refusal = error
            for place, of_place in together.items():
                self._reached[place] = max(self._reached[place], of_place[-1].offset() + 1)
                yield place, of_place
            if any(message.error() is None or message.error().name() == END for message in messages):
                moved, refusal = time.monotonic(), None
            elif time.monotonic() - moved > STANDSTILL_SECONDS:
                raise self._stands_still(refusal)

    def _stands_still(self, refusal: Any) -> Exception:
        if refusal is not None:
            return translated(refusal, self._clients.where)
        return KafkaUnavailable(
            f"Kafka has sent nothing for {STANDSTILL_SECONDS:.0f} seconds, although there are more records",
            where=self._clients.where,
            next_step="check that its brokers are up and reachable",
        )

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


# ---------------------------------------------------------------- topics


class KafkaTopics:
    """The topics of Kafka and whether each is compacted, fetched together at most every few seconds."""

    def __init__(self, log: KafkaLog) -> None:
        self._log = log
        self._looked_at = float("-inf")
        self._known: dict[str, bool] = {}

    def __call__(self, *, fresh: bool = True) -> dict[str, bool]:
        if fresh or time.monotonic() - self._looked_at > LOOK_SECONDS:
            self._known = self._look()
            self._looked_at = time.monotonic()
        return self._known

    def _look(self) -> dict[str, bool]:
        admin, clients = admin_module(), self._log.clients
        names = self._log.topics()
        asked = [admin.ConfigResource(admin.ResourceType.TOPIC, name) for name in names]
        if not asked:
            return {}
        try:
            found = clients.answered(lambda: clients.admin.describe_configs(asked), self._log.address)
        except UnknownTopic:
            if names == self._log.topics():
                raise
            return self._look()  # a topic was deleted meanwhile
        return {resource.name: "compact" in config["cleanup.policy"].value for resource, config in found.items()}
