"""Reads consecutive ranges of one Kafka partition; prefetched records serve the next range."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt

from millstream.errors import KafkaUnavailable
from millstream.log.agreement.groups import TopicPartition
from millstream.log.kafka.clients import PASSING, REFUSED_SECONDS, Clients
from millstream.log.kafka.failures import translated, translated_errors
from millstream.log.kafka.received import ALL, Event, Received, Wanted

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
    "queued.min.messages": 200_000,  # records arrive while a slab is decoded; the memory is limited in bytes
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

Taken = tuple[Received, npt.NDArray[np.int64]]


class PartitionReader:
    def __init__(
        self,
        clients: Clients,
        topic: str,
        number: int,
        where: str,
        look: Callable[[], None],
        wanted: Wanted = ALL,
    ) -> None:
        self.lost_at: int | None = None
        """After a range: the offset that the broker no longer has, or does not have yet."""
        self._clients = clients
        self._place = TopicPartition(topic, number)
        self._where = f"{where}, partition {number}"
        self._look = look
        self._consumer = clients.record_consumer(wanted, defaults=FETCHING, **{name: FETCHING[name] for name in FIXED})
        self._at: int | None = None  # where the last range ended
        self._scanned = 0  # everything before this was seen, except for buffered records
        self._waiting: list[Received] = []

    def read(self, start: int, end: int) -> Iterator[Taken]:
        """The records of a range with their offsets. Stops at `lost_at` if the broker does not have them."""
        self.lost_at = None
        if start != self._at:
            with translated_errors(self._where):
                self._consumer.assign({self._place: start})
            self._scanned, self._waiting = start, []
        self._at = None  # a reader that abandons a range starts the next from scratch
        heard_at = time.monotonic()
        while self._scanned < end or self._waits_before(end):
            is_heard = False
            for taken in self._take(end):
                self._clients.refused, is_heard = None, True
                yield from self._records(taken, end)
                if self.lost_at is not None:
                    return
            if is_heard:
                heard_at = time.monotonic()
            elif self._clients.refused is not None and time.monotonic() > heard_at + REFUSED_SECONDS:
                raise self._clients.refused
            elif time.monotonic() > heard_at + STALL_SECONDS_MAX:
                raise self.stalled(end)
        self._at = end

    def _waits_before(self, end: int) -> bool:
        return bool(self._waiting) and int(self._waiting[0].offsets[0]) < end

    def _take(self, end: int) -> Iterable[Received | Event]:
        if self._waiting:
            taken, self._waiting = self._waiting, []
            return taken
        count = min(CHUNK_RECORDS, end - self._scanned)
        with translated_errors(self._where):
            return self._consumer.take(count, TAKE_SECONDS)

    def _records(self, taken: Received | Event, end: int) -> Iterator[Taken]:
        if isinstance(taken, Event):
            self._heard(taken)
            return
        numbers = taken.offsets
        self._scanned = max(self._scanned, int(numbers[-1]) + 1)
        inside = int(numbers.searchsorted(end))
        if inside < len(numbers):
            self._waiting.append(taken.part(inside, len(numbers)))
        if inside:
            yield taken.part(0, inside), numbers[:inside]

    def _heard(self, event: Event) -> None:
        """Handles the client's events."""
        name = event.error.name()
        if name == "_PARTITION_EOF":
            self._scanned = max(self._scanned, event.offset)
        elif name in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
            self.lost_at = self._scanned
        elif name in GONE:
            self._look()  # raises if it is
        elif name not in PASSING and name not in IGNORED and not event.error.retriable():
            raise translated(event.error, self._where)

    def stalled(self, end: int) -> KafkaUnavailable:
        return KafkaUnavailable(
            f"offsets {self._scanned} to {end - 1} were not sent within {STALL_SECONDS_MAX:.0f} seconds",
            where=self._where,
            next_step="check that the partition has a leader",
        )

    def close(self) -> None:
        self._consumer.close()
