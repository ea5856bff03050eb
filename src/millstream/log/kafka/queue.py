"""A queue on Kafka is a share group: the brokers hand each record to one consumer, count its tries and lock it.

What they do not do is done here: a message that had all its tries becomes a dead letter before they would forget it,
and where a queue begins is noted when it is made. Kafka's client takes no more messages while one of the last is
unanswered, so a queue that is asked for more meanwhile joins the group once more. Dead letters are written at least
once. Kafka counts neither what waits nor what is out: those numbers are None here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, cast

from millstream.errors import (
    AlreadyExists,
    ClosedError,
    DamagedLog,
    DeliveryExpired,
    InvalidInput,
    InvalidName,
    InvalidSetting,
    MillstreamError,
    UnknownQueue,
)
from millstream.log.batches import Record
from millstream.log.groups import TopicPartition
from millstream.log.kafka.descriptions import TOPIC as DESCRIPTIONS
from millstream.log.kafka.failures import client_module, said_plainly
from millstream.log.kafka.fetching import to_batch
from millstream.log.kafka.topics import KafkaTopic, alter_configs, offsets
from millstream.log.queues import NAME_LENGTH_MAX, Acknowledgements, Claim, Message, Queue, QueueInfo, QueueSettings
from millstream.records import DEAD_LETTER_SCHEMA, format_duration

if TYPE_CHECKING:
    from millstream.log.kafka.log import KafkaLog

KIND = "queue"  # of its descriptions
MEMBERS_MAX = 8
POLLED_MAX = 20
SLICE_SECONDS = 0.2
JOIN_SECONDS, FETCH_SECONDS = 10.0, 2.0
ANSWER_SECONDS = 15.0
SPARE_TRIES = 3  # deliveries beyond max_tries, on which a message is buried: its burier may die, too
GONE = ("INVALID_RECORD_STATE", "_STATE", "UNKNOWN_MEMBER_ID", "SHARE_SESSION_NOT_FOUND", "INVALID_SHARE_SESSION_EPOCH")


def group_of(queue: str) -> str:
    """Its share group: those of consumers have other names."""
    return f"queue-{queue}"


# ---------------------------------------------------------------- queues come and go


def names(log: KafkaLog) -> list[str]:
    return sorted(log.descriptions.of(KIND))


def create(log: KafkaLog, name: str, topic: KafkaTopic, settings: QueueSettings) -> None:
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidName(f"the name of a queue has at most {NAME_LENGTH_MAX} characters, not {len(name)}")
    if name in names(log):
        raise AlreadyExists(f"there is a queue '{name}' already", next_step="choose another name, or delete that one")
    letters = settings.dead_letters or f"{name}.dead"
    if letters not in log.topics():
        log.create_topic(letters, schema=DEAD_LETTER_SCHEMA)
    elif log.topic(letters, fresh=True).settings.schema != DEAD_LETTER_SCHEMA:
        raise InvalidSetting(
            f"topic '{letters}' cannot take dead letters: it has another schema",
            next_step=f"name another topic, or one with the schema '{DEAD_LETTER_SCHEMA.ddl}'",
        )
    _set_up_group(log, name, settings)
    late = settings.start == "latest"
    starts = offsets(log.clients, topic.places(), "latest", committed=True) if late else {}
    document = {
        "topic": topic.name,
        "timeout": format_duration(settings.timeout),
        "max_tries": settings.max_tries,
        "dead_letters": letters,
        "max_in_flight": settings.max_in_flight,
        "start": settings.start,
        "starts": {str(place.partition): offset for place, offset in starts.items()},
    }
    log.descriptions.write(KIND, name, document)


def _set_up_group(log: KafkaLog, name: str, settings: QueueSettings) -> None:
    """The brokers have limits of their own for these, and say so."""
    wanted = {
        "share.auto.offset.reset": "earliest",  # where the queue begins is noted, and what is before it passed over
        "share.isolation.level": "read_committed",
        "share.record.lock.duration.ms": str(int(settings.timeout.total_seconds() * 1000)),
    }
    if settings.max_in_flight != QueueSettings.max_in_flight:
        wanted["share.partition.max.record.locks"] = str(settings.max_in_flight)
    _alter_group(log, name, wanted)
    for spare in range(SPARE_TRIES, 0, -1):
        try:
            _alter_group(log, name, {"share.delivery.count.limit": str(settings.max_tries + spare)})
            return
        except InvalidSetting as error:
            if spare == 1:
                raise InvalidSetting(
                    f"this Kafka does not deliver a message {settings.max_tries + 1} times, "
                    f"as max_tries={settings.max_tries} needs it: {error.what}",
                    where=f"queue '{name}'",
                    next_step="lower max_tries, or raise group.share.max.delivery.count.limit on the brokers",
                ) from error


def _alter_group(log: KafkaLog, name: str, settings: Mapping[str, str]) -> None:
    alter_configs(log.clients, "GROUP", group_of(name), settings, f"queue '{name}'")


def load(log: KafkaLog, name: str) -> tuple[str, QueueSettings, dict[int, int]]:
    """Its topic, its settings, and where it begins."""
    document = _document(log, name)
    try:
        topic, starts = str(document.pop("topic")), document.pop("starts")
        return topic, QueueSettings.of(**document), {int(number): int(offset) for number, offset in starts.items()}
    except (KeyError, TypeError, ValueError, AttributeError, InvalidSetting) as error:
        raise DamagedLog(
            f"what is said of the queue '{name}' cannot be read: {error}",
            where=f"topic '{DESCRIPTIONS}', {log.address}",
            next_step="it was not written by Millstream: delete the queue and create it again",
        ) from error


def _document(log: KafkaLog, name: str) -> dict[str, Any]:
    known = log.descriptions.of(KIND)
    if name not in known:
        raise UnknownQueue(
            f"there is no queue '{name}'",
            next_step=f"create it first; queues that exist: {', '.join(sorted(known)) or 'none'}",
        )
    return dict(known[name])


def describe(log: KafkaLog, name: str) -> QueueInfo:
    topic, settings, _ = load(log, name)
    unknown = dict.fromkeys(("waiting", "in_flight", "acknowledged", "dead", "lost", "consumers"))
    return QueueInfo(name, topic, settings, **unknown)


def delete(log: KafkaLog, name: str) -> None:
    _document(log, name)  # it need not be readable
    kafka_exception = client_module().KafkaException
    try:
        log.clients.admin.delete_consumer_groups([group_of(name)])[group_of(name)].result(ANSWER_SECONDS)
    except kafka_exception as error:
        code = error.args[0].name()
        if code == "NON_EMPTY_GROUP":
            raise InvalidInput(
                f"consumers are at work on queue '{name}'", next_step="stop them first, then try again"
            ) from error
        if code != "GROUP_ID_NOT_FOUND":  # nobody has received anything yet
            with said_plainly(f"queue '{name}'"):
                raise
    log.descriptions.write(KIND, name, None)


def check_unused(log: KafkaLog, topic: str) -> None:
    known = log.descriptions.of(KIND)
    used = [name for name, each in sorted(known.items()) if topic in (each["topic"], each["dead_letters"])]
    if used:
        raise InvalidInput(f"topic '{topic}' is used by queue {', '.join(used)}", next_step="delete the queue first")


# ---------------------------------------------------------------- receiving


@dataclass(slots=True, eq=False)
class _Delivery:
    """A message that this process has, and until when it is nobody else's."""

    message: Any
    tries: int
    until: float
    record: Record | None = None
    unreadable: str | None = None
    claim: Claim | None = None

    @property
    def is_handed(self) -> bool:
        """Whether the user has it: what was claimed for a call that then raised the user never got."""
        return self.claim is not None and self.claim.is_taken

    @property
    def key(self) -> tuple[int, int]:
        return self.message.partition(), self.message.offset()


@dataclass(slots=True, eq=False)
class _Member:
    """One client in the share group; it takes no more until all that it has is answered."""

    client: Any
    is_polling: bool = False  # also after a poll that an exception ended: what came with it nobody knows
    out: dict[tuple[int, int], _Delivery] = field(default_factory=dict)


class KafkaQueue(Queue):
    """One consumer of a queue. Made by `log.queue(…)`; use it as a context manager, or call `close`."""

    def __init__(self, log: KafkaLog, name: str) -> None:
        self._log = cast(Any, log)
        self._kafka = log
        self.name = name
        self.topic, self.settings, self._starts = load(log, name)
        self._members: list[_Member] = []
        self._letters: Any = None
        self._lock = threading.RLock()
        self._has_received = False
        self._closed = False

    @property
    def patience_seconds(self) -> float:
        """A new member of a share group gets its share with its second heartbeat, after some five seconds."""
        return FETCH_SECONDS if self._has_received else JOIN_SECONDS

    def receive_many(self, count: int, timeout: float = 0.0) -> list[Message]:
        """Up to `count` messages, waiting up to `timeout` seconds for the first.

        If it raises, whatever and wherever, the messages it had are delivered by a later call.
        """
        claim = self._received(count, timeout)
        messages = claim.messages
        claim.is_taken = True
        return messages

    def _received(self, count: int, timeout: float) -> Claim:
        deadline = time.monotonic() + timeout
        while True:
            with self._lock:
                if self._closed:
                    raise ClosedError("the queue was closed", next_step="make a new one with log.queue(…)")
                self._drop_interrupted()
                self._give_back()
                if (claim := self._hand_out(count)).messages:
                    return claim
                left = deadline - time.monotonic()
                self._poll(max(0.0, min(left, SLICE_SECONDS)))
                if (claim := self._hand_out(count)).messages or time.monotonic() >= deadline:
                    return claim

    def _drop_interrupted(self) -> None:
        """A client whose poll ended in an exception may hold messages that never came here: they go out again."""
        for member in [member for member in self._members if member.is_polling]:
            with suppress(MillstreamError), said_plainly(f"queue '{self.name}'"):
                member.client.close()
            self._members.remove(member)

    def _give_back(self) -> None:
        """What was not answered in time others have by now; what nobody asked for by half of it they shall have."""
        now, half = time.monotonic(), self.settings.timeout.total_seconds() / 2
        for member in self._members:
            late = [d for d in member.out.values() if now > (d.until if d.is_handed else d.until - half)]
            if late:
                self._answer(member, late, "RELEASE")

    def _hand_out(self, count: int) -> Claim:
        claim = Claim([])
        messages = claim.messages
        for member in self._members:
            for delivery in list(member.out.values()):
                if len(messages) == count:
                    return claim
                if not delivery.is_handed and self._is_for_users(member, delivery):
                    delivery.claim = claim
                    assert delivery.record is not None
                    messages.append(Message(delivery.record, delivery.tries, self))
        return claim

    def _is_for_users(self, member: _Member, delivery: _Delivery) -> bool:
        partition, offset = delivery.key
        if offset < self._starts.get(partition, 0):
            self._answer(member, [delivery], "ACCEPT")  # from before the queue was made
            return False
        if delivery.unreadable is not None or delivery.tries > self.settings.max_tries:
            self._end(member, delivery, delivery.unreadable or "not acknowledged in time")
            return False
        return True

    def _poll(self, timeout: float) -> None:
        """Lets a client that has nothing to answer fetch; if there is none, another one joins."""
        member = next((member for member in self._members if not member.out), None)
        if member is None:
            if len(self._members) == MEMBERS_MAX:
                time.sleep(timeout)
                return
            member = self._join()
        begun = time.monotonic()
        member.is_polling = True
        try:
            with said_plainly(f"queue '{self.name}'"):
                messages = member.client.poll(timeout)
        except MillstreamError:
            member.is_polling = False
            raise
        schema = self._log.topic(self.topic).settings.schema
        self._has_received |= bool(messages)
        for message in messages:
            if message.error() is not None:
                continue
            until = begun + self.settings.timeout.total_seconds()
            delivery = _Delivery(message, int(message.delivery_count() or 1), until)
            place = TopicPartition(self.topic, message.partition())
            batch, unreadable = to_batch(place, schema, [message])
            if batch is not None:
                [delivery.record] = batch.records()
            elif unreadable is not None:
                delivery.unreadable = unreadable.reason
            member.out[delivery.key] = delivery
        member.is_polling = False

    def _join(self) -> _Member:
        client = self._kafka.clients.share_consumer(
            unsaid={"max.poll.records": POLLED_MAX, "fetch.wait.max.ms": 100},
            group_id=group_of(self.name),
            share_acknowledgement_mode="explicit",
        )
        with said_plainly(f"queue '{self.name}'"):
            client.subscribe([self.topic])
        member = _Member(client)
        self._members.append(member)
        return member

    # ------------------------------------------------------------ answering

    def acknowledge(self, messages: Sequence[Message]) -> None:
        with self._lock:
            found = [self._found(message) for message in messages]
            taken = [
                self._answer(member, [d for m, d in found if m is member], "ACCEPT")
                for member in {id(member): member for member, _ in found}.values()
            ]
            if not all(taken):
                raise self._expired(messages[0])

    def acknowledging(self, messages: Sequence[Message]) -> Acknowledgements:
        raise InvalidInput(
            "a transaction of Kafka cannot take messages of a queue along",
            where=f"queue '{self.name}'",
            next_step="use a consumer with delivery='exactly_once', or acknowledge after the transaction",
        )

    def refuse(self, message: Message, reason: str, delay: timedelta, dead: bool) -> None:
        with self._lock:
            member, delivery = self._found(message)
            if delay:
                raise InvalidInput(
                    "a queue on Kafka cannot wait before it delivers a message again",
                    where=f"queue '{self.name}'",
                    next_step="refuse it without a delay, or send it to a topic for later",
                )
            if dead or delivery.tries >= self.settings.max_tries:
                self._end(member, delivery, reason)
            elif not self._answer(member, [delivery], "RELEASE"):
                raise self._expired(message)

    def extend(self, message: Message, timeout: timedelta) -> NoReturn:
        raise InvalidInput(
            "Kafka's client cannot extend the time of a message yet",
            where=f"queue '{self.name}'",
            next_step="make the queue with a longer timeout",
        )

    def _found(self, message: Message) -> tuple[_Member, _Delivery]:
        key = message.record.partition, message.record.offset
        for member in self._members:
            delivery = member.out.get(key)
            if delivery is not None and delivery.is_handed and delivery.tries == message.tries:
                return member, delivery
        raise self._expired(message)

    def _expired(self, message: Message) -> DeliveryExpired:
        return DeliveryExpired(
            "the message was answered before, or went to another consumer after its timeout",
            where=f"queue '{self.name}', {self.topic}/{message.record.partition}, offset {message.record.offset}",
            next_step="make the work shorter than the queue's timeout, or raise that",
        )

    def _answer(self, member: _Member, deliveries: Sequence[_Delivery], how: str) -> bool:
        """Whether the brokers took the answer: they do not when the time was over."""
        confluent_kafka = client_module()
        kind = getattr(confluent_kafka.AcknowledgeType, how)
        taken = True
        for delivery in deliveries:
            try:
                member.client.acknowledge(delivery.message, kind)
            except confluent_kafka.IllegalStateException:  # the client itself has given it up
                taken = False
            member.out.pop(delivery.key, None)
        with said_plainly(f"queue '{self.name}'"):
            answers = member.client.commit_sync(ANSWER_SECONDS)
            for failure in answers.values():
                if failure is None:
                    continue
                if failure.args[0].name() not in GONE:
                    raise failure
                taken = False
        return taken

    # ------------------------------------------------------------ dead letters

    def _end(self, member: _Member, delivery: _Delivery, reason: str) -> None:
        """First the letter, then the end of the message: if this process dies between them the letter comes again."""
        if self._letters is None:
            self._letters = self._kafka.producer(acks="all")
        assert self.settings.dead_letters is not None
        record, message = delivery.record, delivery.message
        if record is None:  # its bytes do not fit the schema
            partition, offset = delivery.key
            stamp = cast(Any, None)
            record = Record(self.topic, partition, offset, stamp, message.key(), None)
        tries = min(delivery.tries, self.settings.max_tries)
        letter = self._letter(cast(Any, {"tries": tries, "reason": reason}), record)
        letter["value"] = message.value()
        self._letters.send(self.settings.dead_letters, letter, key=record.key).wait(ANSWER_SECONDS)
        self._answer(member, [delivery], "REJECT")

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """What is out and not acknowledged goes out again at once, to others."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for member in self._members:
                with suppress(MillstreamError):
                    if member.out:
                        self._answer(member, list(member.out.values()), "RELEASE")
                    with said_plainly(f"queue '{self.name}'"):
                        member.client.close()
            self._members.clear()
            if self._letters is not None:
                self._letters.close()

    def __iter__(self) -> Iterator[Message]:
        """Every message as it comes, for ever."""
        while not self._closed:
            yield from self.receive_many(1, timeout=1.0)
