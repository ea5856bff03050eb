"""What a broker offers, whichever it is: the embedded log in a folder, or Apache Kafka.

Producers, consumers, queues and messages are those of the embedded log; Kafka's are kinds of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, Self

from millstream.log.consumer import Consumer
from millstream.log.groups import GroupInfo
from millstream.log.producer import Producer
from millstream.log.queues import Queue, QueueInfo
from millstream.log.repair import Repaired
from millstream.log.start_positions import Start
from millstream.log.switches import At, Switch
from millstream.log.topics import TopicInfo, TopicSettings, TopicVersion


class BrokerPartition(Protocol):
    """One partition of a topic, asked for its ends."""

    number: int

    def start_offset(self) -> int: ...

    def end_offset(self) -> int: ...

    def stable_offset(self) -> int: ...


class BrokerTopic(Protocol):
    """A topic as it is described now."""

    name: str
    identity: str
    settings: TopicSettings

    def partition(self, number: int) -> BrokerPartition: ...

    def partitions(self) -> Sequence[BrokerPartition]: ...


class BrokerSwitches(Protocol):
    """What names stand for."""

    def now(self) -> Mapping[str, Switch]: ...

    def served_by(self, topic: str) -> tuple[str, ...]: ...


class Broker(Protocol):
    """A log, opened by `connect`: its topics, and the producers, consumers, groups, queues and switches on them."""

    # ------------------------------------------------------------ topics

    def create_topic(self, name: str, **settings: Any) -> TopicInfo: ...

    def topics(self) -> list[str]: ...

    def topic(self, name: str) -> BrokerTopic: ...

    def describe_topic(self, name: str) -> TopicInfo: ...

    def change_topic(self, name: str, **settings: Any) -> TopicInfo: ...

    def delete_topic(self, name: str) -> None: ...

    def offset_at_time(self, topic: str, partition: int, moment: datetime) -> int: ...

    def clean(self, topic: str | None = None) -> None: ...

    def repair_topic(self, name: str) -> list[Repaired]: ...

    # ------------------------------------------------------------ switches

    @property
    def switches(self) -> BrokerSwitches: ...

    def resolve(self, name: str) -> str: ...

    def switch(self, name: str, topic: str, *, at: At = "earliest") -> Switch: ...

    def switch_back(self, name: str, *, at: At = "earliest") -> Switch: ...

    def unswitch(self, name: str) -> None: ...

    def topic_versions(self, name: str) -> list[TopicVersion]: ...

    # ------------------------------------------------------------ producers, consumers, groups

    def producer(self, **settings: Any) -> Producer: ...

    def consumer(self, topics: str | Sequence[str], **settings: Any) -> Consumer: ...

    def groups(self) -> list[str]: ...

    def describe_group(self, name: str) -> GroupInfo: ...

    def reset_group(self, name: str, topic: str, to: Start) -> GroupInfo: ...

    def delete_group(self, name: str) -> None: ...

    # ------------------------------------------------------------ queues

    def create_queue(self, name: str, topic: str, **settings: Any) -> QueueInfo: ...

    def queues(self) -> list[QueueInfo]: ...

    def describe_queue(self, name: str) -> QueueInfo: ...

    def delete_queue(self, name: str) -> None: ...

    def queue(self, name: str) -> Queue: ...

    # ------------------------------------------------------------ the end

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *raised: object) -> None: ...
