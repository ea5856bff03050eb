"""Moves a topic from the embedded log to Kafka: its records, in order and partition by partition, and its groups.

The records of a partition get the offsets 0, 1, 2, … there, so how many have arrived says where a move that was cut
short goes on. Whoever writes meanwhile is not held up until the very end: then nobody writes for the moment it takes to
copy the rest, and afterwards writers are told where the topic has gone. What was moved stays in the log, to be read.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import AlreadyExists, InvalidInput, MillstreamError
from millstream.log.groups import committed_offsets
from millstream.log.kafka.failures import said_plainly, translated
from millstream.log.kafka.groups import store_offsets
from millstream.log.reader import PartitionReader
from millstream.records import codec

if TYPE_CHECKING:
    from millstream.log.embedded import EmbeddedLog, Topic
    from millstream.log.kafka.log import KafkaLog
    from millstream.log.partition import Partition

MOVE = "move"
QUEUE_KBYTES = 256 << 10
OnProgress = Callable[[str, int], None]


@dataclass
class OffsetMap:
    """Where the records of a partition went: runs of offsets that follow one another, as first offset and rank."""

    starts: list[int] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    count: int = 0
    next: int = 0

    def add(self, offsets: Sequence[int]) -> None:
        first, last = int(offsets[0]), int(offsets[-1])
        if last - first + 1 == len(offsets):
            self._add_run(first, len(offsets))
        else:  # thinned out by compaction
            for offset in offsets:
                self._add_run(int(offset), 1)

    def _add_run(self, first: int, length: int) -> None:
        if not self.starts or first != self.next:
            self.starts.append(first)
            self.ranks.append(self.count)
        self.count += length
        self.next = first + length

    def moved(self, offset: int) -> int:
        """The offset there of the first record at or after this one."""
        run = bisect.bisect_right(self.starts, offset) - 1
        if run < 0:
            return 0
        end = self.ranks[run + 1] if run + 1 < len(self.ranks) else self.count
        return min(self.ranks[run] + offset - self.starts[run], end)


@dataclass(frozen=True)
class Moved:
    topic: str
    records: int
    identity_before: str
    identity: str
    partitions: Mapping[int, OffsetMap]
    groups: tuple[str, ...]


def check_movable(log: EmbeddedLog, name: str) -> None:
    """Refuses what would be left behind, before anything is copied."""
    topic = log.topic(name)
    used = [info.name for info in log.queues() if name in (info.topic, info.settings.dead_letters)]
    if used:
        raise InvalidInput(
            f"topic '{name}' is used by queue {', '.join(used)}, whose messages cannot be moved",
            next_step="let the queue run empty, delete it, and make it again on Kafka",
        )
    if (read := log.resolve(name)) != name or log.switches.served_by(name):
        raise InvalidInput(
            f"topic '{name}' is part of a switch: readers of a name are sent to another topic",
            where=f"'{name}' is read as '{read}'" if read != name else None,
            next_step="take the switch back first: millstream switch --back",
        )
    for group in _groups(log, name):
        log.check_idle(group)
    open_in = [partition.number for partition in topic.partitions() if _has_open_transaction(log, partition)]
    if open_in:
        raise InvalidInput(
            f"a transaction is open in partition {', '.join(map(str, open_in))} of topic '{name}'",
            next_step="let its producer finish, then try again",
        )


def move_topic(log: EmbeddedLog, target: KafkaLog, name: str, on_progress: OnProgress = lambda *_: None) -> Moved:
    """Copies what is missing there, closes the topic here, and takes the groups along. Can be called again."""
    check_movable(log, name)
    topic = log.topic(name)
    _prepare(target, topic)
    copy = _Copy(target, topic, on_progress)
    for partition in topic.partitions():
        copy.partition(partition)
    if topic.moved_to is None:
        with log.moving(name, target.address):
            check_movable(log, name)  # nobody can begin a transaction any more
            for partition in topic.partitions():
                copy.partition(partition)
    groups = _move_groups(log, target, name, copy.maps)
    identity = target.topic(name).identity
    return Moved(name, sum(each.count for each in copy.maps.values()), topic.identity, identity, copy.maps, groups)


def _prepare(target: KafkaLog, topic: Topic) -> None:
    """Makes the topic there, marked as one that is being moved; one that was there before is not touched."""
    mark = target.descriptions.of(MOVE).get(topic.name)
    if topic.name not in target.topics():
        target.descriptions.write(MOVE, topic.name, {"from": topic.identity})
        target.create_topic(topic.name, **topic.settings.to_document())
    elif mark is None or mark.get("from") != topic.identity:
        raise AlreadyExists(
            f"there is a topic '{topic.name}' already",
            where=target.address,
            next_step="delete it there, or move to another Kafka",
        )


class _Copy:
    """Goes through the partitions of a topic as often as it is asked to, and sends on what has not arrived yet."""

    def __init__(self, target: KafkaLog, topic: Topic, on_progress: OnProgress) -> None:
        self._topic = topic
        self._on_progress = on_progress
        schema = topic.settings.schema
        self._codec = codec(topic.settings.codec or "json", schema) if schema else None
        self._where = f"topic '{topic.name}' at {target.address}"
        self._arrived = {part.number: part.end_offset for part in target.describe_topic(topic.name).partitions}
        self.maps = {number: OffsetMap() for number in range(topic.settings.partitions)}
        self._read = dict.fromkeys(self.maps, 0)
        self._failure: Any = None
        self._producer = target.clients.producer(
            unsaid={"linger.ms": 20, "compression.type": "lz4", "queue.buffering.max.kbytes": QUEUE_KBYTES},
            enable_idempotence=True,
        )

    def partition(self, partition: Partition) -> None:
        number = partition.number
        start = max(self._read[number], partition.start_offset())
        reader = PartitionReader(partition, start, committed=True)
        for fetch in reader.stream():
            before = self.maps[number].count
            self.maps[number].add(fetch.offsets.tolist())
            skipped = min(max(self._arrived[number] - before, 0), fetch.stored.num_rows)
            self._send(number, fetch.records.slice(skipped))
            self._on_progress(self._topic.name, fetch.stored.num_rows)
        self._read[number] = max(start, reader.offset)
        self._flush()
        self._arrived[number] = max(self._arrived[number], self.maps[number].count)

    def _send(self, number: int, records: pa.RecordBatch) -> None:
        times = pc.divide(records.column("timestamp").cast(pa.int64()), 1000).to_pylist()
        keys, headers = records.column("key").to_pylist(), records.column("headers").to_pylist()
        values = self._values(records.column("value")).to_pylist()
        for key, value, time, pairs in zip(keys, values, times, headers, strict=True):
            self._produce(
                self._topic.name,
                partition=number,
                key=key,
                value=value,
                timestamp=time,
                headers=pairs or None,
                on_delivery=self._delivered,
            )

    def _values(self, values: pa.Array) -> pa.Array:
        if self._codec is None:
            return values
        rows = pa.RecordBatch.from_arrays(values.flatten(), schema=pa.schema(list(values.type)))
        return pc.if_else(values.is_null(), pa.scalar(None, pa.binary()), self._codec.encode(rows))

    def _produce(self, *record: Any, **parts: Any) -> None:
        while True:
            try:
                self._producer.produce(*record, **parts)
                self._producer.poll(0)
                return
            except BufferError:  # it takes no more until some have arrived
                self._producer.poll(0.1)
                self._check()

    def _delivered(self, error: Any, _: Any) -> None:
        self._failure = self._failure or error

    def _flush(self) -> None:
        with said_plainly(self._where):
            self._producer.flush()
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise _again(translated(self._failure, self._where))


def _again(error: MillstreamError) -> MillstreamError:
    return type(error)(error.what, where=error.where, next_step="move it again: it goes on where it was")


def _has_open_transaction(log: EmbeddedLog, partition: Partition) -> bool:
    if not partition.marks.read().open:
        return False
    log.end_abandoned(partition)
    return bool(partition.marks.read().open)


def _groups(log: EmbeddedLog, topic: str) -> list[str]:
    return [name for name in log.groups() if any(p.topic == topic for p in committed_offsets(log.coordinator, name))]


def _move_groups(log: EmbeddedLog, target: KafkaLog, topic: str, maps: Mapping[int, OffsetMap]) -> tuple[str, ...]:
    """How far each group has come, said of the records there."""
    found = _groups(log, topic)
    for group in found:
        offsets = {
            place: maps[place.partition].moved(offset)
            for place, offset in committed_offsets(log.coordinator, group).items()
            if place.topic == topic
        }
        store_offsets(target.clients, group, offsets)
    return tuple(found)
