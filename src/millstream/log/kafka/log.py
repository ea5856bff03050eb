"""Apache Kafka as a log: the same calls as the embedded log's, on the brokers of an address."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from typing import Any, NoReturn

from millstream.errors import (
    AlreadyExists,
    ClosedError,
    InvalidInput,
    InvalidSetting,
    KafkaUnavailable,
    MillstreamError,
    UnknownTopic,
)
from millstream.log.agreement.groups import GroupInfo, TopicPartition
from millstream.log.buffer import microseconds
from millstream.log.consumer import Consumer
from millstream.log.consumer_settings import ConsumerSettings
from millstream.log.kafka import groups, queues, replicas
from millstream.log.kafka.address import KafkaAddress
from millstream.log.kafka.clients import ANSWER_SECONDS, GLANCE_SECONDS, Clients
from millstream.log.kafka.deliveries import KafkaDeliveries
from millstream.log.kafka.descriptions import Descriptions
from millstream.log.kafka.fetching import KafkaFetching
from millstream.log.kafka.group_member import KafkaMember
from millstream.log.kafka.storing import KafkaStorage
from millstream.log.kafka.switches import SwitchDocument
from millstream.log.kafka.times import offsets_at, time_reached
from millstream.log.kafka.topics import (
    KafkaTopic,
    add_partitions,
    change_settings,
    described,
    from_kafka,
    kept_settings,
    make_topic,
    offsets,
    remove_topic,
    replicated,
    to_kafka,
)
from millstream.log.kafka.transactions import Transactions
from millstream.log.open_clients import Parts
from millstream.log.ports import Acks, Assignee, Sender
from millstream.log.producer import Producer
from millstream.log.queues import Queue, QueueInfo, QueueSettings
from millstream.log.start_positions import Start
from millstream.log.switches import Switching
from millstream.log.topics import PartitionInfo, TopicInfo, TopicSettings, checked_name

LOOK_SECONDS = 2.0
ABSENCE_SECONDS = 3.0
MOVE_SECONDS = 600.0
TOPIC = "topic"  # the kind of its descriptions


class KafkaLog(Switching):
    """Opens the Kafka cluster at an address (`kafka://host:9092`); raises KafkaUnavailable if it does not answer."""

    poll_seconds_min = 6.0  # the shortest that brokers accept
    transaction_type: type = Transactions

    def __init__(self, address: str | KafkaAddress) -> None:
        self._address = address if isinstance(address, KafkaAddress) else KafkaAddress.of(address)
        self._closed = False
        self.clients = Clients(self._address)
        self.clients.check()
        self.descriptions = Descriptions(self.clients)
        self._lock_here = threading.RLock()
        self._topics: dict[str, tuple[float, KafkaTopic]] = {}
        self._parts = Parts()
        self.switches = SwitchDocument(self.descriptions)

    @property
    def address(self) -> str:
        """As it was given, without secrets."""
        return str(self._address)

    def __repr__(self) -> str:
        return f"KafkaLog({self.address!r})"

    # ------------------------------------------------------------ topics

    def create_topic(self, name: str, **settings: Any) -> TopicInfo:
        """Creates a topic. The settings are those of `TopicSettings`; durations and sizes as text or as values."""
        self._check_open()
        checked_name(name, "topic")
        made = TopicSettings.of(**settings)
        self._check_name_free(name)
        try:
            make_topic(self.clients, name, made.partitions, to_kafka(made), replicas=made.replication_factor)
        except AlreadyExists:
            raise AlreadyExists(
                f"topic '{name}' already exists", next_step="choose another name, or change that one"
            ) from None
        self._topics.pop(name, None)
        self._describe(name, described(self.clients, name)[0], made)
        return self.describe_topic(name)

    def _describe(self, name: str, identity: str, settings: TopicSettings) -> None:
        """Stores the settings that Kafka has no place for, under the id of this very topic."""
        known = self.descriptions.of(TOPIC).get(name)
        document = {
            "id": identity,
            "schema": settings.schema.ddl if settings.schema else None,
            "codec": settings.codec,
        }
        empty = settings.schema is None and settings.codec is None
        if (None if empty else document) != known:
            self.descriptions.write(TOPIC, name, None if empty else document)

    def topics(self) -> list[str]:
        """Topics whose names start with `_` are internal and left out."""
        self._check_open()
        found = self.clients.retrying(
            lambda: self.clients.admin.list_topics(timeout=ANSWER_SECONDS).topics, self.address
        )
        return sorted(name for name in found if not name.startswith("_"))

    def topic(self, name: str, *, fresh: bool = False) -> KafkaTopic:
        """The topic's description, current or recent; the same object as long as it has not changed."""
        self._check_open()
        checked_name(name, "topic")
        with self._lock_here:
            looked_at, known = self._topics.get(name, (0.0, None))
            if known is not None and not fresh and time.monotonic() - looked_at < LOOK_SECONDS:
                return known
            try:
                identity, settings = self._look_up(name, fresh=fresh or known is None)
            except UnknownTopic:
                self._topics.pop(name, None)
                raise self._no_topic(name) from None
            except KafkaUnavailable:
                if known is None or fresh:
                    raise
                self._topics[name] = time.monotonic() + ABSENCE_SECONDS, known  # continues with what is known
                return known
            if known is None or known.identity != identity or known.settings != settings:
                known = KafkaTopic(name, identity, settings, self.clients)
            self._topics[name] = time.monotonic(), known
            return known

    def _look_up(self, name: str, *, fresh: bool) -> tuple[str, TopicSettings]:
        patience = ANSWER_SECONDS if fresh else GLANCE_SECONDS
        identity, partitions, factor = replicated(self.clients, name, patience)
        description = self.descriptions.of(TOPIC, fresh=fresh).get(name, {})
        if description.get("id") != identity:  # the description is of an earlier topic of this name
            description = {}
        return identity, from_kafka(partitions, factor, kept_settings(self.clients, name, patience), description)

    def _no_topic(self, name: str) -> UnknownTopic:
        names, read = self.topics(), self.resolve(name)
        return UnknownTopic(
            f"there is no topic '{name}'" + (f": its readers read '{read}'" if read != name else ""),
            where=self.address,
            next_step=f"create it first; topics that exist: {', '.join(names) or 'none'}",
        )

    def describe_topic(self, name: str) -> TopicInfo:
        """Sizes and segments are None: Kafka's brokers do not report them."""
        topic = self.topic(name, fresh=True)
        places = topic.places()
        starts = offsets(self.clients, places, "earliest")
        stable = offsets(self.clients, places, "latest", committed=True)
        ends = offsets(self.clients, places, "latest")
        infos = [
            PartitionInfo(
                number=place.partition,
                start_offset=starts[place],
                end_offset=ends[place],
                stable_offset=stable[place],
                size_bytes=None,
                segments=None,
                open_transactions=int(stable[place] < ends[place]),
            )
            for place in places
        ]
        read, serves = self.resolve(name), self.switches.served_by(name)
        return TopicInfo(name, topic.settings, tuple(infos), None, read if read != name else None, serves)

    def change_topic(self, name: str, **settings: Any) -> TopicInfo:
        topic = self.topic(name, fresh=True)
        made = topic.settings.changed(**settings)
        if made.replication_factor != topic.settings.replication_factor:
            raise InvalidSetting(
                "a topic gets more or fewer replicas by moving it",
                where=f"topic '{name}'",
                next_step=f"millstream topics move {name} --to BROKER,… --replication-factor {made.replication_factor}",
            )
        empty = not any(offsets(self.clients, topic.places(), "latest").values())
        made.check_change_from(topic.settings, empty=empty)
        before, after = to_kafka(topic.settings), to_kafka(made)
        if changed := {setting: value for setting, value in after.items() if before.get(setting) != value}:
            change_settings(self.clients, name, changed)
        self._describe(name, topic.identity, made)
        if made.partitions > topic.settings.partitions:
            add_partitions(self.clients, name, made.partitions)
        self._topics.pop(name, None)
        return self.describe_topic(name)

    def alter_topic(self, name: str, settings: Mapping[str, str]) -> TopicInfo:
        """Changes settings by Kafka's own names, such as min.insync.replicas; the brokers reject unknown ones."""
        self.topic(name, fresh=True)
        change_settings(self.clients, name, settings)
        self._topics.pop(name, None)
        return self.describe_topic(name)

    def move_replicas(
        self, name: str, brokers: Sequence[int], *, factor: int | None = None, wait_seconds: float = MOVE_SECONDS
    ) -> Mapping[int, Sequence[int]]:
        """Moves the replicas of a topic to some brokers; returns those of each partition, the preferred leader first.

        Needs Kafka's tool kafka-reassign-partitions. `factor` is their number from now on.
        """
        self.topic(name, fresh=True)
        moved = replicas.move(self.clients, self._address, name, brokers, factor, wait_seconds)
        self._topics.pop(name, None)
        return moved

    def delete_topic(self, name: str) -> None:
        """Deletes a topic, its records, and the offsets of groups."""
        self.topic(name, fresh=True)
        queues.check_unused(self, name)
        with self._lock():
            self._forget_version(name)
            remove_topic(self.clients, name)
            if name in self.descriptions.of(TOPIC):
                self.descriptions.write(TOPIC, name, None)
        self._topics.pop(name, None)

    def offset_at_time(self, topic: str, partition: int, moment: datetime) -> int:
        """The offset of the first record at or after a time."""
        self.topic(topic).partition(partition)
        place = TopicPartition(topic, partition)
        return offsets(self.clients, [place], -(-microseconds(moment) // 1000))[place]

    # ------------------------------------------------------------ where switched readers start

    def _lock(self) -> AbstractContextManager[object]:
        """Only within this process: two processes that switch at the same time do so in no particular order."""
        return self._lock_here

    def _stable_offsets(self, topic: str) -> dict[int, int]:
        ends = offsets(self.clients, self.topic(topic).places(), "latest", committed=True)
        return {place.partition: offset for place, offset in ends.items()}

    def _offsets_at(self, topic: str, moment: datetime) -> dict[int, int]:
        return offsets_at(self.clients, self.topic(topic).places(), -(-microseconds(moment) // 1000))

    def _corresponding(self, positions: Mapping[TopicPartition, int], topic: str) -> dict[int, int]:
        return offsets_at(self.clients, self.topic(topic).places(), time_reached(self.clients, positions))

    # ------------------------------------------------------------ producers and consumers

    def producer(self, **settings: Any) -> Producer:
        self._check_open()
        return self._parts.noted(Producer(self, **{"acks": "all", **settings}))

    def open_producer(self, name: str | None, acks: Acks, sender: Sender) -> KafkaStorage:
        checked = None if name is None else checked_name(name, "producer")
        return KafkaStorage(self.clients, checked, acks, sender)

    def consumer(self, topics: str | Sequence[str] | None = None, **settings: Any) -> Consumer:
        self._check_open()
        if settings.get("group") is not None:
            checked_name(settings["group"], "group")
        return self._parts.noted(Consumer(self, topics, **settings))

    def open_consumer(self, settings: ConsumerSettings, assignee: Assignee) -> tuple[KafkaFetching, KafkaMember | None]:
        fetching = KafkaFetching(self, settings, assignee)
        if settings.group is None:
            return fetching, None
        return fetching, KafkaMember(self, settings.group, settings, fetching, assignee)

    # ------------------------------------------------------------ groups

    def groups(self) -> list[str]:
        self._check_open()
        return groups.group_names(self.clients)

    def committed_offsets(self, group: str) -> dict[TopicPartition, int]:
        return groups.committed_offsets(self.clients, group)

    def describe_group(self, name: str) -> GroupInfo:
        self._check_open()
        return groups.describe_group(self.clients, name)

    def reset_group(self, name: str, topic: str, to: Start) -> GroupInfo:
        """Moves an idle group to a position in a topic: 'earliest', 'latest', an offset or a time."""
        groups.check_idle(self.clients, name)
        with Consumer(self, topic, start=to) as reader:
            found = {place: reader.position(*place) for place in reader.assignment}
        groups.store_offsets(self.clients, name, found)
        return self.describe_group(name)

    def store_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Of a group without members."""
        groups.store_offsets(self.clients, group, offsets)

    def delete_group(self, name: str) -> None:
        groups.check_idle(self.clients, name)
        groups.delete_group(self.clients, name)

    # ------------------------------------------------------------ queues

    def create_queue(self, name: str, topic: str, **settings: Any) -> QueueInfo:
        """Settings: timeout, max_tries, dead_letters (a topic), max_in_flight, start ('earliest' or 'latest')."""
        self._check_open()
        checked_name(name, "queue")
        queues.create(self, name, self.topic(self.resolve(topic), fresh=True), QueueSettings.of(**settings))
        return self.describe_queue(name)

    def queues(self) -> list[QueueInfo]:
        self._check_open()
        return [self.describe_queue(name) for name in queues.names(self)]

    def describe_queue(self, name: str) -> QueueInfo:
        self._check_open()
        return queues.describe(self, name)

    def delete_queue(self, name: str) -> None:
        self._check_open()
        queues.delete(self, name)

    def queue(self, name: str) -> Queue:
        self._check_open()
        return self._parts.noted(Queue(self, name))

    def open_queue(self, name: str) -> tuple[str, QueueSettings, KafkaDeliveries]:
        topic, settings, starts = queues.load(self, name)
        return topic, settings, KafkaDeliveries(self, name, topic, settings, starts)

    # ------------------------------------------------------------ upkeep and closing

    def clean(self, topic: str | None = None) -> None:
        raise InvalidInput(
            "Kafka's brokers apply retention and compaction themselves",
            where=self.address,
            next_step="set them on the topic: millstream topics change",
        )

    def repair_topic(self, name: str) -> NoReturn:
        raise InvalidInput(
            "Kafka's brokers repair a topic themselves, from its other replicas",
            where=f"topic '{name}', {self.address}",
            next_step="check the brokers' own logs",
        )

    def __reduce__(self) -> NoReturn:
        raise InvalidInput("a log cannot be sent to another process", next_step="send its address and open it there")

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the log was closed", next_step="open it again with millstream.connect(…)")

    def close(self) -> None:
        """Also closes the producers, consumers and queues opened here; raises the first of their errors."""
        if self._closed:
            return
        failure = self._parts.close()
        self._closed = True
        with suppress(MillstreamError):
            self.descriptions.close()
        self.clients.close()
        if failure is not None:
            raise failure

    def __enter__(self) -> KafkaLog:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
