"""The ports of a broker: everything that differs between the embedded log and Kafka.

Consumers, producers and queues are each written once over these; `embedded/` and `kafka/` implement them.

    describe   Describing   topics, their partitions, switches, committed offsets
    fetch      Fetching     reads a consumer's partitions ahead of its user
    agree      Agreeing     shares partitions out within a group and keeps its offsets
    store      Storing      stores a producer's chunks, and makes those of a transaction visible together
    deliver    Delivering   hands the messages of a queue to one of its consumers
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import pyarrow as pa

from millstream.errors import MillstreamError
from millstream.log.batches import Record
from millstream.log.groups import TopicPartition
from millstream.log.topics import TopicInfo, TopicSettings
from millstream.records import Schema

if TYPE_CHECKING:
    from millstream.log.buffer import Chunk
    from millstream.log.channel import Placed
    from millstream.log.consumer_settings import ConsumerSettings
    from millstream.log.offers import Offering
    from millstream.log.queues import Message, QueueSettings
    from millstream.log.switches import Switch

Acks = Literal[0, 1, "all"]
Bound = Literal["earliest", "latest", "stable"]  # stable: before it no transaction is open

# ---------------------------------------------------------------- describe


class BrokerPartition(Protocol):
    """One partition of a topic and its bounds."""

    number: int

    def start_offset(self) -> int: ...

    def end_offset(self) -> int: ...

    def stable_offset(self) -> int: ...


class BrokerTopic(Protocol):
    """A topic as it is described now."""

    name: str
    identity: str
    settings: TopicSettings
    stored_schema: pa.Schema

    def partition(self, number: int) -> BrokerPartition: ...

    def partitions(self) -> Sequence[BrokerPartition]: ...


class BrokerSwitches(Protocol):
    """Which topic each name stands for."""

    def now(self) -> Mapping[str, Switch]:
        """By name; the same object as long as nothing has changed. It may be a second old."""

    def fresh(self) -> Mapping[str, Switch]:
        """Like `now`, never outdated."""

    def served_by(self, topic: str) -> tuple[str, ...]: ...


class Describing(Protocol):
    """What a broker knows about its topics and groups."""

    @property
    def switches(self) -> BrokerSwitches: ...

    def topic(self, name: str) -> BrokerTopic: ...

    def committed_offsets(self, group: str) -> Mapping[TopicPartition, int]: ...


# ---------------------------------------------------------------- fetch


class Reading(Protocol):
    """One partition that is being read."""

    @property
    def offset(self) -> int:
        """Everything before it has been read, though not necessarily handed out."""


class Fetching(Protocol):
    """Reads the partitions of one consumer ahead of its user."""

    check_seconds: float
    """How often to check whether topics were deleted or have gained partitions."""
    grace_seconds: float
    """How long a poll that has run out of time still waits for records known to be on the broker."""
    slice_seconds: float
    """How long one step of reading up to the end may wait for the broker."""

    @property
    def offering(self) -> Offering:
        """Where fetched records wait for the user."""

    @property
    def readers(self) -> Mapping[TopicPartition, Reading]: ...

    def identity(self, topic: str) -> str:
        """The identity of a topic, looked up at the broker."""

    def offset(self, place: TopicPartition, at: Bound | datetime) -> int:
        """The offset at a bound of a partition, or of its first record at or after a time."""

    def open(self, places: Sequence[TopicPartition]) -> None:
        """Called before the committed offsets of partitions are read: opening one after a power cut may lower them."""

    def begin(self, starts: Mapping[TopicPartition, int]) -> None:
        """Reads these partitions too, from these offsets on."""

    def seek(self, place: TopicPartition, offset: int) -> None: ...

    def forget(self, places: Iterable[TopicPartition]) -> None:
        """Stops reading partitions."""

    def reassigned(self) -> None:
        """Called when the partitions to read have changed."""

    def start_over(self) -> None:
        """After an exception: reads on from what the user has, in every partition."""

    def fetch(self, seconds: float, max_bytes: int) -> None:
        """Puts records into the offering, waiting up to so long for the first; it may return earlier without any."""

    def serve(self) -> None:
        """Called instead of `fetch` while records are waiting."""

    def ends(self) -> Mapping[TopicPartition, int]:
        """Where the partitions end now."""

    def ends_if_known(self) -> Mapping[TopicPartition, int]:
        """Like `ends`, and empty where records that exist have been read, or where asking takes long."""

    def lag(self) -> int:
        """How many records are left to fetch."""

    def corresponding(self, positions: Mapping[TopicPartition, int], topic: str) -> dict[int, int]:
        """The offsets in a topic, by partition, at the time that positions in other topics have reached."""

    def stop_waiting(self) -> None:
        """Makes a thread that waits in `fetch` return soon."""

    def close(self) -> None: ...


# ---------------------------------------------------------------- agree


class Assignee(Protocol):
    """A consumer as seen by its group and by the client that reads for it."""

    def starts(
        self, places: Iterable[TopicPartition], committed: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Where to start reading partitions, given what is committed of them."""

    def begin(self, starts: Mapping[TopicPartition, int], committed: Mapping[TopicPartition, int]) -> None:
        """Starts reading partitions."""

    def release(self, places: set[TopicPartition]) -> None:
        """Finishes the work on partitions before they go to another member: commits it, and stops reading."""

    def forget(self, places: Iterable[TopicPartition]) -> None:
        """Stops reading partitions that have gone already: nothing can be committed for them."""

    def check_topics_soon(self) -> None:
        """Some topic seems to be gone."""


Release = Callable[[set[TopicPartition]], None]  # see Assignee


@dataclass(frozen=True, slots=True)
class Commit:
    """The outcome of a commit: what was stored, and which partitions are certain to be another member's."""

    stored: Mapping[TopicPartition, int]
    lost: frozenset[TopicPartition] = frozenset()


class Agreeing(Protocol):
    """One consumer's membership in its group."""

    @property
    def member(self) -> str | None:
        """The name under which the group knows this consumer."""

    def begin_group(self, places: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Makes a new group start at the end of partitions; returns the starts the group may not remember."""

    def join(self, topics: Sequence[str]) -> None: ...

    def subscribe(self, topics: Sequence[str], release: Release) -> None:
        """Changes the topics; the partitions of others are released first."""

    def refresh(self, release: Release, *, is_due: bool) -> set[TopicPartition] | None:
        """Called at every poll: follows changes of the group.

        Returns the partitions to read if that has changed or `is_due`; None also where the member begins them itself.
        """

    def committed(self, places: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]: ...

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Stores all of the offsets; raises PartitionsRevoked if a partition belongs to another member."""

    def commit_owned(self, offsets: Mapping[TopicPartition, int]) -> Commit:
        """Stores the offsets as far as the partitions still belong to this member."""

    def commit_with(self, transaction: object, offsets: Mapping[TopicPartition, int]) -> None:
        """Makes the offsets part of a producer's transaction."""

    def leave(self) -> None: ...


class Consumable(Describing, Protocol):
    """A broker that consumers read from."""

    poll_seconds_min: float
    """The shortest max_poll_interval that it supports."""

    transaction_type: type
    """What a transaction of its producers passes to `Progress.commit_with`."""

    def open_consumer(self, settings: ConsumerSettings, assignee: Assignee) -> tuple[Fetching, Agreeing | None]:
        """The ports of one consumer; without a group there is nobody to agree with."""


# ---------------------------------------------------------------- store


class Progress(Protocol):
    """Something read that a transaction counts as done: a consumer's offsets, or a queue's messages."""

    must_rewind: bool
    """Whether what the last transaction included must not be counted as done by the next."""

    @property
    def transaction_type(self) -> type: ...

    def commit_with(self, transaction: object) -> None: ...

    def committed_elsewhere(self) -> None: ...

    def rewind(self) -> None: ...


class Sender(Protocol):
    """A producer as the port that stores for it sees it."""

    @property
    def in_transaction(self) -> bool: ...

    @property
    def is_closing(self) -> bool: ...

    @property
    def is_giving_up(self) -> bool:
        """Whether what is buffered is being discarded, with its transaction."""

    def refuse(self, chunk: Chunk, row: int, reason: str) -> None:
        """Notes that one record of a chunk cannot be stored."""

    def warn(self, chunk: Chunk, trouble: MillstreamError) -> None:
        """Logs why a chunk is not stored yet; now and then, not with every attempt."""

    def report(self, trouble: MillstreamError) -> None:
        """Lets those who wait for records know what keeps them from being stored."""


class Storing(Protocol):
    """Stores the chunks of one producer, one after the other."""

    def store(self, chunk: Chunk, placed: Placed) -> None:
        """Stores what is not yet stored of a chunk; raises StorageError if another attempt may succeed."""

    def begin(self) -> None:
        """Begins a transaction."""

    def commit(self, include: Callable[[object], None]) -> None:
        """Commits the transaction; `include` makes the changes that stand or fall with it."""

    def abort(self) -> None: ...

    def close(self) -> None: ...


class Producible(Protocol):
    """A broker that producers write to."""

    transaction_type: type

    def topic(self, name: str) -> BrokerTopic: ...

    def resolve(self, name: str) -> str: ...

    def open_producer(self, name: str | None, acks: Acks, sender: Sender) -> Storing:
        """The port of one producer; without a name it has no transactions."""


# ---------------------------------------------------------------- deliver


class Delivery(NamedTuple):
    """One delivery of a record to a consumer of a queue."""

    record: Record
    tries: int


@dataclass(slots=True, eq=False)
class Claim:
    """Messages taken for one call; they are the user's only once that call has returned them."""

    deliveries: list[Delivery]
    is_taken: bool = False


class Delivering(Protocol):
    """Hands the messages of a queue to one of its consumers."""

    @property
    def patience_seconds(self) -> float: ...

    def claim(self, count: int, seconds: float) -> Claim:
        """Up to so many messages, waiting for the first; it may return earlier without any.

        What an earlier call had claimed, and its user never got, is delivered again.
        """

    def acknowledge(self, messages: Sequence[Message]) -> None: ...

    def acknowledging(self, messages: Sequence[Message]) -> Progress: ...

    def refuse(self, message: Message, reason: str, delay: timedelta, dead: bool) -> None: ...

    def extend(self, message: Message, timeout: timedelta) -> None: ...

    def close(self) -> None: ...


class Queueing(Protocol):
    """A broker that has queues."""

    def topics(self) -> list[str]: ...

    def create_topic(self, name: str, *, schema: Schema) -> TopicInfo: ...

    def describe_topic(self, name: str) -> TopicInfo: ...

    def open_queue(self, name: str) -> tuple[str, QueueSettings, Delivering]:
        """The topic of a queue, its settings, and the port of one of its consumers."""
