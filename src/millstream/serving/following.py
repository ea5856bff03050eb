"""A table in a topic as a stream of its rows: first what it holds, then every change, from any position on.

Records are read in order from the beginning. So a row may come that a later event replaces; once the event `current`
has come, a client that has applied all events has the table. A position is valid as long as tombstones are kept: after
that a deletion could be missed, and everything is sent again after an event `reset`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from millstream.connectors.catalog import TOPIC, Remembered
from millstream.connectors.lookups import PlainRow, Row, TypedRow
from millstream.connectors.topic.records_sink import NULL_KEY
from millstream.errors import InvalidInput, InvalidSetting, OffsetLost, UnknownPartition
from millstream.log import Broker, Consumer, Record
from millstream.log.ports import BrokerTopic
from millstream.records import Schema, rows_to_batch

ROW, DELETED, CURRENT, RESET = "row", "deleted", "current", "reset"
WAIT_SECONDS = 1.0
RECORDS_MAX = 500


class NotFollowed(InvalidInput):
    """A table that cannot be followed, or a position that is none."""


@dataclass(frozen=True)
class Change:
    """What has become of a key; `position`, if there is one, is where to continue after this event."""

    kind: str
    key: str | None = None
    row: Row | None = None
    position: str | None = None

    def values(self) -> dict[str, Any] | None:
        """The row, unless it was deleted."""
        return None if self.row is None else self.row.values()

    def json(self) -> bytes:
        key = orjson.dumps(self.key)
        if self.row is not None:
            return b'{"key":' + key + b',"row":' + self.row.json() + b"}"
        return b'{"key":' + key + b"}" if self.kind == DELETED else b"{}"


@dataclass(frozen=True)
class Position:
    """Where a reader of a topic is: which topic it was, when it read, and the next offset of each partition."""

    topic: str
    read_at: int
    offsets: dict[int, int]

    def __str__(self) -> str:
        offsets = ",".join(f"{number}-{at}" for number, at in sorted(self.offsets.items()))
        return f"{self.topic}:{self.read_at}:{offsets}"

    @classmethod
    def of(cls, text: str) -> Position:
        try:
            topic, read_at, offsets = text.rsplit(":", 2)
            pairs = [part.split("-") for part in offsets.split(",")]
            return cls(topic, int(read_at), {int(number): int(at) for number, at in pairs})
        except ValueError:
            raise NotFollowed(
                "that is not a position of a table", next_step="use one that an event had, or none to start over"
            ) from None


class Following:
    """Reads one table; close it. `events` waits for changes without end, for others to stop it between two calls."""

    def __init__(
        self,
        log: Broker,
        table: Remembered,
        position: str | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if table.kind != TOPIC:
            raise NotFollowed(
                f"the table '{table.name}' is in {table.kind}, which cannot be followed",
                next_step="write it to a topic as well: only tables in topics can be followed",
            )
        self._clock = clock
        self._topic: BrokerTopic = log.topic(log.resolve(table.name))
        self._log = log
        self._is_reset = False
        self._is_current = False
        self._consumer = self._opened(None if position is None else Position.of(position))

    def _opened(self, position: Position | None) -> Consumer:
        if position is not None and self._still_good(position):
            try:
                return self._log.consumer(self._topic.name, start=position.offsets, pinned=True)
            except (InvalidSetting, UnknownPartition, OffsetLost):  # the topic was cut off meanwhile
                pass
        self._is_reset = position is not None
        return self._log.consumer(self._topic.name, pinned=True)

    def _still_good(self, position: Position) -> bool:
        rest = self._clock() - position.read_at
        kept = self._topic.settings.tombstone_retention.total_seconds()
        return position.topic == str(self._topic.identity) and 0 <= rest < kept / 2

    def events(self, wait_seconds: float = WAIT_SECONDS) -> Iterator[Change]:
        """What has come since the last call; waits for up to some seconds if that is nothing."""
        if self._is_reset:
            self._is_reset = False
            yield Change(RESET)
        try:
            records = self._consumer.poll(wait_seconds if self._is_current else 0.05, RECORDS_MAX)
        except OffsetLost:  # retention has overtaken this reader
            self._consumer.close()
            self._consumer = self._log.consumer(self._topic.name, pinned=True)
            self._is_current = False
            yield Change(RESET)
            return
        newest = {record.key: record for record in records if record.key is not None}
        yield from self._changes(list(newest.values()))
        if not self._is_current and not records and self._consumer.lag() == 0:
            self._is_current = True
            yield Change(CURRENT, position=self._position())

    def _changes(self, records: list[Record]) -> Iterator[Change]:
        for number, record in enumerate(records, 1):
            position = self._position() if number == len(records) else None
            assert record.key is not None
            key = None if record.key == NULL_KEY else record.key.decode(errors="replace")
            if record.value is None:
                yield Change(DELETED, key, None, position)
            else:
                yield Change(ROW, key, self._row(record.value), position)

    def _row(self, value: Any) -> Row:
        schema: Schema | None = self._topic.settings.schema
        if schema is None or not isinstance(value, dict):
            return PlainRow(value)
        batch, failures = rows_to_batch([{name: value.get(name) for name in schema.names}], schema)
        assert not failures, failures
        return TypedRow(batch)

    def _position(self) -> str:
        places = self._consumer.assignment
        offsets = {place.partition: self._consumer.position(place.topic, place.partition) for place in places}
        return str(Position(str(self._topic.identity), int(self._clock()), offsets))

    def close(self) -> None:
        self._consumer.close()
