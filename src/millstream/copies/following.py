"""A follower applies the changes of a topic to a copy, in order, and continues at the copy's mark after a crash.

A rebuild is a follower of a copy that nobody sees yet; when it has caught up, the two are switched. A follower that is
running then finds another mark than its own, and continues there.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from millstream.capture.changes import DELETE, TRUNCATE
from millstream.capture.stepping import repeat
from millstream.copies.ports import Mark, Store
from millstream.copies.truncations import offsets_after_newest
from millstream.errors import AlreadyExists, InvalidInput, SinkFailed, SinkUnavailable
from millstream.log import Broker, Consumer, Record
from millstream.log.start_positions import Start
from millstream.records import Schema, codec, rows_to_batch

RECORDS = 5000
OF_CAPTURE = {"op", "before", "after", "unsent", "key"}


class Follower:
    """`applied` counts the records of this process."""

    def __init__(self, log: Broker, topic: str, store: Store) -> None:
        self._log = log
        self._topic = topic
        self._store = store
        self._writer = f"topic {topic}"
        self.applied = 0
        self._check_alone()
        schema = log.topic(topic).settings.schema
        self._is_captured = schema is not None and set(schema.names) >= OF_CAPTURE
        self._consumer, self._mark = self._begun()

    def _check_alone(self) -> None:
        others = [writer for writer in self._store.writers() if writer != self._writer]
        if others:
            raise AlreadyExists(
                f"the copy is already kept by another writer: {', '.join(others)}",
                where=self._store.where,
                next_step="follow the topic into a copy of its own",
            )

    def _begun(self) -> tuple[Consumer, Mark | None]:
        mark = self._store.mark(self._writer)
        return self._log.consumer(self._topic, start=_start(mark)), mark

    # ------------------------------------------------------------ steps

    def step(self, wait_s: float = 0.0) -> bool:
        """Applies the next records, if there are any after waiting so long."""
        records = self._consumer.poll(timeout=wait_s, max_records=RECORDS)
        if not records:
            return False
        if len(self._consumer.assignment) > 1 and any(map(self._truncates, records)):
            return self._empty()
        changes, clear = self._changes(records)
        offsets = dict((self._mark or {"offsets": {}})["offsets"])
        offsets.update({str(record.partition): record.offset + 1 for record in records})
        mark = {"offsets": offsets}
        if self._store.apply(changes, self._writer, mark, self._mark, clear=clear):
            self._mark = mark
            self.applied += len(records)
        else:
            self._start_again()
        return True

    def _truncates(self, record: Record) -> bool:
        return self._is_captured and record.value is not None and record.value["op"] == TRUNCATE

    def _empty(self) -> bool:
        """Continues after the newest truncation in all partitions, in some of which this may be a step back."""
        offsets = offsets_after_newest(self._log, self._topic)
        mark = {"offsets": {str(number): at for number, at in offsets.items()}}
        if self._store.apply({}, self._writer, mark, self._mark, clear=True):
            self._mark = mark
            self.seek_to_mark()
        else:
            self._start_again()
        return True

    def _start_again(self) -> None:
        self._consumer.close()
        self._consumer, self._mark = self._begun()

    def catch_up(self, stop: threading.Event | None = None, watch: Callable[[], None] = lambda: None) -> None:
        """Applies everything that is in the topic."""
        self._run(stop or threading.Event(), watch, lambda: self._consumer.lag() == 0)

    def run(self, stop: threading.Event, watch: Callable[[], None] = lambda: None) -> None:
        """Follows until it is stopped, and waits for a copy that is away. `watch` is called after each step."""
        self._run(stop, watch, lambda: False)

    def _run(self, stop: threading.Event, watch: Callable[[], None], is_done: Callable[[], bool]) -> None:
        repeat(self.step, stop, until=is_done, watch=watch, away=SinkUnavailable, recover=self.seek_to_mark)

    def seek_to_mark(self) -> None:
        """After a failed step: its records are read again."""
        self._consumer.seek(_start(self._mark))

    def check_mark(self) -> None:
        """Raises if something else has changed the copy."""
        if self._store.mark(self._writer) != self._mark:
            raise SinkFailed(
                "another process writes to the same copy", where=self._store.where, next_step="let it finish first"
            )

    # ------------------------------------------------------------ records

    def _changes(self, records: Iterable[Record]) -> tuple[dict[str, bytes | None], bool]:
        """The newest row of each key, and whether the table was emptied before."""
        newest: dict[str, Any] = {}
        clear = False
        for record in records:
            if self._is_captured and record.value is not None:
                change = record.value
                if self._truncates(record):
                    newest, clear = {}, True
                    continue
                self._check(change, record)
                newest[self._key(record)] = None if change["op"] == DELETE else change["after"]
            else:
                newest[self._key(record)] = record.value
        return dict(zip(newest, self._encoded(list(newest.values())), strict=True)), clear

    def _key(self, record: Record) -> str:
        if record.key is None:
            raise InvalidInput(
                "a record has no key, so there is no row that it changes",
                where=f"topic '{record.topic}', partition {record.partition}, offset {record.offset}",
                next_step="follow a topic whose records have keys, such as that of a captured table with a primary key",
            )
        return record.key.decode(errors="replace")

    def _check(self, change: dict[str, Any], record: Record) -> None:
        if change["unsent"]:
            raise InvalidInput(
                f"an update does not have the values of {', '.join(change['unsent'])}",
                where=f"topic '{record.topic}', partition {record.partition}, offset {record.offset}",
                next_step="have Postgres log whole rows, ALTER TABLE … REPLICA IDENTITY FULL, and capture it again, "
                "under another name",
            )

    def _encoded(self, rows: list[Any]) -> list[bytes | None]:
        """Rows as JSON, as they are in a topic."""
        schema = self._log.topic(self._topic).settings.schema
        if schema is None:
            return [None if row is None else _as_json(row) for row in rows]
        columns = Schema.of(pa.schema(list(schema.field("after").type))) if self._is_captured else schema
        there = [row for row in rows if row is not None]
        batch, failures = rows_to_batch(there, columns)
        assert not failures, failures  # they were read with this schema
        texts = iter(codec("json", columns).encode(batch).to_pylist())
        return [None if row is None else next(texts) for row in rows]

    # ------------------------------------------------------------ closing

    def close(self) -> None:
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _start(mark: Mark | None) -> Start:
    return "earliest" if mark is None else {int(number): at for number, at in mark["offsets"].items()}


def _as_json(value: bytes) -> bytes:
    """A value of a topic without a schema, which may be any text."""
    try:
        json.loads(value)
    except ValueError:
        return json.dumps(value.decode(errors="replace"), ensure_ascii=False).encode()
    return value


def rebuild(log: Broker, topic: str, store: Store, watch: Callable[[int], None] = lambda count: None) -> int:
    """Builds a copy from the whole topic, beside the one that is read, and switches them. Returns the records read."""
    Follower(log, topic, store).close()  # checks that the copy follows this topic alone
    made = store.replacement()
    try:
        with Follower(log, topic, made) as follower:
            follower.catch_up(watch=lambda: watch(follower.applied))
            follower.check_mark()
            made.switch()
            return follower.applied
    finally:
        made.close()
