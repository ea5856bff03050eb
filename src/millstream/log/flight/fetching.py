"""Reads a consumer's partitions from a log server: one request returns the next records of one of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np

from millstream.errors import OffsetLost
from millstream.log.agreement.groups import TopicPartition
from millstream.log.batches import Batch
from millstream.log.buffer import microseconds
from millstream.log.consumer_settings import ConsumerSettings
from millstream.log.flight.protocol import WAIT_SECONDS_MAX, decoded, offsets_in, offsets_out
from millstream.log.offers import Offering
from millstream.log.ports import Bound

if TYPE_CHECKING:
    from millstream.log.flight.log import FlightLog

REQUEST_BYTES_MIN = 8 << 20
"""A request costs as much as half a megabyte."""


@dataclass(slots=True)
class RemotePosition:
    """One partition that is being read."""

    offset: int


class FlightFetching:
    check_seconds = 1.0
    grace_seconds = 0.0
    slice_seconds = 0.2

    def __init__(self, log: FlightLog, settings: ConsumerSettings) -> None:
        self._log = log
        self._connection = log.connection
        self._on_lost = settings.on_lost
        self._committed_only = settings.reads_committed
        self.readers: dict[TopicPartition, RemotePosition] = {}
        self.offering = Offering(self.readers)
        self._last: TopicPartition | None = None
        self._stopped = False

    # ------------------------------------------------------------ partitions

    def identity(self, topic: str) -> str:
        return self._log.fresh_topic(topic).identity

    def offset(self, place: TopicPartition, at: Bound | datetime) -> int:
        return self._log.offset(place, microseconds(at) if isinstance(at, datetime) else at)

    def open(self, places: Sequence[TopicPartition]) -> None:
        """The server opens partitions as they are read."""

    def begin(self, starts: Mapping[TopicPartition, int]) -> None:
        self.readers.update({place: RemotePosition(offset) for place, offset in starts.items()})

    def seek(self, place: TopicPartition, offset: int) -> None:
        self.readers[place].offset = offset

    def forget(self, places: Iterable[TopicPartition]) -> None:
        for place in places:
            self.readers.pop(place, None)

    def reassigned(self) -> None:
        """Every request names its partitions."""

    def start_over(self) -> None:
        for place, reader in list(self.readers.items()):
            reader.offset = self.offering.next[place]

    def corresponding(self, positions: Mapping[TopicPartition, int], topic: str) -> dict[int, int]:
        found = self._connection.ask("corresponding", positions=offsets_out(positions), topic=topic)
        return {int(number): int(offset) for number, offset in found}

    # ------------------------------------------------------------ fetching

    def fetch(self, seconds: float, max_bytes: int) -> None:
        if not self.readers or self._stopped:
            return
        try:
            self._fetch(min(seconds, WAIT_SECONDS_MAX), max(max_bytes, REQUEST_BYTES_MIN))
        except OffsetLost:
            if self._on_lost == "error":
                raise
            self._skip_lost()

    def _fetch(self, seconds: float, max_bytes: int) -> None:
        given = {
            "positions": offsets_out({place: self.readers[place].offset for place in self._in_turn()}),
            "seconds": seconds,
            "bytes": max_bytes,
            "committed": self._committed_only,
        }
        with self._connection.translated():
            reader = self._connection.get(given)
            for chunk in reader:
                described = decoded(chunk.app_metadata)
                if "positions" in described:
                    for place, offset in offsets_in(described["positions"]).items():
                        self.readers[place].offset = offset
                    continue
                place = TopicPartition(described["topic"], described["partition"])
                offsets = _offsets(described, chunk.data.num_rows)
                self.offering.waiting.append(Batch(place.topic, place.partition, offsets, chunk.data))
                self.readers[place].offset = int(offsets[-1]) + 1
                self._last = place

    def _in_turn(self) -> list[TopicPartition]:
        """All partitions, those after the one read last first."""
        places = sorted(self.readers)
        after = [place for place in places if self._last is None or place > self._last]
        return after + [place for place in places if place not in after]

    def _skip_lost(self) -> None:
        for place, reader in self.readers.items():
            start = self.offset(place, "earliest")
            if reader.offset < start:
                target = start if self._on_lost == "earliest" else self.offset(place, "latest")
                self.offering.skip_lost(place, target)
                reader.offset = target

    def serve(self) -> None:
        """Nothing else needs attention."""

    def ends(self) -> dict[TopicPartition, int]:
        at: Bound = "stable" if self._committed_only else "latest"
        return {place: max(reader.offset, self.offset(place, at)) for place, reader in self.readers.items()}

    def ends_if_known(self) -> dict[TopicPartition, int]:
        return {}

    def lag(self) -> int:
        return sum(end - self.readers[place].offset for place, end in self.ends().items())

    def stop_waiting(self) -> None:
        self._stopped = True

    def close(self) -> None:
        self.readers.clear()


def _offsets(described: Mapping[str, object], rows: int) -> np.ndarray:
    listed = described.get("offsets")
    if isinstance(listed, list):
        return np.array(listed, np.int64)
    first = described["first"]
    assert isinstance(first, int)
    return np.arange(first, first + rows, dtype=np.int64)
