"""Real-time mode: a flow of expressions from Kafka to Kafka, each record by itself, in milliseconds.

Spark reads and writes by its own connector here, in tasks that run on and on, and no Python runs in them. It writes
each record at least once: after a failure, those since the last batch was noted come again.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession

from millstream.connectors.catalog import jobs_folder
from millstream.errors import (
    DamagedState,
    InvalidInput,
    InvalidSetting,
    JobChanged,
    MillstreamError,
    OutputMismatch,
    RecordFailed,
)
from millstream.jobs.claims import START_OVER, Claims, Reached
from millstream.jobs.display import Display
from millstream.jobs.folder import REAL_TIME_CHECKPOINT as CHECKPOINT
from millstream.jobs.folder import JobFolder, newest_number
from millstream.jobs.job import LOOK_S, Job, _log, _share_path, restart
from millstream.jobs.notices import warn_of_bad_records
from millstream.jobs.progress import Progress
from millstream.jobs.renaming import renamed
from millstream.jobs.result_topics import partitions_of
from millstream.jobs.session import session_of
from millstream.jobs.start_over import starts_over
from millstream.jobs.stop_request import StopRequest
from millstream.log import ADDRESS_VARIABLE, connect
from millstream.log.disk import read_document, write_document
from millstream.log.kafka.address import SCHEME, KafkaAddress, with_ports
from millstream.plan import nodes
from millstream.plan.bad_rows import listened_to
from millstream.plan.endpoints import Kafka
from millstream.plan.flow import Flow
from millstream.plan.nodes import Node, Read, Write
from millstream.plan.run_settings import Settings
from millstream.plan.walking import in_order
from millstream.records import can_evolve
from millstream.spark.failures import new_mark, of_query
from millstream.spark.real_time.java_client import java_settings
from millstream.spark.real_time.json_sql import check_type
from millstream.spark.real_time.steps import MARK, Target, compiled
from millstream.terminal import escaped
from millstream.user_lines import users_line

if TYPE_CHECKING:
    from millstream.log.kafka.log import KafkaLog

MODE = "real time"
DESCRIPTION = "real_time.json"
BATCH_S = 5
"""How often it is noted how far the job is; Spark takes no less."""
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
"""The one that was tried with Spark 4.3."""
STREAM = "org.apache.spark.sql.kafka010.KafkaMicroBatchStream"
ABILITY = "org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode"
SECRET_OPTIONS = r"(?i)url|jaas|password|secret|token|\.pem|keystore|truststore"
REDACTION = "spark.sql.redaction.options.regex"
REQUEST_BYTES_MAX = 1 << 20
"""Of a record that the Java client sends, unless `message.max.bytes` is set."""
PROMISE = "each record at least once"


@dataclass(frozen=True)
class Topic:
    """A topic of a Kafka, as a step of the flow names it."""

    address: KafkaAddress
    name: str

    def __str__(self) -> str:
        return f"kafka({self.address.servers}, {self.name})"

    def options(self, where: str | None) -> dict[str, str]:
        return {f"kafka.{name}": value for name, value in java_settings(self.address, where).items()}


@dataclass(frozen=True)
class Work:
    """What a job in real-time mode does, as far as it can be said without Spark or Kafka."""

    name: str
    outputs: tuple[Write, ...]
    sources: dict[Read, Topic]
    sinks: dict[Write, Topic]
    targets: dict[Write, Target] = field(default_factory=dict)
    """What is known of the topics that are written to: one may have more columns than the rows."""

    def explain(self) -> str:
        lines = [f"flow {self.name}, in real time: {PROMISE}"]
        lines += [f"    reads   {topic}" for topic in self.sources.values()]
        for node in in_order(self.outputs):
            if not isinstance(node, Read | Write):
                lines.append(f"    {node.name}: {node.label}, in Spark SQL")
        lines += [f"    writes  {topic}" for topic in self.sinks.values()]
        return "\n".join(map(escaped, lines)) + "\n"


# ---------------------------------------------------------------- what can run so


def work_of(flow: Flow, settings: Settings) -> Work:
    """Refuses, by name, what real-time mode cannot do."""
    _check_settings(settings)
    outputs, name = flow.check(), flow.name
    if settings.into is not None:
        outputs, name = renamed(outputs, settings.into), f"{flow.name}.{settings.into}"
    order = in_order(outputs)
    for node in order:
        _check_step(node)
    broker = os.fspath(settings.broker) if settings.broker else os.environ.get(ADDRESS_VARIABLE)
    sources = {node: _topic(node, node.source, broker) for node in order if isinstance(node, Read)}
    sinks = {node: _topic(node, node.sink, broker) for node in outputs}
    first = next(iter(sinks.values()))
    for node, topic in sinks.items():
        if (topic.address.servers, topic.address.settings) != (first.address.servers, first.address.settings):
            raise _refuse(
                node, f"it writes to another Kafka than {first}, and all outputs go to one", "write it in another flow"
            )
    return Work(name, outputs, sources, sinks)


def _check_settings(settings: Settings) -> None:
    said = {
        "until": (settings.until is not None, "a job in real time has no end: stop it with stop() or Ctrl-C"),
        "batch": (settings.batch, "a batch is a bounded run"),
        "on_batch": (settings.on_batch is not None, "rows never come to this process"),
    }
    for name, (is_said, why) in said.items():
        if is_said:
            raise InvalidInput(
                f"{name} does not go with mode='{MODE}': {why}",
                where=users_line(),
                next_step=f"leave out {name}, or leave out mode",
            )


def _check_step(node: Node) -> None:
    if isinstance(node, Read):
        if node.changes:
            raise _refuse(node, "it reads changes, rows that take others back", "read it without changes=True")
    elif isinstance(node, nodes.Dead):
        if not isinstance(node.inputs[0], Read | Write):
            raise _refuse(node, "dead letters come from sources and sinks alone", "leave it out")
    elif node.keeps_state:
        raise _refuse(
            node, f"it keeps state ({node.label})", "do that in a second flow, which reads what this one writes"
        )
    elif isinstance(node, nodes.MapRows):
        raise _refuse(
            node, "it is a Python function, and Spark runs none here", "write it as an expression: select, with_column"
        )
    elif not isinstance(node, nodes.Where | nodes.Project | nodes.Union | Write):
        raise _refuse(
            node, f"it is no expression over one row ({node.label})", "do that in a second flow, in micro-batches"
        )
    if isinstance(node, Read | Write):
        for column in node.schema.arrow:
            check_type(column.type, column.name, node.place)


def _topic(node: Node, place: Any, broker: str | None) -> Topic:
    if isinstance(place, Kafka) and (place.format != "json" or place.registry is not None):
        raise _refuse(node, "its values are not plain JSON", "leave out format= and registry=, or leave out mode")
    on_lost = node.on_lost if isinstance(node, Read) else "error"
    if on_lost != "error":
        raise _refuse(node, f"on_lost='{on_lost}' is not known to it", "leave out on_lost=")
    if isinstance(place, Kafka) and place.servers is not None:
        return Topic(KafkaAddress(with_ports(place.servers), place.settings), place.topic)
    if isinstance(place, Kafka | str):
        if broker is None or not broker.startswith(SCHEME):
            raise _refuse(
                node,
                f"{place if isinstance(place, Kafka) else repr(place)} is a topic of the broker, which is no Kafka",
                f"name one with ms.kafka('host:9092', topic=…), or for all: {ADDRESS_VARIABLE}={SCHEME}host:9092",
            )
        address = KafkaAddress.of(broker)
        if isinstance(place, Kafka):
            return Topic(KafkaAddress(address.servers, {**address.settings, **place.settings}), place.topic)
        return Topic(address, place)
    raise _refuse(node, f"{place} is not a topic of Kafka", "read and write ms.kafka(…), or leave out mode")


def _refuse(node: Node, why: str, next_step: str) -> InvalidInput:
    return InvalidInput(
        f"the step '{node.name}' cannot run with mode='{MODE}': {why}", where=node.place, next_step=next_step
    )


# ---------------------------------------------------------------- running it


class RealTimeJob(Job):
    """A flow that runs in real time. Its progress is noted every few seconds; its records do not wait for that."""

    def __init__(self, work: Work, folder: JobFolder, logs: dict[Read, KafkaLog]) -> None:
        super().__init__(work.name, folder, {}, Progress())
        self.work = work
        self._logs = logs
        self._noted = -1
        self._lag = 0

    @property
    def promise(self) -> str:
        return PROMISE

    def explain(self) -> str:
        return self.work.explain()

    @property
    def is_running(self) -> bool:
        self._note()
        return super().is_running

    def _note(self) -> None:
        """Takes over what Spark has told of its batches since."""
        if self._query is None:
            return
        before = self._noted
        for told in self._query.recentProgress:
            if told["batchId"] <= self._noted:
                continue
            self._noted = self.progress.batch = told["batchId"]
            self.progress.batch_rows = told["numInputRows"]
            self.progress.rows_read += told["numInputRows"]
            self.progress.batch_seconds = told["batchDuration"] / 1000
            for (node, topic), source in zip(self.work.sources.items(), told["sources"], strict=False):
                ends = source["endOffset"]
                ends = json.loads(ends) if isinstance(ends, str) else ends
                self.progress.offsets[node.name] = dict((ends or {}).get(topic.name, {}))
        if self._noted > before:
            self._note_batch()

    def lag(self) -> int:
        """How many rows the sources have that were not noted as read yet; of a job that ended, as it was seen last."""
        if not super().is_running:
            return self._lag
        behind = 0
        for node, topic in self.work.sources.items():
            done = self.progress.offsets.get(node.name, {})
            for partition in self._logs[node].topic(topic.name).partitions():
                behind += max(0, partition.stable_offset() - done.get(str(partition.number), 0))
        self._lag = behind
        return behind

    def stop(self, grace_s: float | None = None, is_urgent: Callable[[], bool] = lambda: False) -> None:
        """Stops right after it was noted how far the job is, so that almost no record comes again."""
        assert self._query is not None
        noted, deadline = _commits(self.folder), time.monotonic() + 2 * BATCH_S
        while self._query.isActive and _commits(self.folder) == noted and time.monotonic() < deadline:
            time.sleep(LOOK_S / 20)
        self._query.stop()
        self._finish()

    def _finish(self) -> None:
        assert self._query is not None
        self._note()
        with self._closing:
            error = self._query.exception()
        if error is not None:
            raise _translated(error, self.folder.path)


def start(flow: Flow, settings: Settings, display: Display, stop: StopRequest | None = None) -> RealTimeJob:
    """Starts a flow in real time, and returns when its query runs."""
    stop = stop or StopRequest(deaf=True)
    work = work_of(flow, settings)
    with ExitStack() as opening:
        broker = connect(settings.broker)
        opening.callback(broker.close)
        folder = JobFolder(Path(settings.folder or jobs_folder(broker) / work.name), work.name)
        opening.enter_context(folder.held())
        is_new = starts_over(folder, settings)
        if not is_new:
            _check_folder(folder, work)
        display.phase("looking at the topics")
        logs = {node: _opened(topic, opening) for node, topic in work.sources.items()}
        partitions = {
            node.name: logs[node].topic(topic.name).settings.partitions for node, topic in work.sources.items()
        }
        listened = listened_to(in_order(work.outputs))
        for node in (source for source in work.sources if source not in listened):
            warn_of_bad_records(work.name, node)
        if is_new:
            restart(work.outputs, folder, broker, settings, display)
        claims = opening.enter_context(Claims(work.name, folder, work.outputs, broker))
        claims.settle(_reached(folder))
        sink = _opened(next(iter(work.sinks.values())), opening)
        for output, topic in work.sinks.items():
            work.targets[output] = _prepared(sink, output, topic, partitions_of(output, partitions))
        claims.note()
        display.phase("starting Spark")
        _share_path()
        spark = session_of(settings, work.name, display, stop)
        _check_spark(spark, sum(partitions.values()))
        display.phase(f"starting the query, in real time: {PROMISE}")
        stop.check()
        job = RealTimeJob(work, folder, logs)
        job._query = _query(spark, work, folder, settings)
        write_document(folder.path / DESCRIPTION, {"sources": _described(work)})
        job._closing = opening.pop_all()
    return job


def _described(work: Work) -> list[str]:
    return [f"{node.name}: {topic}" for node, topic in work.sources.items()]


def _check_folder(folder: JobFolder, work: Work) -> None:
    if _has_begun(folder.checkpoint):
        raise _other_mode(folder, "in micro-batches", f"with mode='{MODE}'")
    described = folder.path / DESCRIPTION
    if not described.exists() or not _has_begun(folder.path / CHECKPOINT):
        return
    try:
        before = list(map(str, read_document(described)["sources"]))
    except (ValueError, LookupError, TypeError) as error:
        raise DamagedState(
            f"what the job '{folder.job}' reads cannot be read: {error}",
            where=str(described),
            next_step=f"restore the file from a copy, or start over: millstream jobs forget {folder.job}",
        ) from error
    if before != _described(work):
        raise JobChanged(
            f"the flow '{folder.job}' reads other topics than before, or in another order: "
            f"{', '.join(before)} before, now {', '.join(_described(work))}",
            where=str(folder.path),
            next_step=f"give the flow another name; or write all outputs from the start: {START_OVER}",
        )


def refuse_other_mode(folder: JobFolder) -> None:
    """For a job in micro-batches: how far one in real time has come is not known to it."""
    if _has_begun(folder.path / CHECKPOINT):
        raise _other_mode(folder, "in real time", "in micro-batches")


def _other_mode(folder: JobFolder, before: str, now: str) -> JobChanged:
    return JobChanged(
        f"the job '{folder.job}' has run {before}, and how far it came is noted in another way than {now}",
        where=str(folder.path),
        next_step=(
            f"run it as before; or give the flow another name (and since=… to begin where this one is); "
            f"or write all outputs from the start: {START_OVER}"
        ),
    )


def _reached(folder: JobFolder) -> Reached:
    """Refuses a job whose checkpoint is gone: its outputs hold no batches that would show it."""
    begun, complete = (newest_number(folder.path / CHECKPOINT / name) for name in ("offsets", "commits"))
    if begun < 0 and (folder.path / DESCRIPTION).exists():
        raise OutputMismatch(
            f"the job '{folder.job}' has written to its outputs, and its checkpoint holds no progress: going on would "
            "write all results again",
            where=str(folder.path / CHECKPOINT),
            next_step=f"restore it from a backup; or write all outputs from the start: {START_OVER}",
        )
    return Reached(begun, complete)


def _has_begun(checkpoint: Path) -> bool:
    offsets = checkpoint / "offsets"
    return offsets.is_dir() and any(entry.name.isdigit() for entry in offsets.iterdir())


def _commits(folder: JobFolder) -> set[str]:
    found = folder.path / CHECKPOINT / "commits"
    return {entry.name for entry in found.iterdir() if entry.name.isdigit()} if found.is_dir() else set()


def _opened(topic: Topic, opening: ExitStack) -> KafkaLog:
    from millstream.log.kafka.log import KafkaLog

    return opening.enter_context(KafkaLog(topic.address))


def _prepared(log: KafkaLog, output: Write, topic: Topic, partitions: int) -> Target:
    """Creates the topic, or checks that the one that exists can take the rows."""
    from millstream.log.kafka.topics import kept_settings

    if topic.name not in log.topics():
        log.create_topic(topic.name, schema=output.schema, partitions=partitions)
    held = log.topic(topic.name, fresh=True).settings.schema
    reasons = [] if held is None else can_evolve(output.schema, held)
    if reasons:
        raise InvalidInput(
            f"the rows of step '{output.name}' do not fit topic '{topic.name}': {'; '.join(reasons)}",
            where=f"its schema: {held}",
            next_step="write to another topic, or bring the rows to its schema with select(…)",
        )
    asked = topic.options(output.place).get("kafka.max.request.size", REQUEST_BYTES_MAX)
    taken = kept_settings(log.clients, topic.name)["max.message.bytes"]
    return Target(topic.name, held or output.schema, min(int(asked), int(taken)))


def _check_spark(spark: SparkSession, partitions: int) -> None:
    jvm: Any = spark.sparkContext._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        stream = jvm.java.lang.Class.forName(STREAM, False, loader)
        able = jvm.java.lang.Class.forName(ABILITY, False, loader).isAssignableFrom(stream)
    except Exception:  # whatever the JVM says of a class that is not there
        able = False
    if not able:
        raise InvalidSetting(
            f"mode='{MODE}' needs Spark's connector to Kafka, and this session has none that can do it",
            where=f"Spark {spark.version}",
            next_step=(
                f"add {CONNECTOR}, or a newer one for this Spark: "
                f'flow.run(mode="{MODE}", conf={{"spark.jars.packages": "{CONNECTOR}"}}), '
                'or "spark.jars" and the paths of its jars; a session that runs already was to be made with them'
            ),
        )
    cores = spark.sparkContext.defaultParallelism
    if partitions > cores:
        raise InvalidSetting(
            f"each partition of a source needs a core of its own all the time: there are {partitions} partitions, "
            f"and Spark has {cores} cores",
            where=f"master {spark.sparkContext.master}",
            next_step=f"give it more, as in master='local[{partitions}]' (they may be more than the machine has)",
        )


def _query(spark: SparkSession, work: Work, folder: JobFolder, settings: Settings) -> Any:
    spark.conf.set(REDACTION, SECRET_OPTIONS)  # plans show the options of their sources, passwords among them
    begin = {"startingOffsets": "earliest"}
    since = settings.since_instant
    if since is not None:
        moment = str(int(since.timestamp() * 1000))
        begin = {"startingTimestamp": moment, "startingOffsetsByTimestampStrategy": "latest"}
    frames: dict[Read, DataFrame] = {}
    for node, topic in work.sources.items():
        said = topic.options(node.place) | begin
        said |= {"subscribe": topic.name, "includeHeaders": "true", "kafka.isolation.level": "read_committed"}
        frames[node] = spark.readStream.format("kafka").options(**said).load()
    output, topic = next(iter(work.sinks.items()))
    rows = compiled(work.targets, frames)
    writer = rows.writeStream.format("kafka").options(**topic.options(output.place)).outputMode("update")
    writer = writer.option("checkpointLocation", f"file://{(folder.path / CHECKPOINT).absolute()}").queryName(
        folder.job
    )
    try:
        return writer.trigger(realTime=f"{BATCH_S} seconds").start()  # type: ignore[call-overload]
    except Exception as error:
        raise of_query(error, new_mark(), _log(), folder.path) from error


_FAILED = re.compile(r"\[([A-Z_]+)(?:\.[A-Z_]+)?\] ([^\n]*)")
OF_A_ROW = ("DIVIDE_BY_ZERO", "CAST_INVALID_INPUT", "CAST_OVERFLOW", "ARITHMETIC_OVERFLOW", "INVALID_ARRAY_INDEX")


def _letter(said: str) -> dict[str, Any] | None:
    """What a record that failed says of itself, between two marks; Spark may repeat it, or cut it off."""
    for part in said.split(MARK):
        with suppress(ValueError):
            found = json.loads(part)
            if isinstance(found, dict) and {"step", "reason", "topic", "partition", "offset"} <= found.keys():
                return found
    return None


def _translated(error: BaseException, folder: Path) -> MillstreamError:
    letter = _letter(str(error))
    if letter is not None:
        return RecordFailed(
            f"the step '{letter['step']}' cannot handle a record: {letter['reason']}",
            where=", ".join(f"{name} {letter[name]}" for name in ("topic", "partition", "offset")),
            next_step=(
                "fix the record's producer; or keep such records apart: take .dead behind "
                f"'{letter['step']}' and write it to a topic, and run the job again: it goes on there"
            ),
        )
    said = _FAILED.search(str(error))
    if said and said.group(1) in OF_A_ROW:
        return RecordFailed(
            f"an expression failed on a row: {said.group(2).partition(' SQLSTATE')[0]}",
            where=_log(),
            next_step="leave such rows out with where(…) before, or use try_cast(…) or try_divide(…)",
        )
    return of_query(error, new_mark(), _log(), folder)
