"""Rows as records of a topic, whichever broker holds it: keys, weights, tombstones, and the schema the topic must have.

The topic is made with the schema of the rows. Records are keyed by the key columns of the rows: one column as its text,
several as a JSON object, so that rows of a key, and what takes them back, stay in one partition and in order.

Of a table with a key the topic is a copy: it is compacted, the newest record of a key is its row, and a row that goes
is a tombstone.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.connectors.flat_rows import as_json
from millstream.connectors.refusals import AS_TEXT, Refuse, kept, refusals_of, stop, unfit
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
from millstream.records import Schema, align, can_evolve, codec

NULL_KEY = b"\0null"


class RecordsSink(ABC):
    """What a broker adds is how the records of a batch and the note of it become one change."""

    LASTING: ClassVar[tuple[type[MillstreamError], ...]] = (DamagedLog, NotALog, UnsupportedFormat)
    """Storage errors that waiting does not fix."""

    def __init__(
        self,
        topic: str,
        schema: Schema,
        *,
        job: str,
        step: str,
        run: str,
        keys: Sequence[str] = (),
        table: bool = False,
        partitions: int = 1,
        owns_log: bool = False,
    ) -> None:
        self._is_copy = table and bool(keys)
        self._owns_log = owns_log
        self._partitions = partitions
        self._topic = topic
        self._schema = schema
        self._job, self._step, self._run = job, step, run
        self._keys = tuple(schema.field(key).name for key in keys)
        self._producer_name = producer_name(job, step)
        self._target: Schema | None = None
        self._is_open = False
        with suppress(SinkUnavailable), self._unavailable_if_it_may_pass():  # `write` says so, and tries again
            self._open()

    def write(self, batch: int, rows: pa.Table, weights: pa.Array | None, refuse: Refuse = stop) -> None:
        with self._unavailable_if_it_may_pass():
            if not self._is_open:
                self._open()
            if self._has(batch):
                return
            refused = unfit(rows, AS_TEXT) if self._writes_texts() else {}
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

    def close(self) -> None:
        self._drop_producer()
        if self._owns_log:
            self._log().close()

    # ------------------------------------------------------------ what the broker adds

    @abstractmethod
    def _log(self) -> Broker:
        """Where the topic is."""

    @abstractmethod
    def _begin(self) -> None:
        """Learns which batches were written; called until it succeeds."""

    @abstractmethod
    def _has(self, batch: int) -> bool:
        """Whether a batch was written."""

    @abstractmethod
    def _note(self, batch: int) -> None:
        """A batch that had nothing to write."""

    @abstractmethod
    def _transaction(self, batch: int) -> AbstractContextManager[None]:
        """What is put inside it becomes seen at its end, together with the note of the batch, or not at all."""

    @abstractmethod
    def _writes_texts(self) -> bool:
        """Whether values are written as JSON."""

    @abstractmethod
    def _put(self, rows: pa.RecordBatch, keys: pa.Array | None) -> dict[int, str]:
        """Puts rows, with the columns of the topic's schema if it has one. Which of them it refuses, and why."""

    @abstractmethod
    def _put_tombstones(self, keys: list[bytes]) -> None:
        """Of keys that have no row any more. One that is too long for a record never had one."""

    @abstractmethod
    def _drop_producer(self) -> None:
        """The next batch begins with a new one of the same name, which ends what this one left open."""

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

    def _open(self) -> None:
        self._prepare(self._schema)
        self._begin()
        self._is_open = True

    def _prepare(self, schema: Schema) -> None:
        """Makes the topic, or sees that the one that is there can take the rows."""
        if self._topic not in self._log().topics():
            self._create(schema)
        held = self._log().describe_topic(self._topic).settings.schema
        if held is not None and WEIGHT in schema and WEIGHT not in held:
            held = self._log().change_topic(self._topic, schema=weighted(held)).settings.schema
        reasons = can_evolve(schema, held) if held is not None else []
        if reasons:
            raise InvalidSchema(
                f"the rows of step '{self._step}' do not fit topic '{self._topic}': {'; '.join(reasons)}",
                where=f"its schema: {held}",
                next_step="write to another topic, or bring the rows to its schema with select(…)",
            )
        self._target = held

    def _create(self, schema: Schema) -> None:
        try:
            self._log().create_topic(self._topic, schema=schema, compaction=self._is_copy, partitions=self._partitions)
        except AlreadyExists:  # another job was faster
            return
        except InvalidSetting as error:
            raise InvalidSetting(
                f"topic '{self._topic}' cannot be created: {error.what}",
                where=f"step '{self._step}'",
                next_step="choose the number of its partitions where it is written: write(…, partitions=…)",
            ) from error

    def _put_rows(self, rows: pa.RecordBatch) -> dict[int, str]:
        aligned = rows if self._target is None else align(rows, self._target.arrow)
        return self._put(aligned, record_keys(rows, self._keys))

    def _put_changes(self, rows: pa.RecordBatch, weights: pa.Array) -> dict[int, str]:
        """The new rows of a table, and tombstones for keys that have none."""
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
    """Each row as a JSON object, as it stands in a topic of bytes."""
    schema = Schema.of(rows.schema)
    return codec("json", schema).encode(align(rows, schema.arrow))


def record_keys(rows: pa.RecordBatch, keys: Sequence[str]) -> pa.Array | None:
    """The key of each record; that of a single column which is null is one that no text is: it needs a place too."""
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
    """Legal whatever the names are, and another one for every job and step."""
    digest = hashlib.sha256(f"{job}\0{step}".encode()).hexdigest()[:12]
    parts = [re.sub(r"[^A-Za-z0-9_-]", "_", part)[:80] for part in (job, step)]
    return f"sink.{parts[0] or '_'}.{parts[1] or '_'}.{digest}"
