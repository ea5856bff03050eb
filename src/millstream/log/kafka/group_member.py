"""A consumer's membership in a Kafka group. The member is confluent-kafka's consumer, which its client contains."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from millstream import terminal
from millstream.errors import KafkaUnavailable, MillstreamError, TransactionAborted, UnknownTopic
from millstream.log.agreement.groups import TopicPartition, revoked
from millstream.log.consumer_settings import ConsumerSettings
from millstream.log.kafka import groups
from millstream.log.kafka.clients import ANSWER_SECONDS, GLANCE_SECONDS
from millstream.log.kafka.column_client import ColumnConsumer
from millstream.log.kafka.failures import client_module, translated_errors
from millstream.log.kafka.fetching import SLICE_SECONDS, KafkaFetching
from millstream.log.kafka.groups import without_errors
from millstream.log.kafka.topics import as_kafka, offsets
from millstream.log.kafka.transactions import Transactions
from millstream.log.ports import Assignee, Commit, Release

if TYPE_CHECKING:
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as ClientPartition

    from millstream.log.kafka.log import KafkaLog

JOIN_SECONDS = 15.0
RETRY_SECONDS = 0.1
SETTLE_SECONDS = 1.0
GONE = ("ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID", "_ASSIGNMENT_LOST", "_STATE")
logger = terminal.logger(__name__)


class KafkaMember:
    def __init__(
        self, log: KafkaLog, group: str, settings: ConsumerSettings, fetching: KafkaFetching, assignee: Assignee
    ) -> None:
        self._clients = log.clients
        self._group = group
        self._committed_only = settings.reads_committed
        self._fetching = fetching
        assert not isinstance(fetching.client, ColumnConsumer)
        self._reader = fetching.client
        self._client: Consumer = fetching.client.client
        self._assignee = assignee
        self._has_joined = False
        self._is_leaving = False

    @property
    def member(self) -> str | None:
        return str(self._client.memberid())

    # ------------------------------------------------------------ joining

    def begin_group(self, places: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        known = {place.topic for place in groups.committed_offsets(self._clients, self._group)}
        fresh = [place for place in places if place.topic not in known]
        begun = offsets(self._clients, fresh, "latest", committed=self._committed_only)
        if begun:
            try:
                groups.store_offsets(self._clients, self._group, begun)
            except MillstreamError as error:  # other members are already active and have committed it
                logger.debug("%s", error)
        return begun

    def join(self, topics: Sequence[str]) -> None:
        self._subscribe_client(topics)
        deadline = time.monotonic() + (JOIN_SECONDS if topics else 0.0)
        while not self._has_joined and time.monotonic() < deadline:
            self._fetching.poll(SLICE_SECONDS)

    def subscribe(self, topics: Sequence[str], release: Release) -> None:
        self.refresh(release, is_due=True)
        release({place for place in self._fetching.readers if place.topic not in topics})
        self._subscribe_client(topics)

    def _subscribe_client(self, topics: Sequence[str]) -> None:
        """Without topics, as a pattern may have none yet, it is no member: Kafka accepts no empty list."""
        with translated_errors(self._fetching.where):
            if not topics:
                self._client.unsubscribe()
                return
            self._client.subscribe(
                list(topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )

    def leave(self) -> None:
        self._is_leaving = True  # the client leaves when it is closed

    # ------------------------------------------------------------ assigned and revoked

    def refresh(self, release: Release, *, is_due: bool) -> set[TopicPartition] | None:
        """The client assigns partitions while it is polled; this starts those that could not be started then."""
        if self._fetching.unbegun:
            self._begin_assigned(GLANCE_SECONDS)
        return None

    def _on_assign(self, client: Consumer, partitions: list[ClientPartition]) -> None:
        unbegun = self._fetching.unbegun
        unbegun |= _places(partitions)
        self._has_joined = True
        client.incremental_assign([])  # otherwise the client starts all of them at its own default
        self._begin_assigned(3 * ANSWER_SECONDS)
        if unbegun:
            logger.warning("%s: %s cannot be started yet", self._fetching.where, ", ".join(map(str, sorted(unbegun))))

    def _begin_assigned(self, seconds: float) -> None:
        """Starts partitions at their committed offsets, or keeps them for later if these cannot be looked up."""
        places = sorted(self._fetching.unbegun - self._fetching.readers.keys())
        try:
            committed = self.committed(places, seconds)
            starts = self._assignee.starts(places, committed)
        except (KafkaUnavailable, UnknownTopic) as error:
            logger.debug("%s", error)
            return
        self._assignee.begin(starts, committed)
        self._fetching.unbegun.clear()

    def _on_revoke(self, client: Consumer, partitions: list[ClientPartition]) -> None:
        begun = self._only_begun(partitions)
        if self._is_leaving:
            self._assignee.forget(_places(begun))
        else:
            self._assignee.release(_places(begun))
        self._reader.remove(_places(begun))

    def _on_lost(self, client: Consumer, partitions: list[ClientPartition]) -> None:
        """This member was silent for too long: its partitions can no longer be committed."""
        begun = self._only_begun(partitions)
        self._assignee.forget(_places(begun))
        self._reader.remove(_places(begun))

    def _only_begun(self, partitions: list[ClientPartition]) -> list[ClientPartition]:
        """Partitions that were not started were never assigned to the client."""
        never = _places(partitions) & self._fetching.unbegun
        self._fetching.unbegun -= never
        return [found for found in partitions if TopicPartition(found.topic, found.partition) not in never]

    # ------------------------------------------------------------ committing

    def committed(
        self, places: Sequence[TopicPartition], seconds: float = 3 * ANSWER_SECONDS
    ) -> dict[TopicPartition, int]:
        asked = list(as_kafka(dict.fromkeys(places, 0)))
        if not asked:
            return {}
        found = self._clients.retrying(
            lambda: without_errors(self._client.committed(asked, timeout=min(seconds, ANSWER_SECONDS))),
            self._fetching.where,
            seconds,
        )
        return {TopicPartition(place.topic, place.partition): place.offset for place in found if place.offset >= 0}

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        if not self._try_commit(offsets):
            raise revoked(offsets, self._group, self.member)

    def commit_owned(self, offsets: Mapping[TopicPartition, int]) -> Commit:
        """The client reports lost partitions at the next poll."""
        return Commit(offsets if self._try_commit(offsets) else {})

    def _try_commit(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """Whether the group accepted the offsets: it rejects those of a member that it considers gone."""
        kafka_exception = client_module().KafkaException

        def act() -> bool:
            try:
                answers = self._client.commit(offsets=list(as_kafka(offsets)), asynchronous=False)
            except kafka_exception as error:
                if error.args[0].name() in GONE:
                    return False
                raise
            for answer in answers or ():
                if answer.error is not None:
                    if answer.error.name() in GONE:
                        return False
                    raise kafka_exception(answer.error)
            return True

        deadline = time.monotonic() + SETTLE_SECONDS
        while not (accepted := self._clients.retrying(act, self._fetching.where)) and time.monotonic() < deadline:
            time.sleep(RETRY_SECONDS)  # during a rebalance, this member may still keep its partitions
        return accepted

    def commit_with(self, transaction: object, offsets: Mapping[TopicPartition, int]) -> None:
        assert isinstance(transaction, Transactions)
        if not offsets:
            return
        with translated_errors(self._fetching.where):
            metadata = self._client.consumer_group_metadata()
        try:
            transaction.send_offsets(list(as_kafka(offsets)), metadata)
        except TransactionAborted as error:
            if any(code in str(error.__cause__) for code in GONE):
                raise revoked(offsets, self._group, self.member) from error
            raise


def _places(partitions: Iterable[ClientPartition]) -> set[TopicPartition]:
    return {TopicPartition(partition.topic, partition.partition) for partition in partitions}
