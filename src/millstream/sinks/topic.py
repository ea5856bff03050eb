"""A batch in a topic: its records and the ledger's entry are committed by one verdict of the coordinator.

The topic is made with the schema of the rows. Records are keyed by the key columns of the rows: one column as its text,
several as a JSON object, so that rows of a key, and what takes them back, stay in one partition and in order.

Of a table with a key the topic is a copy: it is compacted, the newest record of a key is its row, and a row that goes
is a tombstone.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import (
    AlreadyExists,
    DamagedLog,
    InvalidSchema,
    MillstreamError,
    NotALog,
    SinkUnavailable,
    StorageError,
    UnsupportedFormat,
)
from millstream.log import EmbeddedLog, Producer
from millstream.log.ledger import Ledger, send_keyed
from millstream.records import Schema, align, can_evolve, codec
from millstream.sinks.flat import as_json
from millstream.sinks.weights import WEIGHT, one_batch, weighted, with_weights

BATCH_ROWS = 1 << 18  # a frame of the log is held in memory whole
NULL_KEY = b"\0null"
LASTING = (DamagedLog, NotALog, UnsupportedFormat)  # storage errors that waiting does not mend


class TopicSink:
    def __init__(
        self,
        log: EmbeddedLog,
        topic: str,
        schema: Schema,
        *,
        job: str,
        step: str,
        run: str,
        keys: Sequence[str] = (),
        table: bool = False,
        owns_log: bool = False,
    ) -> None:
        self._log = log
        self._is_copy = table and bool(keys)
        self._owns_log = owns_log
        self._topic = topic
        self._schema = schema
        self._step = step
        self._keys = tuple(schema.field(key).name for key in keys)
        self._producer_name = producer_name(job, step)
        self._producer: Producer | None = None
        self._named = (job, step, run)
        self._ledger: Ledger | None = None
        self._target: Schema | None = None
        with suppress(SinkUnavailable), self._unavailable_if_it_may_pass():  # `write` says so, and tries again
            self._open()

    def write(self, batch: int, rows: pa.Table, weights: pa.Array | None) -> None:
        with self._unavailable_if_it_may_pass():
            ledger = self._ledger or self._open()
            if ledger.has(batch):
                return
            if not rows.num_rows:
                ledger.record(batch)
                return
            carried = rows if self._is_copy else with_weights(rows, weights)
            if WEIGHT in carried.schema.names and WEIGHT not in self._schema:
                self._schema = weighted(self._schema)
                self._prepare(self._schema)
            if self._producer is None:
                self._producer = self._log.producer(name=self._producer_name)
            with self._producer.transaction(ledger.entry(batch)):
                if self._is_copy and weights is not None:
                    self._send_changes(self._producer, one_batch(carried), weights)
                else:
                    self._send(self._producer, one_batch(carried))

    @contextmanager
    def _unavailable_if_it_may_pass(self) -> Iterator[None]:
        try:
            yield
        except StorageError as error:
            self._drop_producer()
            if isinstance(error, LASTING):
                raise
            raise SinkUnavailable(
                f"topic '{self._topic}' cannot be written: {error.what}", where=error.where, next_step=error.next_step
            ) from error
        except BaseException:
            self._drop_producer()
            raise

    def close(self) -> None:
        self._drop_producer()
        if self._owns_log:
            self._log.close()

    def _drop_producer(self) -> None:
        """The next batch begins with a new one of the same name, which ends what this one left open."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(MillstreamError):
                producer.close()

    # ------------------------------------------------------------ the topic

    def _open(self) -> Ledger:
        self._prepare(self._schema)
        ledger = self._ledger = Ledger(self._log.coordinator, *self._named)
        return ledger

    def _prepare(self, schema: Schema) -> None:
        """Makes the topic, or sees that the one that is there can take the rows."""
        if self._topic not in self._log.topics():
            with suppress(AlreadyExists):
                self._log.create_topic(self._topic, schema=schema, compaction=self._is_copy)
        held = self._log.topic(self._topic).settings.schema
        if held is not None and WEIGHT in schema and WEIGHT not in held:
            held = self._log.change_topic(self._topic, schema=weighted(held)).settings.schema
        reasons = can_evolve(schema, held) if held is not None else []
        if reasons:
            raise InvalidSchema(
                f"the rows of step '{self._step}' do not fit topic '{self._topic}': {'; '.join(reasons)}",
                where=f"its schema: {held}",
                next_step="write to another topic, or bring the rows to its schema with select(…)",
            )
        self._target = held

    def _send(self, producer: Producer, rows: pa.RecordBatch) -> None:
        keys = record_keys(rows, self._keys)
        if self._target is None:
            self._send_texts(producer, rows, keys)
            return
        aligned = align(rows, self._target.arrow)
        for start in range(0, rows.num_rows, BATCH_ROWS):
            part = aligned.slice(start, BATCH_ROWS)
            if keys is None:
                producer.send_batch(self._topic, part)
            else:
                send_keyed(producer, self._topic, part, keys.slice(start, BATCH_ROWS))

    def _send_changes(self, producer: Producer, rows: pa.RecordBatch, weights: pa.Array) -> None:
        """The new rows of a table, and tombstones for keys that have none."""
        there = pc.greater(weights, 0)
        put = rows.filter(there)
        keys = record_keys(rows, self._keys)
        assert keys is not None
        kept = pc.unique(keys.filter(there))
        gone = pc.unique(keys.filter(pc.invert(there)))
        if put.num_rows:
            self._send(producer, put)
        for key in gone.filter(pc.invert(pc.is_in(gone, value_set=kept))).to_pylist():
            producer.send(self._topic, None, key)

    def _send_texts(self, producer: Producer, rows: pa.RecordBatch, keys: pa.Array | None) -> None:
        """To a topic without a schema, as JSON."""
        schema = Schema.of(rows.schema)
        columns = {"value": codec("json", schema).encode(align(rows, schema.arrow))}
        if keys is not None:
            columns["key"] = keys
        producer.send_batch(self._topic, pa.table(columns))


def record_keys(rows: pa.RecordBatch, keys: Sequence[str]) -> pa.Array | None:
    """The key of each record; that of a single column which is null is one that no text is: it needs a place too."""
    if not keys:
        return None
    if len(keys) > 1:
        part = rows.select(list(keys))
        schema = Schema.of(part.schema)
        return codec("json", schema).encode(align(part, schema.arrow)).cast(pa.binary())
    column = rows.column(keys[0])
    if pa.types.is_binary(column.type):
        return column.fill_null(NULL_KEY)
    if not pa.types.is_string(column.type):
        texts = as_json(column).to_pylist()
        column = pa.array([None if text is None else text.strip('"') for text in texts], pa.string())
    return column.cast(pa.binary()).fill_null(NULL_KEY)


def producer_name(job: str, step: str) -> str:
    """Legal whatever the names are, and another one for every job and step."""
    digest = hashlib.sha256(f"{job}\0{step}".encode()).hexdigest()[:12]
    parts = [re.sub(r"[^A-Za-z0-9_-]", "_", part)[:80] for part in (job, step)]
    return f"sink.{parts[0] or '_'}.{parts[1] or '_'}.{digest}"
