"""An import stores every line or writes a dead letter for it; records reported as stored are stored.

One chunk is decoded while the previous one is being stored, never more, so memory is bounded and a full disk is noticed
within a chunk.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from millstream.cli.output import count_text
from millstream.cli.progress import ImportProgress
from millstream.cli.topic_commands.decoding import Decoder, Prepared, Refusal, check_columns, csv_decoder, line_decoder
from millstream.cli.topic_commands.lines import Chunk, join_quoted, read_chunks, size_of
from millstream.errors import AlreadyExists, InvalidInput, InvalidRecord
from millstream.log import BatchReceipt, Broker, Producer, Receipt
from millstream.records import DEAD_LETTER_SCHEMA, Failure, dead_letters

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Options:
    format: str
    key: str | None
    key_separator: str | None
    timestamp: str | None
    partition: int | None
    headers: list[tuple[str, str]]
    null_value: str | None
    acks: Any
    partition_by: str
    stop_on_error: bool
    dead_letters: str
    max_expansion: int

    @property
    def by_columns(self) -> bool:
        return self.format in ("parquet", "arrow")


@dataclass
class Summary:
    topic: str
    dead_letter_topic: str
    stored: int = 0
    partitions: set[int] | None = field(
        default_factory=set
    )  # None: records were sent one by one, and partitions are unknown
    dead_letters: int = 0
    empty_lines: int = 0
    seconds: float = 0.0

    def text(self) -> str:
        places = f" {count_text(len(self.partitions), 'partition')} of" if self.partitions else ""
        notes = []
        if self.dead_letters:
            notes.append(f"{count_text(self.dead_letters, 'dead letter')} in '{self.dead_letter_topic}'")
        if self.empty_lines:
            notes.append(f"{count_text(self.empty_lines, 'empty line')} skipped")
        tail = f" ({'; '.join(notes)})" if notes else ""
        return f"stored {count_text(self.stored, 'record')} in{places} '{self.topic}'{tail}"

    def document(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "stored": self.stored,
            "partitions": None if self.partitions is None else sorted(self.partitions),
            "dead_letters": self.dead_letters,
            "dead_letter_topic": self.dead_letter_topic if self.dead_letters else None,
            "empty_lines": self.empty_lines,
            "seconds": round(self.seconds, 3),
        }


class Import:
    def __init__(self, log: Broker, topic: str, options: Options, stream: BinaryIO, path: Path | None) -> None:
        self._log = log
        self._topic = topic
        self._options = options
        self._stream = stream
        self._path = path
        self.summary = Summary(topic, options.dead_letters)
        self._waiting: list[Receipt] = []
        self._pending_dead_letters: list[BatchReceipt] = []
        self._check()

    def _check(self) -> None:
        options, settings = self._options, self._log.topic(self._topic).settings
        if options.key is not None and options.key_separator is not None:
            raise InvalidInput("--key and --key-separator both define the key", next_step="leave one out")
        if options.key_separator == "":
            raise InvalidInput("the key separator is empty", next_step="give at least one character")
        if settings.compaction and options.key is None and options.key_separator is None:
            raise InvalidInput(
                "a record of a compacted topic needs a key",
                where=f"topic '{self._topic}'",
                next_step="define it with --key COLUMN or --key-separator TEXT",
            )
        only_lines = options.headers or options.key_separator is not None or options.null_value is not None
        if options.by_columns and only_lines:
            raise InvalidInput(
                f"--header, --key-separator and --null-value cannot be used with {options.format}",
                next_step="leave them out, or import lines",
            )
        if settings.schema is not None:
            check_columns(settings.schema, options.key, options.timestamp)
        if options.partition is not None:
            self._log.topic(self._topic).partition(options.partition)
        if options.dead_letters == self._topic:
            raise InvalidInput("the dead letters cannot go to the topic itself", next_step="name another topic")
        known = options.dead_letters in self._log.topics()
        if known and self._log.topic(options.dead_letters).settings.schema != DEAD_LETTER_SCHEMA:
            raise InvalidInput(
                f"topic '{options.dead_letters}' cannot be used for dead letters: its schema differs",
                next_step=f"name another with --dead-letters, or one with the schema '{DEAD_LETTER_SCHEMA.ddl}'",
            )

    def run(self) -> None:
        begun_at = time.monotonic()
        size_bytes = size_of(self._stream)
        progress = ImportProgress(self._topic, size_bytes)
        producer = self._log.producer(acks=self._options.acks, partition_by=self._options.partition_by)
        try:
            for done_bytes, records in self._columns(size_bytes) if self._options.by_columns else self._lines():
                self._flush_before(producer, records)
                progress.show(done_bytes, self.summary.stored)
            self._flush(producer)
        finally:
            progress.close()
            try:
                producer.close()
            finally:
                self._settle()
                self.summary.seconds = time.monotonic() - begun_at

    # ------------------------------------------------------------ storing

    def _flush_before(self, producer: Producer, work: Work) -> None:
        """Waits until the previous chunk is stored, then sends this one."""
        self._flush(producer)
        if work.prepared is not None:
            self._waiting = work.prepared.send(producer, self._topic)
        if work.dead_letters is not None:
            self._send_dead_letters(producer, work.dead_letters)
        self.summary.empty_lines += work.empty_lines
        if work.stop is not None:
            self._flush(producer)
            stored = f"{count_text(self.summary.stored, 'record')} before it stored"
            raise InvalidRecord(f"{work.stop}; {stored}", where=self._source(), next_step=STOP_HINT)

    def _flush(self, producer: Producer) -> None:
        producer.flush()
        self._settle()

    def _settle(self) -> None:
        """Counts what is stored so far."""
        for receipt in self._waiting:
            if not receipt.done or receipt.error is not None:
                continue
            if not isinstance(receipt, BatchReceipt):
                self.summary.stored += 1
                self.summary.partitions = None
                continue
            numbers = receipt.partitions
            self.summary.stored += len(numbers)
            if self.summary.partitions is not None:
                self.summary.partitions.update(np.unique(numbers).tolist())
        for dead in self._pending_dead_letters:
            if dead.done and dead.error is None:
                self.summary.dead_letters += len(dead.partitions)
        self._waiting, self._pending_dead_letters = [], []

    def _send_dead_letters(self, producer: Producer, dead: pa.RecordBatch) -> None:
        name = self._options.dead_letters
        if name not in self._log.topics():
            with suppress(AlreadyExists):
                self._log.create_topic(name, schema=DEAD_LETTER_SCHEMA)
        self._pending_dead_letters.append(producer.send_batch(name, dead))

    # ------------------------------------------------------------ reading

    def _columns(self, size_bytes: int | None) -> Iterator[tuple[int, Work]]:
        from millstream.cli.topic_commands.columnar import batches  # imported here: it loads all sources

        options = self._options
        for batch, share in batches(self._stream, self._path, options.format, options.max_expansion):
            if options.timestamp in batch.schema.names and batch.column(options.timestamp).null_count:
                raise InvalidRecord(
                    f"column '{options.timestamp}' is the timestamp, and some rows have none", where=self._source()
                )
            prepared = Prepared.of_batch(batch, options.key, options.timestamp, options.partition)
            yield int(share * (size_bytes or 0)), Work(prepared)

    def _lines(self) -> Iterator[tuple[int, Work]]:
        done_bytes = 0
        chunks, decoder = self._decoder()
        for chunk in chunks:
            done_bytes += chunk.size_bytes
            held = chunk.without_empty() if decoder.skips_empty_lines else chunk
            prepared, refusals = decoder.decode(held.lines)
            work = Work(prepared, empty_lines=len(chunk.lines) - len(held.lines))
            if refusals and self._options.stop_on_error:
                first = refusals[0]
                work.prepared, _ = decoder.decode(held.lines[: first.index])
                work.stop = f"line {held.numbers[first.index]}: {first.reason}"
                work.empty_lines = 0
            elif refusals:
                work.dead_letters = self._dead_letters(held, refusals)
            yield done_bytes, work

    def _decoder(self) -> tuple[Iterator[Chunk], Decoder]:
        settings = self._log.topic(self._topic).settings
        chunks = read_chunks(self._stream, where=self._source())
        if self._options.format != "csv":
            return chunks, line_decoder(settings, self._options)
        chunks = join_quoted(chunks)
        first = next((chunk for chunk in chunks if chunk.lines), None)
        if first is None:
            raise InvalidInput("the CSV input is empty; its first line names the columns", where=self._source())
        rest = Chunk(first.lines[1:], first.numbers[1:], first.size_bytes)
        return _chain(rest, chunks), csv_decoder(
            settings, self._options, first.lines[0], where=f"topic '{self._topic}'"
        )

    def _dead_letters(self, chunk: Chunk, refusals: list[Refusal]) -> pa.RecordBatch:
        prefix = f"{self._path}: " if self._path else ""
        failures = [Failure(r.index, f"{prefix}line {chunk.numbers[r.index]}: {r.reason}") for r in refusals]
        numbers = list(chunk.numbers)
        return dead_letters(chunk.lines, numbers, failures, topic=self._topic, partition=-1, at=datetime.now(UTC))

    def _source(self) -> str:
        return str(self._path or "stdin")


@dataclass
class Work:
    """A decoded chunk: records, dead letters, and, if it ends the import, why."""

    prepared: Prepared | None
    dead_letters: pa.RecordBatch | None = None
    empty_lines: int = 0
    stop: str | None = None


STOP_HINT = "fix the line and import from there, or leave out --on-error stop to send such lines to the dead letters"


def _chain(first: Chunk, rest: Iterator[Chunk]) -> Iterator[Chunk]:
    yield first
    yield from rest
