"""A topic as a source: committed records only, up to the first open transaction."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from millstream import terminal
from millstream.connectors.source import SLAB_ROWS, Offsets, Slab, Slice, Source, cut, fair_shares
from millstream.connectors.topic.columns import Chunk, columns_of
from millstream.errors import InvalidInput, OffsetLost, UnknownTopic
from millstream.log import EmbeddedLog, open_embedded
from millstream.log.agreement.wakeup import Wakeup
from millstream.log.embedded import Topic
from millstream.log.storage.partition import Partition
from millstream.log.storage.reader import Fetch, PartitionReader
from millstream.records import Schema

logger = terminal.logger(__name__)
SLAB_BYTES = 16 << 20
WEIGH_SECONDS = 10.0
LOOK_SECONDS = 1.0  # for new partitions, and for transactions whose producer died


class TopicSource(Source):
    """Partitions are named by number."""

    def __init__(
        self,
        topic: str,
        schema: Schema,
        *,
        broker: str | None = None,
        format: str = "json",
        options: Mapping[str, Any] | None = None,
        columns: Schema | None = None,
        on_lost: str = "error",
    ) -> None:
        self.topic = topic
        self.schema = schema
        self._on_lost = on_lost
        self._noticed: dict[str, int] = {}
        self.lost_records = 0
        self.losses: list[str] = []
        """Descriptions of skipped records."""
        self._log: EmbeddedLog = open_embedded(broker)
        try:
            found = find_topic(self._log, topic)
            self._identity = found.identity
            self._has_schema = found.settings.schema is not None
            self._columns = columns_of(topic, found.settings.schema, schema, format, columns, options)
        except BaseException:
            self._log.close()
            raise
        self._held: dict[int, Partition] = {}
        self._row_bytes = 0.0
        self._weighed_at = float("-inf")
        self._wakeup: Wakeup | None = None
        self._freed_at = -LOOK_SECONDS

    @property
    def identity(self) -> str:
        """The id of the opened topic: one recreated under the same name has another."""
        return self._identity

    @property
    def decodes(self) -> bool:
        return self._columns.decodes

    def check_format(self, format: str | None) -> None:
        """Rejects a format that the user gave for a topic with a schema."""
        if format is not None and self._has_schema:
            self.close()
            raise InvalidInput(
                f"the topic has a schema: its values are stored as columns, not as {format}",
                where=f"topic '{self.topic}'",
                next_step="remove format=",
            )

    # ------------------------------------------------------------ what there is

    @property
    def partitions(self) -> list[str]:
        return [str(number) for number in range(find_topic(self._log, self.topic).settings.partitions)]

    def earliest(self) -> Offsets:
        return {name: self._partition(name).start_offset() for name in self.partitions}

    def latest(self) -> Offsets:
        found = [self._partition(name) for name in self.partitions]
        self._end_abandoned(found)
        return {str(partition.number): partition.stable_offset() for partition in found}

    def at(self, moment: datetime) -> Offsets:
        return {name: self._log.offset_at_time(self.topic, int(name), moment) for name in self.partitions}

    def written_at(self, partition: str, offset: int) -> float | None:
        found = self._partition(partition)
        reader = PartitionReader(found, max(offset, found.start_offset()), committed=True)
        fetch = next(reader.stream(), None)
        moment = None if fetch is None else fetch.stored.column("timestamp")[0].as_py()
        return None if moment is None else float(moment.timestamp())

    def _end_abandoned(self, partitions: list[Partition]) -> None:
        """Transactions of dead producers would block readers forever."""
        if time.monotonic() - self._freed_at < LOOK_SECONDS:
            return
        self._freed_at = time.monotonic()
        for partition in partitions:
            if partition.marks.read().open:
                self._log.end_abandoned(partition)

    # ------------------------------------------------------------ planning a batch

    def row_bytes(self) -> float:
        """The average stored size of a record, refreshed from time to time."""
        if not self._row_bytes or time.monotonic() - self._weighed_at > WEIGH_SECONDS:
            self._weighed_at = time.monotonic()
            found = self._log.describe_topic(self.topic).partitions
            records = sum(partition.records_max for partition in found)
            self._row_bytes = sum(partition.size_bytes or 0 for partition in found) / max(1, records)
        return self._row_bytes

    def take_losses(self) -> list[str]:
        taken, self.losses = self.losses, []
        return taken

    def limited(self, start: Offsets, limit_rows: int | None, *, until: Offsets | None = None) -> Offsets:
        """`until` is a further bound: later records, and partitions it does not contain, are left for another batch."""
        begun = self._begun(start)
        end = {name: max(offset, begun[name]) for name, offset in self.latest().items()}
        if until is not None:
            end = {name: max(begun[name], min(offset, until[name])) for name, offset in end.items() if name in until}
        if limit_rows is None:
            return end
        lags = {name: offset - begun[name] for name, offset in end.items() if offset > begun[name]}
        shares = fair_shares(lags, limit_rows)
        return {name: begun[name] + shares.get(name, 0) for name in end}

    def slices(self, start: Offsets, end: Offsets, tasks: int) -> list[list[Slice]]:
        begun = self._begun({name: start[name] for name in end if name in start}, named=end)
        ordered = sorted(end, key=int)
        return cut([Slice(name, min(begun[name], end[name]), end[name]) for name in ordered], tasks)

    def _begun(self, start: Offsets, named: Offsets | None = None) -> Offsets:
        """The start of each partition; its records must still be retained."""
        begun = {}
        exist = self.partitions
        for name in start:
            if name not in exist:
                raise OffsetLost(
                    f"partition {name} was read before, but the topic no longer has it: it was recreated",
                    where=f"topic '{self.topic}'",
                    next_step="give the job another name or folder to read the topic from the beginning",
                )
        for name in exist if named is None else named:
            partition = self._partition(name)
            first = partition.start_offset()
            offset = start.get(name, first)
            if offset < first or offset > partition.end_offset():
                offset = self._instead(partition, offset)
            begun[name] = offset
        return begun

    def _instead(self, partition: Partition, offset: int) -> int:
        """Where to resume after lost records; raises if the policy does not allow it, else reports each loss once."""
        error = self._lost(partition, offset)
        if self._on_lost == "error":
            raise error
        first, end = partition.start_offset(), partition.end_offset()
        instead = first if self._on_lost == "earliest" else max(first, end)
        name = str(partition.number)
        if self._noticed.get(name) != offset:
            self._noticed[name] = offset
            passed = max(0, instead - offset)
            self.lost_records += passed
            loss = f"{error.what} ({error.where}): {passed} offsets are skipped"
            self.losses.append(f"{loss}, resuming at offset {instead} (on_lost='{self._on_lost}')")
            logger.warning("%s", self.losses[-1])
        return instead

    def _lost(self, partition: Partition, offset: int) -> OffsetLost:
        first, end = partition.start_offset(), partition.end_offset()
        where = f"topic '{self.topic}', partition {partition.number}"
        if offset < first:
            return OffsetLost(
                f"offsets {offset} to {first - 1} were deleted by retention before they were read",
                where=where,
                next_step="continue with on_lost='earliest' (millstream run --on-lost earliest), and increase the "
                "topic's retention to more than the longest downtime of a reader: "
                f"millstream topics change {self.topic} --retention …",
            )
        return OffsetLost(
            f"offset {offset} was read before, but the partition now ends at {end}: it was truncated or recreated",
            where=where,
            next_step="continue with on_lost='earliest' or 'latest' (millstream run --on-lost earliest)",
        )

    def wait(self, start: Offsets, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while True:
            found = [self._partition(name) for name in self.partitions]
            self._end_abandoned(found)
            if self._wakeup is None:
                self._wakeup = Wakeup()
            self._wakeup.watch(partition.marks.path for partition in found)
            for partition in found:
                name = str(partition.number)
                begun = start[name] if name in start else partition.start_offset()
                if partition.stable_offset() > begun:
                    return True
            now = time.monotonic()
            if now >= deadline:
                return False
            self._wakeup.wait(min(deadline - now, LOOK_SECONDS))

    # ------------------------------------------------------------ reading

    def read(self, slice: Slice) -> Iterator[Slab]:
        partition = self._partition(slice.partition)
        gathered: list[Fetch] = []
        rows = size_bytes = 0
        for fetch in self._fetches(partition, slice):
            gathered.append(fetch)
            rows += fetch.stored.num_rows
            size_bytes += fetch.size_bytes
            if rows >= SLAB_ROWS or size_bytes >= SLAB_BYTES:
                yield self._columns.slab(slice.partition, Chunk(self.topic, partition.number, gathered))
                gathered, rows, size_bytes = [], 0, 0
        if gathered:
            yield self._columns.slab(slice.partition, Chunk(self.topic, partition.number, gathered))

    def _fetches(self, partition: Partition, slice: Slice) -> Iterator[Fetch]:
        """The frames of a slice, the first and the last cut to its bounds."""
        stable, start = partition.stable_offset(), slice.start
        if stable < slice.end:
            raise self._lost(partition, slice.end)
        if start < partition.start_offset() and start < slice.end:
            start = self._instead(partition, start)
            if start >= slice.end or self._on_lost == "latest":
                return
        reader = PartitionReader(partition, start, committed=True)
        try:
            for fetch in reader.stream():
                if fetch.first_offset >= slice.end:
                    return
                if reader.offset > slice.end:
                    fetch = _before(fetch, slice.end)
                if fetch.stored.num_rows:
                    yield fetch.with_checked_texts()
                if reader.offset >= slice.end:
                    return
        except OffsetLost:
            if self._on_lost == "error" or reader.offset >= slice.end:
                raise self._lost(partition, reader.offset) from None
            yield from self._fetches(partition, replace(slice, start=reader.offset))

    def _partition(self, name: str) -> Partition:
        """Cached, so that its files stay open between batches."""
        number = int(name)
        held = self._held.get(number)
        if held is None:
            held = self._held[number] = find_topic(self._log, self.topic).partition(number)
        held.check_alive()  # it may have been recreated under the same name
        return held

    def close(self) -> None:
        if self._wakeup is not None:
            self._wakeup.close()
        self._held.clear()
        self._log.close()


def find_topic(log: EmbeddedLog, name: str) -> Topic:
    try:
        return log.topic(name)
    except UnknownTopic as unknown:
        raise UnknownTopic(
            unknown.what,
            where=str(log.path),
            next_step=f"topics that exist: {', '.join(log.topics()) or 'none'}; "
            f"create it with: millstream topics create {name}",
        ) from None


def _before(fetch: Fetch, end: int) -> Fetch:
    offsets = fetch.thinned_offsets
    count = int(offsets.searchsorted(end)) if offsets is not None else end - fetch.first_offset
    kept = None if offsets is None else offsets[:count]
    return Fetch(fetch.stored.slice(0, count), fetch.schema, fetch.first_offset, kept, fetch.size_bytes)
