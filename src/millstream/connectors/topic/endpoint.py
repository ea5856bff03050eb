"""A topic of the job's own broker, which is an embedded log or Kafka: given by name."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from millstream.connectors import arguments
from millstream.connectors.catalog import Remembered, topic_location
from millstream.connectors.claims import Claim, Keeper
from millstream.connectors.connector import Connector, KafkaTopic, Reading, WorkerNeeds, Writing
from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.sink import Sink
from millstream.connectors.source import Source
from millstream.connectors.topic.record_format import RecordFormat, record_format
from millstream.log import Broker, EmbeddedLog, connect
from millstream.log.kafka.address import SCHEME, KafkaAddress, as_kafka
from millstream.plan.checks import NAME
from millstream.plan.nodes import Write
from millstream.records import Schema, codec

if TYPE_CHECKING:
    from millstream.connectors.topic.records_sink import RecordsSink
    from millstream.log.kafka.log import KafkaLog

KAFKA_LIBRARIES = {"confluent-kafka": "confluent_kafka"}


@dataclass(frozen=True)
class OneTopic(Connector):
    """What all endpoints have that are one topic of the job's own broker."""

    topic: str

    @property
    def name(self) -> str:
        return self.topic

    @property
    def topic_name(self) -> str:
        return self.topic

    @property
    def broker_topic(self) -> str | None:
        return self.topic


@dataclass(frozen=True)
class Topic(OneTopic):
    format: str | None = None
    """How values are encoded, if the topic has no schema; None: as JSON."""
    can_read: ClassVar[bool] = True
    can_write: ClassVar[bool] = True
    counts_lag: ClassVar[bool] = True

    @property
    def written_as(self) -> RecordFormat:
        """How rows are written: as the topic has them."""
        return RecordFormat()

    @property
    def decodes(self) -> bool:
        return self.format not in (None, "bytes")

    @property
    def fingerprint(self) -> tuple[str, ...]:
        return (str(self), str(self.format))

    def own_schema(self, broker: str | None) -> Schema:
        from millstream.connectors.topic.own_schema import schema_in_format

        return schema_in_format(self.topic, broker, self.format)

    def with_format(self, format: str) -> Self:
        return replace(self, format=format)

    def open_source(self, reading: Reading) -> Source:
        address = as_kafka(reading.broker)
        format, options = self.format or reading.format, self.written_as.options
        if address is not None:
            from millstream.connectors.kafka.source import KafkaSource

            return KafkaSource(
                address, self.topic, reading.schema, format=format, options=options, on_lost=reading.on_lost
            )
        from millstream.connectors.topic.source import TopicSource

        source = TopicSource(
            self.topic,
            reading.schema,
            broker=str(reading.broker) if reading.broker is not None else None,
            format=format,
            options=options,
            columns=reading.columns,
            on_lost=reading.on_lost,
        )
        source.check_format(self.format)
        return source

    def open_sink(self, writing: Writing) -> Sink:
        return self.records_sink(writing)

    def records_sink(self, writing: Writing, *, raw: bool = False) -> RecordsSink:
        """With `raw`, rows are records as they are."""
        from millstream.connectors.kafka.sink import KafkaSink

        broker, written_as = writing.broker, self.written_as
        encoding = None if written_as.format is None else written_as.codec
        settings: dict[str, Any] = {"raw": raw, "written_as": written_as, "encoding": encoding}
        if isinstance(broker, str) and broker.startswith(SCHEME):
            return KafkaSink(KafkaAddress.of(broker), self.topic, writing, **settings)
        log = connect(broker) if isinstance(broker, str) else broker
        if isinstance(log, EmbeddedLog):
            from millstream.connectors.topic.sink import TopicSink

            return TopicSink(log, self.topic, writing, owns_log=isinstance(broker, str), **settings)
        return KafkaSink(cast("KafkaLog", log), self.topic, writing, **settings)

    def keeper(self, claim: Claim, ledger: FileLedger, broker: Broker) -> Keeper:
        if isinstance(broker, EmbeddedLog):
            from millstream.connectors.topic.claims import TopicKeeper

            return TopicKeeper(broker, self.topic, claim)
        from millstream.connectors.kafka.claims import KafkaKeeper

        address = KafkaAddress.of(cast("KafkaLog", broker).address)
        return KafkaKeeper(address, self.topic, claim, is_inner=self.is_inner)

    def remembered(self, output: Write, log: Path | str) -> Remembered | None:
        return remembered_topic(self.topic, output, log)

    def worker_needs(self, broker: str) -> WorkerNeeds:
        if broker.startswith(SCHEME):
            return WorkerNeeds(libraries=KAFKA_LIBRARIES)
        return WorkerNeeds(folders=[Path(broker)])

    def kafka_topic(self, broker: str | None) -> KafkaTopic | None:
        if broker is None or not broker.startswith(SCHEME):
            return None
        return KafkaTopic(KafkaAddress.of(broker), self.topic)

    def renamed(self, topic: str) -> Self:
        return replace(self, topic=topic)

    def with_suffix(self, suffix: str) -> Self:
        return replace(self, topic=self.topic + suffix)

    def __str__(self) -> str:
        return self.topic


@dataclass(frozen=True)
class FormattedTopic(Topic):
    """A topic whose records are written in a certain way, so that some rows may not fit."""

    record: RecordFormat = field(default_factory=RecordFormat)
    refuses_rows: ClassVar[bool] = True

    @property
    def written_as(self) -> RecordFormat:
        return self.record

    @property
    def target(self) -> Hashable:
        return Topic(self.topic)

    @property
    def fingerprint(self) -> tuple[str, ...]:
        return (*super().fingerprint, repr(sorted(self.record.options.items())))

    def own_schema(self, broker: str | None) -> Schema:
        if self.format == "protobuf" and self.record.options:
            return codec("protobuf", **self.record.options).schema
        return super().own_schema(broker)

    def with_format(self, format: str) -> Self:
        return replace(self, format=format, record=replace(self.record, format=format, options={}))

    def check_written(self, schema: Schema) -> None:
        self.record.check(schema)

    def remembered(self, output: Write, log: Path | str) -> Remembered | None:
        return super().remembered(output, log) if self.format is None else None

    def kafka_topic(self, broker: str | None) -> KafkaTopic | None:
        found = super().kafka_topic(broker)
        return None if found is None else replace(found, is_plain_json=False)


def topic(
    name: str,
    *,
    format: str | None = None,
    headers: str | Mapping[str, str] | None = None,
    timestamp: str | None = None,
    **options: Any,
) -> Topic:
    """A topic of the job's broker; without more arguments, the same as its plain name.

    With `format`, values are bytes: json, avro (with `avro_schema`), protobuf (with `message` and `descriptors`), csv
    (with `delimiter`), string or bytes. When rows are written, `headers` is a column with the headers of a record, or
    the column of each by name, and `timestamp` the column with its time. These columns are not part of the value.
    """
    if not NAME.fullmatch(arguments.text(name, "a topic name must be a string", "topic('scores')")):
        raise arguments.refused(f"{name!r} is not a topic", "a topic's name has letters, digits and . _ -")
    made = record_format(format, headers, timestamp, options)
    return Topic(name) if made == RecordFormat() else FormattedTopic(name, format, made)


def remembered_topic(topic: str, output: Write, log: Path | str) -> Remembered | None:
    """A topic is a table if it is compacted to the newest row of each key."""
    if not output.net or not output.keys:
        return None
    return Remembered(topic, "topic", topic_location(log), output.keys, output.schema.ddl)
