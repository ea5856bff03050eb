"""Topics as a PySpark sink: `df.writeStream.format("millstream").option("topic", …)`, without a flow.

Tasks send their rows with their commit messages, and the driver writes them in one transaction, so rows of a failed
task are never seen. The transaction includes the number of the batch, under the id of the query: a batch that Spark
repeats after a crash is found and not written again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema

from millstream.connectors.kafka.sink import KafkaSink
from millstream.connectors.refusals import Refusal
from millstream.connectors.topic.records_sink import RecordsSink
from millstream.connectors.topic.sink import TopicSink
from millstream.errors import InvalidSetting, SinkFailed
from millstream.log import EmbeddedLog, open_embedded
from millstream.log.kafka.log import KafkaLog
from millstream.records import Schema
from millstream.spark.topic_options import Settings, without_traceback
from millstream.user_lines import what_exists

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

QUERY_ID = "sql.streaming.queryId"
"""Where Spark keeps the id of a query, among the local properties of its tasks."""
RECORD = {"value": ("binary", "string"), "key": ("binary", "string"), "headers": ("map<string,binary>",)}
"""The columns of records that are written as they are, and their types."""
ASYNC = "asyncprogresstrackingenabled"


@dataclass
class Written(WriterCommitMessage):
    """The rows of one task, not written yet: an Arrow IPC stream."""

    query: str | None
    rows: bytes | None


@dataclass(frozen=True)
class Rows:
    """The rows of a batch, as a sink of topics expects them."""

    schema: Schema
    job: str
    step: str
    keys: Sequence[str]
    partitions: int
    run: str = ""
    is_table: bool = False


class _Writer:
    """Shared by batch and streaming writes. It is sent to other processes, so it holds no open files."""

    def __init__(self, settings: Settings, schema: StructType, overwrite: bool) -> None:
        with without_traceback():
            self._settings = settings
            self._are_records = _are_records(schema)
            self._arrow = to_arrow_schema(schema, timezone="UTC")
            Schema.of(self._arrow)  # raises if a topic cannot have such a column
            if overwrite:
                raise InvalidSetting(
                    "a topic is only ever appended to, and cannot be overwritten",
                    where=f"topic '{settings.topic}'",
                    next_step='use mode("append"); for a streaming query outputMode("append"), or foreachBatch, '
                    "where each batch is a frame that can be written",
                )
            for name in settings.key:
                if name not in self._arrow.names:
                    raise InvalidSetting(
                        f"the key column '{name}' does not exist",
                        where=f"topic '{settings.topic}'",
                        next_step=what_exists(name, self._arrow.names),
                    )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(QUERY_ID)
        sink = pa.BufferOutputStream()
        rows = 0
        with pa.ipc.new_stream(sink, self._arrow, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
            for batch in iterator:
                stream.write_batch(self._typed(batch))
                rows += batch.num_rows
        return Written(query, sink.getvalue().to_pybytes() if rows else None)

    def _typed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Spark's times have the time zone of the session."""
        columns = [
            column if column.type.equals(field.type) else column.cast(field.type)
            for column, field in zip(batch.columns, self._arrow, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._arrow)

    def _commit(self, messages: Sequence[WriterCommitMessage | None], job: str, batch: int | None) -> None:
        sent = [message.rows for message in messages if isinstance(message, Written) and message.rows is not None]
        if not sent:
            return
        with without_traceback(), self._opened() as log:
            sink = self._sink(log, job)
            try:
                sink.write_parts(batch, _parts(sent), _refuse)
            finally:
                sink.close()
                if batch is None and isinstance(log, EmbeddedLog):
                    log.forget_producer(sink.producer_name)  # Kafka forgets it by itself, after a week

    def _opened(self) -> EmbeddedLog | KafkaLog:
        kafka = self._settings.kafka
        return open_embedded(self._settings.broker) if kafka is None else KafkaLog(kafka)

    def _sink(self, log: EmbeddedLog | KafkaLog, job: str) -> RecordsSink:
        settings = self._settings
        is_new = settings.topic not in log.topics()
        held = None if is_new else log.describe_topic(settings.topic).settings.schema
        raw = held is None and self._are_records
        if raw and settings.key:
            raise InvalidSetting(
                "the records have a key of their own: the column 'key'",
                where=f"topic '{settings.topic}'",
                next_step="leave the option 'key' out",
            )
        # A column that is never null today may be tomorrow: as Spark's own sinks, a new topic allows it.
        columns = [field.with_nullable(True) for field in self._arrow] if is_new else list(self._arrow)
        rows = Rows(
            Schema.of(pa.schema(columns)), job, f"write {settings.topic}", settings.key, settings.partitions or 1
        )
        if isinstance(log, KafkaLog):
            return KafkaSink(log, settings.topic, rows, raw=raw)
        return TopicSink(log, settings.topic, rows, raw=raw)


class TopicWriter(_Writer, DataSourceArrowWriter):
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        job, batch = self._settings.transaction or (f"df.write {uuid.uuid4()}", None)
        self._commit(messages, job, batch)


class TopicStreamWriter(_Writer, DataSourceStreamArrowWriter):
    def __init__(self, settings: Settings, schema: StructType, overwrite: bool) -> None:
        super().__init__(settings, schema, overwrite)
        with without_traceback():
            if settings.transaction is not None:
                raise InvalidSetting(
                    "a streaming query identifies its batches itself",
                    where=f"topic '{settings.topic}'",
                    next_step="leave txnAppId and txnVersion out: they are for df.write, in foreachBatch",
                )
            if ASYNC in settings.given:
                raise InvalidSetting(
                    "with asyncProgressTrackingEnabled Spark may repeat rows in other batches, and they would be "
                    "written twice",
                    where=f"topic '{settings.topic}'",
                    next_step="leave it out",
                )

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        query = next((message.query for message in messages if isinstance(message, Written) and message.query), None)
        if query is None and any(isinstance(message, Written) and message.rows for message in messages):
            with without_traceback():
                raise SinkFailed(
                    "Spark does not report the id of the query, so its batches cannot be written once",
                    where=f"topic '{self._settings.topic}', batch {batchId}",
                    next_step="use foreachBatch, and df.write with txnAppId and txnVersion",
                )
        self._commit(messages, f"query {query}", batchId)


def _parts(sent: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
    for rows in sent:
        yield from pa.ipc.open_stream(rows)


def _are_records(schema: StructType) -> bool:
    """Whether the rows are records as they are: a value, and perhaps a key and headers, and nothing else."""
    return "value" in schema.names and all(
        field.dataType.simpleString() in RECORD.get(field.name, ()) for field in schema.fields
    )


def _refuse(refusals: Sequence[Refusal]) -> None:
    if refusals:
        raise SinkFailed(
            refusals[0].reason,
            where=f"{len(refusals)} rows of the batch",
            next_step="leave such rows out, or convert them, before they are written",
        )
