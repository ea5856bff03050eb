"""A topic of Apache Kafka, independent of the flow's own broker."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from millstream.connectors import arguments
from millstream.connectors.catalog import Remembered
from millstream.connectors.claims import Claim, Keeper
from millstream.connectors.connector import Connector, KafkaTopic, Reading, WorkerNeeds, Writing
from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.sink import Sink
from millstream.connectors.source import Source
from millstream.connectors.topic.endpoint import KAFKA_LIBRARIES, Topic, remembered_topic
from millstream.connectors.topic.record_format import RecordFormat, record_format
from millstream.errors import InvalidInput
from millstream.log import Broker, EmbeddedLog
from millstream.log.kafka.address import SCHEME, KafkaAddress, address_of, with_ports
from millstream.plan.endpoints import LOST_CHOICES
from millstream.plan.nodes import Write
from millstream.records import Codec, Schema, codec
from millstream.secrets import Secret, hidden, shown_address
from millstream.user_lines import AtUsersLine, what_exists

if TYPE_CHECKING:
    from millstream.log.kafka.log import KafkaLog

REGISTRY_FORMATS = ("json", "avro", "protobuf")
NAMINGS = ("topic", "record", "topic_record")
REGISTRY_WAIT_SECONDS = 600.0
"""How long a running job waits for a registry that is away."""


@dataclass(frozen=True)
class Kafka(Connector):
    servers: str | None
    """None: those of the job's broker."""
    topic: str
    format: str = "json"
    registry: str | None = None
    on_lost: str = "error"
    settings: Mapping[str, str | Secret] = field(default_factory=dict, hash=False)
    record: RecordFormat = field(default_factory=RecordFormat)
    """How rows are written."""
    naming: str = "topic"
    register: bool = True
    can_read: ClassVar[bool] = True
    can_write: ClassVar[bool] = True
    refuses_rows: ClassVar[bool] = True
    counts_lag: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return f"kafka {self.topic}"

    @property
    def decodes(self) -> bool:
        return self.format != "bytes"

    @property
    def topic_name(self) -> str:
        return self.topic

    @property
    def target(self) -> Hashable:
        """A topic of the job's broker is the same one, however it is written."""
        return Topic(self.topic) if self.servers is None else (with_ports(self.servers), self.topic)

    @property
    def lost_choice(self) -> str:
        return self.on_lost

    @property
    def fingerprint(self) -> tuple[str, ...]:
        """A secret is identified by its number."""
        settings = (
            f"{name}={value.number if isinstance(value, Secret) else value}" for name, value in self.settings.items()
        )
        options = repr(sorted(self.record.options.items())) if self.record.options else ""
        return (str(self), self.format, str(self.registry), self.on_lost, options, *sorted(settings))

    def check_written(self, schema: Schema) -> None:
        self.record.check(schema)
        if self.registry is not None:
            from millstream.connectors.kafka.subjects import plain_codec

            with AtUsersLine():
                columns = self.record.value_schema(schema)
                plain_codec(self.format, columns, self.topic, dict(self.record.options)).check_encodes()

    def own_schema(self, broker: str | None) -> Schema:
        from millstream.connectors.topic.own_schema import RAW_SCHEMAS, no_schema, schema_of_topic
        from millstream.log.kafka.log import KafkaLog

        if self.format in RAW_SCHEMAS:
            return RAW_SCHEMAS[self.format]
        if self.format == "protobuf" and self.record.options:
            return codec("protobuf", **self.record.options).schema
        if self.format != "json":
            raise no_schema(self.topic, f"its values are {self.format}, which does not describe their columns")
        if self.registry is not None:
            raise no_schema(self.topic, "its schemas are in a registry, one per version")
        return schema_of_topic(self.topic, broker, lambda log: cast(Broker, KafkaLog(self.address(log, "read"))))

    def address(self, broker: str | KafkaAddress | None, step: str) -> KafkaAddress:
        """Its own servers, else those of the job's broker."""
        return address_of(self.servers, self.settings, broker, topic=self.topic, step=step)

    def with_lost_choice(self, choice: str) -> Self:
        return replace(self, on_lost=choice)

    def with_format(self, format: str) -> Self:
        if self.registry is not None and format not in REGISTRY_FORMATS:
            raise _no_registry_of(format)
        return replace(self, format=format, record=replace(self.record, format=format, options={}))

    def open_source(self, reading: Reading) -> Source:
        from millstream.connectors.kafka.schema_registry import Registry
        from millstream.connectors.kafka.source import KafkaSource

        address = self.address(reading.broker, reading.step)
        registry = None if self.registry is None else Registry.of(self.registry, address, REGISTRY_WAIT_SECONDS)
        return KafkaSource(
            address,
            self.topic,
            reading.schema,
            format=self.format,
            options=self.record.options,
            registry=registry,
            on_lost=self.on_lost,
        )

    def open_sink(self, writing: Writing) -> Sink:
        from millstream.connectors.kafka.sink import KafkaSink

        address = self.address(_address(writing.broker), writing.step)
        return KafkaSink(address, self.topic, writing, written_as=self.record, encoding=self._encoding(address))

    def _encoding(self, address: KafkaAddress) -> Callable[[Schema], Codec] | None:
        """Makes the codec for what is written; None for JSON in a topic with a schema of Millstream's."""
        if self.registry is None:
            return None if self.format == "json" else self.record.codec
        from millstream.connectors.kafka.registry_client import RegistryClient
        from millstream.connectors.kafka.subjects import framed_codec

        client = RegistryClient.of(self.registry, address)
        return framed_codec(client, self.format, self.topic, dict(self.record.options), self.naming, self.register)

    def keeper(self, claim: Claim, ledger: FileLedger, broker: Broker) -> Keeper:
        from millstream.connectors.kafka.claims import KafkaKeeper

        return KafkaKeeper(self.address(_address(broker), claim.step), self.topic, claim)

    def remembered(self, output: Write, log: Path | str) -> Remembered | None:
        if self.format != "json" or self.registry is not None:
            return None  # rows are looked up in JSON only
        return remembered_topic(self.topic, output, log if self.servers is None else self.servers)

    def worker_needs(self, broker: str) -> WorkerNeeds:
        return WorkerNeeds(libraries=KAFKA_LIBRARIES)

    def kafka_topic(self, broker: str | None) -> KafkaTopic | None:
        is_plain = self.format == "json" and self.registry is None and not self.record.columns
        if self.servers is not None:
            return KafkaTopic(KafkaAddress(with_ports(self.servers), self.settings), self.topic, is_plain)
        if broker is None or not broker.startswith(SCHEME):
            return None
        address = KafkaAddress.of(broker)
        settings = {**address.settings, **self.settings}
        return KafkaTopic(KafkaAddress(address.servers, settings), self.topic, is_plain)

    def renamed(self, topic: str) -> Self:
        return replace(self, topic=topic)

    def with_suffix(self, suffix: str) -> Self:
        return replace(self, topic=self.topic + suffix)

    def __str__(self) -> str:
        return f"kafka({self.servers}, {self.topic})" if self.servers else f"kafka({self.topic})"


def kafka(
    servers: str | None = None,
    *,
    topic: str,
    format: str = "json",
    registry: str | None = None,
    naming: str = "topic",
    register: bool = True,
    headers: str | Mapping[str, str] | None = None,
    timestamp: str | None = None,
    on_lost: str = "error",
    settings: Mapping[str, str] | None = None,
    **options: Any,
) -> Kafka:
    """A topic of Apache Kafka. `servers` is "host:9092", several with commas; default: the job's own broker.

    `format` is how values are encoded: json, avro (with `avro_schema`), protobuf (with `message` and `descriptors`),
    csv (with `delimiter`), string or bytes. With `registry`, the address of a schema registry, json, avro and protobuf
    are in Confluent's wire format. A schema that is written is registered first, unless `register` is False; its
    subject is named by the "topic", the "record" or the "topic_record" (`naming`).

    When rows are written, `headers` is a column with the headers of a record, or the column of each by name, and
    `timestamp` the column with its time. These columns are not part of the value.

    `on_lost` decides what happens if records were deleted before they were read: "error", or continue at the "earliest"
    or "latest". `settings` are those of librdkafka, such as sasl.username; passwords among them are never shown or
    stored.
    """
    example = "kafka('host:9092', topic='scores')"
    if servers is not None:
        servers = arguments.text(servers, "servers must be a string", example).removeprefix("kafka://")
        if "@" in servers or "?" in servers:
            raise arguments.refused("servers are only names and ports", "use settings={…} for everything else")
    record = record_format(format, headers, timestamp, options)
    if registry is not None and format not in REGISTRY_FORMATS:
        raise _no_registry_of(format)
    if registry is not None and shown_address(registry) != registry:
        raise arguments.refused(
            "the address of a registry must not have a user, a password or a query: it is shown and stored",
            "set the user with settings={'basic.auth.user.info': 'name:password'}",
        )
    if naming not in NAMINGS:
        raise arguments.refused(f"there is no naming {naming!r}", what_exists(naming, NAMINGS, kind="strategies"))
    if on_lost not in LOST_CHOICES:
        raise arguments.refused(f"on_lost={on_lost!r} is unknown", what_exists(on_lost, LOST_CHOICES, kind="choices"))
    named = {str(name): str(value) for name, value in (settings or {}).items()}
    return Kafka(
        servers,
        arguments.text(topic, "a topic name must be a string", example),
        format,
        registry,
        on_lost,
        hidden(named),
        record,
        naming,
        register,
    )


def _no_registry_of(format: str) -> InvalidInput:
    return arguments.refused(
        f"a registry has schemas of {', '.join(REGISTRY_FORMATS)}, not of {format}", "format='avro'"
    )


def _address(broker: Broker | str) -> str | None:
    if isinstance(broker, str):
        return broker
    return None if isinstance(broker, EmbeddedLog) else cast("KafkaLog", broker).address
