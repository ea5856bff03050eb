"""Finds records of a topic: the newest, or those from an offset or a time on, by key, text or expression.

A search reads a bounded number of records. Its answer says how many it has read, and whether that was all.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.errors import InvalidInput
from millstream.expressions.expression import evaluate, lowered_expression
from millstream.log import Batch, Broker, Record
from millstream.log.topics import PartitionInfo
from millstream.supervision.mask import Mask
from millstream.web_console.shown_records import ShownRecords, shown

SCANNED_MAX = 100_000
BUCKETS = 60
FOUND_MAX = 200


@dataclass(frozen=True)
class Search:
    partition: int | None = None
    offset: int | None = None
    since: datetime | None = None
    key: str | None = None
    text: str | None = None
    where: str | None = None
    limit: int = 50

    @property
    def is_for_newest(self) -> bool:
        return self.offset is None and self.since is None


@dataclass
class Found:
    records: list[Record]
    scanned: int
    is_complete: bool
    shows: ShownRecords

    def document(self) -> dict[str, Any]:
        return {
            "records": [self.shows.document(record) for record in self.records],
            "scanned": self.scanned,
            "complete": self.is_complete,
        }


def search(log: Broker, topic: str, asked: Search, mask: Mask) -> Found:
    """The newest records that match, or the first ones after a position, by partition and offset."""
    chosen = _partitions(log, topic, asked)
    shows = ShownRecords.of(log, topic, mask)
    keeps = _condition(asked, shows)
    limit = max(1, min(asked.limit, FOUND_MAX))
    budget = max(limit, SCANNED_MAX // len(chosen))
    found: list[Record] = []
    scanned, is_complete = 0, True
    for part in chosen:
        end = part.stable_offset
        start = max(part.start_offset, _start(log, topic, asked, part.number, end, budget))
        is_complete &= start <= part.start_offset or not asked.is_for_newest
        here: list[Record] = []
        for batch in _read(log, topic, part.number, start, end):
            scanned += len(batch)
            here += [record for record, keep in zip(batch.records(), keeps(batch), strict=True) if keep]
            if asked.is_for_newest:
                here = here[-limit:]
            elif len(here) >= limit or batch.next_offset - start > budget:
                is_complete &= batch.next_offset >= end and len(here) <= limit
                here = here[:limit]
                break
        found += here
    first = heapq.nlargest if asked.is_for_newest else heapq.nsmallest
    return Found(first(limit, found, key=_when), scanned, is_complete, shows)


def histogram(log: Broker, topic: str, asked: Search, mask: Mask) -> dict[str, Any]:
    """How many of the records that a search reads match it, by time: counts of equal spans between two times."""
    chosen = _partitions(log, topic, asked)
    keeps = _condition(asked, ShownRecords.of(log, topic, mask))
    budget = max(1, SCANNED_MAX // len(chosen))
    times: list[npt.NDArray[np.int64]] = [np.array([], np.int64)]
    scanned, is_complete = 0, True
    for part in chosen:
        end = part.stable_offset
        start = end - budget if asked.is_for_newest else _start(log, topic, asked, part.number, end, budget)
        start = max(part.start_offset, start)
        stop = min(end, start + budget)
        is_complete &= stop == end and (not asked.is_for_newest or start <= part.start_offset)
        for batch in _read(log, topic, part.number, start, stop):
            scanned += len(batch)
            micros = batch.columns.column("timestamp").cast(pa.int64()).to_numpy(zero_copy_only=False)
            times.append(micros[np.array(keeps(batch), bool)])
    found = np.concatenate(times)
    low, high = (int(found.min()), int(found.max())) if len(found) else (0, 0)
    counts, _ = np.histogram(found, bins=BUCKETS, range=(low, max(high, low + BUCKETS)))
    first, last = (_iso(each) if len(found) else None for each in (low, high))
    return {
        "from": first,
        "to": last,
        "counts": counts.tolist(),
        "found": len(found),
        "scanned": scanned,
        "complete": is_complete,
    }


def _iso(micros: int) -> str:
    return datetime.fromtimestamp(micros / 1e6, UTC).isoformat()


def written_at(log: Broker, topic: str, partition: int, offset: int) -> datetime | None:
    """The time of the first record from an offset on; None if there is none."""
    part = next((each for each in log.describe_topic(topic).partitions if each.number == partition), None)
    end = 0 if part is None else min(part.stable_offset, offset + 1)
    return next(
        (record.timestamp for batch in _read(log, topic, partition, offset, end) for record in batch.records()), None
    )


def _partitions(log: Broker, topic: str, asked: Search) -> list[PartitionInfo]:
    info = log.describe_topic(topic)
    chosen = [each for each in info.partitions if asked.partition in (None, each.number)]
    if not chosen:
        raise InvalidInput(
            f"the topic '{topic}' has no partition {asked.partition}", next_step=f"it has {len(info.partitions)}"
        )
    return chosen


def _when(record: Record) -> tuple[datetime, int, int]:
    return record.timestamp, record.partition, record.offset


def _start(log: Broker, topic: str, asked: Search, partition: int, end: int, budget: int) -> int:
    if asked.offset is not None:
        return min(asked.offset, end)
    if asked.since is not None:
        return min(log.offset_at_time(topic, partition, asked.since), end)
    is_filtered = (asked.key, asked.text, asked.where) != (None, None, None)
    return end - (budget if is_filtered else asked.limit)


def _read(log: Broker, topic: str, partition: int, start: int, end: int) -> Iterator[Batch]:
    if start >= end:
        return
    with log.consumer(topic, partitions=[partition], start=start, on_lost="earliest", pinned=True) as consumer:
        while all(consumer.position(*place) < end for place in consumer.assignment):
            for batch in consumer.poll_batches(0.05):
                yield batch.split(int((batch.offsets < end).sum()))[0]


def _condition(asked: Search, shows: ShownRecords) -> Callable[[Batch], list[bool]]:
    """Whether each record of a batch is wanted. Masked values are not searched: a match would reveal them."""
    lowered = (
        None if asked.where is None else lowered_expression(asked.where, shows.searched(asked.where), boolean=True)
    )

    def keeps(batch: Batch) -> list[bool]:
        kept = [True] * len(batch)
        if lowered is not None:
            rows = pa.Table.from_batches([batch.values()]).select(shows.visible)
            made = evaluate({"kept": lowered.lowered}, rows)
            kept = [bool(each) for each in made.column("kept").to_pylist()]
        if asked.key is None and asked.text is None:
            return kept
        return [each and _matches(record, asked, shows) for each, record in zip(kept, batch.records(), strict=True)]

    return keeps


def _matches(record: Record, asked: Search, shows: ShownRecords) -> bool:
    if asked.key is not None and asked.key not in (
        shows.key(record),
        None if record.key is None else shown(record.key),
    ):
        return False
    return asked.text is None or asked.text.lower() in shown(shows.value(record)).lower()
