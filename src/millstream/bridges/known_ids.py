"""The ids of a topic's newest messages: which of them are stored already.

The records themselves carry the ids, so what is stored and what is known never disagree. They are read once, when a
bridge starts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from millstream.bridges.arrivals import ID_HEADER
from millstream.log import Batch, Broker

POLL_SECONDS = 0.5
MICROSECONDS = 1_000_000


class KnownIds:
    """Ids are forgotten after `keep`, and the oldest first if there are more than `ids_max`."""

    def __init__(self, keep: timedelta, ids_max: int) -> None:
        self.keep_seconds = keep.total_seconds()
        self.ids_max = ids_max
        self._times: dict[str, float] = {}  # in order of time

    def __contains__(self, id: str) -> bool:
        found = self._times.get(id)
        return found is not None and found >= time.time() - self.keep_seconds

    def __len__(self) -> int:
        return len(self._times)

    def add(self, id: str, at: float) -> None:
        self._times.pop(id, None)
        self._times[id] = at
        oldest, since = next(iter(self._times.items()))
        if len(self._times) > self.ids_max or since < at - self.keep_seconds:  # one goes for each that comes
            del self._times[oldest]

    def read(self, log: Broker, topic: str, dead_letters: str) -> None:
        """Adds the ids of the stored records and dead letters."""
        since = datetime.now(UTC) - timedelta(seconds=self.keep_seconds)
        found: list[tuple[float, str]] = []
        for name in (topic, dead_letters):
            if name in log.topics():
                for batch in _newest(log, name, since, self.ids_max):
                    found += _ids(batch)
        for at, id in sorted(found)[-self.ids_max :]:
            self.add(id, at)


def _newest(log: Broker, topic: str, since: datetime, records_max: int) -> Iterator[Batch]:
    """The records since a time, up to the end of the partitions as it is now."""
    parts = log.topic(topic).partitions()
    for part in parts:
        part.sync()  # a process that was killed may have stored an id that is not readable yet
    ends = {part.number: part.stable_offset() for part in parts}
    share = records_max // len(parts) + 1
    starts = {
        number: max(log.offset_at_time(topic, number, since), ends[number] - share, 0) if ends[number] else 0
        for number in ends
    }
    with log.consumer(topic, start=starts, on_lost="earliest", pinned=True) as consumer:
        while any(consumer.position(topic, number) < end for number, end in ends.items()):
            yield from consumer.poll_batches(POLL_SECONDS)


def _ids(batch: Batch) -> list[tuple[float, str]]:
    """Time and id of every record that has one."""
    ids = pc.map_lookup(batch.columns.column("headers"), ID_HEADER, "last")
    times = batch.columns.column("timestamp").cast(pa.int64())
    has_id = pc.and_(ids.is_valid(), times.is_valid())
    read = zip(times.filter(has_id).to_pylist(), ids.filter(has_id).to_pylist(), strict=True)
    return [(at / MICROSECONDS, id.decode(errors="replace")) for at, id in read]
