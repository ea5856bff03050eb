"""An app: several flows that run as one job. In it, a step is named after its flow: FLOW:STEP.

No name of a flow or step contains the colon, so a step of an app always tells which flow it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from millstream.errors import InvalidInput
from millstream.plan.checks import refusal
from millstream.plan.flow import Flow
from millstream.plan.nodes import Node, Read, Write
from millstream.plan.on_spark import engine
from millstream.plan.on_spark.spark_frames import SparkFrame
from millstream.plan.rewiring import rewired
from millstream.plan.run_settings import RunSettings, Settings, takes
from millstream.plan.walking import in_order
from millstream.user_lines import users_line, what_exists

if TYPE_CHECKING:
    from millstream.jobs.apps.job import AppJob

SEPARATOR = ":"
Flows = tuple[Flow, ...]


def flow_of(step: str) -> str:
    """The flow of an app that a step belongs to; empty for a step of a single flow."""
    flow, separator, _ = step.partition(SEPARATOR)
    return flow if separator else ""


class App(Flow):
    """Several flows that share one Spark session and run as one job.

    `run` and `start` are those of a flow. Each flow has its own steps, state, outputs and metrics, and fails alone.
    """

    def __init__(self, flows: Iterable[Flow], *, name: str = "app") -> None:
        given = tuple(flows)
        super().__init__(name, log=next((flow.log for flow in given if isinstance(flow, Flow) and flow.log), None))
        self._flows = _checked(given)
        self._apply: Callable[[Flows], None] | None = None
        self.check()

    @property
    def flows(self) -> Flows:
        """Its flows, in the order in which they were added."""
        return self._flows

    def add(self, flow: Flow) -> None:
        """Adds a flow; if the app runs, between two batches.

        The others continue with their state. A flow that was removed continues where it stopped.
        """
        self._change(_checked((*self._flows, flow)))

    def remove(self, name: str) -> None:
        """Removes a flow; if the app runs, after the current batch. Its outputs stay, and so does its state."""
        names = [flow.name for flow in self._flows]
        if name not in names:
            raise refusal(f"the app '{self.name}' has no flow '{name}'", what_exists(name, names, kind="flows"))
        self._change(_checked(tuple(flow for flow in self._flows if flow.name != name)))

    def take(self, flows: Iterable[Flow]) -> None:
        """Adds and removes flows, so that the app has these; if it runs, in one change between two batches.

        A flow of a name that it has already continues as it is.
        """
        known = {flow.name: flow for flow in self._flows}
        self._change(tuple(known.get(flow.name, flow) for flow in _checked(tuple(flows))))

    def _change(self, flows: Flows) -> None:
        App(flows, name=self.name)  # refuses what does not fit together before anything changes
        if self._apply is not None:
            self._apply(flows)
        self._flows = flows
        self.check()

    def running_as(self, apply: Callable[[Flows], None] | None) -> None:
        """From now on `apply` is called with the flows of each change, and may refuse it; None: the app has ended."""
        self._apply = apply

    def check(self) -> tuple[Write, ...]:
        """The outputs of all flows, with the names that they have in the app."""
        found: list[Write] = []
        for flow in self._flows:
            for output in _renamed(flow, flow.check()):
                _check_target(output, found)
                found.append(output)
        self.outputs = found
        self.asks = {f"{flow.name}{SEPARATOR}{name}": ask for flow in self._flows for name, ask in flow.asks.items()}
        return tuple(found)

    def check_at_once(self) -> tuple[Write, ...]:
        self.check()
        return tuple(output for flow in self._flows for output in _renamed(flow, flow.check_at_once()))

    @takes(RunSettings)
    def run(self, settings: dict[str, Any]) -> AppJob:
        """Runs all flows until Ctrl-C or SIGTERM, or as `Flow.run` does with `until` and `batch`."""
        job: AppJob = engine.call(self, "run", self._with_log(settings))
        return job

    @takes(Settings)
    def start(self, settings: dict[str, Any]) -> AppJob:
        """Starts all flows and returns the job immediately. Its `flows` has the state of each."""
        job: AppJob = engine.call(self, "start", self._with_log(settings))
        return job

    def read(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: the flows of an app read."""
        raise self._refused_step()

    def table(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: the flows of an app have tables."""
        raise self._refused_step()

    def _refused_step(self) -> InvalidInput:
        return refusal(f"the app '{self.name}' has no steps of its own", "add the step to one of its flows")


def app(flows: Iterable[Flow], *, name: str = "app") -> App:
    """Several flows as one job that shares a Spark session, and reads a topic once for all flows that read it.

    `name` is the name of the job, which must differ from those of other jobs on the log.
    """
    return App(flows, name=name)


def _checked(flows: Sequence[Flow]) -> Flows:
    if not flows:
        raise refusal("an app needs at least one flow", "ms.app([flow, …]); to end a running app, stop its job")
    for flow in flows:
        if not isinstance(flow, Flow) or isinstance(flow, App):
            raise refusal(f"an app consists of flows, and {flow!r} is none", "ms.app([ms.Flow('one'), …])")
    names = [flow.name for flow in flows]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise refusal(
            f"two flows of the app are named '{double}'", "state is stored under the flow's name: choose another"
        )
    logs = {flow.log: flow.name for flow in flows if flow.log is not None}
    if len(logs) > 1:
        (one, first), (other, second), *_ = logs.items()
        raise refusal(
            f"the flows of an app have one log, and '{first}' has {one}, '{second}' has {other}",
            "put flows with different logs into different apps",
        )
    return tuple(flows)


def _renamed(flow: Flow, outputs: tuple[Write, ...]) -> tuple[Write, ...]:
    for node in in_order(outputs):
        if isinstance(node, Read) and isinstance(node.source, SparkFrame):
            raise InvalidInput(
                f"the flow '{flow.name}' reads a Spark DataFrame, which a flow of an app cannot",
                where=node.user_line or users_line(),
                next_step="run this flow as a job of its own",
            )

    def change(node: Node) -> Node:
        return replace(node, name=f"{flow.name}{SEPARATOR}{node.name}")

    return rewired(outputs, change)


def _check_target(output: Write, others: Iterable[Write]) -> None:
    for other in others:
        if flow_of(other.name) != flow_of(output.name) and other.sink.target == output.sink.target:
            raise refusal(
                f"the flows '{flow_of(other.name)}' and '{flow_of(output.name)}' both write to {output.sink.name}",
                "write to another sink, or combine them into one flow with union(…)",
            )
