"""A log on another machine: the same calls for topics, producers, consumers and groups, over one connection.

Queues, transactions and changes of switches need the log itself.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Self

import pyarrow as pa

from millstream.errors import ClosedError
from millstream.log.agreement.groups import GroupInfo, TopicPartition
from millstream.log.buffer import microseconds
from millstream.log.consumer import Consumer
from millstream.log.consumer_settings import ConsumerSettings
from millstream.log.flight.client import Connection
from millstream.log.flight.fetching import FlightFetching
from millstream.log.flight.group_member import FlightMember
from millstream.log.flight.protocol import offsets_in
from millstream.log.flight.storing import FlightStorage, unsupported
from millstream.log.open_clients import Parts
from millstream.log.ports import Acks, Assignee, Sender
from millstream.log.producer import Producer
from millstream.log.queues import Queue, QueueInfo
from millstream.log.start_positions import Start
from millstream.log.storage.layout import stored_schema
from millstream.log.storage.repair import Repaired
from millstream.log.switches import At, Switch, Switches
from millstream.log.topics import PartitionInfo, TopicInfo, TopicSettings, TopicVersion, checked_name

KNOWN_SECONDS = 1.0
"""How old the description of a topic may be."""


class FlightLog:
    """Opens the log behind `millstream listen flight`."""

    poll_seconds_min = 1.0
    transaction_type: type = type(None)

    def __init__(self, address: str) -> None:
        self.connection = Connection(address)
        self.address = self.connection.shown
        self.switches = FlightSwitches(self.connection)
        self._known: dict[str, tuple[float, FlightTopic]] = {}
        self._parts = Parts()
        self._closed = False
        self.topics()  # an address that is wrong is reported here

    def __repr__(self) -> str:
        return f"FlightLog({self.address!r})"

    # ------------------------------------------------------------ topics

    def create_topic(self, name: str, **settings: Any) -> TopicInfo:
        made = TopicSettings.of(**settings)
        document = {key: value for key, value in made.to_document().items() if value is not None}
        self.connection.ask("create_topic", name=checked_name(name, "topic"), settings=document)
        return self.describe_topic(name)

    def topics(self) -> list[str]:
        self._check_open()
        return [str(name) for name in self.connection.ask("topics")]

    def topic(self, name: str) -> FlightTopic:
        """The topic's description; it may be a second old."""
        found = self._known.get(name)
        if found is not None and time.monotonic() - found[0] < KNOWN_SECONDS:
            return found[1]
        return self.fresh_topic(name)

    def fresh_topic(self, name: str) -> FlightTopic:
        self._check_open()
        described = self.connection.ask("topic", name=checked_name(name, "topic"))
        made = FlightTopic(self, name, described["identity"], TopicSettings.of(**described["settings"]))
        found = self._known.get(name)
        if found is not None and found[1].is_like(made):
            made = found[1]  # those who have it see that nothing has changed
        self._known[name] = (time.monotonic(), made)
        return made

    def describe_topic(self, name: str) -> TopicInfo:
        described = self.connection.ask("describe_topic", name=name)
        parts = tuple(PartitionInfo(**part) for part in described["partitions"])
        serves = tuple(described["serves"])
        return TopicInfo(name, self.fresh_topic(name).settings, parts, None, described["switched_to"], serves)

    def change_topic(self, name: str, **settings: Any) -> TopicInfo:
        raise unsupported("changes of topics")

    def delete_topic(self, name: str) -> None:
        self.connection.ask("delete_topic", name=name)
        self._known.pop(name, None)

    def offset_at_time(self, topic: str, partition: int, moment: datetime) -> int:
        return self.offset(TopicPartition(topic, partition), microseconds(moment))

    def offset(self, place: TopicPartition, at: str | int) -> int:
        """At a bound of a partition, or of the first record at or after a time in microseconds."""
        return int(self.connection.ask("offset", topic=place.topic, partition=place.partition, at=at))

    def clean(self, topic: str | None = None) -> None:
        raise unsupported("upkeep")

    def repair_topic(self, name: str) -> list[Repaired]:
        raise unsupported("repairs")

    # ------------------------------------------------------------ switches

    def resolve(self, name: str) -> str:
        return self.switches.resolve(name)

    def switch(self, name: str, topic: str, *, at: At = "earliest") -> Switch:
        raise unsupported("changes of switches")

    def switch_back(self, name: str, *, at: At = "earliest") -> Switch:
        raise unsupported("changes of switches")

    def unswitch(self, name: str) -> None:
        raise unsupported("changes of switches")

    def topic_versions(self, name: str) -> list[TopicVersion]:
        raise unsupported("versions of topics")

    # ------------------------------------------------------------ producers, consumers, groups

    def producer(self, **settings: Any) -> Producer:
        self._check_open()
        return self._parts.noted(Producer(self, **settings))

    def open_producer(self, name: str | None, acks: Acks, sender: Sender) -> FlightStorage:
        if name is not None:
            raise unsupported("named producers")
        return FlightStorage(self.connection, acks, sender)

    def consumer(self, topics: str | Sequence[str] | None = None, **settings: Any) -> Consumer:
        self._check_open()
        if settings.get("group") is not None:
            checked_name(settings["group"], "group")
        return self._parts.noted(Consumer(self, topics, **settings))

    def open_consumer(
        self, settings: ConsumerSettings, assignee: Assignee
    ) -> tuple[FlightFetching, FlightMember | None]:
        fetching = FlightFetching(self, settings)
        if settings.group is None:
            return fetching, None
        return fetching, FlightMember(self.connection, settings.group, settings)

    def committed_offsets(self, group: str) -> Mapping[TopicPartition, int]:
        return offsets_in(self.connection.ask("committed", group=group))

    def groups(self) -> list[str]:
        return [str(name) for name in self.connection.ask("groups")]

    def describe_group(self, name: str) -> GroupInfo:
        raise unsupported("descriptions of groups")

    def reset_group(self, name: str, topic: str, to: Start) -> GroupInfo:
        raise unsupported("resets of groups")

    def delete_group(self, name: str) -> None:
        raise unsupported("deletion of groups")

    # ------------------------------------------------------------ queues

    def create_queue(self, name: str, topic: str, **settings: Any) -> QueueInfo:
        raise unsupported("queues")

    def queues(self) -> list[QueueInfo]:
        raise unsupported("queues")

    def describe_queue(self, name: str) -> QueueInfo:
        raise unsupported("queues")

    def delete_queue(self, name: str) -> None:
        raise unsupported("queues")

    def queue(self, name: str) -> Queue:
        raise unsupported("queues")

    # ------------------------------------------------------------ closing

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the log was closed", next_step="open it again with connect(…)")

    def close(self) -> None:
        if not self._closed:
            self._parts.close()
            self._closed = True
            self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class FlightTopic:
    """A topic's description, as the server has it."""

    def __init__(self, log: FlightLog, name: str, identity: str, settings: TopicSettings) -> None:
        self._log = log
        self.name, self.identity, self.settings = name, identity, settings
        self.stored_schema: pa.Schema = stored_schema(settings.schema)

    def is_like(self, other: FlightTopic) -> bool:
        return (self.identity, self.settings) == (other.identity, other.settings)

    def partition(self, number: int) -> FlightPartition:
        return FlightPartition(self._log, TopicPartition(self.name, number))

    def partitions(self) -> list[FlightPartition]:
        return [self.partition(number) for number in range(self.settings.partitions)]


class FlightPartition:
    def __init__(self, log: FlightLog, place: TopicPartition) -> None:
        self._log, self._place = log, place
        self.number = place.partition

    def start_offset(self) -> int:
        return self._log.offset(self._place, "earliest")

    def end_offset(self) -> int:
        return self._log.offset(self._place, "latest")

    def stable_offset(self) -> int:
        return self._log.offset(self._place, "stable")

    def sync(self) -> None:
        return  # its server's business: producers here have no names, and take over from nobody


class FlightSwitches(Switches):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._asked_at = 0.0
        self._documents: Any = {}
        self._switches: Mapping[str, Switch] = {}

    def now(self) -> Mapping[str, Switch]:
        return self.fresh() if time.monotonic() - self._asked_at > KNOWN_SECONDS else self._switches

    def fresh(self) -> Mapping[str, Switch]:
        found = self._connection.ask("switches")
        self._asked_at = time.monotonic()
        if found != self._documents:
            self._documents = found
            self._switches = {name: Switch.of(name, document) for name, document in found.items()}
        return self._switches

    def write(self, switches: Mapping[str, Switch]) -> None:
        raise unsupported("changes of switches")
