"""What the driver has for one plan of a running query. A query whose plan changes has one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from millstream.connectors.sink import Sink
from millstream.jobs.asked.current_state import CurrentState
from millstream.jobs.measuring.job_progress import Progress
from millstream.jobs.measuring.topic_lag import TopicLag
from millstream.jobs.results.outputs import WrittenPlan
from millstream.jobs.results.result_topics import keys_of
from millstream.jobs.shown.recent_rows import RecentRows
from millstream.plan.nodes import Write
from millstream.spark.query.batch_offsets import JobFeed
from millstream.spark.query.failing_rows import FailingRows
from millstream.spark.query.physical_plan import PhysicalPlan
from millstream.spark.query.state_runner import Shipment


@dataclass(frozen=True)
class PlanParts:
    feed: JobFeed
    sinks: Mapping[Write, Sink]
    progress: Progress
    checkpoint: Path

    @property
    def shipment(self) -> Shipment:
        return self.feed.shipment

    @property
    def physical_plan(self) -> PhysicalPlan:
        return self.feed.shipment.physical_plan

    @property
    def outputs(self) -> tuple[Write, ...]:
        return tuple(output for output in self.physical_plan.outputs if isinstance(output, Write))

    @cached_property
    def lag(self) -> TopicLag:
        return TopicLag(self.feed, self.progress)

    @cached_property
    def recent(self) -> RecentRows:
        return RecentRows({output: keys_of(output) for output in self.sinks})

    @cached_property
    def current(self) -> CurrentState:
        return CurrentState(self.shipment, self.progress)

    @cached_property
    def written(self) -> WrittenPlan:
        failing = FailingRows(self.shipment, self.feed, self.checkpoint)
        return WrittenPlan(self.physical_plan, self.sinks, self.recent, failing)
