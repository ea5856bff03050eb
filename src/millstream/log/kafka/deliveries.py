"""One consumer of a queue on Kafka, a share group: its brokers deliver each record to one consumer and count tries.

Millstream adds what brokers do not do: a message that has used all its tries becomes a dead letter before they discard
it, and records from before the queue was created are skipped. Kafka's client fetches nothing while any message of its
last poll is unsettled, so a queue that needs more joins the group with another client. Dead letters are written at
least once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from millstream.errors import InvalidInput, MillstreamError
from millstream.log.agreement.groups import TopicPartition
from millstream.log.batches import Record
from millstream.log.kafka.decoding import to_batch
from millstream.log.kafka.failures import client_module, translated_errors
from millstream.log.kafka.queues import ANSWER_SECONDS, group_of
from millstream.log.kafka.received import record_received
from millstream.log.ports import Claim, Delivery
from millstream.log.producer import Producer
from millstream.log.queues import Message, QueueSettings, closed_error, dead_letter, expired

if TYPE_CHECKING:
    from confluent_kafka import ShareConsumer

    from millstream.log.kafka.log import KafkaLog

MEMBERS_MAX = 8
POLLED_MAX = 20
SLICE_SECONDS = 0.2
JOIN_SECONDS, FETCH_SECONDS = 10.0, 2.0
GONE = ("INVALID_RECORD_STATE", "_STATE", "UNKNOWN_MEMBER_ID", "SHARE_SESSION_NOT_FOUND", "INVALID_SHARE_SESSION_EPOCH")


@dataclass(slots=True, eq=False)
class _Held:
    """A message that this process has acquired, and until when."""

    message: Any
    tries: int
    until: float
    record: Record | None = None
    unreadable: str | None = None
    claim: Claim | None = None

    @property
    def is_handed(self) -> bool:
        """Whether the user has it: messages acquired for a call that then raised were never returned."""
        return self.claim is not None and self.claim.is_taken

    @property
    def key(self) -> tuple[int, int]:
        """Partition and offset."""
        return self.message.partition(), self.message.offset()


@dataclass(slots=True, eq=False)
class _Member:
    """One client in the share group; it fetches nothing until all its messages are settled."""

    client: ShareConsumer
    is_polling: bool = False  # also after a poll ended by an exception: its messages are unknown
    held: dict[tuple[int, int], _Held] = field(default_factory=dict)


class KafkaDeliveries:
    def __init__(
        self, log: KafkaLog, name: str, topic: str, settings: QueueSettings, starts: Mapping[int, int]
    ) -> None:
        self._log = log
        self._name = name
        self._topic, self._settings, self._starts = topic, settings, starts
        self._members: list[_Member] = []
        self._producer: Producer | None = None  # for dead letters
        self._lock = threading.RLock()
        self._has_received = False
        self._closed = False

    @property
    def patience_seconds(self) -> float:
        """A new member of a share group is assigned partitions with its second heartbeat, after about five seconds."""
        return FETCH_SECONDS if self._has_received else JOIN_SECONDS

    def claim(self, count: int, seconds: float) -> Claim:
        with self._lock:
            if self._closed:
                raise closed_error()
            self._drop_interrupted()
            self._give_back()
            claim = self._hand_out(count)
            if not claim.deliveries:
                self._poll(min(seconds, SLICE_SECONDS))
                claim = self._hand_out(count)
            return claim

    def _drop_interrupted(self) -> None:
        """A client whose poll ended in an exception may hold messages that never got here: they are redelivered."""
        for member in [member for member in self._members if member.is_polling]:
            with suppress(MillstreamError), translated_errors(f"queue '{self._name}'"):
                member.client.close()
            self._members.remove(member)

    def _give_back(self) -> None:
        """Releases messages that were not settled in time, and those that no call took within half of the time."""
        now, half = time.monotonic(), self._settings.timeout.total_seconds() / 2
        for member in self._members:
            late = [d for d in member.held.values() if now > (d.until if d.is_handed else d.until - half)]
            if late:
                self._answer(member, late, "RELEASE")

    def _hand_out(self, count: int) -> Claim:
        claim = Claim([])
        for member in self._members:
            for held in list(member.held.values()):
                if len(claim.deliveries) == count:
                    return claim
                if not held.is_handed and self._is_for_users(member, held):
                    held.claim = claim
                    assert held.record is not None
                    claim.deliveries.append(Delivery(held.record, held.tries))
        return claim

    def _is_for_users(self, member: _Member, held: _Held) -> bool:
        partition, offset = held.key
        if offset < self._starts.get(partition, 0):
            self._answer(member, [held], "ACCEPT")  # from before the queue was created
            return False
        if held.unreadable is not None or held.tries > self._settings.max_tries:
            self._end(member, held, held.unreadable or "not acknowledged in time")
            return False
        return True

    def _poll(self, timeout: float) -> None:
        """Fetches with a client that has nothing unsettled; if there is none, another one joins."""
        member = next((member for member in self._members if not member.held), None)
        if member is None:
            if len(self._members) == MEMBERS_MAX:
                time.sleep(timeout)
                return
            member = self._join()
        begun = time.monotonic()
        member.is_polling = True
        try:
            with translated_errors(f"queue '{self._name}'"):
                messages = member.client.poll(timeout)
        except MillstreamError:
            member.is_polling = False
            raise
        schema = self._log.topic(self._topic).settings.schema
        self._has_received |= bool(messages)
        for message in messages:
            if message.error() is not None:
                continue
            until = begun + self._settings.timeout.total_seconds()
            held = _Held(message, int(message.delivery_count() or 1), until)
            batch, unreadable = to_batch(record_received(TopicPartition(self._topic, held.key[0]), message), schema)
            if batch is not None:
                [held.record] = batch.records()
            elif unreadable is not None:
                held.unreadable = unreadable.reason
            member.held[held.key] = held
        member.is_polling = False

    def _join(self) -> _Member:
        client = self._log.clients.share_consumer(
            defaults={"max.poll.records": POLLED_MAX, "fetch.wait.max.ms": 100},
            group_id=group_of(self._name),
            share_acknowledgement_mode="explicit",
        )
        with translated_errors(f"queue '{self._name}'"):
            client.subscribe([self._topic])
        member = _Member(client)
        self._members.append(member)
        return member

    # ------------------------------------------------------------ settling

    def acknowledge(self, messages: Sequence[Message]) -> None:
        with self._lock:
            found = [self._found(message) for message in messages]
            taken = [
                self._answer(member, [d for m, d in found if m is member], "ACCEPT")
                for member in {id(member): member for member, _ in found}.values()
            ]
            if not all(taken):
                raise expired(self._name, messages[0].record, can_extend=False)

    def acknowledging(self, messages: Sequence[Message]) -> NoReturn:
        raise InvalidInput(
            "a Kafka transaction cannot include messages of a queue",
            where=f"queue '{self._name}'",
            next_step="use a consumer with delivery='exactly_once', or acknowledge after the transaction",
        )

    def refuse(self, message: Message, reason: str, delay: timedelta, dead: bool) -> None:
        with self._lock:
            member, held = self._found(message)
            if delay:
                raise InvalidInput(
                    "a queue on Kafka cannot delay redelivery",
                    where=f"queue '{self._name}'",
                    next_step="reject it without a delay, or send it to a topic for later",
                )
            if dead or held.tries >= self._settings.max_tries:
                self._end(member, held, reason)
            elif not self._answer(member, [held], "RELEASE"):
                raise expired(self._name, message.record, can_extend=False)

    def extend(self, message: Message, timeout: timedelta) -> NoReturn:
        raise InvalidInput(
            "Kafka's client cannot extend the time of a message yet",
            where=f"queue '{self._name}'",
            next_step="create the queue with a longer timeout",
        )

    def _found(self, message: Message) -> tuple[_Member, _Held]:
        key = message.record.partition, message.record.offset
        for member in self._members:
            held = member.held.get(key)
            if held is not None and held.is_handed and held.tries == message.tries:
                return member, held
        raise expired(self._name, message.record, can_extend=False)

    def _answer(self, member: _Member, several: Sequence[_Held], how: str) -> bool:
        """Whether the brokers accepted the answer: they do not after the message timed out."""
        confluent_kafka = client_module()
        kind = getattr(confluent_kafka.AcknowledgeType, how)
        taken = True
        for held in several:
            try:
                member.client.acknowledge(held.message, kind)
            except confluent_kafka.IllegalStateException:  # the client itself has released it
                taken = False
            member.held.pop(held.key, None)
        with translated_errors(f"queue '{self._name}'"):
            answers = member.client.commit_sync(ANSWER_SECONDS)
            for failure in answers.values():
                if failure is None:
                    continue
                if failure.args[0].name() not in GONE:
                    raise failure
                taken = False
        return taken

    # ------------------------------------------------------------ dead letters

    def _end(self, member: _Member, held: _Held, reason: str) -> None:
        """First writes the dead letter, then settles the message: a crash in between leads to a second dead letter."""
        if self._producer is None:
            self._producer = self._log.producer(acks="all")
        assert self._settings.dead_letters is not None
        message, (partition, offset) = held.message, held.key
        tries = min(held.tries, self._settings.max_tries)
        letter = dead_letter(TopicPartition(self._topic, partition), offset, message.value(), tries, reason)
        self._producer.send(self._settings.dead_letters, letter, key=message.key()).wait(ANSWER_SECONDS)
        self._answer(member, [held], "REJECT")

    # ------------------------------------------------------------ closing

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for member in self._members:
                with suppress(MillstreamError):
                    if member.held:
                        self._answer(member, list(member.held.values()), "RELEASE")
                    with translated_errors(f"queue '{self._name}'"):
                        member.client.close()
            self._members.clear()
            if self._producer is not None:
                self._producer.close()
