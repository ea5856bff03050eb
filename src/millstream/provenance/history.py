"""A job as it ran: its flow, its recorded batches, and the places to read them from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property
from os import PathLike
from pathlib import Path

from millstream.connectors.catalog import jobs_folder
from millstream.errors import InvalidInput, NotFound
from millstream.jobs.job_folder import JobFolder, is_job
from millstream.jobs.measuring.batch_event import BatchEvent
from millstream.jobs.results.broker_address import address_of
from millstream.log import connect
from millstream.plan.flow import Flow
from millstream.plan.nodes import Node, WindowedAggregate
from millstream.plan.rewiring import rewired
from millstream.plan.walking import in_order
from millstream.provenance.batches import RecordedBatch, recorded_batches
from millstream.provenance.events import events_of
from millstream.provenance.replaying import Replay
from millstream.user_lines import what_exists


class History:
    def __init__(
        self,
        flow: Flow,
        *,
        broker: str | PathLike[str] | None = None,
        folder: str | PathLike[str] | None = None,
        job: str | None = None,
    ) -> None:
        """`job` is the name of the job, if it is not that of its flow; `folder` is set if it was run with one."""
        self.flow = flow
        self.outputs = flow.check()
        self.job = job or flow.name
        with connect(flow.log if broker is None else broker) as log:
            self.broker = address_of(log)
            path = Path(folder) if folder is not None else jobs_folder(log) / self.job
        if not is_job(path):
            raise NotFound(
                f"the job '{self.job}' has not run on this log",
                where=str(path),
                next_step="run it first, or name its folder: folder=… (--folder)",
            )
        self.folder = JobFolder(path.absolute(), self.job)

    def changed(self, change: Callable[[Node], Node]) -> History:
        """The same batches, read by a flow whose steps differ."""
        other = copy(self)
        other.outputs = rewired(self.outputs, change)
        for derived in ("steps", "windowed"):
            other.__dict__.pop(derived, None)
        return other

    @cached_property
    def batches(self) -> list[RecordedBatch]:
        return recorded_batches(self.folder, self.events)

    @cached_property
    def events(self) -> list[BatchEvent]:
        """Those of the present state: a job that started over has others before."""
        kept = self.folder.description()
        with connect(self.broker) as log:
            return [event for event in events_of(log, self.folder) if kept is not None and event.run == kept.identity]

    @cached_property
    def steps(self) -> list[Node]:
        return in_order(self.outputs)

    @cached_property
    def windowed(self) -> list[WindowedAggregate]:
        return [node for node in self.steps if isinstance(node, WindowedAggregate)]

    def windowed_step(self, name: str | None) -> WindowedAggregate:
        """The step with this name; by default the only one."""
        names = [node.name for node in self.windowed]
        if not names:
            raise InvalidInput(
                f"the flow '{self.flow.name}' has no window", next_step="ask about a flow with .window(…).agg(…)"
            )
        if name is None and len(names) > 1:
            raise InvalidInput(
                f"the flow '{self.flow.name}' has several windowed steps",
                next_step=f"choose one with step= (--step): {', '.join(names)}",
            )
        found = self.windowed[0] if name is None else next((node for node in self.windowed if node.name == name), None)
        if found is None:
            raise NotFound(
                f"the flow '{self.flow.name}' has no windowed step '{name}'", next_step=what_exists(name, names)
            )
        return found

    def replay(self, observed: Sequence[Node]) -> Replay:
        return Replay(observed, self.steps, self.batches, folder=self.folder.path, broker=self.broker)

    def notes(self, replay: Replay, step: Node) -> list[str]:
        """What a reader of the answer should know: records that are gone, and a flow that has changed."""
        found = list(replay.notes)
        first = self.batches[0]
        if not first.is_whole:
            found.append(
                f"batches up to {first.number} are no longer recorded: what they read was replayed, "
                "but not cut into the same batches"
            )
        kept = self.folder.description()
        if kept is not None and kept.steps and step.keeps_state and step.name not in kept.steps:
            found.append(f"the flow has changed: the job has no state of a step '{step.name}'")
        return found
