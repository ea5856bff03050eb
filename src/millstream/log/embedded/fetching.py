"""Reads a consumer's partitions from their segments, in turn, and sleeps until one of them grows."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from millstream.errors import OffsetLost
from millstream.log.agreement.groups import CHECK_SECONDS, TopicPartition
from millstream.log.agreement.wakeup import Wakeup
from millstream.log.batches import Batch
from millstream.log.buffer import microseconds
from millstream.log.consumer_settings import ConsumerSettings
from millstream.log.embedded.times import offsets_at, time_reached
from millstream.log.offers import Offering
from millstream.log.ports import Bound
from millstream.log.storage.partition import Partition
from millstream.log.storage.reader import Fetch, PartitionReader, offset_at_time

if TYPE_CHECKING:
    from millstream.log.embedded.log import EmbeddedLog

SLEEP_SECONDS_MAX = 60.0
LONE_SLEEP_SECONDS_MAX = 1.0  # without a group, new partitions are only found by checking


class EmbeddedFetching:
    check_seconds = CHECK_SECONDS
    grace_seconds = 0.0
    slice_seconds = 0.0

    def __init__(self, log: EmbeddedLog, settings: ConsumerSettings) -> None:
        self._log = log
        self._on_lost = settings.on_lost
        self._committed_only = settings.reads_committed
        self._sleep_seconds_max = LONE_SLEEP_SECONDS_MAX if settings.group is None else CHECK_SECONDS
        self.readers: dict[TopicPartition, PartitionReader] = {}
        self.offering = Offering(self.readers)
        self._opened: dict[TopicPartition, Partition] = {}
        self._turn: deque[TopicPartition] = deque()
        self._wakeup = Wakeup()
        self._freed_at = 0.0

    # ------------------------------------------------------------ partitions

    def identity(self, topic: str) -> str:
        return self._log.topic(topic).identity

    def offset(self, place: TopicPartition, at: Bound | datetime) -> int:
        partition = self._log.find_partition(*place)
        if isinstance(at, datetime):
            return offset_at_time(partition, microseconds(at))
        if at == "earliest":
            return partition.start_offset()
        return partition.stable_offset() if at == "stable" else partition.end_offset()

    def open(self, places: Sequence[TopicPartition]) -> None:
        self._opened = {place: self._log.find_partition(*place) for place in places}

    def begin(self, starts: Mapping[TopicPartition, int]) -> None:
        for place, offset in starts.items():
            self.readers[place] = PartitionReader(self._opened[place], offset, committed=self._committed_only)
        self._opened.clear()

    def seek(self, place: TopicPartition, offset: int) -> None:
        self.readers[place].seek(offset)

    def forget(self, places: Iterable[TopicPartition]) -> None:
        for place in places:
            self.readers.pop(place, None)

    def reassigned(self) -> None:
        self._turn = deque(sorted(self.readers))
        self._wakeup.watch(reader.partition.marks.path for reader in self.readers.values())

    def start_over(self) -> None:
        for place, reader in list(self.readers.items()):
            reader.seek(self.offering.next[place])

    def corresponding(self, positions: Mapping[TopicPartition, int], topic: str) -> dict[int, int]:
        reached = [(self.readers[place].partition, offset) for place, offset in positions.items()]
        return offsets_at(self._log.topic(topic).partitions(), time_reached(reached))

    # ------------------------------------------------------------ fetching

    def fetch(self, seconds: float, max_bytes: int) -> None:
        self.serve()
        for _ in range(len(self._turn)):
            if self.offering.waiting:
                return
            place = self._turn[0]
            self._turn.rotate(-1)
            for fetch in self._read(place, max_bytes):
                self.offering.waiting.append(Batch(place.topic, place.partition, fetch.offsets, fetch.records))
        if seconds > 0 and not self.offering.waiting:
            # Sleeps less while an open transaction blocks a reader: its producer may be dead.
            patience = CHECK_SECONDS if self._end_abandoned() else SLEEP_SECONDS_MAX
            self._wakeup.wait(min(seconds, self._sleep_seconds_max, patience))

    def _read(self, place: TopicPartition, max_bytes: int) -> list[Fetch]:
        reader = self.readers[place]
        try:
            return reader.read(max_bytes)
        except OffsetLost:
            if self._on_lost == "error":
                raise
            partition = reader.partition
            target = partition.start_offset() if self._on_lost == "earliest" else partition.end_offset()
            self.offering.skip_lost(place, target)
            reader.seek(target)
            return reader.read(max_bytes)

    def serve(self) -> None:
        if time.monotonic() - self._freed_at > CHECK_SECONDS:
            self._end_abandoned()

    def _end_abandoned(self) -> bool:
        """Ends transactions of dead producers that block this consumer; whether any transaction still does."""
        self._freed_at = time.monotonic()
        held_back = [r for r in self.readers.values() if r.committed and r.partition.marks.read().open]
        for reader in held_back:
            self._log.end_abandoned(reader.partition)
        return bool(held_back)

    def ends(self) -> dict[TopicPartition, int]:
        self._end_abandoned()
        return {place: reader.end_offset() for place, reader in self.readers.items()}

    def ends_if_known(self) -> dict[TopicPartition, int]:
        return {}  # the files were just read to the end

    def lag(self) -> int:
        return sum(reader.lag() for reader in self.readers.values())

    def stop_waiting(self) -> None:
        self._wakeup.close()

    def close(self) -> None:
        """The files of a partition are closed with its last reader."""
