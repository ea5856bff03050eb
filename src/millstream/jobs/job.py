"""Runs a flow as a job on Spark: settles what it goes on with, opens its sinks, starts one query, and watches it."""

from __future__ import annotations

import math
import os
import shutil
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millstream import terminal
from millstream.connectors.catalog import jobs_folder, remember
from millstream.connectors.files.drafts import Drafting
from millstream.connectors.files.sink import FilesSink
from millstream.connectors.opening_sources import KafkaSource, Offsets, TopicSource, open_source
from millstream.connectors.sink import Sink, open_sink
from millstream.errors import DamagedState, InvalidInput, MillstreamError, SparkFailed
from millstream.jobs.claims import Claims, Reached
from millstream.jobs.display import Display
from millstream.jobs.folder import RUNS, SINKS, JobFolder, Kept, claim_runs
from millstream.jobs.kept_steps import notice_of, places_of
from millstream.jobs.notices import Notices, warn_of_bad_records
from millstream.jobs.notices import logger as job_logger
from millstream.jobs.outputs import Outputs, Stopped
from millstream.jobs.progress import Progress, ProgressFile
from millstream.jobs.renaming import renamed
from millstream.jobs.repairing import check_checkpoint, check_ledgers, known_batch, unusable
from millstream.jobs.result_topics import partitions_of
from millstream.jobs.session import session_of
from millstream.jobs.start_over import check_rebuild, start_over, starts_over
from millstream.jobs.stop_request import StopRequest
from millstream.log import Broker, EmbeddedLog, connect
from millstream.plan.bad_rows import listened_to
from millstream.plan.endpoints import Kafka, Socket
from millstream.plan.flow import Flow
from millstream.plan.nodes import Read, Write
from millstream.plan.run_settings import CAUGHT_UP, REAL_TIME, Settings, refused
from millstream.plan.table_nodes import Join
from millstream.private_files import make_folders
from millstream.records import Schema
from millstream.spark.failures import new_mark, of_query
from millstream.spark.query.bounded_frames import as_files
from millstream.spark.query.compiler import compiled, started
from millstream.spark.query.job_feed import STOP, LiveFeed, opened
from millstream.spark.query.lost_records import with_on_lost
from millstream.spark.query.physical_plan import Layout
from millstream.spark.query.state_runner import Shipment
from millstream.spark.session.shipping import check_workers, needs_of, ship_modules
from millstream.spark.session.start import kept_log
from millstream.spark.session.user_code import modules

GIVE_UP_S = 10.0
"""How long Spark may take to break a batch off."""
LOOK_S = 0.1

logger = terminal.logger(__name__)


class Job:
    """A flow that runs, or has run: its `name`, its `progress`, and how it ended.

    `progress` has the number of the last `batch`, `rows_read`, `rows_late`, `rows_dead`, rows `written` by output, and
    the `watermark`. `interrupted`, `terminated` and `gave_up` tell why it ended.
    """

    def __init__(self, name: str, folder: JobFolder, sources: Mapping[Read, LiveFeed], progress: Progress) -> None:
        self.name = name
        self.folder = folder
        self.progress = progress
        self._sources = sources
        self._file = ProgressFile(folder.path)
        self._query: StreamingQuery | None = None
        self._outputs: Outputs | None = None
        self._notices: Notices | None = None
        self._is_bounded = False
        self._mark = new_mark()
        self._closing = ExitStack()
        self.interrupted = False
        """Whether Ctrl-C ended it."""
        self.terminated = False
        """Whether SIGTERM ended it."""
        self.gave_up = False
        """Whether it was ended in the middle of a batch."""

    @property
    def promise(self) -> str:
        """A weaker guarantee than exactly once, as text; empty where results are written exactly once."""
        return ""

    @property
    def is_running(self) -> bool:
        return self._query is not None and self._query.isActive

    def lag(self) -> int:
        """The number of rows in topics that have not been read yet."""
        behind = 0
        for node, feed in self._sources.items():
            if not isinstance(node.source, str | Kafka):
                continue  # only the planner may look at others: a look receives lines, or notes new files
            latest = feed._open(node).latest()
            done = self.progress.offsets.get(node.name, {})
            behind += sum(max(0, end - done.get(partition, 0)) for partition, end in latest.items())
        return behind

    def _note_batch(self) -> None:
        """After each batch: others are shown how far the job is."""
        if self._file.is_due:
            with suppress(MillstreamError):  # the lag is not known while a broker is away
                self._file.write(self.progress.document(self.name, self.lag()))

    def batch_times(self) -> list[float]:
        """The durations, in seconds, of the last batches that had rows."""
        assert self._query is not None
        recent = [progress for progress in self._query.recentProgress if progress["numInputRows"] > 0]
        return [progress["durationMs"]["triggerExecution"] / 1000 for progress in recent]

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the job to end, and returns whether it did. Raises the error that the job failed with."""
        assert self._query is not None
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self._query.isActive:
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(LOOK_S)
        self._finish()
        return True

    def stop(self, grace_s: float | None = None, is_urgent: Callable[[], bool] = lambda: False) -> None:
        """Stops after the running batch. After `grace_s` seconds it is abandoned, and the next run repeats it."""
        assert self._query is not None
        if not self._query.isActive:
            self._finish()
            return
        deadline = time.monotonic() + (math.inf if grace_s is None else grace_s)
        self.folder.path.joinpath(STOP).touch()
        while self._query.isActive and (self.folder.unfinished_batch() or self._query.status["isTriggerActive"]):
            if time.monotonic() >= deadline or is_urgent():
                self._give_up()
                return
            time.sleep(LOOK_S / 5)
        self._query.stop()
        self._finish()

    def _give_up(self) -> None:
        """Breaks the running batch off. What it has written so far is known by its number, and not written twice."""
        assert self._query is not None
        self.gave_up = True
        logger.warning("%s: the running batch is given up; it is done again at the next start", self.name)
        stopping = threading.Thread(target=self._stop_query, daemon=True)
        stopping.start()
        stopping.join(GIVE_UP_S)
        with suppress(MillstreamError):  # that the batch was broken off is known
            self._finish()

    def _stop_query(self) -> None:
        assert self._query is not None
        with suppress(Exception):
            self._query.stop()

    def _finish(self) -> None:
        assert self._query is not None
        with self._closing:
            error = self._query.exception()
        failure = self._outputs.failure if self._outputs is not None else None
        if isinstance(failure, Stopped):
            return
        if failure is not None:
            raise _failed(self.folder, failure, self._mark) from failure
        if error is not None:
            raise _failed(self.folder, error, self._mark)
        if self._is_bounded and self._notices is not None:
            self._notices.end(self.progress.watermarks, self.progress.rows_read)


def start_job(flow: Flow, settings: Settings, display: Display, stop: StopRequest | None = None) -> Job:
    """Starts a job and returns when its query runs."""
    stop = stop or StopRequest(deaf=True)
    settings = settings.checked()
    from millstream.jobs import real_time  # which is built on this module

    if settings.mode == REAL_TIME:
        return real_time.start(flow, settings, display, stop)
    outputs = flow.check()
    name = flow.name
    if settings.on_lost is not None:
        outputs = with_on_lost(outputs, settings.on_lost)
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
        is_new = starts_over(folder, settings)
        if not is_new:
            real_time.refuse_other_mode(folder)
            check_checkpoint(folder)
            check_ledgers(folder, [output.name for output in outputs])
        display.phase("looking at the sources")
        topics = _check_sources(outputs, broker, folder)
        identities = {source: topic.identity for source, topic in topics.items()}
        partitions = {source: topic.partitions for source, topic in topics.items()}
        if is_new:
            restart(outputs, folder, log, settings, display)
        _check_kept(folder, Layout(tuple(outputs), 1), identities)
        display.phase("looking at the outputs")
        claims = opening.enter_context(Claims(name, folder, outputs, log))
        claims.settle(Reached(known_batch(folder), folder.newest_batches()[1]))
        display.phase("starting Spark")
        _share_path()
        spark = session_of(settings, name, display, stop)
        outputs = as_files(outputs, folder.path)
        cores = spark.sparkContext.defaultParallelism
        before = folder.kept()
        groups = before.groups if before else settings.key_groups or max(4, 2 * cores)
        layout = Layout(tuple(outputs), groups)
        if settings.batch and layout.framed_sources:
            raise refused(
                f"batch=True closes every window, and '{layout.framed_sources[0].name}' is a DataFrame that streams",
                "give it a DataFrame that does not stream: spark.read instead of spark.readStream",
            )
        ship_modules(spark, modules(layout.order))
        check_workers(spark, needs_of(layout, broker, folder.path))
        kept = folder.settle(layout, before.partitions if before else min(cores, groups), identities)
        claim_runs(kept.identity, folder.path)
        progress = Progress()
        sinks = {}
        for output in outputs:
            sinks[output] = _opened_sink(output, name, log, folder, partitions_of(output, partitions))
            opening.callback(sinks[output].close)
        claims.note()
        feed = _feed(spark, settings, layout, kept, folder, broker, {} if settings.on_batch else _drafting(sinks))
        remember(folder.path, outputs, log.path if isinstance(log, EmbeddedLog) else broker)
        display.phase("starting the query")
        stop.check()
        job = Job(name, folder, dict.fromkeys(layout.fed_sources, feed), progress)
        job._mark = feed.shipment.mark
        job._is_bounded = settings.batch or settings.until == CAUGHT_UP
        job._notices = Notices(name, layout)
        job._outputs = Outputs(
            layout, sinks, claims, folder.path, progress, job._note_batch, job._notices, settings.on_batch
        )
        job._query = _query(spark, job._outputs, feed, folder, settings, places_of(kept.steps))
        if settings.batch:
            opening.callback(_forget_if_done, job, claims, feed.shipment.folder)
        job._closing = opening.pop_all()
        _STARTED[folder.path] = job
    return job


def address_of(log: Broker) -> str:
    """By which other processes open the same broker."""
    if isinstance(log, EmbeddedLog):
        return str(log.path)
    from millstream.log.kafka.log import KafkaLog

    assert isinstance(log, KafkaLog)
    return log.address


_STARTED: dict[Path, Job] = {}


def _close_ended(folder: Path) -> None:
    """A job that has failed, and that nobody waited for, still holds its lock."""
    before = _STARTED.pop(folder, None)
    if before is not None and not before.is_running:
        with suppress(Exception):  # those who wait for that job were told
            before.stop()
    elif before is not None:
        _STARTED[folder] = before


def run_job(flow: Flow, settings: Settings, display: Display) -> Job:
    """Runs a job until it ends or is told to (Ctrl-C), and then to the end of its running batch."""
    with StopRequest() as stop, jvm_alive():
        job = start_job(flow, settings, display, stop)
        stop.job_runs = True
        try:
            while job.is_running:
                if stop.event.is_set():
                    display.phase(f"stopping after the running batch, within {settings.grace_s:g} s")
                    job.stop(settings.grace_s, lambda: stop.is_urgent)
                    job.interrupted, job.terminated = stop.interrupted, stop.terminated
                    return job
                with suppress(MillstreamError):  # what cannot be shown now is no reason to stop
                    display.look(job)
                stop.event.wait(LOOK_S)
        except BaseException:
            with suppress(Exception):  # what went wrong first is what the user is told
                job.stop()
            raise
        job.wait()
    return job


def _share_path() -> None:
    """Workers that are yet to be started on this machine find the modules that this process finds."""
    own = sysconfig.get_paths()
    skipped = ("site-packages", "dist-packages", own["stdlib"], own["platstdlib"])
    found = [entry for entry in sys.path if Path(entry).is_dir() and not any(part in entry for part in skipped)]
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, [*known, *found])))


def _query(
    spark: SparkSession,
    outputs: Outputs,
    feed: LiveFeed,
    folder: JobFolder,
    settings: Settings,
    places: Mapping[str, int],
) -> StreamingQuery:
    packed = compiled(spark, feed.shipment, feed, places)
    writer = packed.writeStream.queryName(folder.job).foreachBatch(outputs)
    # Said in full: a cluster may take a bare path for one of its own file system.
    writer = writer.option("checkpointLocation", f"file://{folder.checkpoint.absolute()}")
    if settings.batch or settings.until == CAUGHT_UP:
        writer = writer.trigger(availableNow=True)
    try:
        return started(spark, feed.shipment, writer)
    except Exception as error:
        raise _failed(folder, error, feed.shipment.mark) from error


def _failed(folder: JobFolder, error: BaseException, mark: str) -> MillstreamError:
    """What a query failed with, for the user. What Spark makes of a damaged checkpoint does not name the file."""
    found = of_query(error, mark, _log(), folder.path)
    if type(found) is SparkFailed:
        try:
            check_checkpoint(folder, thorough=True)
        except MillstreamError as damaged:
            return damaged
    if isinstance(found, DamagedState):
        return unusable(folder, found.what, found.where)
    return found


def _log() -> str | None:
    found = kept_log()
    return None if found is None else str(found)


def _drafting(sinks: Mapping[Write, Sink]) -> dict[str, Drafting]:
    """How workers write files themselves. What is left of a table's changes is known to the driver alone."""
    return {
        output.name: sink.shared() for output, sink in sinks.items() if isinstance(sink, FilesSink) and not output.net
    }


def _feed(
    spark: SparkSession,
    settings: Settings,
    layout: Layout,
    kept: Kept,
    folder: JobFolder,
    broker: str,
    drafting: Mapping[str, Drafting],
) -> LiveFeed:
    name = f"{kept.identity}-{time.time_ns()}"
    shipment = Shipment(name, layout, kept.partitions, f"{RUNS}{kept.identity}", drafting)
    starts: dict[str, Offsets] = {}
    since = settings.since_instant
    if since is not None:
        sources = {
            node.name: opened(node, layout.reading[node], broker, folder.path, shipment.name)
            for node in layout.fed_sources
        }
        starts = {name: source.at(since) for name, source in sources.items()}
    return LiveFeed(
        shipment,
        folder=str(folder.path),
        broker=broker,
        tasks_max=spark.sparkContext.defaultParallelism,
        limit_rows=None
        if settings.batch and layout.chain
        else settings.batch_rows,  # windows are asked once, at the end
        tick_s=settings.tick_s,
        starts=starts,
        ends=settings.batch,
    )


def _opened_sink(output: Write, job: str, log: Any, folder: JobFolder, partitions: int) -> Sink:
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


def keys_of(output: Write) -> tuple[str, ...]:
    """The columns by which the rows of an output belong together."""
    if output.net:
        return output.keys
    node = output.inputs[0]
    while node.inputs:
        keys = tuple(own for own, _ in node.on) if isinstance(node, Join) else getattr(node, "keys", None)
        if keys is not None:
            return keys if all(key in output.schema.names for key in keys) else ()
        node = node.inputs[0]
    return ()


@dataclass(frozen=True)
class TopicRead:
    """A topic as a job found it when it started."""

    identity: str
    partitions: int


def _check_sources(outputs: tuple[Write, ...], broker: str, folder: JobFolder) -> dict[str, TopicRead]:
    """Refuses, before Spark is started, what cannot be read. Returns the topics, by the source's name."""
    found = {}
    layout = Layout(tuple(outputs), 1)
    listened = listened_to(layout.order)
    for node in layout.sources:
        if node.changes and ("weight" not in node.schema or not pa.types.is_integer(node.schema.field("weight").type)):
            others = Schema.from_arrow(pa.schema([each for each in node.schema.arrow if each.name.lower() != "weight"]))
            raise InvalidInput(
                "with changes=True the column weight says which rows take others back, and the schema of "
                f"'{node.name}' has none of whole numbers",
                where=node.place,
                next_step=f"name it in the schema: '{others}, weight int'",
            )
    for node in layout.fed_sources:
        if isinstance(node.source, Socket):
            continue  # a look would take lines away from the job
        own = folder.path / "sources" / node.name
        source = open_source(node.source, node.schema, broker=broker, folder=own, name=node.name, on_lost=node.on_lost)
        ends = source.latest()
        if source.decodes and node not in listened:
            warn_of_bad_records(folder.job, node)
        if isinstance(source, TopicSource | KafkaSource):
            found[node.name] = TopicRead(source.identity, len(ends))
        source.close()
    return found


def _check_kept(folder: JobFolder, layout: Layout, identities: dict[str, str]) -> None:
    """Refuses a flow that does not fit what its job kept, and reports what is new in it."""
    fit = folder.check(layout, identities)
    if folder.newest_offsets() is None:
        return
    if notice := notice_of(folder.job, str(folder.path), layout, fit, folder.known_outputs()):
        job_logger.warning("%s: %s", folder.job, notice)


def restart(outputs: Sequence[Write], folder: JobFolder, log: Broker, settings: Settings, display: Display) -> None:
    """Starts over, before Spark is started."""
    display.phase("starting over: emptying the outputs")
    check_rebuild(settings, outputs, Layout(tuple(outputs), 1).fed_sources, address_of(log), folder)
    start_over(folder, outputs, log)


def _forget_if_done(job: Job, claims: Claims, runs: Path) -> None:
    """A batch run that is complete leaves nothing behind; one that was cut short goes on where it was."""
    assert job._query is not None
    if job._query.exception() is None and not job.folder.unfinished_batch() and not (job.folder.path / STOP).exists():
        claims.release()
        job.folder.remove()
        shutil.rmtree(runs, ignore_errors=True)


@contextmanager
def jvm_alive() -> Iterator[None]:
    """What a call to a JVM that is gone raises is no help to anybody."""
    try:
        yield
    except (Py4JError, ConnectionError):
        raise SparkFailed(
            "the JVM that Spark runs in has ended, most often for want of memory",
            where=_log(),
            next_step="run it again, with more memory (spark.driver.memory) or fewer rows in a batch (batch_rows=…)",
        ) from None  # what py4j noticed of it says no more
