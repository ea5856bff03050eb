"""How far a job is behind the topics that it reads: in records, and in seconds."""

from __future__ import annotations

from collections import deque

from millstream.connectors.source import Offsets
from millstream.jobs.measuring.job_progress import Progress
from millstream.spark.query.batch_offsets import JobFeed

ENDS_KEPT = 3600


class TopicLag:
    """The rows in a job's topics that it has not read yet."""

    def __init__(self, feed: JobFeed, progress: Progress) -> None:
        self._feed = feed
        self._progress = progress
        self._grown: dict[tuple[str, str], Growth] = {}

    def rows(self) -> int:
        behind = 0
        for source, ends in self.ends().items():
            done = self._progress.offsets.get(source, {})
            behind += sum(max(0, end - done.get(partition, 0)) for partition, end in ends.items())
        return behind

    def ends(self) -> dict[str, Offsets]:
        """By source, the first offset of each partition that does not exist yet."""
        # Only the planner may ask other sources: asking receives lines, or lists new files.
        nodes = [node for node in self._feed.shipment.physical_plan.fed_sources if node.source.counts_lag]
        return self._feed.ends_of(nodes)

    def waiting_since(self, source: str, partition: str, offset: int, end: int, now: float) -> float | None:
        """When the first record was written that was not read yet; None if all were read."""
        growth = self._grown.setdefault((source, partition), Growth())
        growth.observe(end, now)
        if offset >= end:
            return None
        node = next(node for node in self._feed.shipment.physical_plan.fed_sources if node.name == source)
        written = self._feed.source(node).written_at(partition, offset)
        return growth.passed_at(offset) if written is None else written


class Growth:
    """When a partition reached which offset, as seen from here: for brokers that do not tell it quickly."""

    def __init__(self) -> None:
        self._ends: deque[tuple[float, int]] = deque()

    def observe(self, end: int, now: float) -> None:
        if not self._ends or end > self._ends[-1][1]:
            self._ends.append((now, end))
        if len(self._ends) > ENDS_KEPT:
            self._ends = deque(each for number, each in enumerate(self._ends) if number % 2)

    def passed_at(self, offset: int) -> float | None:
        """When the partition was first seen with a record at this offset."""
        while self._ends and self._ends[0][1] <= offset:
            self._ends.popleft()
        return self._ends[0][0] if self._ends else None
