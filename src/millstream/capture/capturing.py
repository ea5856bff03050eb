"""Changes go into the log in whole steps: each is one transaction, with the position after it.

open: fence an older capture of the name, read the newest position
step: changes and position in one transaction; then the database may forget them
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Container
from functools import partial
from types import TracebackType
from typing import Any, Self

from millstream import terminal
from millstream.capture.changes import TableShape
from millstream.capture.ports import Database, Opener, Piece, Position
from millstream.capture.stepping import RETRY_SECONDS, repeat
from millstream.capture.transactions import LIST, SCHEMA, Tally, records
from millstream.errors import AlreadyExists, InvalidInput, SourceUnavailable, UnknownTopic
from millstream.log import Broker
from millstream.log.topics import checked_name

POSITIONS = "_capture."
PRODUCER = "capture."
SEGMENT_BYTES = 1 << 20
LOOK_BACK = 1000
logger = terminal.logger(__name__)


class Capture:
    """A running capture. The newest of a name takes over: an older one stops with `ProducerFenced`."""

    def __init__(
        self, log: Broker, name: str, opened: Opener, *, lists_transactions: bool = True, **settings: Any
    ) -> None:
        """`lists_transactions`: so that they can be read as a whole. `settings` are those of new topics."""
        self._log = log
        self.name = checked_name(name, "capture")
        self._settings = settings
        self._list = LIST + self.name if lists_transactions else None
        self._topics: dict[str, TableShape] = {}
        self.changes = 0
        """Changes stored by this process."""
        self._opened = opened
        self.database: Database = opened(name)
        try:
            before = newest_position(log, self.name)
            shapes = self.database.check(before)
            self._check_topics(shapes, {} if before is None else before["tables"])
            self._producer = log.producer(name=PRODUCER + self.name, acks="all")
        except BaseException:
            self.database.close()
            raise
        try:
            before = newest_position(log, self.name)  # again: an older capture was still writing until now
            create_if_missing(log, POSITIONS + self.name, compaction=True, segment_bytes=SEGMENT_BYTES)
            if self._list is not None:
                create_if_missing(log, self._list, schema=SCHEMA, **{**settings, "partitions": 1})
            for shape in shapes:
                self._fit(shape)
            self.position = self.database.begin(before)
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------ steps

    def step(self, wait_s: float = 0.0) -> bool:
        """Stores the next changes, if there are any after waiting so long."""
        found = self.database.next(self.position, wait_s)
        if found is None:
            return False
        stored, tally = 0, Tally()
        with self._producer.transaction():
            for piece in found.pieces():
                self._send(piece)
                stored += piece.records.num_rows
                if self._list is not None and piece.records.num_rows:
                    tally.add(piece)
            if self._list is not None and tally.entries:
                self._producer.send_batch(self._list, records(tally.entries))
            position = self._with_notes(found.position)
            self._producer.send(POSITIONS + self.name, json.dumps(position), key=self.name)
        self.position = position
        self.changes += stored
        self.database.confirm(self.position)
        return True

    def catch_up(self, stop: threading.Event | None = None, watch: Callable[[], None] = lambda: None) -> None:
        """Stores everything that was committed when this was called."""
        self.step()  # also follows a table whose columns have changed
        end = self.database.end()
        self._run(stop or threading.Event(), watch, lambda: self.database.has_reached(end, self.position))

    def run(self, stop: threading.Event, watch: Callable[[], None] = lambda: None) -> None:
        """Captures until it is stopped, and waits for a database that is away. `watch` is called after each step."""
        self._run(stop, watch, lambda: False)

    def _run(self, stop: threading.Event, watch: Callable[[], None], is_done: Callable[[], bool]) -> None:
        recover = partial(self._reconnect, stop)
        repeat(self.step, stop, until=is_done, watch=watch, away=SourceUnavailable, recover=recover)

    def _reconnect(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.database.close()
            try:
                self.database = self._opened(self.name)
                self.database.check(self.position)
                self.position = self.database.begin(self.position)
                return
            except SourceUnavailable:
                stop.wait(RETRY_SECONDS)

    def _with_notes(self, position: Position) -> Position:
        """The position as it is stored: a capture may add what it must not forget."""
        return position

    def _send(self, piece: Piece) -> None:
        if self._topics.get(piece.shape.topic) != piece.shape:
            self._fit(piece.shape)
        self._producer.send_batch(piece.shape.topic, piece.records, key="key")

    # ------------------------------------------------------------ topics

    def _check_topics(self, shapes: list[TableShape], known: Container[str]) -> None:
        """Before anything is changed: a topic that something else writes to must not be mixed with changes."""
        existing = set(self._log.topics())
        names = [shape.topic for shape in shapes]
        for shape in shapes:
            checked_name(shape.topic, "topic")
            if names.count(shape.topic) > 1:
                raise InvalidInput(
                    f"two tables would go to the topic '{shape.topic}'", next_step="name the topic: TABLE=TOPIC"
                )
            if shape.name not in known and shape.topic in existing and self._has_records(shape.topic):
                raise AlreadyExists(
                    f"the topic '{shape.topic}' has records already, and not from capture '{self.name}'",
                    where=self.database.where,
                    next_step=f"choose another topic: --table {shape.name}=TOPIC; or continue the capture that wrote "
                    "it, by its name: --name NAME",
                )

    def _has_records(self, topic: str) -> bool:
        """Records of a first step that was aborted do not count."""
        with self._log.consumer(topic) as consumer:
            return next(consumer.until_caught_up(), None) is not None

    def _fit(self, shape: TableShape) -> None:
        """Creates the topic of a table, or adds the table's new columns to it."""
        is_new = create_if_missing(self._log, shape.topic, schema=shape.envelope, **self._settings)
        if not is_new and self._log.topic(shape.topic).settings.schema != shape.envelope:
            self._log.change_topic(shape.topic, schema=shape.envelope)
            logger.warning("topic '%s' has new columns now: %s", shape.topic, shape.stored)
        self._topics[shape.topic] = shape

    # ------------------------------------------------------------ closing

    def close(self) -> None:
        try:
            self._producer.close()
        finally:
            self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def newest_position(log: Broker, name: str) -> Position | None:
    """Where a capture of this name continues; None if it has stored nothing."""
    found = newest_record(log, POSITIONS + name)
    position: Position | None = None if found is None else json.loads(found)
    return position


def newest_record(log: Broker, topic: str) -> bytes | None:
    """The value of the newest record of a topic that is compacted."""
    try:
        info = log.describe_topic(topic).partitions[0]
    except UnknownTopic:
        return None
    for start in (max(info.start_offset, info.end_offset - LOOK_BACK), info.start_offset):
        with log.consumer(topic, start=start) as consumer:
            found = [record.value for record in consumer.until_caught_up()]
        if found:
            newest: bytes = found[-1]
            return newest
    return None


def create_if_missing(log: Broker, topic: str, **settings: object) -> bool:
    """Creates a topic; whether it is new."""
    try:
        log.create_topic(topic, **settings)
    except AlreadyExists:
        return False
    return True
