"""Topics with changes as tables: those of a capture, and those that Debezium has written."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from millstream.capture.changes import DELETE, INSERT, SNAPSHOT, TIME, TRUNCATE, UPDATE, envelope
from millstream.capture.source import AT, OP, Rows, envelopes, rows_of_table
from millstream.connectors import arguments
from millstream.connectors.connector import Reading, WorkerNeeds
from millstream.connectors.kafka.endpoint import Kafka
from millstream.connectors.source import Offsets, Slab, Slice, Source
from millstream.connectors.topic.endpoint import OneTopic, Topic
from millstream.connectors.topic.own_schema import schema_of_topic
from millstream.errors import InvalidSchema
from millstream.log.kafka.address import as_kafka
from millstream.plan.checks import NAME
from millstream.plan.endpoints import KeptTable, TableSource
from millstream.records import Schema, SchemaLike
from millstream.user_lines import AtUsersLine, users_line, what_exists

OPERATIONS = {"c": INSERT, "u": UPDATE, "d": DELETE, "r": SNAPSHOT, "t": TRUNCATE}
"""As Debezium writes them."""
DEBEZIUM_FORMATS = ("json", "avro")
CHANGE = "op string, before struct<{columns}>, after struct<{columns}>, ts_ms bigint, source struct<ts_ms bigint>"


class MappedSource(Source):
    """A source whose rows are made from those of another: as many, in the same order."""

    def __init__(self, inner: Source, columns: Rows) -> None:
        self._inner = inner
        self._columns = columns

    @property
    def decodes(self) -> bool:
        return self._inner.decodes

    @property
    def identity(self) -> str | None:
        return self._inner.identity

    def earliest(self) -> Offsets:
        return self._inner.earliest()

    def latest(self) -> Offsets:
        return self._inner.latest()

    def at(self, moment: datetime) -> Offsets:
        return self._inner.at(moment)

    def row_bytes(self) -> float | None:
        return self._inner.row_bytes()

    def limited(self, start: Offsets, limit_rows: int | None) -> Offsets:
        return self._inner.limited(start, limit_rows)

    def slices(self, start: Offsets, end: Offsets, tasks: int) -> list[list[Slice]]:
        return self._inner.slices(start, end, tasks)

    def wait(self, start: Offsets, timeout_s: float) -> bool:
        return self._inner.wait(start, timeout_s)

    def take_losses(self) -> list[str]:
        return self._inner.take_losses()

    def read(self, slice: Slice) -> Iterator[Slab]:
        for slab in self._inner.read(slice):
            yield Slab(slab.partition, self._columns(slab.rows), slab.offsets, slab.dead)

    def close(self) -> None:
        self._inner.close()


@dataclass(frozen=True)
class TopicOfChanges(OneTopic, TableSource):
    """A topic of the job's broker with changes of one table."""

    key: tuple[str, ...]
    as_rows: bool
    can_read: ClassVar[bool] = True
    counts_lag: ClassVar[bool] = True

    @abstractmethod
    def row_schema(self, broker: str | None) -> Schema:
        """The columns of the table."""

    def own_schema(self, broker: str | None) -> Schema:
        return envelope(self.row_schema(broker))

    def as_table(self, broker: str | None) -> KeptTable:
        columns = self.row_schema(broker)
        for name in self.key:
            if name not in columns:
                raise InvalidSchema(
                    f"the table has no column '{name}'",
                    where=users_line(),
                    next_step=what_exists(name, columns.names),
                )
        rows = Schema.of(pa.schema([*columns.arrow, (OP, pa.string()), (AT, TIME)]))
        return KeptTable(replace(self, as_rows=True), rows, self.key, AT, f"{OP} = '{DELETE}'", (OP, AT))

    def mapped(self, schema: Schema) -> Rows:
        """Makes the rows of the source from changes."""
        return rows_of_table(schema, f"topic '{self.topic}'") if self.as_rows else envelopes(schema)

    def worker_needs(self, broker: str) -> WorkerNeeds:
        return Topic(self.topic).worker_needs(broker)

    def __str__(self) -> str:
        return self.topic


@dataclass(frozen=True)
class Captured(TopicOfChanges):
    def row_schema(self, broker: str | None) -> Schema:
        found = schema_of_topic(self.topic, broker)
        if not {"op", "before", "after", "unsent", "at"} <= set(found.names):
            raise InvalidSchema(
                f"the topic '{self.topic}' does not have the changes of a table",
                where=users_line(),
                next_step="fill it with millstream capture; read other topics with flow.read",
            )
        return Schema.of(pa.schema(list(found.field("after").type)))

    def open_source(self, reading: Reading) -> Source:
        broker = reading.broker
        if as_kafka(broker) is None:  # the topic may have gained columns
            schema = schema_of_topic(self.topic, None if broker is None else str(broker))
        else:
            kept = [field for field in reading.schema.arrow if field.name not in (OP, AT)]
            schema = envelope(Schema.of(pa.schema(kept))) if self.as_rows else reading.schema
        inner = Topic(self.topic).open_source(replace(reading, schema=schema, columns=None))
        return MappedSource(inner, self.mapped(reading.schema))


@dataclass(frozen=True)
class Debezium(TopicOfChanges):
    columns: Schema
    kafka: Kafka | None = None
    """Where and how the records are written, if they are not JSON in a topic of the job's broker."""

    @property
    def target(self) -> Hashable:
        return super().target if self.kafka is None else self.kafka.target

    @property
    def broker_topic(self) -> str | None:
        return self.topic if self.kafka is None else self.kafka.broker_topic

    @property
    def fingerprint(self) -> tuple[str, ...]:
        return super().fingerprint if self.kafka is None else self.kafka.fingerprint

    def worker_needs(self, broker: str) -> WorkerNeeds:
        return super().worker_needs(broker) if self.kafka is None else self.kafka.worker_needs(broker)

    def __str__(self) -> str:
        return self.topic if self.kafka is None else str(self.kafka)

    def row_schema(self, broker: str | None) -> Schema:
        return self.columns

    def open_source(self, reading: Reading) -> Source:
        change = CHANGE.format(columns=self.columns.ddl)
        endpoint = self.kafka or Topic(self.topic, "json")
        has_payload = endpoint.format == "json"  # JSON may have its schema beside it
        written = Schema.of(f"{change}, payload struct<{change}>" if has_payload else change)
        inner = endpoint.open_source(replace(reading, schema=written, columns=None))
        columns = self.mapped(reading.schema)
        return MappedSource(inner, lambda rows: columns(self._changes(rows)))

    def _changes(self, rows: pa.Table) -> pa.Table:
        """Debezium's records as changes. With its schemas included, the change is in `payload`."""
        payload = rows.column("payload") if "payload" in rows.column_names else None

        def part(*path: str) -> pa.ChunkedArray:
            outer = rows.column(path[0])
            for name in path[1:]:
                outer = pc.struct_field(outer, name)
            if payload is None:
                return outer
            inner = payload
            for name in path:
                inner = pc.struct_field(inner, name)
            return pc.if_else(payload.is_null(), outer, inner)

        codes = part("op")
        ops = pa.array([OPERATIONS.get(code, code) for code in codes.to_pylist()], pa.string())
        nothing = {field.name: pa.nulls(rows.num_rows, field.type) for field in envelope(self.columns).arrow}
        made = {"op": ops, "before": part("before"), "after": part("after")}
        times = pc.multiply(pc.coalesce(part("source", "ts_ms"), part("ts_ms")), 1000).cast(TIME)
        table = pa.repeat(self.topic, rows.num_rows)
        return pa.table({**nothing, **made, "table": table, "at": times}, schema=envelope(self.columns).arrow)


def captured(topic: str, *, key: str | Sequence[str]) -> Captured:
    """A topic that `millstream capture` fills: `flow.table` of it is the captured table, kept up to date.

    `key` has the columns of the table's primary key.
    """
    return Captured(_topic(topic, "captured('orders', key='id')"), _key(key), False)


def debezium(topic: str | Kafka, schema: SchemaLike, *, key: str | Sequence[str]) -> Debezium:
    """A topic with the records of Debezium: `flow.table` of it is the table, kept up to date.

    `topic` is the name of one with JSON, or `ms.kafka(…, format="avro", registry=…)` for records in Avro.
    `schema` has the columns of the table as Debezium encodes them, for example `at timestamp_millis`; `key` those of
    its primary key.
    """
    with AtUsersLine():
        columns = Schema.of(schema)
    if isinstance(topic, Kafka):
        if topic.format not in DEBEZIUM_FORMATS:
            raise arguments.refused(
                f"Debezium does not write {topic.format}", what_exists(topic.format, DEBEZIUM_FORMATS)
            )
        return Debezium(topic.topic, _key(key), False, columns, topic)
    return Debezium(_topic(topic, "debezium('shop.orders', 'id int', key='id')"), _key(key), False, columns)


def _topic(given: str, example: str) -> str:
    if not NAME.fullmatch(arguments.text(given, "a topic name must be a string", example)):
        raise arguments.refused(f"{given!r} is not a topic", "a topic's name has letters, digits and . _ -")
    return given


def _key(given: str | Sequence[str]) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise arguments.refused(f"key takes column names, not {given!r}", "for example key='id'")
    return names
