"""A batch in a topic of the embedded log: its records and the ledger's entry are committed together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pyarrow as pa

from millstream.connectors.refusals import Refuse, stop
from millstream.connectors.topic.record_format import Extras, RecordFormat
from millstream.connectors.topic.records_sink import PLAIN, RecordsSink, Rows, as_texts
from millstream.errors import MillstreamError
from millstream.log import EmbeddedLog, Producer
from millstream.log.agreement.ledger import Ledger, send_keyed
from millstream.log.buffer import BatchReceipt
from millstream.records import Codec, Schema

BATCH_ROWS = 1 << 18  # a frame of the log is held in memory


class TopicSink(RecordsSink):
    def __init__(
        self,
        log: EmbeddedLog,
        topic: str,
        writing: Rows,
        *,
        owns_log: bool = False,
        raw: bool = False,
        written_as: RecordFormat = PLAIN,
        encoding: Callable[[Schema], Codec] | None = None,
    ) -> None:
        self._embedded = log
        self._producer: Producer | None = None
        self._receipts: list[BatchReceipt] = []
        self._ledger: Ledger
        super().__init__(topic, writing, owns_log=owns_log, raw=raw, written_as=written_as, encoding=encoding)

    def _log(self) -> EmbeddedLog:
        return self._embedded

    def _begin(self) -> None:
        self._ledger = Ledger(self._embedded.coordinator, self._job, self._step, self._run)

    def _has(self, batch: int) -> bool:
        return self._ledger.has(batch)

    def _note(self, batch: int) -> None:
        self._ledger.record(batch)

    @contextmanager
    def _transaction(self, batch: int | None) -> Iterator[None]:
        self._receipts = []
        with self._writing().transaction(None if batch is None else self._ledger.entry(batch)):
            yield

    def write(self, batch: int, rows: pa.Table, weights: pa.Array | None, refuse: Refuse = stop) -> None:
        self._receipts = []  # a batch that was written before, or has no rows, has no transaction
        super().write(batch, rows, weights, refuse)

    def take_places(self) -> dict[str, tuple[int, int]]:
        receipts, self._receipts = self._receipts, []
        found: dict[str, tuple[int, int]] = {}
        for receipt in receipts:
            for number, (start, end) in receipt.ranges().items():
                first, last = found.get(str(number), (start, end))
                found[str(number)] = min(first, start), max(last, end)
        return found

    def _writing(self) -> Producer:
        if self._producer is None:
            self._producer = self._embedded.producer(name=self.producer_name)
        return self._producer

    def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(MillstreamError):
                producer.close()

    def _writes_texts(self) -> bool:
        return self._target is None

    def _put(self, rows: pa.RecordBatch, keys: pa.Array | None) -> dict[int, str]:
        producer = self._writing()
        if self._target is None:
            columns = {"value": as_texts(rows)} | ({} if keys is None else {"key": keys})
            self._receipts.append(producer.send_batch(self._topic, pa.table(columns)))
            return {}
        for start in range(0, rows.num_rows, BATCH_ROWS):
            part = rows.slice(start, BATCH_ROWS)
            if keys is None:
                self._receipts.append(producer.send_batch(self._topic, part))
            else:
                self._receipts.append(send_keyed(producer, self._topic, part, keys.slice(start, BATCH_ROWS)))
        return {}  # the log accepts records of any size

    def _put_with(self, rows: pa.RecordBatch, keys: pa.Array | None, extras: Extras) -> dict[int, str]:
        producer = self._writing()
        for start in range(0, rows.num_rows, BATCH_ROWS):
            own = [
                None if column is None else column.slice(start, BATCH_ROWS)
                for column in (keys, extras.timestamps, extras.headers)
            ]
            if self._target is not None:
                self._receipts.append(send_keyed(producer, self._topic, rows.slice(start, BATCH_ROWS), *own))
                continue
            names = ("key", "timestamp", "headers")
            columns = {"value": as_texts(rows.slice(start, BATCH_ROWS))}
            columns |= {name: column for name, column in zip(names, own, strict=True) if column is not None}
            self._receipts.append(producer.send_batch(self._topic, pa.table(columns)))
        return {}

    def _put_records(self, records: pa.RecordBatch) -> dict[int, str]:
        self._receipts.append(self._writing().send_batch(self._topic, records))
        return {}

    def _put_tombstones(self, keys: list[bytes]) -> None:
        for key in keys:
            self._writing().send(self._topic, None, key)
