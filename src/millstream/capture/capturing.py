"""Changes go into the log in whole steps: each is one transaction, with the position after it.

open: fence an older capture of the name, read the newest position, store the owner of what is made in the database
step: changes and position in one transaction; then the database may forget them
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Container
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self

from millstream import terminal
from millstream.capture.adding import Requests, requested
from millstream.capture.capturing_topics import OWNER, POSITIONS, SEGMENT_BYTES, Stored, create_if_missing, newest
from millstream.capture.changes import TableShape
from millstream.capture.ports import COLUMNS, Database, Opener, Piece, Position
from millstream.capture.schema_changes import SCHEMA as SCHEMA_CHANGE
from millstream.capture.schema_changes import SCHEMAS, Columns, with_columns
from millstream.capture.stepping import RETRY_SECONDS, repeat
from millstream.capture.transactions import LIST, SCHEMA, Tally, records
from millstream.errors import AlreadyExists, InvalidInput, MillstreamError, NotFound, SourceUnavailable
from millstream.log import Broker
from millstream.log.topics import checked_name

PRODUCER = "capture."
TOPICS = "topics"
"""Of a stored position: the topic of each table."""
REFUSALS = (InvalidInput, NotFound, AlreadyExists)
logger = terminal.logger(__name__)


class Capture:
    """A running capture. The newest of a name takes over: an older one stops with `ProducerFenced`."""

    def __init__(
        self,
        log: Broker,
        name: str,
        opened: Opener,
        *,
        is_inner: bool = False,
        every_table: bool = False,
        **settings: Any,
    ) -> None:
        """`is_inner`: part of something else, so nobody adds tables or asks for transactions as a whole.

        `every_table`: all that the database has now, each into the topic that it has had, or into one of its name.
        `settings` are those of new topics.
        """
        self._log = log
        self.name = checked_name(name, "capture")
        self._settings = settings
        self._list = None if is_inner else LIST + self.name
        self._requests: Requests | None = None
        self.has_every_table = every_table
        self._added: dict[str, str] = {}
        """Tables beside those that it was started with, each with its topic."""
        self._topics: dict[str, TableShape] = {}
        self.changes = 0
        """Changes stored by this process."""
        self._opened = opened
        self.database: Database = opened(name)
        try:
            stored = newest(log, self.name)
            before, self._owner = stored.position, stored.owner or secrets.token_hex(8)
            self._add_again(before)
            shapes = self.database.check(before, self._owner)
            self._check_topics(shapes, {} if before is None else before["tables"])
            self._check_same_topics(shapes, before)
            self.tables = {shape.name: shape.topic for shape in shapes}
            self._producer = log.producer(name=PRODUCER + self.name, acks="all")
        except BaseException:
            self.database.close()
            raise
        try:
            stored = newest(log, self.name)  # again: an older capture was still writing until now
            before, self._owner = stored.position, stored.owner or self._owner
            self._add_again(before)
            create_if_missing(log, POSITIONS + self.name, compaction=True, segment_bytes=SEGMENT_BYTES)
            self._store_owner(stored)
            if self._list is not None:
                create_if_missing(log, self._list, schema=SCHEMA, **{**settings, "partitions": 1})
                self._requests = Requests(log, self.name)
            for shape in shapes:
                self._fit(shape)
            self.position = self._begun(before, shapes)
        except BaseException:
            self.close()
            raise

    def _store_owner(self, stored: Stored) -> None:
        """So that what is made in the database is known to be of this log, also after a kill before the first step."""
        if stored.owner is None:
            with self._producer.transaction():
                document = {**(stored.position or {}), OWNER: self._owner}
                self._producer.send(POSITIONS + self.name, json.dumps(document), key=self.name)

    # ------------------------------------------------------------ steps

    def step(self, wait_s: float = 0.0) -> bool:
        """Stores the next changes, if there are any after waiting so long."""
        self._add_tables()
        found = self.database.next(self.position, wait_s)
        if found is None:
            return False
        stored, tally = 0, Tally()
        columns = Columns(self.position.get(COLUMNS, {}))
        with self._producer.transaction():
            for piece in found.pieces():
                self._send(piece)
                stored += piece.records.num_rows
                if self._list is not None:
                    if piece.records.num_rows:
                        tally.add(piece)
                    self._note_columns(columns, piece)
            if self._list is not None and tally.entries:
                self._producer.send_batch(self._list, records(tally.entries))
            own = {TOPICS: self.tables, OWNER: self._owner, COLUMNS: columns.known}
            position = self._with_notes({**found.position, **own})
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
                self._open_again(self._added)
                return
            except SourceUnavailable:
                stop.wait(RETRY_SECONDS)

    def _open_again(self, added: dict[str, str]) -> list[TableShape]:
        """Continues with these tables beside those that it was started with."""
        self.database = self._opened(self.name)
        self.database.add(added)
        shapes = self.database.check(self.position, self._owner)
        self._check_topics(shapes, self.position["tables"])
        self.position = self._begun(self.position, shapes)
        self.tables = {shape.name: shape.topic for shape in shapes}
        return shapes

    def _begun(self, before: Position | None, shapes: list[TableShape]) -> Position:
        """Where the database starts, and what its tables were like."""
        position = self.database.begin(before, self._owner)
        return (
            position
            if self._list is None
            else with_columns(position, shapes, () if before is None else before["tables"])
        )

    # ------------------------------------------------------------ more tables

    def _add_again(self, before: Position | None) -> None:
        """Those that were not named now: all of the database, and what was added to earlier captures of this name."""
        self._added = self._every_table(before) if self.has_every_table else {}
        if self._list is not None and before is not None:
            asked = requested(self._log, self.name)
            self._added |= {table: topic for table, topic in asked.items() if table in before["tables"]}
        self.database.add(self._added)

    def _every_table(self, before: Position | None) -> dict[str, str]:
        names = self.database.every_table(before)
        if not names:
            raise NotFound("there are no tables", where=self.database.where, next_step="create the tables first")
        topics = {} if before is None else before.get(TOPICS, {})
        return {name: topics.get(name, name) for name in names}

    def _add_tables(self) -> None:
        """Takes up requests. One that cannot be met is refused, and the capture goes on without the table."""
        if self._requests is None:
            return
        for table, topic in self._requests.waiting().items():
            if table in self.position["tables"]:
                self._requests.done(table)
                continue
            self.database.close()
            try:
                shapes = self._open_again({**self._added, table: topic})
                if table not in self.position["tables"]:  # by which it is found again
                    raise InvalidInput(
                        f"the database writes the name of the table '{table}' otherwise",
                        next_step=f"write it as in {', '.join(self.position['tables'])}",
                    )
            except REFUSALS as error:
                self._refuse(table, topic, error)
                continue
            self._added[table] = topic
            for shape in shapes:
                self._fit(shape)
            self._requests.done(table)
            logger.warning("table '%s' is captured as well now, into topic '%s'", table, topic)

    def _refuse(self, table: str, topic: str, error: MillstreamError) -> None:
        logger.warning("table '%s' is not captured: %s", table, error)
        assert self._requests is not None
        self._requests.refuse(self._producer, table, topic, error)
        self.database.close()
        self._open_again(self._added)

    def _with_notes(self, position: Position) -> Position:
        """The position as it is stored: a capture may add what it must not forget."""
        return position

    def _send(self, piece: Piece) -> None:
        if self._topics.get(piece.shape.topic) != piece.shape:
            self._fit(piece.shape)
        if piece.records.num_rows:
            self._producer.send_batch(piece.shape.topic, piece.records, key="key")

    def _note_columns(self, columns: Columns, piece: Piece) -> None:
        if (changed := columns.follow(piece)) is not None:
            topic = SCHEMAS + self.name
            create_if_missing(self._log, topic, schema=SCHEMA_CHANGE, **{**self._settings, "partitions": 1})
            self._producer.send(topic, changed, key=piece.shape.name)

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

    def _check_same_topics(self, shapes: list[TableShape], before: Position | None) -> None:
        """Changes in another topic than the rows before them would belong to no table."""
        topics = {} if before is None else before.get(TOPICS, {})  # older versions did not store them
        for shape in shapes:
            if (topic := topics.get(shape.name, shape.topic)) != shape.topic:
                raise InvalidInput(
                    f"capture '{self.name}' has '{shape.name}' in the topic '{topic}', not in '{shape.topic}'",
                    where=self.database.where,
                    next_step=f"continue there: --table {shape.name}={topic}; or start another capture, with all rows, "
                    "under another name: --name NAME",
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
        with ExitStack() as closing:
            closing.callback(self.database.close)
            closing.callback(self._producer.close)
            if self._requests is not None:
                closing.callback(self._requests.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
