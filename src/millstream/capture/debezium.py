"""Topics in Debezium's format, JSON or Avro: read as changes or as a table, and written from changes.

A record has the row before and after, encoded as Debezium does; its key has the key columns. After a delete a record
without a value follows, so that compaction removes the key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.capture.changes import (
    DELETE,
    INSERT,
    MESSAGE,
    SNAPSHOT,
    TIME,
    TRUNCATE,
    UPDATE,
    envelope,
)
from millstream.capture.debezium_encodings import (
    DECIMALS,
    PRECISE,
    DebeziumAvro,
    DebeziumJson,
    avro_fields,
    encoded,
    marked,
    unavailable,
)
from millstream.capture.topics import MappedSource, TopicOfChanges, key_columns, topic_name
from millstream.connectors import arguments
from millstream.connectors.claims import Claim, Keeper
from millstream.connectors.connector import Connector, Reading, WorkerNeeds, Writing
from millstream.connectors.dead_letters import Origin, dead_letter_table
from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.kafka.endpoint import REGISTRY_WAIT_SECONDS, Kafka
from millstream.connectors.kafka.registry_client import RegistryClient
from millstream.connectors.kafka.schema_registry import Registry
from millstream.connectors.kafka.sink import KafkaSink
from millstream.connectors.kafka.subjects import FramedCodec, Subjects, definition_of
from millstream.connectors.kafka.wire_format import header
from millstream.connectors.refusals import Refuse, kept, refusals_of, stop
from millstream.connectors.sink import Sink
from millstream.connectors.source import Slab, Slice, Source
from millstream.connectors.topic.endpoint import Topic
from millstream.connectors.topic.record_format import RecordFormat
from millstream.connectors.topic.records_sink import RecordsSink
from millstream.errors import InvalidPlan, InvalidSchema, SinkFailed
from millstream.log import Broker
from millstream.records import Codec, Schema, SchemaLike, codec
from millstream.user_lines import AtUsersLine, users_line, what_exists

OPERATIONS = {"c": INSERT, "u": UPDATE, "d": DELETE, "r": SNAPSHOT, "t": TRUNCATE, "m": MESSAGE}
"""As Debezium writes them."""
FORMATS = ("json", "avro")
CHANGE = "op string, before struct<{columns}>, after struct<{columns}>, ts_ms bigint, source struct<ts_ms bigint>"
RAW = Schema.of("value binary")
NEEDED = ("table", "op", "before", "after", "unsent", "transaction", "position", "at")
SOURCE = "version string, connector string, name string, ts_ms bigint, snapshot string, db string, `table` string, "
SOURCE += "lsn bigint, txId string"


@dataclass(frozen=True)
class Debezium(TopicOfChanges):
    columns: Schema | None
    """Of the table; None: those of the changes that are written."""
    decimals: str = PRECISE
    kafka: Kafka | None = None
    """Where and how the records are written, if they are not JSON in a topic of the job's broker."""
    can_write: ClassVar[bool] = True
    refuses_rows: ClassVar[bool] = True

    @property
    def place(self) -> Connector:
        """The topic, without what is in it."""
        return self.kafka or Topic(self.topic)

    @property
    def target(self) -> Hashable:
        return self.place.target

    @property
    def broker_topic(self) -> str | None:
        return self.place.broker_topic

    @property
    def fingerprint(self) -> tuple[str, ...]:
        return (*(super().fingerprint if self.kafka is None else self.kafka.fingerprint), self.decimals)

    def keeper(self, claim: Claim, ledger: FileLedger, broker: Broker) -> Keeper:
        return self.place.keeper(claim, ledger, broker)

    def worker_needs(self, broker: str) -> WorkerNeeds:
        return self.place.worker_needs(broker)

    def renamed(self, topic: str) -> Self:
        return replace(self, topic=topic, kafka=None if self.kafka is None else self.kafka.renamed(topic))

    def with_suffix(self, suffix: str) -> Self:
        return self.renamed(self.topic + suffix)

    def __str__(self) -> str:
        return str(self.place)

    @property
    def is_json(self) -> bool:
        return self.kafka is None or self.kafka.format == "json"

    # ------------------------------------------------------------ reading

    def row_schema(self, broker: str | None) -> Schema:
        if self.columns is None:
            raise InvalidSchema(
                f"the columns of the table in topic '{self.topic}' are not known",
                where=users_line(),
                next_step="ms.debezium(topic, 'id int, name string', key='id')",
            )
        return self.columns

    def open_source(self, reading: Reading) -> Source:
        columns = self.row_schema(None)
        change = CHANGE.format(columns=columns.ddl)
        written = Schema.of(f"{change}, payload struct<{change}>" if self.is_json else change)
        inside = replace(reading, schema=RAW, columns=None, format="bytes")
        if self.kafka is None:
            inner = Topic(self.topic, "bytes").open_source(inside)
        else:
            plain = replace(self.kafka, format="bytes", registry=None, record=RecordFormat(format="bytes"))
            inner = plain.open_source(inside)
        made: Codec = DebeziumJson(written, self.decimals)
        if not self.is_json:
            assert self.kafka is not None
            assert self.kafka.registry is not None
            address = self.kafka.address(reading.broker, reading.step)
            made = DebeziumAvro(written, "avro", Registry.of(self.kafka.registry, address, REGISTRY_WAIT_SECONDS))
        mapped = self.mapped(reading.schema)
        return DebeziumSource(inner, made, self.topic, lambda rows: mapped(changes_of(rows, columns, self.topic)))

    # ------------------------------------------------------------ writing

    def check_written(self, schema: Schema) -> None:
        for name in NEEDED:
            if name not in schema:
                raise InvalidPlan(
                    f"the rows have no column '{name}', so they are not the changes of a table",
                    where=users_line(),
                    next_step="write what flow.read(ms.captured(…)) or flow.read(ms.postgres_changes(…)) returns",
                )
        image = schema.field("after").type
        names = [field.name for field in image] if pa.types.is_struct(image) else []
        for name in self.key:
            if name not in names:
                raise InvalidPlan(
                    f"the table has no column '{name}'", where=users_line(), next_step=what_exists(name, names)
                )
        with AtUsersLine():
            self._value_codec(_images(schema)).check_encodes()

    def _value_codec(self, columns: Schema) -> Codec:
        """Of the records, without the header of a registry."""
        wire = self._wire(columns).ddl
        schema = Schema.of(
            f"before struct<{wire}>, after struct<{wire}>, source struct<{SOURCE}>, op string, ts_ms bigint"
        )
        if self.is_json:
            return codec("json", schema)
        return codec("avro", schema, avro_schema=self._avro_envelope(columns))

    def _key_codec(self, columns: Schema) -> Codec:
        key = Schema.of(pa.schema([columns.field(name) for name in self.key]))
        schema = Schema.of(pa.schema([self._wire(key).field(name).with_nullable(True) for name in self.key]))
        if self.is_json:
            return codec("json", schema)
        return codec("avro", schema, avro_schema=self._record("Key", avro_fields(key, self.decimals)))

    def _wire(self, columns: Schema) -> Schema:
        empty = [encoded(pa.array([], field.type), self.decimals, is_json=self.is_json) for field in columns.arrow]
        return Schema.of(pa.schema([(name, each.type) for name, each in zip(columns.names, empty, strict=True)]))

    def _record(self, name: str, fields: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {"type": "record", "name": name, "namespace": namespace(self.topic), "fields": list(fields)}

    def _avro_envelope(self, columns: Schema) -> dict[str, Any]:
        value = self._record("Value", avro_fields(columns, self.decimals))
        source = self._record("Source", avro_fields(Schema.of(SOURCE), self.decimals))
        rows: tuple[tuple[str, Any], ...] = (("before", value), ("after", f"{namespace(self.topic)}.Value"))
        return self._record(
            "Envelope",
            [
                *({"name": name, "type": ["null", kind], "default": None} for name, kind in rows),
                {"name": "source", "type": source},
                {"name": "op", "type": "string"},
                {"name": "ts_ms", "type": ["null", "long"], "default": None},
            ],
        )

    def open_sink(self, writing: Writing) -> Sink:
        columns = _images(writing.schema)
        values, keys = self._value_codec(columns), self._key_codec(columns)
        records = replace(writing, schema=Schema.of("value binary, key binary"), keys=(), is_table=False)
        if self.kafka is None:
            inner = Topic(self.topic).records_sink(records, raw=True)
            return DebeziumSink(inner, self.topic, values, keys, partial(self._encoded, columns))
        broker = writing.broker if isinstance(writing.broker, str) else getattr(writing.broker, "address", None)
        address = self.kafka.address(broker, writing.step)
        if self.kafka.registry is not None:
            subjects = Subjects(RegistryClient.of(self.kafka.registry, address), self.kafka.register)
            values = self._framed(subjects, f"{self.topic}-value", values)
            keys = self._framed(subjects, f"{self.topic}-key", keys)
        inner = KafkaSink(address, self.topic, records, raw=True)
        return DebeziumSink(inner, self.topic, values, keys, partial(self._encoded, columns))

    def _framed(self, subjects: Subjects, subject: str, plain: Codec) -> Codec:
        definition = definition_of(plain, self.topic)
        number = subjects.number(subject, definition)
        return FramedCodec(plain.schema, plain, header(number, definition.indexes))

    def _encoded(self, columns: Schema, images: pa.Array, unsent: pa.Array | None) -> pa.StructArray:
        """Rows as they are written. `unsent` names the columns that the database did not send."""
        arrays = []
        for place, field in enumerate(columns.arrow):
            array = encoded(pc.struct_field(images, [place]), self.decimals, is_json=self.is_json)
            if unsent is not None and unsent.null_count < len(unsent):
                array = marked(array, pa.array([field.name in (names or ()) for names in unsent.to_pylist()]))
            arrays.append(array)
        return pa.StructArray.from_arrays(arrays, fields=list(self._wire(columns).arrow), mask=images.is_null())


def _images(schema: Schema) -> Schema:
    return Schema.of(pa.schema(list(schema.field("after").type)))


def namespace(topic: str) -> str:
    """The topic's name as one that Avro allows."""
    parts = [re.sub(r"[^A-Za-z0-9_]", "_", part) for part in topic.split(".") if part]
    return ".".join(part if not part[0].isdigit() else f"_{part}" for part in parts)


class DebeziumSource(MappedSource):
    """Records that cannot be decoded are dead letters, as in every topic."""

    def __init__(self, inner: Source, made: Codec, topic: str, columns: Callable[[pa.Table], pa.Table]) -> None:
        super().__init__(inner, columns)
        self._codec = made
        self._topic = topic

    @property
    def decodes(self) -> bool:
        return True

    def read(self, slice: Slice) -> Iterator[Slab]:
        for slab in self._inner.read(slice):
            values = slab.rows.column("value").combine_chunks()
            found = self._codec.decode(values)
            dead = slab.dead
            if found.failures:
                own = dead_letter_table(values, slab.offsets, found.failures, Origin(self._topic, int(slab.partition)))
                dead = own if dead is None else pa.concat_tables([dead, own])
            rows = self._columns(pa.Table.from_batches([found.rows]))
            yield Slab(slab.partition, rows, slab.offsets[found.indices], dead)


def changes_of(rows: pa.Table, columns: Schema, topic: str) -> pa.Table:
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
    schema = envelope(columns).arrow
    nothing = {field.name: pa.nulls(rows.num_rows, field.type) for field in schema}
    after, unsent = _without_marks(part("after"))
    made = {"op": ops, "before": part("before"), "after": after, "unsent": unsent}
    times = pc.multiply(pc.coalesce(part("source", "ts_ms"), part("ts_ms")), 1000).cast(TIME)
    made |= {"table": pa.repeat(topic, rows.num_rows), "at": times}
    arrays = [
        pa.chunked_array([each]) if isinstance(each, pa.Array) else each for each in ({**nothing, **made}).values()
    ]
    return pa.Table.from_arrays(
        [each.cast(field.type) for each, field in zip(arrays, schema, strict=True)], schema=schema
    )


def _without_marks(images: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """Rows with nulls where a large value was not sent, and the names of these columns."""
    array = images.combine_chunks() if isinstance(images, pa.ChunkedArray) else images
    names: list[list[str] | None] = [None] * len(array)
    parts = []
    for place, field in enumerate(array.type):
        column = pc.struct_field(array, [place])
        found = unavailable(column)
        if found is not None and pc.any(found).as_py():
            column = pc.if_else(found, pa.scalar(None, column.type), column)
            for row in np.flatnonzero(found.to_numpy(zero_copy_only=False)):
                names[row] = [*(names[row] or []), field.name]
        parts.append(column)
    rebuilt = pa.StructArray.from_arrays(parts, fields=list(array.type), mask=array.is_null())
    return rebuilt, pa.array(names, pa.list_(pa.string()))


class DebeziumSink(Sink):
    """Writes changes through a sink of records."""

    def __init__(
        self,
        inner: RecordsSink,
        topic: str,
        values: Codec,
        keys: Codec,
        encoded: Callable[[pa.Array, pa.Array | None], pa.StructArray],
    ) -> None:
        self._inner = inner
        self._topic = topic
        self._values = values
        self._keys = keys
        self._encoded = encoded

    def write(self, batch: int, rows: pa.Table, weights: pa.Array | None, refuse: Refuse = stop) -> None:
        if weights is not None and pc.min(weights).as_py() not in (None, 1):
            raise SinkFailed(
                "changes are retracted, and a record of Debezium cannot be",
                where=f"topic '{self._topic}'",
                next_step="write the changes of a table as they were captured",
            )
        self._inner.write_parts(batch, self._records(rows, refuse))

    def _records(self, rows: pa.Table, refuse: Refuse) -> Iterator[pa.RecordBatch]:
        if not rows.num_rows:
            return
        one = rows.combine_chunks().to_batches()[0]
        before, after = (
            self._encoded(one.column("before"), None),
            self._encoded(one.column("after"), one.column("unsent")),
        )
        made = self._values.encode_each(self._change(one, before, after))
        reasons = {failure.index: failure.reason for failure in made.failures}
        chosen = kept(one.num_rows, reasons)
        keys = self._record_keys(pc.if_else(after.is_null(), before, after)).filter(chosen)
        refuse(refusals_of(reasons))
        values = made.values.filter(chosen)
        are_deletes = pc.equal(one.column("op").filter(chosen), DELETE)
        counts = np.where(
            are_deletes.to_numpy(zero_copy_only=False) & keys.is_valid().to_numpy(zero_copy_only=False), 2, 1
        )
        places = np.repeat(np.arange(len(counts)), counts)
        are_tombstones = np.concatenate([[False], places[1:] == places[:-1]]) if len(places) else np.array([], bool)
        taken = pc.if_else(pa.array(are_tombstones), pa.scalar(None, pa.binary()), values.take(pa.array(places)))
        yield pa.RecordBatch.from_pydict({"value": taken, "key": keys.take(pa.array(places))})

    def _change(self, rows: pa.RecordBatch, before: pa.Array, after: pa.Array) -> pa.RecordBatch:
        codes = {op: code for code, op in OPERATIONS.items()}
        ops = pa.array([codes.get(op, op) for op in rows.column("op").to_pylist()], pa.string())
        times = pc.divide(rows.column("at").cast(pa.timestamp("us", "UTC")).view(pa.int64()), 1000)
        count, table = rows.num_rows, rows.column("table").cast(pa.string())
        source = {
            "version": pa.repeat("1", count),
            "connector": pa.repeat("millstream", count),
            "name": pa.repeat(self._topic, count),
            "ts_ms": times,
            "snapshot": pc.if_else(pc.equal(ops, "r"), "true", "false"),
            "db": pa.repeat("", count),
            "table": table,
            "lsn": rows.column("position").cast(pa.int64()),
            "txId": rows.column("transaction").cast(pa.string()),
        }
        kind = self._values.schema.field("source").type
        sources = pa.StructArray.from_arrays(list(source.values()), fields=list(kind))
        columns = {"before": before, "after": after, "source": sources, "op": ops, "ts_ms": times}
        return pa.RecordBatch.from_pydict(columns)

    def _record_keys(self, images: pa.Array) -> pa.Array:
        """Null for a change without a row, or of a table without a key."""
        names = self._keys.schema.names
        known = [field.name for field in images.type]
        columns = [pc.struct_field(images, [known.index(name)]) for name in names]
        keys = self._keys.encode(pa.RecordBatch.from_arrays(columns, names=names))
        return pc.if_else(images.is_null(), pa.scalar(None, pa.binary()), keys)

    def take_places(self) -> Mapping[str, tuple[int, int]]:
        return self._inner.take_places()

    def close(self) -> None:
        self._inner.close()


def debezium(
    topic: str | Kafka, schema: SchemaLike | None = None, *, key: str | Sequence[str], decimals: str = PRECISE
) -> Debezium:
    """A topic with the records of Debezium: `flow.table` of it is the table, kept up to date.

    `topic` is the name of one with JSON, or `ms.kafka(…, format="avro", registry=…)` for records in Avro. `schema` has
    the columns of the table, `key` those of its primary key. `decimals` is Debezium's `decimal.handling.mode`,
    "precise" or "string". Times without a time zone are read as microseconds; declare others as `at timestamp_millis`.

    `changes.write(ms.debezium(topic, key=…))` writes captured changes for consumers of Debezium's format, each with its
    key, and a tombstone after each delete.
    """
    columns = None
    if schema is not None:
        with AtUsersLine():
            columns = Schema.of(schema)
    if decimals not in DECIMALS:
        raise arguments.refused(f"decimals={decimals!r} is unknown", what_exists(decimals, DECIMALS, kind="choices"))
    if not isinstance(topic, Kafka):
        name = topic_name(topic, "debezium('shop.orders', 'id int', key='id')")
        return Debezium(name, key_columns(key), False, columns, decimals)
    if topic.format not in FORMATS:
        raise arguments.refused(f"Debezium does not write {topic.format}", what_exists(topic.format, FORMATS))
    if (topic.format == "avro") != (topic.registry is not None):
        raise arguments.refused(
            "Debezium's records are JSON without a registry, or Avro with one",
            "kafka(…, format='avro', registry='http://registry:8081')",
        )
    return Debezium(topic.topic, key_columns(key), False, columns, decimals, topic)
