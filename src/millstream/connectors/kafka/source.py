"""A Kafka topic as a source: committed records only, up to the first open transaction.

Offsets have gaps: transaction markers, records that were aborted or compacted away. So a slice ends at its reader's
position, not at a particular record.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream import terminal
from millstream.connectors.kafka.reader import FETCHING, STALL_SECONDS_MAX, PartitionReader
from millstream.connectors.kafka.schema_registry import Registry, registry_codec
from millstream.connectors.source import SLAB_ROWS, Offsets, Slab, Slice, Source, cut, fair_shares
from millstream.connectors.topic.columns import Chunk, Columns, DecodedColumns, is_metadata
from millstream.errors import KafkaUnavailable, OffsetLost, UnknownTopic
from millstream.log.agreement.groups import TopicPartition
from millstream.log.kafka.address import KafkaAddress
from millstream.log.kafka.clients import Clients
from millstream.log.kafka.messages import BAD_HEADER, TIME_MS_MAX, nearest_us
from millstream.log.kafka.received import Received, Wanted
from millstream.log.kafka.topics import described, offsets
from millstream.log.storage.layout import HEADERS, TIMESTAMP, stored_schema
from millstream.log.storage.reader import Fetch
from millstream.records import Schema, codec

SLAB_BYTES = 16 << 20
WEIGH_SECONDS = 30.0
WEIGHED_RECORDS = 50  # of each partition
LOOK_SECONDS = 1.0  # for new partitions
POLL_SECONDS, POLL_SECONDS_MAX = 0.002, 0.025
READERS_MAX = 4  # each has its own connections and prefetched records
RECORD_BYTES = 64  # what a record takes besides key and value

logger = terminal.logger(__name__)


class KafkaSource(Source):
    """Partitions are named by number. `on_lost` is the policy for records that were deleted before they were read."""

    def __init__(
        self,
        address: KafkaAddress,
        topic: str,
        schema: Schema,
        *,
        format: str = "json",
        options: Mapping[str, Any] | None = None,
        registry: str | Registry | None = None,
        on_lost: str = "error",
    ) -> None:
        self.topic = topic
        self.schema = schema
        self.lost_records = 0
        """How many offsets this process has skipped."""
        self.losses: list[str] = []
        """Descriptions of skipped records."""
        self._where = f"topic '{topic}' of {address}"
        self._on_lost = on_lost
        self._registry = Registry.of(registry, address) if isinstance(registry, str) else registry
        self._columns = _columns(schema, format, options or {}, self._registry)
        asked = {field.name for field in schema.arrow if is_metadata(field)}
        self._wanted = Wanted(keys="key" in asked, times="timestamp" in asked, headers="headers" in asked)
        self._is_registry_there = False
        self._clients = Clients(address)
        self._identity: str | None = None
        self._partitions = 0
        self._looked_at = float("-inf")
        self._readers: dict[int, PartitionReader] = {}
        self._noticed: dict[str, int] = {}
        """By partition, the last offset found lost: it is seen both when a batch is planned and when it is cut."""
        self._row_bytes = 0.0
        self._weighed_at = float("-inf")

    @property
    def identity(self) -> str:
        """The id of the opened topic: one recreated under the same name has another."""
        if self._identity is None:
            self._look()
        assert self._identity is not None
        return self._identity

    @property
    def decodes(self) -> bool:
        return self._columns.decodes

    # ------------------------------------------------------------ what there is

    def _look(self) -> None:
        """Detects new partitions, and a topic that was recreated under the same name."""
        if self._identity is None:
            self._clients.check()
        identity, count = described(self._clients, self.topic)
        if self._identity not in (None, identity):
            raise UnknownTopic(
                f"topic '{self.topic}' was deleted and created again",
                where=self._where,
                next_step="restart from the earliest offset of the new one",
            )
        self._identity, self._partitions, self._looked_at = identity, count, time.monotonic()

    @property
    def partitions(self) -> list[str]:
        self._look()
        return [str(number) for number in range(self._partitions)]

    def earliest(self) -> Offsets:
        return self._offsets(self.partitions, "earliest")

    def latest(self) -> Offsets:
        if self._registry is not None and not self._is_registry_there:  # before a job starts, in its driver
            self._registry.check()
            self._is_registry_there = True
        return self._offsets(self.partitions, "latest", committed=True)

    def at(self, moment: datetime) -> Offsets:
        return self._offsets(self.partitions, int(moment.timestamp() * 1000))

    def _offsets(self, names: list[str], spec: str | int, *, committed: bool = False) -> Offsets:
        partitions = [TopicPartition(self.topic, int(name)) for name in names]
        found = offsets(self._clients, partitions, spec, committed=committed)
        return {str(each.partition): offset for each, offset in sorted(found.items())}

    # ------------------------------------------------------------ planning a batch

    def row_bytes(self) -> float:
        """The average size of a record, sampled from time to time."""
        if time.monotonic() - self._weighed_at > WEIGH_SECONDS:
            self._weighed_at = time.monotonic()
            self._row_bytes = self._weighed() or self._row_bytes
        return self._row_bytes

    def _weighed(self) -> float:
        from confluent_kafka import TopicPartition as Place

        first, last = self.earliest(), self.latest()
        places = [
            Place(self.topic, int(name), max(first[name], last[name] - WEIGHED_RECORDS))
            for name in last
            if last[name] > first[name]
        ]
        if not places:
            return 0.0
        consumer = self._clients.consumer(defaults=FETCHING, max_partition_fetch_bytes=65536)
        try:
            consumer.assign(places)
            found = consumer.consume(WEIGHED_RECORDS * len(places), 0.5)
            sizes = [len(each.value() or b"") + len(each.key() or b"") for each in found if each.error() is None]
        finally:
            consumer.close()
        return RECORD_BYTES + sum(sizes) / len(sizes) if sizes else 0.0

    def take_losses(self) -> list[str]:
        taken, self.losses = self.losses, []
        return taken

    def limited(self, start: Offsets, limit_rows: int | None, *, until: Offsets | None = None) -> Offsets:
        """`until` is a further bound: later records, and partitions it does not contain, are left for another batch."""
        exist = self.partitions
        stable = self._offsets(exist, "latest", committed=True)
        begun = self._begun(start, exist, stable)
        end = {name: max(offset, begun[name]) for name, offset in stable.items()}
        if until is not None:
            end = {name: max(begun[name], min(offset, until[name])) for name, offset in end.items() if name in until}
        if limit_rows is None:
            return end
        lags = {name: offset - begun[name] for name, offset in end.items() if offset > begun[name]}
        shares = fair_shares(lags, limit_rows)
        return {name: begun[name] + shares.get(name, 0) for name in end}

    def slices(self, start: Offsets, end: Offsets, tasks: int) -> list[list[Slice]]:
        begun = self._begun({name: start[name] for name in end if name in start}, self.partitions, end)
        there = self._still_there(end)
        ordered = sorted(end, key=int)
        return cut([Slice(name, min(begun[name], there[name]), there[name]) for name in ordered], tasks)

    def _still_there(self, end: Offsets) -> Offsets:
        """Cuts a batch to what the partitions have: one planned earlier may end beyond what is left."""
        last = self._offsets(list(end), "latest")
        for name, offset in end.items():
            if offset > last[name]:
                self._notice(self._lost(name, offset, 0, last[name]), name, offset, last[name])
        return {name: min(offset, last[name]) for name, offset in end.items()}

    def _begun(self, start: Offsets, exist: list[str], end: Offsets) -> Offsets:
        """The start of each partition that has an end; its records must still be retained."""
        for name in [*start, *end]:
            if name not in exist:
                raise OffsetLost(
                    f"partition {name} was read before, but the topic no longer has it: it was recreated",
                    where=self._where,
                    next_step="restart from the earliest or latest offset",
                )
        first = self._offsets(list(end), "earliest")
        begun = {name: start.get(name, first[name]) for name in end}
        # There may be records beyond the last stable offset, and a job that starts at a time may start there.
        ahead = [name for name, offset in begun.items() if offset > end[name]]
        last = end | (self._offsets(ahead, "latest") if ahead else {})
        for name, offset in begun.items():
            if offset < first[name] or offset > last[name]:
                begun[name] = self._instead(name, offset, first[name], last[name])
        return begun

    def _instead(self, name: str, offset: int, first: int, end: int) -> int:
        """Where to resume after lost records; raises if the policy does not allow it."""
        instead = first if self._on_lost == "earliest" else max(first, end)
        self._notice(self._lost(name, offset, first, end), name, offset, instead)
        return instead

    def _notice(self, error: OffsetLost, name: str, offset: int, instead: int) -> None:
        """Raises, or reports and counts each loss once."""
        if self._on_lost == "error":
            raise error
        if self._noticed.get(name) != offset:
            self._noticed[name] = offset
            passed = max(0, instead - offset)
            self.lost_records += passed
            loss = f"{error.what} ({error.where}): {passed} offsets are skipped"
            self.losses.append(f"{loss}, resuming at offset {instead} (on_lost='{self._on_lost}')")
            logger.warning("%s", self.losses[-1])

    def _lost(self, name: str, offset: int, first: int, end: int) -> OffsetLost:
        where = f"{self._where}, partition {name}"
        if offset < first:
            return OffsetLost(
                f"offsets {offset} to {first - 1} were deleted by retention before they were read",
                where=where,
                next_step="restart from the earliest offset, or set on_lost='earliest'; and increase the topic's "
                "retention.ms to more than the longest downtime of a reader",
            )
        return OffsetLost(
            f"offset {offset} was read before, but the partition now ends at {end}: it was truncated or recreated",
            where=where,
            next_step="restart from the earliest or latest offset",
        )

    def wait(self, start: Offsets, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        pause_s = POLL_SECONDS
        while True:
            if time.monotonic() - self._looked_at > LOOK_SECONDS:
                self._look()
            names = [str(number) for number in range(self._partitions)]
            new = [name for name in names if name not in start]
            begun = start | (self._offsets(new, "earliest") if new else {})
            stable = self._offsets(names, "latest", committed=True)
            if any(offset > begun[name] for name, offset in stable.items()):
                return True
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(left_s, pause_s))
            pause_s = min(POLL_SECONDS_MAX, pause_s * 2)

    # ------------------------------------------------------------ reading

    def read(self, slice: Slice) -> Iterator[Slab]:
        gathered: list[Fetch] = []
        rows = size_bytes = 0
        for fetch in self._fetches(slice):
            gathered.append(fetch)
            rows += fetch.stored.num_rows
            size_bytes += fetch.size_bytes
            if rows >= SLAB_ROWS or size_bytes >= SLAB_BYTES:
                yield self._slab(slice, gathered)
                gathered, rows, size_bytes = [], 0, 0
        if gathered:
            yield self._slab(slice, gathered)

    def _slab(self, slice: Slice, fetches: list[Fetch]) -> Slab:
        return self._columns.slab(slice.partition, Chunk(self.topic, int(slice.partition), fetches))

    def _fetches(self, slice: Slice) -> Iterator[Fetch]:
        number, start = int(slice.partition), slice.start
        deadline = time.monotonic() + STALL_SECONDS_MAX
        while start < slice.end:
            reader = self._reader(number)
            try:
                for received, _ in reader.read(start, slice.end):
                    yield self._fetched(received)
            except KafkaUnavailable:
                if self._still_there({slice.partition: slice.end})[slice.partition] == slice.end:
                    raise
                return  # nothing more will arrive
            if reader.lost_at is None:
                return
            again = self._past_lost(slice, reader.lost_at)
            if again > start:
                deadline = time.monotonic() + STALL_SECONDS_MAX
            elif time.monotonic() > deadline:
                raise reader.stalled(slice.end)
            start = again

    def _past_lost(self, slice: Slice, offset: int) -> int:
        """The broker no longer has the records of the batch."""
        self._look()
        first = self._offsets([slice.partition], "earliest")[slice.partition]
        end = self._offsets([slice.partition], "latest")[slice.partition]
        if first <= offset <= end:
            time.sleep(POLL_SECONDS_MAX)
            return offset  # temporarily missing, as during a leader change
        instead = self._instead(slice.partition, offset, first, end)
        return slice.end if self._on_lost == "latest" or offset > end else instead

    def _reader(self, number: int) -> PartitionReader:
        """The partition's reader, kept open between batches; the least recently used one is evicted."""
        reader = self._readers.pop(number, None)
        if reader is None:
            self._look()
            while len(self._readers) >= READERS_MAX:
                self._readers.pop(next(iter(self._readers))).close()
            reader = PartitionReader(self._clients, self.topic, number, self._where, self._look, self._wanted)
        self._readers[number] = reader
        return reader

    def _fetched(self, received: Received) -> Fetch:
        columns: dict[str, pa.Array] = {"value": received.values}
        if received.keys is not None:
            columns["key"] = received.keys
        if received.times_ms is not None:
            columns["timestamp"] = _times(received.times_ms)
        if received.headers is not None:
            pairs = [list(dict(each).items()) if each else None for each in received.headers]
            columns["headers"] = pa.array(pairs, HEADERS)
        stored = pa.RecordBatch.from_pydict(columns)
        refused = dict.fromkeys(received.bad_headers, BAD_HEADER)
        return Fetch(stored, _STORED, int(received.offsets[0]), received.offsets, stored.nbytes, refused)

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()


_STORED = stored_schema(None)


def _times(times_ms: npt.NDArray[np.int64]) -> pa.Array:
    """A record of an old producer may have no time; one out of range is treated as missing."""
    mask = (times_ms < 0) | (times_ms > TIME_MS_MAX)
    return pa.array(nearest_us(times_ms), pa.int64(), mask=mask).cast(TIMESTAMP)


def _columns(schema: Schema, format: str, options: Mapping[str, Any], registry: Registry | None) -> Columns:
    if registry is not None:
        return DecodedColumns(schema, format, lambda inside: registry_codec(inside, format, registry))
    return DecodedColumns(schema, format, lambda inside: codec(format, inside, **options))
