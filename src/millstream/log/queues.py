"""A queue delivers the records of a topic as single messages: one consumer processes each, and acknowledges it.

A message that is not acknowledged in time is redelivered, up to a number of tries; then it becomes a dead letter. Order
is not preserved. Several queues on one topic each get all of it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from millstream.errors import (
    AlreadyExists,
    ClosedError,
    DeliveryExpired,
    InvalidInput,
    InvalidName,
    InvalidSetting,
    UnknownQueue,
)
from millstream.log.agreement.groups import TopicPartition
from millstream.log.batches import Record
from millstream.log.ports import Claim, Progress, Queueing
from millstream.records import DEAD_LETTER_SCHEMA, duration, format_duration

NAME_LENGTH_MAX = 200  # other names are derived from it


@dataclass(frozen=True)
class QueueSettings:
    timeout: timedelta = timedelta(seconds=30)
    max_tries: int = 5
    dead_letters: str | None = None
    max_in_flight: int = 10_000
    start: str = "earliest"

    @classmethod
    def of(cls, **given: Any) -> QueueSettings:
        known = list(cls.__dataclass_fields__)
        for name in given:
            if name not in known:
                raise InvalidSetting(
                    f"there is no setting '{name}'", next_step=f"settings of a queue: {', '.join(known)}"
                )
        if "timeout" in given:
            given["timeout"] = duration(given["timeout"], what="timeout")
        settings = cls(**given)
        if settings.timeout <= timedelta(0):
            raise InvalidSetting("timeout must be longer than 0")
        for name in ("max_tries", "max_in_flight"):
            value = getattr(settings, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidSetting(f"{name} must be a whole number of at least 1, not {value!r}")
        if settings.start not in ("earliest", "latest"):
            raise InvalidSetting(f"start must be 'earliest' or 'latest', not {settings.start!r}")
        return settings

    def to_document(self) -> dict[str, Any]:
        return {**asdict(self), "timeout": format_duration(self.timeout)}

    def to_json(self) -> str:
        return json.dumps(self.to_document())


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """Unknown values are None: Kafka does not count the messages of a queue."""

    name: str
    topic: str
    settings: QueueSettings
    waiting: int | None
    in_flight: int | None
    acknowledged: int | None
    dead: int | None
    lost: int | None
    consumers: int | None


@dataclass(frozen=True, slots=True)
class Message:
    """One delivery of a record. It is redelivered unless it is acknowledged before its timeout."""

    record: Record
    tries: int
    _queue: Queue

    @property
    def value(self) -> Any:
        return self.record.value

    @property
    def key(self) -> bytes | None:
        return self.record.key

    def acknowledge(self) -> None:
        """The work is done: the message is not delivered again."""
        self._queue.acknowledge([self])

    def refuse(self, reason: str = "refused", *, delay: str | timedelta = "0 seconds", dead: bool = False) -> None:
        """The work failed: redeliver the message, after a delay if one is given, or make it a dead letter at once."""
        self._queue.refuse(self, reason, duration(delay, what="delay"), dead)

    def extend(self, timeout: str | timedelta) -> None:
        """The work takes longer: extends the timeout, counted from now."""
        self._queue.extend(self, duration(timeout, what="timeout"))


class Queue:
    """One consumer of a queue. Made by `log.queue(…)`; use it as a context manager, or call `close`."""

    def __init__(self, log: Queueing, name: str) -> None:
        self.name = name
        self.topic, self.settings, self._delivering = log.open_queue(name)
        self._closed = False

    @property
    def patience_seconds(self) -> float:
        """If nothing arrives within this time, there is nothing to receive."""
        return self._delivering.patience_seconds

    def receive(self, timeout: float = 0.0) -> Message | None:
        """The next message, waiting up to `timeout` seconds for one."""
        return next(iter(self.receive_many(1, timeout)), None)

    def receive_many(self, count: int, timeout: float = 0.0) -> list[Message]:
        """Up to `count` messages, waiting up to `timeout` seconds for the first.

        If it raises, the messages it had claimed are delivered by a later call. On the embedded log that is the next
        one, and the attempt does not count as one of their tries.
        """
        claim = self._claimed(count, timeout)
        messages = [Message(delivery.record, delivery.tries, self) for delivery in claim.deliveries]
        claim.is_taken = True
        return messages

    def _claimed(self, count: int, timeout: float) -> Claim:
        deadline = time.monotonic() + timeout
        while True:
            if self._closed:
                raise closed_error()
            left = deadline - time.monotonic()
            claim = self._delivering.claim(count, max(0.0, left))
            if claim.deliveries or left <= 0:
                return claim

    def __iter__(self) -> Iterator[Message]:
        """Every message as it arrives, without end."""
        while not self._closed:
            yield from self.receive_many(1, timeout=1.0)

    def acknowledge(self, messages: Sequence[Message]) -> None:
        self._delivering.acknowledge(messages)

    def acknowledging(self, messages: Sequence[Message]) -> Progress:
        """For `producer.transaction(…)`: the messages count as acknowledged if the transaction is committed."""
        return self._delivering.acknowledging(messages)

    def refuse(self, message: Message, reason: str, delay: timedelta, dead: bool) -> None:
        self._delivering.refuse(message, reason, delay, dead)

    def extend(self, message: Message, timeout: timedelta) -> None:
        self._delivering.extend(message, timeout)

    def close(self) -> None:
        """Messages that were not acknowledged can be delivered to others at once."""
        if not self._closed:
            self._closed = True
            self._delivering.close()

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


# ---------------------------------------------------------------- shared by queues of every broker


def prepared(log: Queueing, name: str, known: Iterable[str], settings: QueueSettings) -> QueueSettings:
    """The validated settings of a new queue; creates its topic of dead letters if it does not exist."""
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidName(f"the name of a queue can have at most {NAME_LENGTH_MAX} characters, not {len(name)}")
    if name in known:
        raise already_exists(name)
    dead_letters = f"{name}.dead" if settings.dead_letters is None else settings.dead_letters
    if dead_letters not in log.topics():
        log.create_topic(dead_letters, schema=DEAD_LETTER_SCHEMA)
    elif log.describe_topic(dead_letters).settings.schema != DEAD_LETTER_SCHEMA:
        raise InvalidSetting(
            f"topic '{dead_letters}' cannot be used for dead letters: its schema differs",
            next_step=f"name another topic, or one with the schema '{DEAD_LETTER_SCHEMA.ddl}'",
        )
    return replace(settings, dead_letters=dead_letters)


def dead_letter(
    place: TopicPartition, offset: int, value: bytes | None, tries: int, reason: str | None
) -> dict[str, Any]:
    """The dead letter of a message that has used all its tries; `value` as in the topic."""
    return {
        "value": value,
        "topic": place.topic,
        "partition": place.partition,
        "offset": offset,
        "reason": f"{tries} tries; the last one: {reason or 'not acknowledged in time'}",
        "at": datetime.now(UTC),
    }


def closed_error() -> ClosedError:
    return ClosedError("the queue was closed", next_step="make a new one with log.queue(…)")


def already_exists(name: str) -> AlreadyExists:
    return AlreadyExists(f"queue '{name}' already exists", next_step="choose another name, or delete that one")


def unknown(name: str, known: Iterable[str]) -> UnknownQueue:
    exist = ", ".join(sorted(known)) or "none"
    return UnknownQueue(f"there is no queue '{name}'", next_step=f"create it first; queues that exist: {exist}")


def in_use(topic: str, queues: Sequence[str]) -> InvalidInput:
    return InvalidInput(f"topic '{topic}' is used by queue {', '.join(queues)}", next_step="delete the queue first")


def expired(queue: str, record: Record, *, can_extend: bool) -> DeliveryExpired:
    longer = "raise it, or call message.extend(…)" if can_extend else "or raise that"
    return DeliveryExpired(
        "the message was settled before, or delivered to another consumer after its timeout",
        where=f"queue '{queue}', {record.topic}/{record.partition}, offset {record.offset}",
        next_step=f"finish within the queue's timeout, {longer}",
    )
