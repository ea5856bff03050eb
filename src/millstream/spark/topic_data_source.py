"""Topics as a PySpark data source: `spark.readStream.format("millstream").option("topic", …)`, without a flow.

Writing is in topic_writer.py.

Spark plans in one Python process and reads in others; each opens the topic itself. Rows go to Spark as the
stored Arrow batches, and the offsets in Spark's checkpoint are those of the topic.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from millstream.connectors.kafka.source import KafkaSource
from millstream.connectors.source import Offsets, Slab, Slice
from millstream.connectors.topic.columns import is_metadata
from millstream.connectors.topic.source import TopicSource, find_topic
from millstream.errors import InvalidInput, InvalidRecord, InvalidSetting, MillstreamError, UnknownTopic
from millstream.log import DEFAULT_FOLDER, chosen_address, open_embedded
from millstream.log.kafka.address import KafkaAddress, as_kafka
from millstream.records import Schema
from millstream.secrets import delivery
from millstream.spark.session.interpreter import use_interpreter
from millstream.spark.topic_options import READ_OPTIONS, WRITE_OPTIONS, Settings, without_traceback
from millstream.spark.topic_writer import TopicStreamWriter, TopicWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

NAME = "millstream"
KEY_AND_VALUE = Schema.of("key binary, value binary")
METADATA = Schema.of(
    "topic string, partition int, offset long, timestamp timestamp, headers map<string,binary>",
)
AnySource: TypeAlias = TopicSource | KafkaSource
EARLIEST, LATEST = -2, -1  # as Kafka writes them in JSON
BATCH_ROWS = 100_000


def register(spark: SparkSession, *, broker: str | os.PathLike[str] | None = None) -> None:
    """Registers the format "millstream" with a session. `broker` defaults to MILLSTREAM_BROKER, or `.millstream`."""
    given = chosen_address(broker)
    address = given if "://" in given else str(Path(given).expanduser().absolute())
    kafka = as_kafka(address)  # its settings may be in a file, which is read here
    use_interpreter(spark)
    spark.sparkContext.environment.update(delivery())
    # A new class is sent to Spark's processes by value, and with it the address.
    bound = {"default_broker": address, "default_kafka": kafka, "__module__": "__main__"}
    spark.dataSource.register(type("MillstreamTopics", (TopicDataSource,), bound))


def offsets_of(text: str, option: str, source: AnySource) -> Offsets:
    """'earliest', 'latest', or JSON with an offset per partition; missing partitions start at the earliest."""
    if text in ("earliest", "latest"):
        return source.earliest() if text == "earliest" else source.latest()
    try:
        named = json.loads(text)
        if isinstance(named, dict) and isinstance(named.get(source.topic), dict):
            named = named[source.topic]  # as in Spark's Kafka source, which reads several topics
        if not isinstance(named, dict) or not all(type(offset) is int for offset in named.values()):
            raise ValueError
    except ValueError:
        raise InvalidSetting(
            f"{option} cannot be {text!r}",
            where=f"topic '{source.topic}'",
            next_step="""use 'earliest', 'latest', or offsets by partition: '{"0": 17, "1": 4}'""",
        ) from None
    earliest, latest = source.earliest(), source.latest()
    for name in named:
        if name not in earliest:
            raise InvalidSetting(
                f"{option} names partition {name!r}, which does not exist",
                where=f"topic '{source.topic}'",
                next_step=f"existing partitions: {', '.join(earliest)}",
            )
    ends = {EARLIEST: earliest, LATEST: latest}
    return {
        name: ends[named[name]][name] if named.get(name) in ends else named.get(name, first)
        for name, first in earliest.items()
    }


# ---------------------------------------------------------------- the data source


class TopicDataSource(DataSource):
    default_broker = DEFAULT_FOLDER
    default_kafka: KafkaAddress | None = None

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        with without_traceback():  # here, so that load() raises and not a running query
            self._settings = Settings.of(options, self.default_broker, self.default_kafka)
        self._found: tuple[Schema | None, str] | None = None

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        own = (self._described()[0] or KEY_AND_VALUE).arrow
        taken = {field.name.lower() for field in own}
        besides = [field for field in METADATA.arrow if field.name not in taken]
        return Schema.of(pa.schema([*own, *besides])).ddl

    def reader(self, schema: StructType) -> TopicReader:
        return TopicReader(self._settings, self._described()[1], schema)

    def streamReader(self, schema: StructType) -> TopicStreamReader:  # noqa: N802 - Spark's name
        try:
            return TopicStreamReader(self._settings, self._described()[1], schema)
        except MillstreamError:  # Spark loses an error that is raised here: the first use raises it again
            return TopicStreamReader(self._settings, "", schema)

    def writer(self, schema: StructType, overwrite: bool) -> TopicWriter:
        return TopicWriter(self._writable(), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:  # noqa: N802
        return TopicStreamWriter(self._writable(), schema, overwrite)

    def _described(self) -> tuple[Schema | None, str]:
        """Not in the constructor: a topic that is written may not exist yet."""
        if self._found is None:
            with without_traceback():
                self._found = _described(self._settings)
        return self._found

    def _writable(self) -> Settings:
        with without_traceback():
            self._settings.check_only(WRITE_OPTIONS, "written")
        return self._settings


def _described(settings: Settings) -> tuple[Schema | None, str]:
    """The schema of a topic's values, and its identity; Kafka's values are plain bytes."""
    settings.check_only(READ_OPTIONS, "read")
    if settings.kafka is not None:
        return None, KafkaSource(settings.kafka, settings.topic, KEY_AND_VALUE, format="bytes").identity
    with open_embedded(settings.broker) as log:
        found = find_topic(log, settings.topic)
        return found.settings.schema, found.identity


def _source(settings: Settings, schema: Schema) -> AnySource:
    format = settings.format or _format(schema)
    if settings.kafka is not None:
        return KafkaSource(settings.kafka, settings.topic, schema, format=format)
    return TopicSource(settings.topic, schema, broker=settings.broker, format=format)


@lru_cache(maxsize=16)
def _opened(settings: Settings, identity: str, ddl: str, pid: int) -> AnySource:
    """Kept open, since Spark's processes live on. A recreated topic of the same name is a different one."""
    settings.check_only(READ_OPTIONS, "read")
    source = _source(settings, Schema.of(ddl))
    if source.identity != identity:
        source.close()
        raise UnknownTopic(f"topic '{settings.topic}' was deleted and recreated", next_step="load it again")
    return source


def _format(schema: Schema) -> str:
    """JSON, unless only the value itself is read."""
    inside = [field for field in schema.arrow if not is_metadata(field)]
    raw = {pa.binary(): "bytes", pa.string(): "string"}
    return raw.get(inside[0].type, "json") if [field.name for field in inside] == ["value"] else "json"


@dataclass
class TopicPartitions(InputPartition):
    """What one task reads."""

    slices: list[Slice]


class _Reader:
    """Shared by batch and streaming reads. It is sent to other processes, so it holds no open files."""

    def __init__(self, settings: Settings, identity: str, schema: StructType) -> None:
        with without_traceback():
            self._settings, self._identity = settings, identity
            self._arrow = to_arrow_schema(schema, timezone="UTC")
            self._ddl = Schema.of(self._arrow).ddl
            if identity:
                self._source()

    def _source(self) -> AnySource:
        return _opened(self._settings, self._identity, self._ddl, os.getpid())

    def _planned(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        tasks = self._source().slices(start, end, self._settings.tasks)
        return [TopicPartitions(slices) for slices in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, TopicPartitions):
            return  # Spark invents one if there are none
        with without_traceback():
            source = self._source()
            for slice in partition.slices:
                for slab in source.read(slice):
                    if slab.dead is not None and self._settings.fails_on_bad:
                        raise _bad_record(slab.dead.slice(0, 1).to_pylist()[0], slab.dead.num_rows)
                    yield from self._batches(slab)

    def _batches(self, slab: Slab) -> Iterator[pa.RecordBatch]:
        for batch in slab.rows.to_batches(max_chunksize=BATCH_ROWS):
            columns = [
                column if column.type.equals(field.type) else column.cast(field.type)
                for column, field in zip(batch.columns, self._arrow, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self._arrow)


def _bad_record(dead_letter: Mapping[str, Any], count: int) -> InvalidRecord:
    more = f" ({count - 1} more follow)" if count > 1 else ""
    return InvalidRecord(
        f"a record cannot be read: {dead_letter['reason']}{more}",
        where=f"topic '{dead_letter['topic']}', partition {dead_letter['partition']}, offset {dead_letter['offset']}",
        next_step='skip such records with .option("badRecords", "drop"), '
        "or read them in a flow, where they become dead letters",
    )


class TopicReader(_Reader, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        with without_traceback():
            source = self._source()
            start = offsets_of(self._settings.starting, "startingOffsets", source)
            end = offsets_of(self._settings.ending, "endingOffsets", source)
            if any(end[name] < start[name] for name in end):
                raise InvalidInput(
                    f"endingOffsets are before startingOffsets: {end}, {start}", where=f"topic '{source.topic}'"
                )
            return self._planned(start, end)


class TopicStreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    _target: Offsets | None = None

    def initialOffset(self) -> Offsets:  # noqa: N802
        with without_traceback():
            return offsets_of(self._settings.starting, "startingOffsets", self._source())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._settings.limit_rows
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with without_traceback():
            self._target = self._source().latest()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        with without_traceback():
            limit_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            end = self._source().limited(start, limit_rows, until=self._target)
            return {**start, **end}

    def reportLatestOffset(self) -> Offsets:  # noqa: N802
        with without_traceback():
            return self._source().latest()

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        with without_traceback():
            return self._planned(start, end)

    def stop(self) -> None:
        _opened.cache_clear()
