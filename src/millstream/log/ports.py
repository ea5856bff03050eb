"""The ports of a broker: everything that differs between the embedded log and Kafka.

Consumers, producers and queues are each written once over these; `embedded/` and `kafka/` implement them.

    describe   Describing   topics, their partitions, switches, committed offsets
    fetch      Fetching     prefetches a consumer's partitions
    agree      Agreeing     assigns partitions within a group and stores its offsets
    store      Storing      stores a producer's chunks, and makes those of a transaction visible together
    deliver    Delivering   delivers the messages of a queue to one of its consumers
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import pyarrow as pa

from millstream.errors import MillstreamError
from millstream.log.agreement.groups import TopicPartition
from millstream.log.batches import Record
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
Bound = Literal["earliest", "latest", "stable"]  # stable: no transaction that started before it is open

# ---------------------------------------------------------------- describe


class BrokerPartition(Protocol):
    """One partition of a topic and its bounds."""

    number: int

    def start_offset(self) -> int: ...

    def end_offset(self) -> int: ...

    def stable_offset(self) -> int: ...

    def sync(self) -> None:
        """What is stored, also by a process that died meanwhile, is durable and readable when this returns."""


class BrokerTopic(Protocol):
    """A topic's current description."""

    name: str
    identity: str
    settings: TopicSettings
    stored_schema: pa.Schema

    def partition(self, number: int) -> BrokerPartition: ...

    def partitions(self) -> Sequence[BrokerPartition]: ...


class BrokerSwitches(Protocol):
    """The topic that each name refers to."""

    def now(self) -> Mapping[str, Switch]:
        """By name; the same object as long as nothing has changed. It may be a second old."""

    def fresh(self) -> Mapping[str, Switch]:
        """Like `now`, but never outdated."""

    def served_by(self, topic: str) -> tuple[str, ...]: ...


class Describing(Protocol):
    """What a broker knows about its topics and groups."""

    @property
    def switches(self) -> BrokerSwitches: ...

    def topic(self, name: str) -> BrokerTopic: ...

    def topics(self) -> list[str]: ...

    def committed_offsets(self, group: str) -> Mapping[TopicPartition, int]: ...


# ---------------------------------------------------------------- fetch


class Reading(Protocol):
    """One partition that is being read."""

    @property
    def offset(self) -> int:
        """Everything before it has been read, though not necessarily returned."""


class Fetching(Protocol):
    """Prefetches the partitions of one consumer."""

    check_seconds: float
    """How often to check whether topics were deleted or have gained partitions."""
    grace_seconds: float
    """How long a poll that has timed out still waits for records known to be on the broker."""
    slice_seconds: float
    """How long one step of reading up to the end may wait for the broker."""

    @property
    def offering(self) -> Offering:
        """Where prefetched records wait."""

    @property
    def readers(self) -> Mapping[TopicPartition, Reading]: ...

    def identity(self, topic: str) -> str:
        """The identity of a topic, looked up on the broker."""

    def offset(self, place: TopicPartition, at: Bound | datetime) -> int:
        """The offset at a bound of a partition, or of its first record at or after a time."""

    def open(self, places: Sequence[TopicPartition]) -> None:
        """Called before the committed offsets are read: opening a partition after a power failure may lower them."""

    def begin(self, starts: Mapping[TopicPartition, int]) -> None:
        """Starts reading these partitions, from these offsets."""

    def seek(self, place: TopicPartition, offset: int) -> None: ...

    def forget(self, places: Iterable[TopicPartition]) -> None:
        """Stops reading partitions."""

    def reassigned(self) -> None:
        """Called when the assignment has changed."""

    def start_over(self) -> None:
        """After an exception: continues in every partition after what was returned."""

    def fetch(self, seconds: float, max_bytes: int) -> None:
        """Prefetches records, waiting up to so long for the first; it may return earlier without any."""

    def serve(self) -> None:
        """Called instead of `fetch` while prefetched records are left."""

    def ends(self) -> Mapping[TopicPartition, int]:
        """The current ends of the partitions."""

    def ends_if_known(self) -> Mapping[TopicPartition, int]:
        """Like `ends`, but empty if the existing records have been read, or if the lookup is slow."""

    def lag(self) -> int:
        """How many records are left to fetch."""

    def corresponding(self, positions: Mapping[TopicPartition, int], topic: str) -> dict[int, int]:
        """The offsets in a topic, by partition, that correspond in time to positions in other topics."""

    def stop_waiting(self) -> None:
        """Makes a thread that waits in `fetch` return soon."""

    def close(self) -> None: ...


# ---------------------------------------------------------------- agree


class Assignee(Protocol):
    """A consumer, as seen by its group and by the client that reads for it."""

    def starts(
        self, places: Iterable[TopicPartition], committed: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Where to start reading partitions, given their committed offsets."""

    def begin(self, starts: Mapping[TopicPartition, int], committed: Mapping[TopicPartition, int]) -> None:
        """Starts reading partitions."""

    def release(self, places: set[TopicPartition]) -> None:
        """Commits and stops reading partitions before they are revoked."""

    def forget(self, places: Iterable[TopicPartition]) -> None:
        """Stops reading partitions that are already lost: they cannot be committed any more."""

    def check_topics_soon(self) -> None:
        """Called when a topic seems to be gone."""


Release = Callable[[set[TopicPartition]], None]  # see Assignee


@dataclass(frozen=True, slots=True)
class Commit:
    """The outcome of a commit: what was stored, and which partitions are known to belong to another member."""

    stored: Mapping[TopicPartition, int]
    lost: frozenset[TopicPartition] = frozenset()


class Agreeing(Protocol):
    """One consumer's membership in its group."""

    @property
    def member(self) -> str | None:
        """This consumer's name in the group."""

    def begin_group(self, places: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Starts a new group at the end of partitions; returns start offsets that the group may not store."""

    def join(self, topics: Sequence[str]) -> None: ...

    def subscribe(self, topics: Sequence[str], release: Release) -> None:
        """Changes the topics; the partitions of others are released first."""

    def refresh(self, release: Release, *, is_due: bool) -> set[TopicPartition] | None:
        """Called at every poll: follows rebalances.

        Returns the partitions to read if they have changed or `is_due`; None also if the member starts them itself.
        """

    def committed(self, places: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]: ...

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits all of the offsets; raises PartitionsRevoked if a partition belongs to another member."""

    def commit_owned(self, offsets: Mapping[TopicPartition, int]) -> Commit:
        """Commits the offsets of partitions that still belong to this member."""

    def commit_with(self, transaction: object, offsets: Mapping[TopicPartition, int]) -> None:
        """Adds the offsets to a producer's transaction."""

    def leave(self) -> None: ...


class Consumable(Describing, Protocol):
    """A broker that consumers read from."""

    poll_seconds_min: float
    """The shortest max_poll_interval that it supports."""

    transaction_type: type
    """What a transaction of its producers passes to `Progress.commit_with`."""

    def open_consumer(self, settings: ConsumerSettings, assignee: Assignee) -> tuple[Fetching, Agreeing | None]:
        """The ports of one consumer; without a group there is no `Agreeing`."""


# ---------------------------------------------------------------- store


class Progress(Protocol):
    """Progress that a transaction commits: a consumer's offsets, or a queue's messages."""

    must_rewind: bool
    """Whether the progress of the last transaction must not be committed by the next."""

    @property
    def transaction_type(self) -> type: ...

    def commit_with(self, transaction: object) -> None: ...

    def committed_elsewhere(self) -> None: ...

    def rewind(self) -> None: ...


class Sender(Protocol):
    """A producer, as seen by the port that stores for it."""

    @property
    def in_transaction(self) -> bool: ...

    @property
    def is_closing(self) -> bool: ...

    @property
    def is_discarding(self) -> bool:
        """Whether the buffer is being discarded, with its transaction."""

    def refuse(self, chunk: Chunk, row: int, reason: str) -> None:
        """Records that one record of a chunk cannot be stored."""

    def warn(self, chunk: Chunk, trouble: MillstreamError) -> None:
        """Logs why a chunk is not stored yet; rate limited."""

    def report(self, trouble: MillstreamError) -> None:
        """Passes an error that blocks storing on to the waiting threads."""


class Storing(Protocol):
    """Stores the chunks of one producer in order."""

    def store(self, chunk: Chunk, placed: Placed) -> None:
        """Stores the rest of a chunk; raises StorageError if a retry may succeed."""

    def begin(self) -> None:
        """Begins a transaction."""

    def commit(self, include: Callable[[object], None]) -> None:
        """Commits the transaction; `include` makes the changes that are committed with it."""

    def abort(self) -> None: ...

    def close(self) -> None: ...


class Producible(Protocol):
    """A broker that producers write to."""

    transaction_type: type

    def topic(self, name: str) -> BrokerTopic: ...

    def resolve(self, name: str) -> str: ...

    def open_producer(self, name: str | None, acks: Acks, sender: Sender) -> Storing:
        """The port of one producer; only a named one has transactions."""


# ---------------------------------------------------------------- deliver


class Delivery(NamedTuple):
    """One delivery of a record to a consumer of a queue."""

    record: Record
    tries: int


@dataclass(slots=True, eq=False)
class Claim:
    """Messages claimed for one call; they belong to the user once that call has returned them."""

    deliveries: list[Delivery]
    is_taken: bool = False


class Delivering(Protocol):
    """Delivers the messages of a queue to one of its consumers."""

    @property
    def patience_seconds(self) -> float: ...

    def claim(self, count: int, seconds: float) -> Claim:
        """Up to so many messages, waiting for the first; it may return earlier without any.

        Messages that an earlier call claimed but did not return are delivered again.
        """

    def acknowledge(self, messages: Sequence[Message]) -> None: ...

    def acknowledging(self, messages: Sequence[Message]) -> Progress: ...

    def refuse(self, message: Message, reason: str, delay: timedelta, dead: bool) -> None: ...

    def extend(self, message: Message, timeout: timedelta) -> None: ...

    def close(self) -> None: ...


class Queueing(Protocol):
    """A broker with queues."""

    def topics(self) -> list[str]: ...

    def create_topic(self, name: str, *, schema: Schema) -> TopicInfo: ...

    def describe_topic(self, name: str) -> TopicInfo: ...

    def open_queue(self, name: str) -> tuple[str, QueueSettings, Delivering]:
        """The topic of a queue, its settings, and the port of one of its consumers."""
