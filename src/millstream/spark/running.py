"""Runs a flow as a job on Spark: settles what it goes on with, opens its sinks, starts one query, and watches it."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millstream.errors import InvalidInput, MillstreamError, SparkFailed
from millstream.log import Broker, EmbeddedLog, connect
from millstream.plan.flow import Flow
from millstream.plan.nodes import Read, Write
from millstream.plan.place import users_line, what_exists
from millstream.plan.places import LOST_CHOICES, Kafka, Socket
from millstream.plan.table_nodes import Join
from millstream.records import Schema
from millstream.sinks import Sink, open_sink
from millstream.sinks.drafts import Drafting
from millstream.sinks.files import FilesSink
from millstream.sinks.remembered import jobs_folder, remember
from millstream.sources import KafkaSource, Offsets, TopicSource, open_source
from millstream.spark.bounded_frames import as_files
from millstream.spark.compiler import compiled, started
from millstream.spark.display import Display
from millstream.spark.fabric import Shipment
from millstream.spark.failures import of_query
from millstream.spark.folder import RUNS, SINKS, JobFolder, Kept, claim_runs
from millstream.spark.layout import Layout
from millstream.spark.live import STOP, LiveFeed, opened
from millstream.spark.losses import with_on_lost
from millstream.spark.outputs import Outputs, Progress, Stopped
from millstream.spark.renaming import renamed
from millstream.spark.session import log_file
from millstream.spark.shipping import check_workers, needs_of, ship_modules
from millstream.spark.users_code import modules
from millstream.spark.workers import session_of

CAUGHT_UP = "caught up"
REAL_TIME = "real time"
BATCH_ROWS = 1_000_000
KEY_GROUPS_MAX = 512  # every key group of a step tells every one of the next how far it has come
TICK_S = 1.0
LOOK_S = 0.1

OnBatch = Callable[[int, Mapping[str, pa.Table]], None]


@dataclass(frozen=True)
class Settings:
    """How a job is run. What is unsaid is chosen for the machine."""

    until: str | None = None
    batch: bool = False
    into: str | None = None
    since: Any = None
    master: str | None = None
    broker: str | None = None
    folder: Path | None = None
    batch_rows: int | None = BATCH_ROWS
    key_groups: int | None = None
    tick_s: float = TICK_S
    on_batch: OnBatch | None = None
    on_lost: str | None = None
    """What to do when records of a topic were deleted before they were read; unsaid: as its reader says."""
    mode: str | None = None
    """"real time": each record by itself, from Kafka to Kafka; unsaid: in micro-batches."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Settings of Spark, for a session that is made for the job."""
    archive: str | None = None
    """The libraries of workers, made by `millstream pack`."""

    @classmethod
    def of(cls, said: dict[str, Any]) -> Settings:
        """From what a user said."""
        known = [each.name for each in fields(cls)]
        for name in said:
            if name not in known:
                raise _refuse(f"there is no setting '{name}'", what_exists(name, [*known, "show"], kind="settings"))
        return cls(**said).checked()

    def checked(self) -> Settings:
        if self.until not in (None, CAUGHT_UP):
            raise _refuse(f"until={self.until!r} is unknown", f"until is {CAUGHT_UP!r}, or unsaid to run for ever")
        if self.batch_rows is not None and (not isinstance(self.batch_rows, int) or self.batch_rows < 1):
            raise _refuse(f"batch_rows is a number of rows, not {self.batch_rows!r}", "leave it out: 1,000,000")
        if self.key_groups is not None and (
            not isinstance(self.key_groups, int) or not 1 <= self.key_groups <= KEY_GROUPS_MAX
        ):
            raise _refuse(f"key_groups is from 1 to {KEY_GROUPS_MAX}, not {self.key_groups!r}", "leave it out")
        if self.into is not None and (not isinstance(self.into, str) or not self.into):
            raise _refuse(f"into is the name of a topic, not {self.into!r}", "for example into='totals.v2'")
        if self.mode not in (None, REAL_TIME):
            raise _refuse(f"mode={self.mode!r} is unknown", f"mode is {REAL_TIME!r}, or unsaid: in micro-batches")
        if self.on_lost is not None and self.on_lost not in LOST_CHOICES:
            raise _refuse(f"on_lost={self.on_lost!r} is unknown", f"on_lost is {', '.join(map(repr, LOST_CHOICES))}")
        if self.on_batch is not None and not callable(self.on_batch):
            raise _refuse(f"on_batch is a function, not {self.on_batch!r}", "on_batch=lambda number, tables: …")
        for key in self.conf:
            if not key.startswith("spark."):
                raise _refuse(f"'{key}' is no setting of Spark", "name it in full, as in spark.executor.memory")
        return replace(self, since=_instant(self.since))


class Job:
    """A flow that runs."""

    def __init__(self, name: str, folder: JobFolder, sources: Mapping[Read, LiveFeed], progress: Progress) -> None:
        self.name = name
        self.folder = folder
        self.progress = progress
        self._sources = sources
        self._query: StreamingQuery | None = None
        self._outputs: Outputs | None = None
        self._closing = ExitStack()
        self.interrupted = False
        """Whether Ctrl-C ended it."""

    @property
    def promise(self) -> str:
        """What a user must know of how often rows are written; nothing where it is once."""
        return ""

    @property
    def is_running(self) -> bool:
        return self._query is not None and self._query.isActive

    def lag(self) -> int:
        """How many rows the sources have that were not read yet."""
        behind = 0
        for node, feed in self._sources.items():
            if not isinstance(node.source, str | Kafka):
                continue  # only the planner may look at others: a look receives lines, or notes new files
            latest = feed._open(node).latest()
            done = self.progress.offsets.get(node.name, {})
            behind += sum(max(0, end - done.get(partition, 0)) for partition, end in latest.items())
        return behind

    def batch_times(self) -> list[float]:
        """The seconds of the last batches that had something to do."""
        assert self._query is not None
        recent = [progress for progress in self._query.recentProgress if progress["numInputRows"] > 0]
        return [progress["durationMs"]["triggerExecution"] / 1000 for progress in recent]

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the end of the job; whether it came. Raises what the job failed with."""
        assert self._query is not None
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self._query.isActive:
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(LOOK_S)
        self._finish()
        return True

    def stop(self) -> None:
        """Stops after the running batch."""
        assert self._query is not None
        if not self._query.isActive:
            self._finish()
            return
        self.folder.path.joinpath(STOP).touch()
        while self._query.isActive and (self.folder.unfinished_batch() or self._query.status["isTriggerActive"]):
            time.sleep(LOOK_S / 5)
        self._query.stop()
        self._finish()

    def _finish(self) -> None:
        assert self._query is not None
        with self._closing:
            error = self._query.exception()
        failure = self._outputs.failure if self._outputs is not None else None
        if isinstance(failure, Stopped):
            return
        if failure is not None:
            raise of_query(failure, _log()) from failure
        if error is not None:
            raise of_query(error, _log())


def start_job(flow: Flow, settings: Settings, display: Display, asked: Asked | None = None) -> Job:
    """Starts a job and returns when its query runs."""
    asked = asked or Asked(deaf=True)
    settings = settings.checked()
    from millstream.spark import real_time  # which is built on this module

    if settings.mode == REAL_TIME:
        return real_time.start(flow, settings, display, asked)
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
    folder = JobFolder(settings.folder or jobs_folder(log) / name, name)
    _close_ended(folder.path)
    with ExitStack() as opening:
        opening.callback(log.close)
        opening.enter_context(folder.held())
        real_time.refuse_other_mode(folder)
        display.phase("looking at the sources")
        identities = _check_sources(outputs, broker, folder.path)
        display.phase("starting Spark")
        _share_path()
        spark = session_of(settings, name, display, asked)
        outputs = as_files(outputs, folder.path)
        cores = spark.sparkContext.defaultParallelism
        before = folder.kept()
        groups = before.groups if before else settings.key_groups or max(4, 2 * cores)
        layout = Layout(tuple(outputs), groups)
        if settings.batch and layout.framed_sources:
            raise _refuse(
                f"batch=True closes every window, and '{layout.framed_sources[0].name}' is a DataFrame that streams",
                "give it a DataFrame that does not stream: spark.read instead of spark.readStream",
            )
        ship_modules(spark, modules(layout.order))
        check_workers(spark, needs_of(layout, broker, folder.path))
        kept = folder.settle(layout, before.partitions if before else min(cores, groups), identities)
        claim_runs(kept.identity, folder.path)
        folder.begin_ledgers_anew()
        progress = Progress()
        sinks = {}
        for output in outputs:
            sinks[output] = _opened_sink(output, name, log, folder)
            opening.callback(sinks[output].close)
        feed = _feed(spark, settings, layout, kept, folder, broker, {} if settings.on_batch else _drafting(sinks))
        remember(folder.path, outputs, log.path if isinstance(log, EmbeddedLog) else broker)
        display.phase("starting the query")
        asked.check()
        job = Job(name, folder, dict.fromkeys(layout.fed_sources, feed), progress)
        job._outputs = Outputs(layout, sinks, folder.path, progress, settings.on_batch)
        job._query = _query(spark, job._outputs, feed, folder, settings)
        if settings.batch:
            opening.callback(_forget_if_done, job, feed.shipment.folder)
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
        with suppress(Exception):  # it was told to whoever waits for that job
            before.stop()
    elif before is not None:
        _STARTED[folder] = before


def run_job(flow: Flow, settings: Settings, display: Display) -> Job:
    """Runs a job until it ends or is told to (Ctrl-C), and then to the end of its running batch."""
    with Asked() as asked, jvm_alive():
        job = start_job(flow, settings, display, asked)
        try:
            while job.is_running:
                if asked.event.is_set():
                    display.phase("stopping after the running batch")
                    job.stop()
                    job.interrupted = asked.interrupted
                    return job
                with suppress(MillstreamError):  # what cannot be shown now is no reason to stop
                    display.look(job)
                asked.event.wait(LOOK_S)
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
    spark: SparkSession, outputs: Outputs, feed: LiveFeed, folder: JobFolder, settings: Settings
) -> StreamingQuery:
    packed = compiled(spark, feed.shipment, feed)
    writer = packed.writeStream.queryName(folder.job).foreachBatch(outputs)
    # Said in full: a cluster may take a bare path for one of its own file system.
    writer = writer.option("checkpointLocation", f"file://{folder.checkpoint.absolute()}")
    if settings.batch or settings.until == CAUGHT_UP:
        writer = writer.trigger(availableNow=True)
    try:
        return started(spark, feed.shipment, writer)
    except Exception as error:
        raise of_query(error, _log()) from error


def _log() -> str | None:
    found = log_file()
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
    shipment = Shipment(name, layout, kept.partitions, f"{RUNS}/{kept.identity}", drafting)
    starts: dict[str, Offsets] = {}
    if settings.since is not None:
        sources = {
            node.name: opened(node, layout.reading[node], broker, folder.path, shipment.name)
            for node in layout.fed_sources
        }
        starts = {name: source.at(settings.since) for name, source in sources.items()}
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


def _opened_sink(output: Write, job: str, log: Any, folder: JobFolder) -> Sink:
    own = folder.path / SINKS / output.name
    own.mkdir(parents=True, exist_ok=True)
    return open_sink(
        output.sink,
        output.schema,
        job=job,
        step=output.name,
        broker=log,
        folder=own,
        keys=keys_of(output),
        table=output.net,
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


def _check_sources(outputs: tuple[Write, ...], broker: str, folder: Path) -> dict[str, str]:
    """What cannot be read is said before Spark is started. Gives the identity of each topic, by the source's name."""
    found = {}
    layout = Layout(tuple(outputs), 1)
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
        own = folder / "sources" / node.name
        source = open_source(node.source, node.schema, broker=broker, folder=own, name=node.name, on_lost=node.on_lost)
        source.latest()
        if isinstance(source, TopicSource | KafkaSource):
            found[node.name] = source.identity
        source.close()
    return found


def _forget_if_done(job: Job, runs: Path) -> None:
    """A batch run that is complete leaves nothing behind; one that was cut short goes on where it was."""
    assert job._query is not None
    if job._query.exception() is None and not job.folder.unfinished_batch() and not (job.folder.path / STOP).exists():
        job.folder.remove()
        shutil.rmtree(runs, ignore_errors=True)


@contextmanager
def jvm_alive() -> Iterator[None]:
    """What a call to a JVM that is gone raises is no help to anybody."""
    try:
        yield
    except (Py4JError, ConnectionError) as error:
        raise SparkFailed(
            "the JVM that Spark runs in has ended, most often for want of memory",
            where=_log(),
            next_step="start anew, with more memory (spark.driver.memory) or fewer rows in a batch (batch_rows=…)",
        ) from error


class Asked:
    """Whether somebody asks the job to stop, by Ctrl-C or SIGTERM. Both are only noted: to break off a call to the JVM
    confuses it, and Spark's own handler would break off the running batch."""

    def __init__(self, *, deaf: bool = False) -> None:
        self._deaf = deaf or threading.current_thread() is not threading.main_thread()
        self.event = threading.Event()
        self.interrupted = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Asked:
        for number in () if self._deaf else (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._hear)
        return self

    def _hear(self, number: int, _: Any) -> None:
        self.interrupted = self.interrupted or number == signal.SIGINT
        self.event.set()

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """A session brings a handler of its own for Ctrl-C: it would call the JVM in the middle of a call. Inside this
        it stays away, and who asked meanwhile is heard at the end."""
        plain = signal.signal

        def chosen(number: int, handler: Any) -> Any:
            return signal.getsignal(number) if callable(handler) else plain(number, handler)

        if not self._deaf:
            signal.signal = chosen  # type: ignore[assignment]
        try:
            yield
        finally:
            signal.signal = plain
        self.check()

    def check(self) -> None:
        """Ends what has not begun to run yet."""
        if self.event.is_set():
            raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            with suppress(TypeError):
                signal.signal(number, handler)


def _instant(said: Any) -> datetime | None:
    """A time as the user may say it: a datetime, or text in the form of ISO 8601."""
    try:
        found = datetime.fromisoformat(said) if isinstance(said, str) else said
    except ValueError:
        found = said
    if found is not None and not isinstance(found, datetime):
        raise _refuse(f"since={said!r} is not a time", "for example since='2026-01-01T00:00:00Z'")
    if found is not None and found.tzinfo is None:
        raise _refuse(f"since={said!s} has no time zone", "for example since='2026-01-01T00:00:00Z'")
    return found


def _refuse(what: str, next_step: str) -> InvalidInput:
    return InvalidInput(what, where=users_line(), next_step=next_step)
