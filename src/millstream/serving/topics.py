"""Topics of the embedded log, looked up by key: the files are memory-mapped, so keeping records is cheap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.compute as pc

from millstream.connectors.catalog import KEY_TEXT, Remembered
from millstream.connectors.lookups import PlainRow, Row, TypedRow
from millstream.log import Broker, EmbeddedLog
from millstream.log.embedded import Topic
from millstream.log.kafka.address import SCHEME
from millstream.log.storage.partition import Partition
from millstream.log.storage.reader import Fetch, PartitionReader, offset_at_time
from millstream.records import align
from millstream.serving.newest import NO_TIME, Found, Index, KeyedTopic, News, home_of, newer

if TYPE_CHECKING:
    from millstream.log.kafka.log import KafkaLog


def text_table(topic: str, log: Broker) -> Remembered:
    """A topic that no job has recorded, on any broker."""
    where = str(log.path) if isinstance(log, EmbeddedLog) else SCHEME + cast("KafkaLog", log).clients.address.servers
    return Remembered(topic, "topic", where, KEY_TEXT, None)


class TopicTable(KeyedTopic[EmbeddedLog, Topic]):
    """A topic of the embedded log."""

    def _topic(self) -> Topic:
        return self._log.topic(self._log.resolve(self.name))

    def _index_of(self, topic: Topic) -> EmbeddedIndex:
        return EmbeddedIndex(self._log, topic, self._clock)

    def _scanned(self, topic: Topic, key: bytes) -> Found | None:
        home = home_of(key, topic.settings.partitions)
        found = _newest(self._log, topic.partition(home), key)
        for partition in topic.partitions():
            if partition.number != home:
                other = _newest(self._log, partition, key, since=NO_TIME if found is None else found[0])
                found = newer(found, other)
        return found

    def _row(self, value: pa.Scalar, topic: Topic) -> Row:
        schema = topic.settings.schema
        if schema is None:
            return PlainRow(value.as_py())
        held = pa.array([value], value.type)
        batch = pa.RecordBatch.from_arrays(held.flatten(), schema=pa.schema(list(value.type)))
        return TypedRow(align(batch, schema.arrow))  # it may have been read before the topic gained a column


def _newest(log: EmbeddedLog, partition: Partition, key: bytes, since: int = NO_TIME) -> Found | None:
    """The last record of a key; records older than `since` may be skipped."""
    wanted = pa.scalar(key, pa.binary())
    found = None
    first = partition.start_offset() if since == NO_TIME else offset_at_time(partition, since)
    for fetch in _fetches(log, PartitionReader(partition, first, committed=True)):
        same = pc.equal(fetch.stored.column("key"), wanted)
        places = pc.indices_nonzero(same)
        if len(places):
            place = places[-1].as_py()
            times = fetch.stored.column("timestamp").cast(pa.int64())
            found = (times[place].as_py() or NO_TIME, fetch.stored.column("value")[place])
    return found


def _fetches(log: EmbeddedLog, reader: PartitionReader) -> Iterator[Fetch]:
    """Frames with keys. Transactions of dead producers would block a reader forever."""
    if reader.partition.marks.read().open:
        log.end_abandoned(reader.partition)
    for fetch in reader.stream():
        if "key" in fetch.stored.schema.names:
            yield fetch.with_checked_texts()


class EmbeddedIndex(Index[Topic]):
    def __init__(self, log: EmbeddedLog, topic: Topic, clock: Callable[[], float]) -> None:
        super().__init__(topic, clock)
        self._log = log
        self._readers: list[PartitionReader] = []

    def _news(self) -> Iterator[News]:
        for number in range(len(self._readers), self._topic.settings.partitions):
            partition = self._topic.partition(number)
            self._readers.append(PartitionReader(partition, partition.start_offset(), committed=True))
        for number, reader in enumerate(self._readers):
            mark = reader.partition.marks.read()
            if mark.end.offset == reader.offset and not mark.open:
                continue
            for fetch in _fetches(self._log, reader):
                yield number, fetch.stored, fetch.offsets

    def _first_offsets(self) -> list[int]:
        return [reader.partition.start_offset() for reader in self._readers]
