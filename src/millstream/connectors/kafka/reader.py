"""Reads consecutive ranges of one Kafka partition; prefetched records serve the next range."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from millstream.errors import KafkaUnavailable
from millstream.log.kafka.clients import PASSING, REFUSED_SECONDS, Clients
from millstream.log.kafka.failures import client_module, translated, translated_errors

if TYPE_CHECKING:
    from confluent_kafka import Message

CHUNK_RECORDS = 20_000
TAKE_SECONDS = 0.01
STALL_SECONDS_MAX = 60.0
FETCHING = {
    "group.id": "millstream",  # required by the client; nothing is committed to it
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": 25,  # a range that ends in a gap ends when the broker has no more records
    "fetch.queue.backoff.ms": 2,  # default: 1000, which stalls a reader with a full queue
    "queued.min.messages": 20_000,
    "queued.max.messages.kbytes": 16_384,
    "max.partition.fetch.bytes": 2 << 20,
    "max.poll.interval.ms": 86_400_000,  # a reader may be idle between batches
}
FIXED = (
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.partition.eof",
    "auto.offset.reset",
    "isolation.level",
)
GONE = frozenset(("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID"))
IGNORED = frozenset(("GROUP_AUTHORIZATION_FAILED", "_MAX_POLL_EXCEEDED"))  # there is no group

Taken = tuple[list["Message"], npt.NDArray[np.int64]]


class PartitionReader:
    def __init__(self, clients: Clients, topic: str, number: int, where: str, look: Callable[[], None]) -> None:
        self.lost_at: int | None = None
        """After a range: the offset that the broker no longer has, or does not have yet."""
        self._clients = clients
        self._place = (topic, number)
        self._where = f"{where}, partition {number}"
        self._look = look
        self._consumer = clients.consumer(defaults=FETCHING, **{name: FETCHING[name] for name in FIXED})
        self._at: int | None = None  # where the last range ended
        self._scanned = 0  # everything before this was seen, except for buffered records
        self._waiting: list[Message] = []

    def read(self, start: int, end: int) -> Iterator[Taken]:
        """The records of a range with their offsets. Stops at `lost_at` if the broker does not have them."""
        self.lost_at = None
        if start != self._at:
            with translated_errors(self._where):
                self._consumer.assign([client_module().TopicPartition(*self._place, start)])
            self._scanned, self._waiting = start, []
        self._at = None  # a reader that abandons a range starts the next from scratch
        heard_at = time.monotonic()
        while self._scanned < end or self._waits_before(end):
            taken = self._take(end)
            if taken:
                self._clients.refused = None
                yield from self._records(taken, end)
                if self.lost_at is not None:
                    return
                heard_at = time.monotonic()
            elif self._clients.refused is not None and time.monotonic() > heard_at + REFUSED_SECONDS:
                raise self._clients.refused
            elif time.monotonic() > heard_at + STALL_SECONDS_MAX:
                raise self.stalled(end)
        self._at = end

    def _waits_before(self, end: int) -> bool:
        return bool(self._waiting) and (self._waiting[0].offset() or 0) < end

    def _take(self, end: int) -> list[Message]:
        if self._waiting:
            taken, self._waiting = self._waiting, []
            return taken
        count = min(CHUNK_RECORDS, end - self._scanned)
        with translated_errors(self._where):
            return self._consumer.consume(count, TAKE_SECONDS)

    def _records(self, taken: list[Message], end: int) -> Iterator[Taken]:
        errors = [each.error() for each in taken]
        if set(map(type, errors)) != {type(None)}:
            first = next(place for place, error in enumerate(errors) if error is not None)
            if first:
                yield from self._records(taken[:first], end)
            self._heard(taken[first])
            rest = taken[first + 1 :]
            if rest and self.lost_at is None:
                yield from self._records(rest, end)
            return
        numbers = np.array([each.offset() for each in taken], np.int64)
        self._scanned = max(self._scanned, int(numbers[-1]) + 1)
        inside = int(numbers.searchsorted(end))
        self._waiting += taken[inside:]
        if inside:
            yield taken[:inside], numbers[:inside]

    def _heard(self, message: Message) -> None:
        """Handles the client's events."""
        error: Any = message.error()
        name = error.name()
        if name == "_PARTITION_EOF":
            self._scanned = max(self._scanned, message.offset() or 0)
        elif name in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
            self.lost_at = self._scanned
        elif name in GONE:
            self._look()  # raises if it is
        elif name not in PASSING and name not in IGNORED and not error.retriable():
            raise translated(error, self._where)

    def stalled(self, end: int) -> KafkaUnavailable:
        return KafkaUnavailable(
            f"offsets {self._scanned} to {end - 1} were not sent within {STALL_SECONDS_MAX:.0f} seconds",
            where=self._where,
            next_step="check that the partition has a leader",
        )

    def close(self) -> None:
        self._consumer.close()
