"""Topics as a PySpark data source: `spark.readStream.format("millstream").option("topic", …)`, without a flow.

Spark plans in one Python process and reads in others; each opens the topic itself. Rows go to Spark as the
stored Arrow batches, and the offsets in Spark's checkpoint are those of the topic.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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
from millstream.log import ADDRESS_VARIABLE, DEFAULT_FOLDER, open_embedded
from millstream.log.kafka.address import KafkaAddress, as_kafka
from millstream.records import Schema
from millstream.secrets import delivery
from millstream.user_lines import what_exists

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

NAME = "millstream"
KEY_AND_VALUE = Schema.of("key binary, value binary")
METADATA = Schema.of(
    "topic string, partition int, offset long, timestamp timestamp, headers map<string,binary>",
)
OPTIONS = (
    "topic",
    "broker",
    "startingOffsets",
    "endingOffsets",
    "maxRecordsPerBatch",
    "format",
    "badRecords",
    "tasks",
)
AnySource: TypeAlias = TopicSource | KafkaSource
EARLIEST, LATEST = -2, -1  # as Kafka writes them in JSON
BATCH_ROWS = 100_000


def register(spark: SparkSession, *, broker: str | os.PathLike[str] | None = None) -> None:
    """Registers the format "millstream" with a session. `broker` defaults to MILLSTREAM_BROKER, or `.millstream`."""
    given = os.fspath(broker) if broker is not None else os.environ.get(ADDRESS_VARIABLE) or DEFAULT_FOLDER
    address = given if "://" in given else str(Path(given).expanduser().absolute())
    kafka = as_kafka(address)  # its settings may be in a file, which is read here
    spark.sparkContext.environment.update(delivery())
    # A new class is sent to Spark's processes by value, and with it the address.
    bound = {"default_broker": address, "default_kafka": kafka, "__module__": "__main__"}
    spark.dataSource.register(type("MillstreamTopics", (TopicDataSource,), bound))


@contextmanager
def without_traceback() -> Iterator[None]:
    """Reports a user's mistake without a stack trace; the Spark process that this runs in ends with it."""
    try:
        yield
    except MillstreamError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


# ---------------------------------------------------------------- options


@dataclass(frozen=True)
class Settings:
    """The validated options."""

    topic: str
    broker: str
    registered: KafkaAddress | None = field(hash=False)
    """The broker, if it is Kafka and was given to `register`: all processes have its secrets."""
    starting: str
    ending: str
    limit_rows: int | None
    format: str | None
    fails_on_bad: bool
    tasks: int

    @classmethod
    def of(cls, options: Mapping[str, str], default_broker: str, default_kafka: KafkaAddress | None = None) -> Settings:
        given = {name.lower(): value for name, value in options.items()}
        known = {name.lower(): name for name in OPTIONS}
        topic = given.pop("path", None)  # the argument of load()
        for name in given:
            if name not in known:
                raise InvalidSetting(
                    f"there is no option '{name}'", next_step=what_exists(name, OPTIONS, kind="options")
                )
        topic = given.get("topic", topic)
        if not topic:
            raise InvalidSetting("no topic is given", next_step='add one: .option("topic", "scores")')
        bad = given.get("badrecords", "fail")
        if bad not in ("fail", "drop"):
            raise InvalidSetting(f"badRecords must be 'fail' or 'drop', not {bad!r}")
        limit = given.get("maxrecordsperbatch")
        return cls(
            topic=topic,
            broker=given.get("broker", default_broker),
            registered=None if "broker" in given else default_kafka,
            starting=given.get("startingoffsets", "earliest"),
            ending=given.get("endingoffsets", "latest"),
            limit_rows=None if limit is None else _number("maxRecordsPerBatch", limit),
            format=given.get("format"),
            fails_on_bad=bad == "fail",
            tasks=_number("tasks", given["tasks"]) if "tasks" in given else os.cpu_count() or 1,
        )

    @property
    def kafka(self) -> KafkaAddress | None:
        """The broker, if it is Kafka. One given as an option is resolved in each process: its secrets are not sent."""
        return self.registered or as_kafka(self.broker)


def _number(name: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise InvalidSetting(f"{name} must be a positive integer, not {text!r}")
    return int(text)


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
            self._stored, self._identity = _described(self._settings)

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        own = (self._stored or KEY_AND_VALUE).arrow
        taken = {field.name.lower() for field in own}
        besides = [field for field in METADATA.arrow if field.name not in taken]
        return Schema.of(pa.schema([*own, *besides])).ddl

    def reader(self, schema: StructType) -> TopicReader:
        return TopicReader(self._settings, self._identity, schema)

    def streamReader(self, schema: StructType) -> TopicStreamReader:  # noqa: N802 - Spark's name
        return TopicStreamReader(self._settings, self._identity, schema)


def _described(settings: Settings) -> tuple[Schema | None, str]:
    """The schema of a topic's values, and its identity; Kafka's values are plain bytes."""
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
