"""Runs a flow in micro-batches: checks the state it continues with, opens its sinks, and starts one query."""

from __future__ import annotations

import math
import pickle
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millstream import secrets, terminal
from millstream.connectors.catalog import jobs_folder, remember
from millstream.connectors.opening import open_sink
from millstream.connectors.sink import Preparer, Sink
from millstream.connectors.source import Offsets
from millstream.errors import DamagedState, InvalidInput, MillstreamError, SparkFailed
from millstream.jobs.apps.plan_parts import PlanParts
from millstream.jobs.apps.rewinds import settle_rewinds
from millstream.jobs.asked.ask_topics import prepare_topics
from millstream.jobs.asked.questions import Questions
from millstream.jobs.checked_sources import check_sources
from millstream.jobs.job import POLL_S, Job
from millstream.jobs.job_folder import RUNS, SINKS, JobDescription, JobFolder, claim_runs
from millstream.jobs.measuring.batch_events import BatchEvents
from millstream.jobs.measuring.job_progress import Progress
from millstream.jobs.measuring.sampling import Sampler
from millstream.jobs.modes import refuse_after_real_time
from millstream.jobs.repairing import check_checkpoint, check_ledgers, newest_batches, unusable
from millstream.jobs.results.broker_address import address_of
from millstream.jobs.results.inner_queues import prepare_queues
from millstream.jobs.results.output_claims import OutputClaims
from millstream.jobs.results.outputs import Outputs, Stopped
from millstream.jobs.results.renaming import renamed
from millstream.jobs.results.result_topics import keys_of, partitions_of
from millstream.jobs.results.start_over import restart, starts_over
from millstream.jobs.results.table_changes import TableChanges
from millstream.jobs.shown.display import Display
from millstream.jobs.shown.notices import Notices
from millstream.jobs.shown.notices import logger as job_logger
from millstream.jobs.starting_spark import session_of, spark_log
from millstream.jobs.stop_request import StopRequest
from millstream.jobs.versions.kept_queues import check_queues
from millstream.jobs.versions.kept_steps import notice_of, resting_slots, slots_of
from millstream.jobs.versions.plan_document import write_plan
from millstream.jobs.versions.swapping import complete_swap
from millstream.log import Broker, EmbeddedLog, connect
from millstream.plan.apps import flow_of
from millstream.plan.flow import Flow
from millstream.plan.nodes import Write
from millstream.plan.run_settings import CAUGHT_UP, Settings, refused
from millstream.private_files import make_folders
from millstream.spark.query.batch_offsets import STOP, JobFeed
from millstream.spark.query.bounded_frames import as_files
from millstream.spark.query.compiler import compiled, started
from millstream.spark.query.full_queues import JobQueues, queues_of
from millstream.spark.query.lost_records import with_on_lost
from millstream.spark.query.opened_sources import opened
from millstream.spark.query.past_rows import LogPlace
from millstream.spark.query.physical_plan import PhysicalPlan
from millstream.spark.query.plan_changes import ChangingFeed
from millstream.spark.query.state_runner import Shipment
from millstream.spark.query_failures import of_query
from millstream.spark.session.shipping import check_workers, needs_of, ship_modules
from millstream.spark.session.user_code import modules

GIVE_UP_S = 10.0
"""How long Spark may take to abandon a batch."""

STAGES_OF_APP = 1
"""An app has at least this many, since Spark cannot add one: so a flow with windows can be added to any app."""

logger = terminal.logger(__name__)


@dataclass
class OpenQuery:
    """What a running query has beside its plan."""

    log: Broker
    broker: str
    kept: JobDescription
    claims: OutputClaims
    outputs: Outputs
    sampler: Sampler
    events: BatchEvents | None
    questions: Questions
    sinks: dict[str, Sink]
    """By output; those that are open when the job ends are closed."""
    delivered: Mapping[str, str]
    """What was in the environment of its workers when it started."""


class MicroBatchJob(Job):
    """A flow in micro-batches. Results are written exactly once."""

    def __init__(
        self,
        name: str,
        folder: JobFolder,
        progress: Progress,
        query: StreamingQuery,
        closing: ExitStack,
        *,
        parts: PlanParts,
        opened: OpenQuery,
        notices: Notices | None,
    ) -> None:
        """`notices` is set for a bounded run. `parts` are replaced when the plan changes."""
        super().__init__(name, folder, progress, query, closing)
        self.opened = opened
        self._notices = notices
        self.take(parts)

    def take(self, parts: PlanParts) -> None:
        self.parts, self.recent, self.current_state = parts, parts.recent, parts.current

    @property
    def outputs(self) -> tuple[Write, ...]:
        return self.parts.outputs

    @property
    def failed_flows(self) -> Mapping[str, MillstreamError]:
        """By flow of an app, why its outputs could not be written. Its batches are kept."""
        return self.opened.outputs.failed_flows

    def lag(self) -> int:
        return self.parts.lag.rows()

    def _take_sample(self) -> None:
        if self.is_running:
            self.opened.sampler.sample()

    def stop(self, grace_s: float | None = None, is_urgent: Callable[[], bool] = lambda: False) -> None:
        if not self._query.isActive:
            self._finish()
            return
        deadline = time.monotonic() + (math.inf if grace_s is None else grace_s)
        self.folder.path.joinpath(STOP).touch()
        while self._query.isActive and (self.folder.unfinished_batch() or self._query.status["isTriggerActive"]):
            if time.monotonic() >= deadline or is_urgent():
                self._give_up()
                return
            time.sleep(POLL_S / 5)
        self._query.stop()
        self._finish()

    def _give_up(self) -> None:
        """Abandons the current batch. Outputs record its number, so what it has written is not written twice."""
        self.gave_up = True
        logger.warning("%s: the current batch is abandoned; the next run repeats it", self.name)
        stopping = threading.Thread(target=self._stop_query, daemon=True)
        stopping.start()
        stopping.join(GIVE_UP_S)
        with suppress(MillstreamError):  # the batch is already known to be abandoned
            self._finish()

    def _stop_query(self) -> None:
        with suppress(Exception):
            self._query.stop()

    def _finish(self) -> None:
        with self._closing:
            error = self._query.exception()
        failure = self.opened.outputs.failure
        if isinstance(failure, Stopped):
            return
        if failure is not None:
            raise _failed(self.folder, failure, self.parts.shipment) from failure
        if error is not None:
            raise _failed(self.folder, error, self.parts.shipment)
        if self._notices is not None:
            self._notices.end(self.progress.watermarks, self.progress.rows_read)


def start(
    flow: Flow,
    settings: Settings,
    display: Display,
    stop: StopRequest,
    progress: Progress | None = None,
    waiting: Sequence[Write] = (),
) -> MicroBatchJob:
    """Starts a flow in micro-batches, and returns when its query runs.

    `progress` continues that of an earlier one. `waiting` has the outputs of an app that do not run now.
    """
    outputs, name = configured(flow, settings), flow.name
    if settings.into is not None:
        outputs, name = renamed(outputs, settings.into), f"{flow.name}.{settings.into}"
    if settings.batch:
        name = f"{name}.batch"
    log = connect(settings.broker)
    broker = address_of(log)
    folder = JobFolder(Path(settings.folder or jobs_folder(log) / name), name)
    _close_ended(folder.path)
    with ExitStack() as opening:
        opening.callback(log.close)
        opening.enter_context(folder.held())
        complete_swap(folder)
        is_new = starts_over(folder, settings)
        if not is_new:
            refuse_after_real_time(folder)
            check_checkpoint(folder)
            check_ledgers(folder, [output.name for output in outputs])
        flows = {flow_of(output.name) for output in outputs} - {""}
        if flows:
            settle_rewinds(folder, flows)
        prepare_topics(flow.asks.values(), log)
        prepare_queues(outputs, log)
        display.phase("checking the sources")
        topics = check_sources(outputs, broker, folder)
        identities = {source: topic.identity for source, topic in topics.items()}
        partitions = {source: topic.partitions for source, topic in topics.items()}
        if is_new:
            restart(outputs, folder, log, settings, display)
        check_kept(folder, PhysicalPlan(tuple(outputs), 1), identities)
        check_queues(folder, PhysicalPlan(tuple(outputs), 1), log)
        display.phase("checking the outputs")
        claims = opening.enter_context(OutputClaims(name, folder, outputs, log))
        claims.check(newest_batches(folder))
        spark = session_of(settings, name, display, stop)
        outputs = as_files(outputs, folder.path)
        cores = spark.sparkContext.defaultParallelism
        before = folder.description()
        groups = before.groups if before else settings.key_groups or max(4, 2 * cores)
        physical_plan = PhysicalPlan(tuple(outputs), groups, one_stage=groups == 1)
        if settings.batch and physical_plan.dataframe_sources:
            streaming = physical_plan.dataframe_sources[0].name
            raise refused(
                f"batch=True closes every window, and '{streaming}' is a streaming DataFrame",
                "use a batch DataFrame: spark.read instead of spark.readStream",
            )
        ship_modules(spark, modules(physical_plan.order))
        check_workers(spark, needs_of(physical_plan, broker, folder.path))
        claims.settle(newest_batches(folder))
        partitions_kept = before.partitions if before else min(cores, groups)
        kept = folder.settle(physical_plan, partitions_kept, identities, STAGES_OF_APP if flows else 0)
        write_plan(folder.path, name, physical_plan, kept.partitions, waiting)
        claim_runs(kept.identity, folder.path)
        progress = progress or Progress()
        open_sinks: dict[str, Sink] = {}
        opening.callback(close_all, open_sinks)
        for output in outputs:
            open_sinks[output.name] = opened_sink(output, name, log, folder, partitions_of(output, partitions))
        sinks = {output: open_sinks[output.name] for output in outputs}
        claims.record()
        feed = _feed(
            spark,
            settings,
            physical_plan,
            kept,
            folder,
            broker,
            {} if settings.on_batch or flows else _preparers(sinks),  # an app may have to keep the rows of a batch
            None if settings.batch or settings.into is not None else queues_of(outputs, name),  # beside the job
        )
        remember(folder.path, outputs, log.path if isinstance(log, EmbeddedLog) else broker)
        display.phase("starting the query")
        stop.check()
        parts = PlanParts(feed, sinks, progress, folder.checkpoint)
        sampler = Sampler(name, folder.path, physical_plan, progress, parts.lag, keeps=settings.metrics)
        notices = Notices(name, physical_plan)
        events, changes = None, None
        if settings.provenance:
            changes = TableChanges(folder.path, log.path if isinstance(log, EmbeddedLog) else broker)
            opening.callback(changes.close)
            counts = settings.metrics
            events = BatchEvents(log, folder, kept.identity, physical_plan, sampler.metrics, counts_rows=counts)
            opening.callback(events.close)
        written = Outputs(
            parts.written,
            claims,
            folder.path,
            progress,
            sampler.metrics,
            notices,
            settings.on_batch,
            events=events,
            changes=changes,
            shift=kept.shift,
            fails_alone=bool(flows) and not settings.batch,
        )
        written.write_owed()
        query = _query(spark, written, feed, folder, settings, kept)
        if settings.batch:
            opening.callback(_forget_if_done, query, folder, claims, feed.shipment.folder)
        if events is not None:
            opening.callback(events.close)  # before the folder of a batch run is removed
        opening.callback(sampler.close)
        sampler.start()
        questions = Questions(parts.current, kept.identity)
        opening.callback(questions.close)
        questions.start()
        is_bounded = settings.batch or settings.until == CAUGHT_UP
        job = MicroBatchJob(
            name,
            folder,
            progress,
            query,
            opening.pop_all(),
            parts=parts,
            opened=OpenQuery(
                log, broker, kept, claims, written, sampler, events, questions, open_sinks, secrets.delivery()
            ),
            notices=notices if is_bounded else None,
        )
        _STARTED[folder.path] = job
    return job


def configured(flow: Flow, settings: Settings) -> tuple[Write, ...]:
    """The outputs of a flow, with what the settings of a run change in its plan."""
    outputs = flow.check_at_once() if settings.batch or settings.into is not None else flow.check()
    return outputs if settings.on_lost is None else tuple(with_on_lost(outputs, settings.on_lost))


def close_all(sinks: Mapping[str, Sink]) -> None:
    with ExitStack() as closing:
        for sink in sinks.values():
            closing.callback(sink.close)


_STARTED: dict[Path, MicroBatchJob] = {}


def _close_ended(folder: Path) -> None:
    """Stops a failed job that was never waited for, and so still holds its lock."""
    before = _STARTED.pop(folder, None)
    if before is not None and not before.is_running:
        with suppress(Exception):  # its error belongs to the earlier run
            before.stop()
    elif before is not None:
        _STARTED[folder] = before


def _query(
    spark: SparkSession,
    outputs: Outputs,
    feed: JobFeed,
    folder: JobFolder,
    settings: Settings,
    kept: JobDescription,
) -> StreamingQuery:
    try:
        resting = resting_slots(kept.steps, feed.shipment.physical_plan)
        fed, shares = (ChangingFeed(feed), True) if kept.shares_states else (feed, False)
        packed = compiled(
            spark, feed.shipment, fed, slots_of(kept.steps), kept.stages_kept, resting, shares_states=shares
        )
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        if "pickle" not in str(error).lower():
            raise
        raise InvalidInput(
            f"the flow cannot be sent to Spark's workers: {error}",
            where=folder.job,
            next_step="open connections, locks and files where they are used, not in the fields of a connector",
        ) from error
    writer = packed.writeStream.queryName(folder.job).foreachBatch(outputs)
    # With the scheme: a cluster may resolve a bare path in its own file system.
    writer = writer.option("checkpointLocation", f"file://{folder.checkpoint.absolute()}")
    if settings.batch or settings.until == CAUGHT_UP:
        writer = writer.trigger(availableNow=True)
    elif settings.interval is not None:
        writer = writer.trigger(processingTime=f"{settings.interval // timedelta(milliseconds=1)} milliseconds")
    try:
        return started(spark, feed.shipment, writer)
    except Exception as error:
        raise _failed(folder, error, feed.shipment) from error


def _failed(folder: JobFolder, error: BaseException, shipment: Shipment) -> MillstreamError:
    """The error of a query, for the user. Spark's own error about a damaged checkpoint does not name the file."""
    found = of_query(error, shipment.mark, spark_log(), folder.path, shipment.physical_plan.in_spark)
    if type(found) is SparkFailed:
        try:
            check_checkpoint(folder, thorough=True)
        except MillstreamError as damaged:
            return damaged
    if isinstance(found, DamagedState):
        return unusable(folder, found.what, found.where)
    return found


def _preparers(sinks: Mapping[Write, Sink]) -> dict[str, Preparer]:
    """The preparers that tasks use, by output. Net changes of a table are only known in the driver."""
    found = {output.name: sink.preparer() for output, sink in sinks.items() if not output.net}
    return {name: preparer for name, preparer in found.items() if preparer is not None}


def _feed(
    spark: SparkSession,
    settings: Settings,
    physical_plan: PhysicalPlan,
    kept: JobDescription,
    folder: JobFolder,
    broker: str,
    preparers: Mapping[str, Preparer],
    queues: JobQueues | None,
) -> JobFeed:
    name = f"{kept.identity}-{time.time_ns()}"
    runs = f"{RUNS}{kept.identity}"
    shipment = Shipment(
        name,
        physical_plan,
        kept.partitions,
        runs,
        preparers,
        counts_rows=settings.metrics,
        evolved=tuple(kept.evolved),
        log=LogPlace.of(broker, str(folder.path)),
    )
    return JobFeed(
        shipment,
        folder=str(folder.path),
        broker=broker,
        tasks_max=spark.sparkContext.defaultParallelism,
        limit_rows=None
        if settings.batch and physical_plan.chain
        else settings.batch_rows,  # windows fire once, at the end
        tick_s=settings.tick_s,
        starts=starts_of(settings, shipment, broker, folder.path),
        ends=settings.batch,
        queues=queues,
    )


def starts_of(settings: Settings, shipment: Shipment, broker: str, folder: Path) -> dict[str, Offsets]:
    """By source, the offsets to start at, if that is an instant."""
    since, plan = settings.since_instant, shipment.physical_plan
    if since is None:
        return {}
    return {node.name: opened(node, plan, broker, folder, shipment.run).at(since) for node in plan.fed_sources}


def opened_sink(output: Write, job: str, log: Any, folder: JobFolder, partitions: int) -> Sink:
    own = folder.path / SINKS / output.name
    make_folders(own)
    return open_sink(
        output.sink,
        output.schema,
        job=job,
        step=output.name,
        broker=log,
        folder=own,
        keys=keys_of(output),
        table=output.net,
        partitions=partitions,
    )


def check_kept(folder: JobFolder, physical_plan: PhysicalPlan, identities: dict[str, str]) -> None:
    """Refuses a flow that does not fit its job's state, and reports what is new in it."""
    fit = folder.check(physical_plan, identities)
    if folder.newest_offsets() is None:
        return
    if notice := notice_of(folder.job, str(folder.path), physical_plan, fit, folder.known_outputs()):
        job_logger.warning("%s: %s", folder.job, notice)


def _forget_if_done(query: StreamingQuery, folder: JobFolder, claims: OutputClaims, runs: Path) -> None:
    """Removes a completed batch run. One that was interrupted is kept, and resumes."""
    if query.exception() is None and not folder.unfinished_batch() and not (folder.path / STOP).exists():
        claims.release()
        folder.remove()
        shutil.rmtree(runs, ignore_errors=True)
