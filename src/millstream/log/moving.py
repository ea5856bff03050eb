"""Moves a topic from the embedded log to Kafka: its records, in order and partition by partition, and its groups.

The records of a partition get the offsets 0, 1, 2, … there; the mapping is stored. Writers are only blocked at the very
end, while the rest is copied; afterwards they get an error that names the new address. A move that is interrupted
before that starts over. The records remain here, read-only.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import AlreadyExists, InvalidInput, MillstreamError
from millstream.log.agreement.groups import committed_offsets
from millstream.log.kafka.failures import translated, translated_errors
from millstream.log.kafka.groups import committed_offsets as offsets_there
from millstream.log.kafka.groups import store_offsets
from millstream.log.storage.disk import FileLock, read_document, write_document
from millstream.log.storage.partition import UPKEEP_LOCK
from millstream.log.storage.reader import PartitionReader
from millstream.records import codec

if TYPE_CHECKING:
    from millstream.log.embedded import EmbeddedLog, Topic
    from millstream.log.kafka.log import KafkaLog
    from millstream.log.storage.partition import Partition

MOVE = "move"
NOTE = "moved.json"
QUEUE_KBYTES = 256 << 10
SEGMENT_BYTES_MIN = 1 << 20
RECORD_BYTES_MAX = 1_000_000_000
FIRST_MS = 1  # Kafka's client takes 0 for the current time
CLOSE_SECONDS = 30
LOOK_SECONDS = 0.5
OnProgress = Callable[[str, int], None]


@dataclass
class OffsetMap:
    """Maps the offsets of a partition to those in Kafka: runs of consecutive offsets, as first offset and rank."""

    starts: list[int] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    count: int = 0
    next: int = 0

    def add(self, offsets: Sequence[int]) -> None:
        first, last = int(offsets[0]), int(offsets[-1])
        if last - first + 1 == len(offsets):
            self._add_run(first, len(offsets))
        else:  # after compaction
            for offset in offsets:
                self._add_run(int(offset), 1)

    def _add_run(self, first: int, length: int) -> None:
        if not self.starts or first != self.next:
            self.starts.append(first)
            self.ranks.append(self.count)
        self.count += length
        self.next = first + length

    def moved(self, offset: int) -> int:
        """The new offset of the first record at or after this one."""
        run = bisect.bisect_right(self.starts, offset) - 1
        if run < 0:
            return 0
        end = self.ranks[run + 1] if run + 1 < len(self.ranks) else self.count
        return min(self.ranks[run] + offset - self.starts[run], end)


@dataclass(frozen=True)
class Moved:
    topic: str
    records: int
    before_1970: int
    """How many records had a time that Kafka does not store; they now have the start of 1970."""
    identity_before: str
    identity: str
    partitions: Mapping[int, OffsetMap]
    groups: tuple[str, ...]


def check_movable(log: EmbeddedLog, name: str) -> None:
    """Rejects a topic that cannot be moved completely, before anything is copied."""
    topic = log.topic(name)
    used = [info.name for info in log.queues() if name in (info.topic, info.settings.dead_letters)]
    if used:
        raise InvalidInput(
            f"topic '{name}' is used by queue {', '.join(used)}, whose messages cannot be moved",
            next_step="drain the queue, delete it, and create it again on Kafka",
        )
    if (read := log.resolve(name)) != name or log.switches.served_by(name):
        raise InvalidInput(
            f"topic '{name}' is part of a switch: readers of a name are sent to another topic",
            where=f"'{name}' is read as '{read}'" if read != name else None,
            next_step="revert the switch first: millstream switch --back",
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
    """Copies what is missing there, closes the topic here, and moves the groups. Can be called again."""
    topic = log.topic(name)
    with ExitStack() as held:
        for number in range(topic.settings.partitions):  # nobody else moves or cleans it meanwhile
            held.enter_context(FileLock(topic.folder / str(number) / UPKEEP_LOCK))
        topic = log.topic(name)
        check_movable(log, name)
        note = topic.folder / NOTE
        if topic.moved_to is None:
            _prepare(target, topic)
            with closing(_Copy(target, topic, on_progress)) as copy:
                copy.all_partitions()
                with log.moving(name, target.address):
                    check_movable(log, name)  # new transactions can no longer start
                    copy.all_partitions()
                    write_document(note, copy.noted())
        elif topic.moved_to != target.address:
            raise AlreadyExists(f"topic '{name}' was already moved, to {topic.moved_to}", next_step="read it there")
        document = read_document(note)
        maps = {int(number): OffsetMap(**part) for number, part in document["partitions"].items()}
        groups = _move_groups(log, target, name, maps)
        identity, records = document["identity"], sum(each.count for each in maps.values())
        return Moved(name, records, document["before_1970"], topic.identity, identity, maps, groups)


def _prepare(target: KafkaLog, topic: Topic) -> None:
    """Creates the topic there, marked as being moved; an existing one is not touched."""
    mark = {"from": topic.identity}
    if topic.name in target.topics():
        if target.descriptions.of(MOVE).get(topic.name) != mark:
            raise AlreadyExists(
                f"topic '{topic.name}' already exists",
                where=target.address,
                next_step="delete it there, or move to another Kafka",
            )
        target.delete_topic(topic.name)  # an incomplete copy
    target.descriptions.write(MOVE, topic.name, mark)
    target.create_topic(topic.name, **_settings(topic))


def _settings(topic: Topic) -> dict[str, Any]:
    """The settings, as far as Kafka supports them: values are JSON, and segments at least a megabyte."""
    settings = topic.settings
    segment_bytes = max(settings.segment_bytes, SEGMENT_BYTES_MIN)
    kept = None if settings.retention_bytes is None else max(settings.retention_bytes, segment_bytes)
    moved = {"codec": None, "segment_bytes": segment_bytes, "retention_bytes": kept, "retention_archive": None}
    return settings.to_document() | moved


class _Copy:
    """Sends what is new in the partitions of a topic, as often as it is called."""

    def __init__(self, target: KafkaLog, topic: Topic, on_progress: OnProgress) -> None:
        self._topic = topic
        self._on_progress = on_progress
        schema = topic.settings.schema
        self._codec = codec("json", schema) if schema else None
        self._where = f"topic '{topic.name}' at {target.address}"
        self._identity = target.topic(topic.name).identity
        self._maps = {number: OffsetMap() for number in range(topic.settings.partitions)}
        self._read = dict.fromkeys(self._maps, 0)
        self._before_1970 = 0
        self._failure: Any = None
        self._producer = target.clients.producer(
            defaults={"linger.ms": 20, "compression.type": "lz4", "queue.buffering.max.kbytes": QUEUE_KBYTES},
            enable_idempotence=True,
            message_max_bytes=RECORD_BYTES_MAX,  # the broker's own limit decides
        )

    def all_partitions(self) -> None:
        for partition in self._topic.partitions():
            self._partition(partition)

    def noted(self) -> dict[str, Any]:
        """The offset maps, to be stored."""
        partitions = {str(number): asdict(each) for number, each in self._maps.items()}
        return {"identity": self._identity, "before_1970": self._before_1970, "partitions": partitions}

    def _partition(self, partition: Partition) -> None:
        number = partition.number
        start = max(self._read[number], partition.start_offset())
        reader = PartitionReader(partition, start, committed=True)
        for fetch in reader.stream():
            self._maps[number].add(fetch.offsets.tolist())
            self._send(number, fetch.records)
            self._on_progress(self._topic.name, fetch.stored.num_rows)
        self._read[number] = max(start, reader.offset)
        self._flush()

    def close(self) -> None:
        """Waits for what is in flight, so that it arrives before anybody else writes."""
        if self._failure is not None or self._producer.flush(CLOSE_SECONDS):
            self._producer.purge()
            self._producer.flush(CLOSE_SECONDS)

    def _send(self, number: int, records: pa.RecordBatch) -> None:
        times = pc.divide(records.column("timestamp").cast(pa.int64()), 1000)
        self._before_1970 += pc.sum(pc.less(times, FIRST_MS)).as_py() or 0
        times = pc.max_element_wise(times, FIRST_MS).to_pylist()
        keys, headers = records.column("key").to_pylist(), records.column("headers").to_pylist()
        values = self._values(records.column("value")).to_pylist()
        for key, value, time_ms, pairs in zip(keys, values, times, headers, strict=True):
            self._produce(
                self._topic.name,
                partition=number,
                key=key,
                value=value,
                timestamp=time_ms,
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
            self._check()
            try:
                with translated_errors(self._where):
                    self._producer.produce(*record, **parts)
                    self._producer.poll(0)
                return
            except BufferError:  # the client's queue is full until some have arrived
                self._producer.poll(0.1)

    def _delivered(self, error: Any, _: Any) -> None:
        if self._failure is None:
            self._failure = error

    def _flush(self) -> None:
        with translated_errors(self._where):
            while self._producer.flush(LOOK_SECONDS):
                self._check()
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise _again(translated(self._failure, self._where))


def _again(error: MillstreamError) -> MillstreamError:
    return type(error)(error.what, where=error.where, next_step="move it again when that is fixed: it starts over")


def _has_open_transaction(log: EmbeddedLog, partition: Partition) -> bool:
    if not partition.marks.read().open:
        return False
    log.end_abandoned(partition)
    return bool(partition.marks.read().open)


def _groups(log: EmbeddedLog, topic: str) -> list[str]:
    return [name for name in log.groups() if any(p.topic == topic for p in committed_offsets(log.coordinator, name))]


def _move_groups(log: EmbeddedLog, target: KafkaLog, topic: str, maps: Mapping[int, OffsetMap]) -> tuple[str, ...]:
    """Commits the position of each group at the new offsets; a group that has already started there is left alone."""
    found = _groups(log, topic)
    for group in found:
        if any(place.topic == topic for place in offsets_there(target.clients, group)):
            continue
        offsets = {
            place: maps[place.partition].moved(offset)
            for place, offset in committed_offsets(log.coordinator, group).items()
            if place.topic == topic
        }
        store_offsets(target.clients, group, offsets)
    return tuple(found)
