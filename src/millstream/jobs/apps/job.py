"""A running app: one query for all of its flows, which is started again without a flow that fails.

    a flow fails        another query repeats its batch without it; it is added again after a pause, or given up
    a flow is added     the query goes on: the next batch that is planned includes it
    a flow is removed   the same, without it

What the running query cannot take in, such as a DataFrame, needs another one: the current batch ends, and the next one
is that of a new query. It starts in the same Spark session, on the same checkpoint. That has the state and positions of
all flows, also of those that do not run, so none loses anything.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue

from millstream import terminal
from millstream.errors import InvalidInput, MillstreamError, StepFailed
from millstream.jobs import micro_batches
from millstream.jobs.apps import plan_changing
from millstream.jobs.apps.flows import AppFlow, AppFlows, FlowState
from millstream.jobs.job import POLL_S, Job
from millstream.jobs.micro_batches import MicroBatchJob
from millstream.jobs.shown.display import Display
from millstream.jobs.stop_request import StopRequest
from millstream.plan.apps import App, Flows, flow_of
from millstream.plan.nodes import Write
from millstream.plan.run_settings import Settings, refused
from millstream.secrets import concealed
from millstream.spark.query.physical_plan import PhysicalPlan

TURN_S_MAX = 20.0
"""How long a change waits for the first batch of the query before it."""
logger = terminal.logger("millstream.apps")


@dataclass(frozen=True)
class Change:
    """A request of another thread for other flows."""

    flows: Flows
    done: Future[None]


def start(app: App, settings: Settings, display: Display, stop: StopRequest) -> AppJob:
    """Starts all flows of an app, and returns when their query runs. An error of a flow is raised."""
    if settings.into is not None or settings.mode is not None:
        given = f"into={settings.into!r}" if settings.into is not None else f"mode={settings.mode!r}"
        raise refused(f"{given} is for a single flow, and '{app.name}' is an app", "run the flow by itself")
    return AppJob(app, settings, micro_batches.start(app, settings, display, stop))


class AppJob(Job):
    """An app that is running or has run. `flows` has the state of each of its flows."""

    def __init__(self, app: App, settings: Settings, first: MicroBatchJob) -> None:
        super().__init__(first.name, first.folder, first.progress, first._query, ExitStack())
        self._app = app
        self._flows = app.flows
        self._settings = replace(settings, start_over=False, rebuild_output=None)
        self._states = AppFlows(first.folder.path, [flow.name for flow in app.flows])
        self._batches_before, self._started_at = self.folder.newest_batches(), time.monotonic()
        """When the query began."""
        self._running: MicroBatchJob | None = first
        """None while no flow runs, because all have failed."""
        self._last = first
        self.recent = first.recent
        self._changes: SimpleQueue[Change] = SimpleQueue()
        self._lock = threading.RLock()
        """Held while the query is stopped or started."""
        self._wake = threading.Event()
        self._stops = threading.Event()
        self._is_urgent: Callable[[], bool] = lambda: False
        """Whether the current batch is to be abandoned, because the app was asked to stop some time ago."""
        self._failure: BaseException | None = None
        self._watching = threading.Thread(target=self._watch, name=f"millstream-app-{self.name}", daemon=True)
        app.running_as(self._request)
        self._watching.start()

    # ------------------------------------------------------------ what the owner sees

    @property
    def flows(self) -> list[AppFlow]:
        """The state of each flow, with its last failure."""
        return self._states.all()

    @property
    def outputs(self) -> tuple[Write, ...]:
        return self._last.outputs

    @property
    def is_running(self) -> bool:
        return self._watching.is_alive()

    @property
    def state(self) -> str:
        if self.is_running:
            return "running"
        return "ended" if self._failure is None else "failed"

    def lag(self) -> int:
        return self._last.lag()

    def batch_times(self) -> list[float]:
        return self._last.batch_times()

    def _take_sample(self) -> None:
        self._last._take_sample()

    def wait(self, timeout_s: float | None = None) -> bool:
        self._watching.join(timeout_s)
        if self._watching.is_alive():
            return False
        self._finish()
        return True

    def stop(self, grace_s: float | None = None, is_urgent: Callable[[], bool] = lambda: False) -> None:
        stops_by = math.inf if grace_s is None else time.monotonic() + grace_s
        self._is_urgent = lambda: is_urgent() or time.monotonic() >= stops_by
        self._stops.set()
        self._wake.set()
        with self._lock:
            running, self._running = self._running, None
            try:
                if running is not None:
                    running.stop(grace_s, is_urgent)
                    self.gave_up = running.gave_up
            except MillstreamError as error:
                if not self._has_failed_alone(error):
                    self._failure = self._failure or error
        self._watching.join()
        self._finish()

    def _finish(self) -> None:
        if self._failure is not None:
            raise self._failure

    # ------------------------------------------------------------ the thread that watches the query

    def _watch(self) -> None:
        try:
            while not self._stops.is_set():
                with self._lock:
                    if self._stops.is_set() or not self._goes_on():
                        return
                self._wake.wait(POLL_S)
                self._wake.clear()
        except BaseException as error:  # it is raised to those that wait for the job
            self._failure = error
        finally:
            self._app.running_as(None)
            self._states.note_stopped()
            self._refuse_changes()

    def _goes_on(self) -> bool:
        """Does what is due, and returns whether the app still runs."""
        if self._running is not None and self._running.failed_flows:
            self._stop_running()
            self._start_those_that_run()
        if self._running is not None and not self._running.is_running:
            self._ended(self._running)
        if self._running is None and not self._states.of_state(FlowState.WAITING):
            self._raise_given_up()
            return False
        if self._may_exchange():
            with suppress(Empty):
                self._answer(self._changes.get_nowait())
                return True
            if due := self._states.due():
                self._try_again(due)
        return True

    def _may_exchange(self) -> bool:
        """Whether the query may be exchanged: not before it has started a batch, if there are rows for one.

        Otherwise changes in quick succession, or a flow that keeps failing, would keep the others from going on.
        """
        if self._running is None or (self._changes.empty() and not self._states.due()):
            return True
        if self.folder.newest_batches() != self._batches_before or time.monotonic() - self._started_at > TURN_S_MAX:
            return True
        try:
            return self._running.lag() == 0
        except MillstreamError:  # the sources cannot be asked: nothing is read anyway
            return True

    def _ended(self, job: MicroBatchJob) -> None:
        self._running = None
        try:
            job.wait()
        except MillstreamError as error:
            if self._settings.batch or not self._has_failed_alone(error):
                raise
            self._note_sinks(job)
            self._start_those_that_run()
        else:
            self._note_sinks(job)

    def _note_sinks(self, job: MicroBatchJob) -> None:
        """Records the flows whose outputs could not be written."""
        for flow, error in job.failed_flows.items():
            self._note_failure(flow, error)

    def _has_failed_alone(self, error: MillstreamError) -> bool:
        """Whether an error is that of one flow; it is recorded."""
        flow = flow_of(error.step or "")
        if flow not in self._states.of_state(FlowState.RUNNING):
            return False
        self._note_failure(flow, error)
        return True

    def _note_failure(self, flow: str, error: MillstreamError) -> None:
        noted = self._states.note_failure(flow, concealed(str(error)))
        if noted.next_start is None:
            logger.error("%s: the flow '%s' is given up, the others go on: %s", self.name, flow, error)
        else:
            pause_s = noted.next_start - noted.since
            logger.warning("%s: the flow '%s' failed, and starts again in %g s: %s", self.name, flow, pause_s, error)

    def _start_those_that_run(self) -> None:
        """Starts the query again. A flow that fails meanwhile is left out, too."""
        while names := self._states.of_state(FlowState.RUNNING):
            try:
                self._start(names)
                return
            except MillstreamError as error:
                if not self._has_failed_alone(error):
                    raise

    def _start(self, names: Iterable[str], flows: Flows | None = None) -> None:
        app, waiting = self._chosen(names, flows)
        stop = StopRequest(handles_signals=False)
        self._batches_before, self._started_at = self.folder.newest_batches(), time.monotonic()
        job = micro_batches.start(app, self._settings, Display(), stop, self.progress, waiting)
        self._running = self._last = job
        self._query, self.recent = job._query, job.recent

    def _chosen(self, names: Iterable[str], flows: Flows | None) -> tuple[App, list[Write]]:
        """An app of these flows, and the outputs of the others."""
        chosen = set(names)
        every = flows or self._flows
        app = App([flow for flow in every if flow.name in chosen], name=self._app.name)
        outputs = App(every, name=self._app.name).check()
        return app, [output for output in outputs if flow_of(output.name) not in chosen]

    def _change(self, names: Sequence[str], flows: Flows | None = None) -> bool:
        """Lets the running query go on with these flows. False: another query is needed."""
        running = self._running
        if running is None or running.failed_flows or not names:
            return False
        app, waiting = self._chosen(names, flows)
        has_changed = plan_changing.change(running, app, self._settings, waiting, self._stops.is_set)
        self.recent = running.recent
        return has_changed

    def _stop_running(self) -> None:
        """Stops the query after its current batch, however long that takes, unless the app is to stop."""
        running, self._running = self._running, None
        if running is None:
            return
        try:
            running.stop(None, lambda: self._is_urgent())
        except MillstreamError as error:
            if not self._has_failed_alone(error):
                raise
        self._note_sinks(running)

    def _try_again(self, due: Sequence[str]) -> None:
        try:
            has_changed = self._change([*self._states.of_state(FlowState.RUNNING), *due])
            if not has_changed:
                self._stop_running()
        except MillstreamError as error:
            if self._running is None and flow_of(error.step or "") not in due:
                raise
            self._note_start_failed(due, error)
            return
        try:
            if not has_changed:
                self._start([*self._states.of_state(FlowState.RUNNING), *due])
        except MillstreamError as error:
            self._note_start_failed(due, error)
        else:
            self._states.note_started(due)

    def _note_start_failed(self, due: Sequence[str], error: MillstreamError) -> None:
        """Flows could not be started again; the others go on."""
        blamed = flow_of(error.step or "")
        for name in [blamed] if blamed in due else due:
            self._note_failure(name, error)
        if self._running is None:
            self._start_those_that_run()

    def _raise_given_up(self) -> None:
        """A bounded run ends; what did not complete is an error."""
        if failed := self._states.of_state(FlowState.FAILED):
            reasons = "; ".join(f"'{name}': {self._states[name].reason}" for name in failed)
            raise StepFailed(
                f"{len(failed)} of {len(self._flows)} flows failed: {reasons}",
                where=f"app '{self.name}'",
                next_step="fix them and run the app again: each flow continues from its last complete batch",
            )

    # ------------------------------------------------------------ flows that are added and removed

    def _request(self, flows: Flows) -> None:
        """Called by another thread: returns once the flows run, and raises if they are refused."""
        change = Change(flows, Future())
        self._changes.put(change)
        self._wake.set()
        while not change.done.done() and self._watching.is_alive():
            time.sleep(POLL_S / 5)
        if not change.done.done():
            raise _over(self.name)
        change.done.result()

    def _answer(self, change: Change) -> None:
        try:
            self._apply(change.flows)
        except MillstreamError as error:
            change.done.set_exception(error)
        else:
            change.done.set_result(None)

    def _apply(self, flows: Flows) -> None:
        known = {flow.name for flow in self._flows}
        names = [flow.name for flow in flows]
        added = [name for name in names if name not in known]
        going_on = [name for name in self._states.of_state(FlowState.RUNNING) if name in names]
        together = App([flow for flow in flows if flow.name in {*going_on, *added}] or flows, name=self._app.name)
        self.folder.check(PhysicalPlan(together.check(), 1), {})  # refuses what does not fit while the others run
        try:
            if not self._change([*going_on, *added], flows):
                self._exchange(added, flows)
        except MillstreamError:
            if self._running is None and not self._stops.is_set():
                self._start_those_that_run()
            raise
        self._flows = flows
        self._states.keep(names)
        self._states.note_started(added)

    def _exchange(self, added: Sequence[str], flows: Flows) -> None:
        """Starts another query, after the current batch."""
        self._stop_running()
        if self._stops.is_set():
            raise _over(self.name)
        names = {flow.name for flow in flows}
        going_on = [name for name in self._states.of_state(FlowState.RUNNING) if name in names]
        if going_on or added:
            self._start([*going_on, *added], flows)

    def _refuse_changes(self) -> None:
        with suppress(Empty):
            while True:
                self._changes.get_nowait().done.set_exception(_over(self.name))


def _over(app: str) -> InvalidInput:
    return InvalidInput(f"the app '{app}' has ended", next_step="change its flows and run it again")
