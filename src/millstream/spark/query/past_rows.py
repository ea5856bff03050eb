"""The past of a step: the rows of its first input, read from the log again up to the end of the current batch.

Every key group reads a share of each partition. A repeated batch ends at the same offsets, so
it finds the same rows, apart from those that retention has deleted since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import polars as pl

from millstream.connectors.source import Offsets
from millstream.errors import InvalidPlan
from millstream.log.kafka.address import KafkaAddress, as_kafka
from millstream.operators.lateness import with_ahead_marked
from millstream.operators.stateful import INPUTS, SENT, Stateful
from millstream.plan.nodes import Mapped, Node, Read
from millstream.plan.walking import in_order
from millstream.spark.query.opened_sources import opened
from millstream.spark.query.physical_plan import PhysicalPlan, Region
from millstream.spark.query.source_frames import framed

SHARE_ROWS = 1 << 13
"""A partition is divided into pieces of this many offsets, which key groups read in turn."""


@dataclass(frozen=True)
class LogPlace:
    """Where the sources of a job are opened."""

    broker: str | KafkaAddress | None
    folder: str
    """The job's folder."""

    @classmethod
    def of(cls, broker: str | None, folder: str) -> LogPlace:
        """In the driver, which has the file that the settings of Kafka may be in."""
        return cls(as_kafka(broker) or broker, folder)


@dataclass(frozen=True)
class PastRows:
    """The rows of a step's first input that a key group reads again."""

    plan: PhysicalPlan
    node: Node
    step: Stateful
    place: LogPlace
    run: str

    def pieces(self, ends: Mapping[str, Offsets], now: int, group: int, groups: int) -> Iterator[pl.DataFrame]:
        """As the step gets them; `ends` are the offsets that the batch ends at, by source."""
        count = 0
        for source in self.plan.origins_of_input(self.node, 0):
            assert isinstance(source, Read), "a step that looks back is the first one that keeps state"
            for rows in self._read(source, ends.get(source.name, {}), now, group, groups):
                fed = self.step.fed(rows, count)
                count += len(fed)
                yield fed.select(self.step.nothing[INPUTS[0]].columns)

    def _read(self, node: Read, ends: Offsets, now: int, group: int, groups: int) -> Iterator[pl.DataFrame]:
        region, last = self._region(node), self.node.inputs[0]
        source = opened(node, self.plan, self.place.broker, Path(self.place.folder), self.run)
        earliest = source.earliest()
        for place, (partition, end) in enumerate(sorted(ends.items())):
            begins = max(0, earliest.get(partition, 0))
            for number in range(begins // SHARE_ROWS, -(-end // SHARE_ROWS)):
                if (place + number) % groups != group:
                    continue
                first, until = max(begins, number * SHARE_ROWS), min(end, (number + 1) * SHARE_ROWS)
                for slab in chain.from_iterable(map(source.read, source.pieces(partition, first, until))):
                    rows = with_ahead_marked(framed(slab, node, self.plan.reading[node].names), node, now)
                    made = region.run({SENT: rows}, now)
                    if last in made and len(made[last]):
                        yield made[last]

    def _region(self, source: Read) -> Region:
        """The steps between a source and this step. What they refuse is in dead letters since it was first read."""
        wanted = in_order([self.node.inputs[0]])
        steps = tuple(step for step in self.plan.region(source).steps if step in wanted)
        listening = self.plan.listening | {step for step in (source, *steps) if isinstance(step, Mapped)}
        return Region(source, steps, listening)


def check_past(plan: PhysicalPlan) -> None:
    """Refuses steps that look back whose documents cannot be read again by a task."""
    for node in plan.chain:
        if getattr(node, "from_log", False):
            for step in in_order([node.inputs[0]]):
                if step in plan.in_spark:
                    raise InvalidPlan(
                        f"history='log' reads the documents of '{node.name}' from the log again, but the step "
                        f"'{step.name}' before it runs in Spark's own engine ({step.label})",
                        where=node.user_line,
                        next_step="hold the documents in the state of the job: history='7 days'",
                    )
