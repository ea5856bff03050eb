"""Rows as records of a topic on any broker: keys, weights, tombstones, and the topic's schema.

The topic is created with the schema of the rows. Records are keyed by the key columns of the rows: one column as text,
several as a JSON object, so that rows of a key and their retractions stay in one partition and in order.

For a table with a key the topic is a compacted copy: the newest record of a key is its row, and a deleted row becomes a
tombstone.
"""

from __future__ import annotations

import hashlib
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.connectors.flat_rows import as_json
from millstream.connectors.refusals import AS_TEXT, Refuse, kept, refusals_of, stop, unfit
from millstream.connectors.sink import Sink
from millstream.connectors.topic.record_format import IN_RANGE, Extras, RecordFormat, without_values
from millstream.connectors.weights import WEIGHT, one_batch, weighted, with_weights
from millstream.errors import (
    AlreadyExists,
    DamagedLog,
    InvalidSchema,
    InvalidSetting,
    MillstreamError,
    NotALog,
    SinkUnavailable,
    StorageError,
    UnsupportedFormat,
)
from millstream.log import Broker
from millstream.records import Codec, Schema, align, can_evolve, codec

NULL_KEY = b"\0null"
PLAIN = RecordFormat()
ENCODED_ROWS = 1 << 16  # encoded at a time, so that sending starts while the rest is still rows


class Rows(Protocol):
    """The rows that are written, and who writes them: a `Writing`, or the like of it without a job's folder."""

    @property
    def schema(self) -> Schema: ...
    @property
    def job(self) -> str: ...
    @property
    def step(self) -> str: ...
    @property
    def run(self) -> str: ...
    @property
    def keys(self) -> Sequence[str]: ...
    @property
    def is_table(self) -> bool: ...
    @property
    def partitions(self) -> int: ...


class RecordsSink(Sink):
    """Subclasses define how a broker commits a batch's records and its ledger entry atomically.

    With `raw`, rows are records as they are: a `value`, and perhaps a `key`, `headers` and a `timestamp`. `encoding`
    makes the codec for the columns of values, if these are neither the topic's columns nor JSON.
    """

    LASTING: ClassVar[tuple[type[MillstreamError], ...]] = (DamagedLog, NotALog, UnsupportedFormat)
    """Storage errors that a retry does not fix."""

    def __init__(
        self,
        topic: str,
        writing: Rows,
        *,
        owns_log: bool = False,
        raw: bool = False,
        written_as: RecordFormat = PLAIN,
        encoding: Callable[[Schema], Codec] | None = None,
    ) -> None:
        self._raw = raw
        self._format = written_as
        self._encoding = encoding
        # Before anything else: what the codec needs, such as a schema registry, is an error here and not a delay.
        self._codec = None if encoding is None else encoding(written_as.value_schema(writing.schema))
        self._is_copy = writing.is_table and bool(writing.keys)
        self._owns_log = owns_log
        self._partitions = writing.partitions
        self._topic = topic
        self._schema = writing.schema
        self._job, self._step, self._run = writing.job, writing.step, writing.run
        self._keys = tuple(writing.schema.field(key).name for key in writing.keys)
        self.producer_name = producer_name(writing.job, writing.step)
        self._target: Schema | None = None
        self._is_open = False
        with self._unavailable_if_it_may_pass():
            self._connect()
        with suppress(SinkUnavailable), self._unavailable_if_it_may_pass():  # `write` reports it and retries
            self._open()

    def write(self, batch: int, rows: pa.Table, weights: pa.Array | None, refuse: Refuse = stop) -> None:
        with self._unavailable_if_it_may_pass():
            if not self._is_open:
                self._open()
            if self._has(batch):
                return
            refused = self._unfit(rows)
            places = np.arange(rows.num_rows)
            if refused:
                chosen = kept(rows.num_rows, refused)
                rows, places = rows.filter(chosen), places[chosen.to_numpy(zero_copy_only=False)]
                weights = None if weights is None else weights.filter(chosen)
            if not rows.num_rows:
                refuse(refusals_of(refused))
                self._note(batch)
                return
            carried = rows if self._is_copy else with_weights(rows, weights)
            if WEIGHT in carried.schema.names and WEIGHT not in self._schema:
                self._schema = weighted(self._schema)
                self._prepare(self._schema)
            with self._transaction(batch):
                if self._is_copy and weights is not None:
                    found = self._put_changes(one_batch(carried), weights)
                else:
                    found = self._put_rows(one_batch(carried))
                refuse(refusals_of(refused | {int(places[row]): reason for row, reason in found.items()}))

    def write_parts(self, batch: int | None, parts: Iterable[pa.RecordBatch], refuse: Refuse = stop) -> None:
        """Writes rows that come in parts as one batch. A batch without a number is not recorded: each call writes it.

        The rows are never retracted, and none may be refused: `refuse` has to raise.
        """
        with self._unavailable_if_it_may_pass():
            if not self._is_open:
                self._open()
            if batch is not None and self._has(batch):
                return
            with self._transaction(batch):
                for part in parts:
                    refuse(refusals_of({} if self._raw else self._unfit(part)))
                    refuse(refusals_of(self._put_records(part) if self._raw else self._put_rows(part)))

    def _unfit(self, rows: pa.Table | pa.RecordBatch) -> dict[int, str]:
        """Rows that cannot be written, whatever they are written to."""
        if self._codec is not None:
            return unfit(rows, IN_RANGE)
        return unfit(rows, AS_TEXT) if self._writes_texts() else {}

    def close(self) -> None:
        self._drop_producer()
        if self._owns_log:
            self._log().close()

    # ------------------------------------------------------------ defined by each broker

    @abstractmethod
    def _log(self) -> Broker:
        """Where the topic is."""

    @abstractmethod
    def _begin(self) -> None:
        """Finds out which batches were written; retried until it succeeds."""

    @abstractmethod
    def _has(self, batch: int) -> bool:
        """Whether a batch was written."""

    @abstractmethod
    def _note(self, batch: int) -> None:
        """Records a batch that had nothing to write."""

    @abstractmethod
    def _transaction(self, batch: int | None) -> AbstractContextManager[None]:
        """A transaction: its records become visible with the batch's ledger entry, if it has one, or not at all."""

    @abstractmethod
    def _writes_texts(self) -> bool:
        """Whether values are written as JSON."""

    @abstractmethod
    def _put(self, rows: pa.RecordBatch, keys: pa.Array | None) -> dict[int, str]:
        """Writes rows, with the columns of the topic's schema if it has one. Returns the rejected rows."""

    @abstractmethod
    def _put_with(self, rows: pa.RecordBatch, keys: pa.Array | None, extras: Extras) -> dict[int, str]:
        """Like `_put`, for records with headers or timestamps of their own."""

    def _refused_extras(self, extras: Extras) -> dict[int, str]:
        """Records that the broker cannot have."""
        return {}

    @abstractmethod
    def _put_records(self, records: pa.RecordBatch) -> dict[int, str]:
        """Writes records as they are, to a topic without a schema. Returns the rejected ones."""

    @abstractmethod
    def _put_tombstones(self, keys: list[bytes]) -> None:
        """Writes tombstones for keys without a row. A key that is too long for a record never had one."""

    @abstractmethod
    def _drop_producer(self) -> None:
        """Drops the producer: the next batch starts a new one of the same name, which aborts open transactions."""

    # ------------------------------------------------------------ the topic

    @contextmanager
    def _unavailable_if_it_may_pass(self) -> Iterator[None]:
        try:
            yield
        except StorageError as error:
            self._drop_producer()
            if isinstance(error, self.LASTING):
                raise
            raise SinkUnavailable(
                f"topic '{self._topic}' cannot be written: {error.what}", where=error.where, next_step=error.next_step
            ) from error
        except BaseException:
            self._drop_producer()
            raise

    def _connect(self) -> None:
        """Fails if no broker answers at the address, which may be wrong: a job must not start and wait forever."""

    def _open(self) -> None:
        self._prepare(self._schema)
        self._begin()
        self._is_open = True

    def _prepare(self, rows_schema: Schema) -> None:
        """Creates the topic, or checks that the existing one fits the rows."""
        schema = self._format.value_schema(rows_schema)
        if self._codec is not None and self._encoding is not None and self._codec.schema != schema:
            self._codec = self._encoding(schema)  # now there are weights
        if self._topic not in self._log().topics():
            self._create(schema)
        if self._raw:
            return
        held = self._log().describe_topic(self._topic).settings.schema
        if self._codec is not None:
            if held is not None:
                raise InvalidSchema(
                    f"topic '{self._topic}' has a schema, so its values cannot be written as {self._format.format}",
                    where=f"its schema: {held}",
                    next_step="write to another topic, or leave out format=",
                )
            return
        if held is not None and WEIGHT in schema and WEIGHT not in held:
            held = self._log().change_topic(self._topic, schema=weighted(held)).settings.schema
        reasons = can_evolve(schema, held) if held is not None else []
        if reasons:
            raise InvalidSchema(
                f"the rows of step '{self._step}' do not fit topic '{self._topic}': {'; '.join(reasons)}",
                where=f"its schema: {held}",
                next_step="write to another topic, or convert the rows to its schema with select(…)",
            )
        self._target = held

    def _create(self, schema: Schema) -> None:
        try:
            self._log().create_topic(
                self._topic,
                schema=None if self._raw or self._codec is not None else schema,
                compaction=self._is_copy,
                partitions=self._partitions,
            )
        except AlreadyExists:  # another job was faster
            return
        except InvalidSetting as error:
            raise InvalidSetting(
                f"topic '{self._topic}' cannot be created: {error.what}",
                where=f"step '{self._step}'",
                next_step="set its number of partitions: write(…, partitions=…)",
            ) from error

    def _put_rows(self, rows: pa.RecordBatch) -> dict[int, str]:
        keys, extras = record_keys(rows, self._keys), self._format.extras(rows)
        refused = self._refused_extras(extras)
        if refused:
            chosen = kept(rows.num_rows, refused)
            places = np.flatnonzero(chosen.to_numpy(zero_copy_only=False))
            found = self._put_rows(rows.filter(chosen)) if len(places) else {}
            return refused | {int(places[row]): reason for row, reason in found.items()}
        values = self._format.values(rows)
        if self._codec is not None:
            return self._put_encoded(values, keys, extras, self._codec)
        aligned = values if self._target is None else align(values, self._target.arrow)
        return self._put_with(aligned, keys, extras) if self._format.columns else self._put(aligned, keys)

    def _put_encoded(self, rows: pa.RecordBatch, keys: pa.Array | None, extras: Extras, made: Codec) -> dict[int, str]:
        """Writes the rows that the format can hold; returns the others."""
        columns = {"key": keys, "headers": extras.headers, "timestamp": extras.timestamps}
        refused: dict[int, str] = {}
        for start in range(0, rows.num_rows, ENCODED_ROWS):
            encoded = made.encode_each(rows.slice(start, ENCODED_ROWS))
            reasons = {failure.index: failure.reason for failure in encoded.failures}
            reasons = without_values(encoded.values) | reasons
            own = {name: each.slice(start, ENCODED_ROWS) for name, each in columns.items() if each is not None}
            records = pa.RecordBatch.from_pydict({"value": encoded.values, **own})
            places = np.arange(records.num_rows)
            if reasons:
                chosen = kept(records.num_rows, reasons)
                records, places = records.filter(chosen), places[chosen.to_numpy(zero_copy_only=False)]
            found = self._put_records(records) if records.num_rows else {}
            reasons |= {int(places[row]): reason for row, reason in found.items()}
            refused |= {start + row: reason for row, reason in reasons.items()}
        return refused

    def _put_changes(self, rows: pa.RecordBatch, weights: pa.Array) -> dict[int, str]:
        """The new rows of a table, and tombstones for keys without one."""
        there = pc.greater(weights, 0)
        put = rows.filter(there)
        keys = record_keys(rows, self._keys)
        assert keys is not None
        refused = self._put_rows(put) if put.num_rows else {}
        held = pc.unique(keys.filter(there).filter(kept(put.num_rows, refused)))
        gone = pc.unique(keys.filter(pc.invert(there)))
        self._put_tombstones(gone.filter(pc.invert(pc.is_in(gone, value_set=held))).to_pylist())
        places = np.flatnonzero(there.to_numpy(zero_copy_only=False))
        return {int(places[row]): reason for row, reason in refused.items()}


def as_texts(rows: pa.RecordBatch) -> pa.Array:
    """Each row as a JSON object, for a topic of bytes."""
    schema = Schema.of(rows.schema)
    return codec("json", schema).encode(align(rows, schema.arrow))


def record_keys(rows: pa.RecordBatch, keys: Sequence[str]) -> pa.Array | None:
    """The key of each record; a single null column has a key that is not valid text, since it needs a partition too."""
    if not keys:
        return None
    if len(keys) > 1:
        return as_texts(rows.select(list(keys))).cast(pa.binary())
    column = rows.column(keys[0])
    if pa.types.is_binary(column.type):
        return column.fill_null(NULL_KEY)
    if not pa.types.is_string(column.type):
        texts = as_json(column).to_pylist()
        column = pa.array([None if text is None else text.strip('"') for text in texts], pa.string())
    return column.cast(pa.binary()).fill_null(NULL_KEY)


def producer_name(job: str, step: str) -> str:
    """A valid name, unique per job and step."""
    digest = hashlib.sha256(f"{job}\0{step}".encode()).hexdigest()[:12]
    parts = [re.sub(r"[^A-Za-z0-9_-]", "_", part)[:80] for part in (job, step)]
    return f"sink.{parts[0] or '_'}.{parts[1] or '_'}.{digest}"
