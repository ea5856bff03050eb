"""Real-time mode: a flow of expressions from Kafka to Kafka, record by record, in milliseconds.

Spark uses its own Kafka connector here, in long-running tasks without Python. It writes each record at least once:
after a failure, records since the last recorded batch are repeated.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millstream.connectors.catalog import jobs_folder
from millstream.connectors.connector import KafkaTopic
from millstream.errors import (
    DamagedState,
    InvalidInput,
    InvalidSetting,
    JobChanged,
    MillstreamError,
    OutputMismatch,
    RecordFailed,
)
from millstream.jobs.asked.ask_topics import prepare_topics
from millstream.jobs.job import POLL_S, Job
from millstream.jobs.job_folder import REAL_TIME_CHECKPOINT as CHECKPOINT
from millstream.jobs.job_folder import JobFolder, newest_number
from millstream.jobs.measuring.job_progress import Progress, ProgressFile
from millstream.jobs.measuring.real_time_metrics import RealTimeMetrics, RealTimeSampler
from millstream.jobs.modes import has_started, refuse_after_micro_batches
from millstream.jobs.real_time_plan import PROMISE, RealTimePlan, kafka_options, real_time_plan
from millstream.jobs.results.output_claims import START_OVER, NewestBatches, OutputClaims
from millstream.jobs.results.result_topics import partitions_of
from millstream.jobs.results.start_over import restart, starts_over
from millstream.jobs.shown.display import Display
from millstream.jobs.shown.notices import warn_of_bad_records
from millstream.jobs.starting_spark import session_of, spark_log
from millstream.jobs.stop_request import StopRequest
from millstream.jobs.versions.real_time_document import write_real_time_plan
from millstream.log import connect
from millstream.log.storage.disk import read_document, write_document
from millstream.plan.bad_rows import listened_to
from millstream.plan.flow import Flow
from millstream.plan.nodes import Read, Write
from millstream.plan.run_settings import REAL_TIME as MODE
from millstream.plan.run_settings import Settings
from millstream.plan.walking import in_order
from millstream.records import can_evolve
from millstream.spark.query_failures import new_mark, of_query
from millstream.spark.real_time.record_compiler import MARK, Target, compiled

if TYPE_CHECKING:
    from millstream.log.kafka.log import KafkaLog

DESCRIPTION = "real_time.json"
BATCH_S = 5
"""How often the job records its progress; Spark accepts no less."""
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
"""Tested with Spark 4.3."""
STREAM = "org.apache.spark.sql.kafka010.KafkaMicroBatchStream"
ABILITY = "org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode"
SECRET_OPTIONS = r"(?i)url|jaas|password|secret|token|\.pem|keystore|truststore"
REDACTION = "spark.sql.redaction.options.regex"
REQUEST_BYTES_MAX = 1 << 20
"""The largest record that the Java client sends, unless `message.max.bytes` is set."""


class RealTimeJob(Job):
    """A flow in real time. Its progress is recorded every few seconds; its records do not wait for that."""

    def __init__(
        self,
        plan: RealTimePlan,
        folder: JobFolder,
        query: StreamingQuery,
        closing: ExitStack,
        logs: dict[Read, KafkaLog],
        metrics: RealTimeMetrics,
    ) -> None:
        super().__init__(plan.name, folder, Progress(), query, closing)
        self.plan = plan
        self._logs = logs
        self._file = ProgressFile(folder.path)
        self._metrics = metrics
        self._taking = threading.RLock()  # both the thread that waits for the job and its sampler take the progress
        self._recorded_batch = -1
        self._lag = 0

    @property
    def outputs(self) -> tuple[Write, ...]:
        return self.plan.outputs

    @property
    def promise(self) -> str:
        return PROMISE

    def explain(self) -> str:
        return self.plan.explain()

    @property
    def is_running(self) -> bool:
        self.take_progress()
        return super().is_running

    def take_progress(self) -> None:
        """Takes over what Spark has reported since the last call."""
        with self._taking:
            self._take_progress()

    def _take_progress(self) -> None:
        before = self._recorded_batch
        for reported in self._query.recentProgress:
            if reported["batchId"] <= self._recorded_batch:
                continue
            self._recorded_batch = self.progress.batch = reported["batchId"]
            self.progress.batch_rows = reported["numInputRows"]
            self.progress.rows_read += reported["numInputRows"]
            self.progress.batch_seconds = reported["batchDuration"] / 1000
            for (node, topic), source in zip(self.plan.sources.items(), reported["sources"], strict=False):
                ends = source["endOffset"]
                ends = json.loads(ends) if isinstance(ends, str) else ends
                self.progress.offsets[node.name] = dict((ends or {}).get(topic.name, {}))
            self._metrics.take(reported, self.progress.offsets)
        if self._recorded_batch > before:
            self._file.update(self.name, self.progress, self.lag)

    def lag(self) -> int:
        """The number of rows not recorded as read yet; for a job that has ended, the last known number."""
        if not self.is_running:
            return self._lag
        done = self.progress.offsets
        ends = _ends(self.plan, self._logs)
        self._lag = sum(max(0, end - done.get(source, {}).get(name, 0)) for (source, name), end in ends.items())
        return self._lag

    def stop(self, grace_s: float | None = None, is_urgent: Callable[[], bool] = lambda: False) -> None:
        """Stops right after the job recorded its progress, so that few records are repeated."""
        recorded, deadline = _commits(self.folder), time.monotonic() + 2 * BATCH_S
        while self._query.isActive and _commits(self.folder) == recorded and time.monotonic() < deadline:
            time.sleep(POLL_S / 20)
        self._query.stop()
        self._finish()

    def _finish(self) -> None:
        self.take_progress()
        with self._closing:
            error = self._query.exception()
        if error is not None:
            raise _translated(error, self.folder.path)


def start(flow: Flow, settings: Settings, display: Display, stop: StopRequest) -> RealTimeJob:
    """Starts a flow in real time, and returns when its query runs."""
    plan = real_time_plan(flow, settings)
    with ExitStack() as opening:
        broker = connect(settings.broker)
        opening.callback(broker.close)
        folder = JobFolder(Path(settings.folder or jobs_folder(broker) / plan.name), plan.name)
        opening.enter_context(folder.held())
        is_new = starts_over(folder, settings)
        if not is_new:
            _check_folder(folder, plan)
        display.phase("checking the topics")
        prepare_topics(flow.asks.values(), broker)
        logs = {node: _opened(topic, opening) for node, topic in plan.sources.items()}
        partitions = {
            node.name: logs[node].topic(topic.name).settings.partitions for node, topic in plan.sources.items()
        }
        listened = listened_to(in_order(plan.outputs))
        for node in (source for source in plan.sources if source not in listened):
            warn_of_bad_records(plan.name, node)
        if is_new:
            restart(plan.outputs, folder, broker, settings, display)
        claims = opening.enter_context(OutputClaims(plan.name, folder, plan.outputs, broker))
        claims.settle(_newest_batches(folder))
        sink = _opened(next(iter(plan.sinks.values())), opening)
        for output, topic in plan.sinks.items():
            plan.targets[output] = _prepared(sink, output, topic, partitions_of(output, partitions))
        claims.record()
        write_real_time_plan(folder.path, plan, partitions)
        spark = session_of(settings, plan.name, display, stop)
        _check_spark(spark, sum(partitions.values()))
        display.phase(f"starting the query, in real time: {PROMISE}")
        stop.check()
        query = _query(spark, plan, folder, settings)
        write_document(folder.path / DESCRIPTION, {"sources": _described(plan)})
        metrics = RealTimeMetrics(plan)
        sampler = RealTimeSampler(folder.path, metrics, lambda: _ends(plan, logs), keeps=settings.metrics)
        opening.callback(sampler.close)
        job = RealTimeJob(plan, folder, query, opening.pop_all(), logs, metrics)
        sampler.start(job.take_progress)
        return job


def _ends(plan: RealTimePlan, logs: Mapping[Read, KafkaLog]) -> dict[tuple[str, str], int]:
    """By source and partition, the first offset that cannot be read yet."""
    return {
        (node.name, str(partition.number)): partition.stable_offset()
        for node, topic in plan.sources.items()
        for partition in logs[node].topic(topic.name).partitions()
    }


def _described(plan: RealTimePlan) -> list[str]:
    return [f"{node.name}: {topic}" for node, topic in plan.sources.items()]


def _check_folder(folder: JobFolder, plan: RealTimePlan) -> None:
    refuse_after_micro_batches(folder)
    described = folder.path / DESCRIPTION
    if not described.exists() or not has_started(folder.path / CHECKPOINT):
        return
    try:
        before = list(map(str, read_document(described)["sources"]))
    except (ValueError, LookupError, TypeError) as error:
        raise DamagedState(
            f"the list of topics that the job '{folder.job}' reads is damaged: {error}",
            where=str(described),
            next_step=f"restore the file from a copy, or start over: millstream jobs forget {folder.job}",
        ) from error
    if before != _described(plan):
        raise JobChanged(
            f"the flow '{folder.job}' reads different topics than before, or in a different order: "
            f"{', '.join(before)} before, now {', '.join(_described(plan))}",
            where=str(folder.path),
            next_step=f"give the flow another name; or write all outputs from the start: {START_OVER}",
        )


def _newest_batches(folder: JobFolder) -> NewestBatches:
    """Refuses a job whose checkpoint is gone; unlike in micro-batches, its outputs record no batch numbers."""
    started, complete = (newest_number(folder.path / CHECKPOINT / name) for name in ("offsets", "commits"))
    if started < 0 and (folder.path / DESCRIPTION).exists():
        raise OutputMismatch(
            f"the job '{folder.job}' has written to its outputs, and its checkpoint holds no progress: continuing "
            "would write all results again",
            where=str(folder.path / CHECKPOINT),
            next_step=f"restore it from a backup; or write all outputs from the start: {START_OVER}",
        )
    return NewestBatches(started, complete)


def _commits(folder: JobFolder) -> set[str]:
    found = folder.path / CHECKPOINT / "commits"
    return {entry.name for entry in found.iterdir() if entry.name.isdigit()} if found.is_dir() else set()


def _opened(topic: KafkaTopic, opening: ExitStack) -> KafkaLog:
    from millstream.log.kafka.log import KafkaLog

    return opening.enter_context(KafkaLog(topic.address))


def _prepared(log: KafkaLog, output: Write, topic: KafkaTopic, partitions: int) -> Target:
    """Creates the topic, or checks that the existing one can hold the rows."""
    from millstream.log.kafka.topics import kept_settings

    if topic.name not in log.topics():
        log.create_topic(topic.name, schema=output.schema, partitions=partitions)
    held = log.topic(topic.name, fresh=True).settings.schema
    reasons = [] if held is None else can_evolve(output.schema, held)
    if reasons:
        raise InvalidInput(
            f"the rows of step '{output.name}' do not fit topic '{topic.name}': {'; '.join(reasons)}",
            where=f"its schema: {held}",
            next_step="write to another topic, or convert the rows to its schema with select(…)",
        )
    client_max = kafka_options(topic, output.user_line).get("kafka.max.request.size", REQUEST_BYTES_MAX)
    topic_max = kept_settings(log.clients, topic.name)["max.message.bytes"]
    return Target(topic.name, held or output.schema, min(int(client_max), int(topic_max)))


def _check_spark(spark: SparkSession, partitions: int) -> None:
    jvm: Any = spark.sparkContext._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        stream = jvm.java.lang.Class.forName(STREAM, False, loader)
        is_supported = jvm.java.lang.Class.forName(ABILITY, False, loader).isAssignableFrom(stream)
    except Exception:  # whatever the JVM raises for a missing class
        is_supported = False
    if not is_supported:
        raise InvalidSetting(
            f"mode='{MODE}' needs Spark's Kafka connector, and this session has none that supports it",
            where=f"Spark {spark.version}",
            next_step=(
                f"add {CONNECTOR}, or a newer one for this Spark: "
                f'flow.run(mode="{MODE}", conf={{"spark.jars.packages": "{CONNECTOR}"}}), '
                'or "spark.jars" and the paths of its jars; a running session must have been created with them'
            ),
        )
    cores = spark.sparkContext.defaultParallelism
    if partitions > cores:
        raise InvalidSetting(
            f"each partition of a source occupies a core: there are {partitions} partitions, "
            f"and Spark has {cores} cores",
            where=f"master {spark.sparkContext.master}",
            next_step=f"give it more, as in master='local[{partitions}]' (this may exceed the cores of the machine)",
        )


def _query(spark: SparkSession, plan: RealTimePlan, folder: JobFolder, settings: Settings) -> Any:
    spark.conf.set(REDACTION, SECRET_OPTIONS)  # plans show the options of their sources, including passwords
    start = {"startingOffsets": "earliest"}
    since = settings.since_instant
    if since is not None:
        moment = str(int(since.timestamp() * 1000))
        start = {"startingTimestamp": moment, "startingOffsetsByTimestampStrategy": "latest"}
    frames: dict[Read, DataFrame] = {}
    for node, topic in plan.sources.items():
        options = kafka_options(topic, node.user_line) | start
        options |= {"subscribe": topic.name, "includeHeaders": "true", "kafka.isolation.level": "read_committed"}
        options |= {"failOnDataLoss": "false"} if node.on_lost == "earliest" else {}
        frames[node] = spark.readStream.format("kafka").options(**options).load()
    output, topic = next(iter(plan.sinks.items()))
    rows = compiled(plan.targets, frames, counts_rows=settings.metrics)
    writer = rows.writeStream.format("kafka").options(**kafka_options(topic, output.user_line)).outputMode("update")
    writer = writer.option("checkpointLocation", f"file://{(folder.path / CHECKPOINT).absolute()}").queryName(
        folder.job
    )
    try:
        return writer.trigger(realTime=f"{BATCH_S} seconds").start()  # type: ignore[call-overload]
    except Exception as error:
        raise of_query(error, new_mark(), spark_log(), folder.path) from error


_FAILED = re.compile(r"\[([A-Z_]+)(?:\.[A-Z_]+)?\] ([^\n]*)")
ROW_ERRORS = ("DIVIDE_BY_ZERO", "CAST_INVALID_INPUT", "CAST_OVERFLOW", "ARITHMETIC_OVERFLOW", "INVALID_ARRAY_INDEX")


def _dead_letter_in(text: str) -> dict[str, Any] | None:
    """The description of a failed record, between two marks; Spark may repeat it, or cut it off."""
    for part in text.split(MARK):
        with suppress(ValueError):
            found = json.loads(part)
            if isinstance(found, dict) and {"step", "reason", "topic", "partition", "offset"} <= found.keys():
                return found
    return None


def _translated(error: BaseException, folder: Path) -> MillstreamError:
    dead_letter = _dead_letter_in(str(error))
    if dead_letter is not None:
        return RecordFailed(
            f"the step '{dead_letter['step']}' cannot handle a record: {dead_letter['reason']}",
            where=", ".join(f"{name} {dead_letter[name]}" for name in ("topic", "partition", "offset")),
            next_step=(
                "fix the record's producer; or set such records aside: take .dead after "
                f"'{dead_letter['step']}' and write it to a topic, and run the job again: it continues there"
            ),
        )
    failed = _FAILED.search(str(error))
    if failed and failed.group(1) in ROW_ERRORS:
        return RecordFailed(
            f"an expression failed on a row: {failed.group(2).partition(' SQLSTATE')[0]}",
            where=spark_log(),
            next_step="filter such rows out with where(…) first, or use try_cast(…) or try_divide(…)",
        )
    return of_query(error, new_mark(), spark_log(), folder)
