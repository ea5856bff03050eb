"""A batch in a Kafka topic: its records and its marker are one transaction.

Values are JSON, unless the sink has another format. A new producer of a step aborts the open transaction of an older
one and fences it; then it reads the marker. So a batch whose commit was not acknowledged is either found, or was not
written and never will be.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import repeat
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from millstream.connectors.kafka.markers import Marker, make_ready
from millstream.connectors.refusals import Refuse, stop
from millstream.connectors.topic.record_format import Extras, RecordFormat
from millstream.connectors.topic.records_sink import ENCODED_ROWS, PLAIN, RecordsSink, Rows, as_texts
from millstream.errors import KafkaUnavailable, MillstreamError, NoAccess, ProducerFenced, SinkFailed
from millstream.log.kafka.address import KafkaAddress
from millstream.log.kafka.clients import OPEN_SECONDS
from millstream.log.kafka.failures import client_module, translated
from millstream.log.kafka.log import KafkaLog
from millstream.log.kafka.topics import kept_settings
from millstream.records import Codec, Schema, codec

PROGRESS_S = 30
"""After this long without an accepted record or an answer to a commit, Kafka counts as down."""
ROOM_S = 0.05
ABORT_S = 5
TIMEOUT = "transaction.timeout.ms"
DEFAULTS = {
    TIMEOUT: 300_000,  # how long readers wait for the open batch of a dead job
    "partitioner": "murmur2_random",
    "compression.type": "lz4",
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 256 << 10,
    "delivery.report.only.error": True,  # a report per record would cost more than sending it
}
TOO_LARGE = "MSG_SIZE_TOO_LARGE"
OVERHEAD_BYTES = 100
"""The maximum overhead of a record that is alone in its batch."""
LASTING_CODES = (
    TOO_LARGE,
    "RECORD_LIST_TOO_LARGE",
    "INVALID_RECORD",
    "INVALID_TIMESTAMP",
    "INVALID_MSG",
    "TOPIC_EXCEPTION",
    "POLICY_VIOLATION",
    "INVALID_TRANSACTION_TIMEOUT",
    "UNSUPPORTED_VERSION",
    "UNSUPPORTED_COMPRESSION_TYPE",
    "_UNSUPPORTED_FEATURE",
    "SECURITY_DISABLED",
)
"""Permanent errors. All others are retried."""
Headers = list[tuple[str, bytes]] | None
Record = tuple[bytes | None, bytes | None, Headers, int]
"""Its value, key, headers, and time in milliseconds."""
NOW = 0
"""The time of a record that has none of its own, in the client's terms."""
TOO_EARLY = "its timestamp is not after 1970-01-01, and a record of Kafka has no such time"


class KafkaSink(RecordsSink):
    LASTING: ClassVar[tuple[type[MillstreamError], ...]] = (*RecordsSink.LASTING, NoAccess)

    def __init__(
        self,
        log: KafkaLog | KafkaAddress,
        topic: str,
        writing: Rows,
        *,
        raw: bool = False,
        written_as: RecordFormat = PLAIN,
        encoding: Callable[[Schema], Codec] | None = None,
    ) -> None:
        self._kafka = log
        self._address = str(log) if isinstance(log, KafkaAddress) else log.address
        self._producer: Any = None
        self._newest: int | None = None
        self._marker: Marker
        self._begun_at = 0.0
        self._timeout_ms = 0
        self._record_bytes_max: int | None = None
        self._is_too_large = False
        self._undelivered: Any = None
        owns_log = isinstance(log, KafkaAddress)
        super().__init__(topic, writing, owns_log=owns_log, raw=raw, written_as=written_as, encoding=encoding)

    def _log(self) -> KafkaLog:
        if isinstance(self._kafka, KafkaAddress):
            self._kafka = KafkaLog(self._kafka)
        return self._kafka

    def _connect(self) -> None:
        self._log()

    def close(self) -> None:
        self._drop_producer()
        if self._owns_log and isinstance(self._kafka, KafkaLog):
            self._kafka.close()

    def _begin(self) -> None:
        clients = self._log().clients
        make_ready(clients)
        identity = {"job": self._job, "step": self._step, "run": self._run}
        self._marker = Marker(clients, self.producer_name, self._run, identity)
        self._begun_at = time.time()
        self._timeout_ms = int(clients.settings(defaults=DEFAULTS)[TIMEOUT])
        self._undelivered = None
        callbacks = {"on_delivery": self._note_undelivered}
        self._producer = clients.producer(defaults=DEFAULTS | callbacks, transactional_id=self.producer_name)
        with self._plainly():
            self._producer.init_transactions(OPEN_SECONDS)
        self._newest = self._marker.newest()

    def _has(self, batch: int) -> bool:
        return self._newest is not None and batch <= self._newest

    def _note(self, batch: int) -> None:
        with self._transaction(batch):
            pass

    @contextmanager
    def _transaction(self, batch: int | None) -> Iterator[None]:
        self._begun_at = time.time()
        try:
            with self._plainly():
                self._producer.begin_transaction()
            with self._plainly(in_transaction=True):
                yield
                self._flush()
                if batch is not None:
                    self._producer.produce(**self._marker.record(batch))
                self._producer.commit_transaction(PROGRESS_S)
        except KafkaUnavailable:
            raise  # an abort would hang; the next producer aborts the transaction
        except BaseException:
            with suppress(
                client_module().KafkaException, SystemError
            ):  # so that readers do not have to wait for the next producer
                self._producer.abort_transaction(ABORT_S)
            raise
        self._newest = self._newest if batch is None else batch

    def _drop_producer(self) -> None:
        self._is_open = False
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()

    # ------------------------------------------------------------ records

    def write(self, batch: int, rows: pa.Table, weights: pa.Array | None, refuse: Refuse = stop) -> None:
        self._is_too_large = False
        try:
            super().write(batch, rows, weights, refuse)
        except SinkFailed:
            # Brokers reject the whole request with a record that is too large. Now that their limit is known, the
            # batch is written without such records.
            if not self._is_too_large or not self._learn_limit():
                raise
            super().write(batch, rows, weights, refuse)

    def _learn_limit(self) -> bool:
        """Looks up the topic's record size limit; returns whether it was unknown before."""
        before = self._record_bytes_max
        with self._unavailable_if_it_may_pass():
            self._record_bytes_max = int(kept_settings(self._log().clients, self._topic)["max.message.bytes"])
        return self._record_bytes_max != before

    def _writes_texts(self) -> bool:
        return True

    def _put(self, rows: pa.RecordBatch, keys: pa.Array | None) -> dict[int, str]:
        refused: dict[int, str] = {}
        for start in range(0, rows.num_rows, ENCODED_ROWS):
            values = as_texts(rows.slice(start, ENCODED_ROWS)).to_pylist()
            own = repeat(None) if keys is None else keys.slice(start, ENCODED_ROWS).to_pylist()
            found = self._produce(zip(values, own, repeat(None), repeat(NOW), strict=False))
            refused |= {start + row: reason for row, reason in found.items()}
        return refused

    def _put_with(self, rows: pa.RecordBatch, keys: pa.Array | None, extras: Extras) -> dict[int, str]:
        return self._put_encoded(rows, keys, extras, codec("json", rows.schema))

    def _refused_extras(self, extras: Extras) -> dict[int, str]:
        if extras.timestamps is None:
            return {}
        early = pc.less(_milliseconds(extras.timestamps), 1).fill_null(False)
        return {row: TOO_EARLY for row, is_early in enumerate(early.to_pylist()) if is_early}

    def _put_records(self, records: pa.RecordBatch) -> dict[int, str]:
        columns = [
            records.column(name).to_pylist() if name in records.schema.names else repeat(None)
            for name in ("value", "key", "headers")
        ]
        times: Iterable[int] = repeat(NOW)
        if "timestamp" in records.schema.names:
            times = _milliseconds(records.column("timestamp")).fill_null(NOW).to_pylist()
        return self._produce(zip(*columns, times, strict=False))

    def _put_tombstones(self, keys: list[bytes]) -> None:
        self._produce((None, key, None, NOW) for key in keys)

    def _produce(self, records: Iterable[Record]) -> dict[int, str]:
        """Sends records; returns those that are too large, by number, with the reason."""
        produce, topic, refused = self._producer.produce, self._topic, {}
        bytes_max, failed = self._record_bytes_max, client_module().KafkaException
        for number, (value, key, headers, time_ms) in enumerate(records):
            try:
                if bytes_max is not None and _size_bytes(value, key) > bytes_max:
                    refused[number] = _too_large(value, key, f"the topic's limit is {bytes_max:,}")
                    continue
                produce(topic, value, key, headers=headers, timestamp=time_ms)
            except BufferError:
                self._produce_when_there_is_room(value, key, headers, time_ms)
            except failed as error:
                if error.args[0].name() != TOO_LARGE:
                    raise
                refused[number] = _too_large(value, key, "more than message.max.bytes of the settings")
        return refused

    def _produce_when_there_is_room(
        self, value: bytes | None, key: bytes | None, headers: Headers, time_ms: int
    ) -> None:
        """A large record may need the buffer space of many records that are still queued."""
        while True:
            is_empty = not len(self._producer)
            self._until_fewer(lambda: self._producer.poll(ROOM_S))
            try:
                self._producer.produce(self._topic, value, key, headers=headers, timestamp=time_ms)
                return
            except BufferError:
                if is_empty:
                    size_bytes = len(value or b"") + len(key or b"")
                    raise SinkFailed(
                        f"a record of step '{self._step}' has {size_bytes:,} bytes, more than the client can buffer",
                        where=self._where,
                        next_step="raise queue.buffering.max.kbytes in the settings",
                    ) from None

    def _flush(self) -> None:
        while len(self._producer):
            self._until_fewer(lambda: self._producer.flush(1))

    def _note_undelivered(self, error: Any, _: Any) -> None:
        """The first record that a broker rejected: the transaction has failed, and the rest is not sent."""
        if error is not None and not error.name().startswith("_PURGE"):
            self._undelivered = self._undelivered or error

    def _until_fewer(self, wait: Callable[[], Any]) -> None:
        before, deadline = len(self._producer), time.monotonic() + PROGRESS_S
        while before and len(self._producer) >= before:
            if time.monotonic() > deadline:
                raise KafkaUnavailable(
                    f"Kafka has accepted no record for {PROGRESS_S} seconds",
                    where=self._where,
                    next_step="check that its brokers are up and reachable",
                )
            wait()
            if self._undelivered is not None:
                raise client_module().KafkaException(self._undelivered)

    # ------------------------------------------------------------ failures

    @property
    def _where(self) -> str:
        return f"{self._address}, topic {self._topic}"

    @contextmanager
    def _plainly(self, *, in_transaction: bool = False) -> Iterator[None]:
        try:
            yield
        except (client_module().KafkaException, SystemError) as raised:
            # The client may report a record while its own error is pending: then Python raises SystemError.
            known = raised.__cause__ if isinstance(raised, SystemError) else raised
            if not isinstance(known, client_module().KafkaException):
                raise
            error = known.args[0]
            raise self._failure(self._why(error) if in_transaction else error) from known

    def _why(self, error: Any) -> Any:
        """Records after a failed one only report that something failed; the doomed commit reports the cause."""
        if error.name() in ("_STATE", "_FATAL"):
            try:
                self._producer.commit_transaction(ABORT_S)
            except client_module().KafkaException as first:
                return first.args[0]
            except SystemError:  # as in `_plainly`
                return error
        return error

    def _failure(self, error: Any) -> MillstreamError:
        failure = translated(error, self._where)
        if isinstance(failure, ProducerFenced):
            lasted_s = time.time() - self._begun_at
            if lasted_s >= self._timeout_ms / 1000:
                return KafkaUnavailable(f"Kafka aborted a batch that took {lasted_s:.0f} s", where=self._where)
            return ProducerFenced(
                f"step '{self._step}' of job '{self._job}' is now written by another process",
                where=self._where,
                next_step="stop one of the two, or give this flow another name",
            )
        self._is_too_large = self._is_too_large or error.name() in (TOO_LARGE, "RECORD_LIST_TOO_LARGE")
        if error.name() in LASTING_CODES:
            return SinkFailed(f"Kafka rejects the rows of step '{self._step}': {error.str()}", where=self._where)
        return failure


def _milliseconds(times: pa.Array) -> pa.Array:
    return pc.floor_temporal(times, unit="millisecond").cast(pa.timestamp("ms", "UTC")).view(pa.int64())


def _size_bytes(value: bytes | None, key: bytes | None) -> int:
    return len(value or b"") + len(key or b"") + OVERHEAD_BYTES


def _too_large(value: bytes | None, key: bytes | None, why: str) -> str:
    return f"as a record of Kafka it has {len(value or b'') + len(key or b''):,} bytes, and {why}"
