"""Finds tables by name in any store, and opens them.

A name is unique: if several tables have the same one, it is prefixed with the kind, and if necessary the database, as
in `kind:name`.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Protocol, cast

from millstream.connectors.catalog import TOPIC, Remembered, remembered
from millstream.connectors.lookups import Lookup, Row
from millstream.connectors.registry import open_lookup
from millstream.errors import InvalidInput, InvalidName, NotFound, UnknownTopic
from millstream.log import Broker, EmbeddedLog, connect
from millstream.serving.following import Change, Following
from millstream.serving.newest import always
from millstream.serving.topics import TopicTable, text_table
from millstream.user_lines import what_exists

if TYPE_CHECKING:
    from millstream.log.kafka.log import KafkaLog

EXAMPLES = 3


class Tables:
    """The tables of a log. With `follows`, topics have an index in memory: for repeated lookups."""

    def __init__(self, log: Broker, *, at: str | None = None, follows: bool = True) -> None:
        self._log = log
        self._topics = EmbeddedTopics(log) if isinstance(log, EmbeddedLog) else kafka_topics(cast("KafkaLog", log))
        self._at = at
        self._follows = follows
        self._open: dict[Remembered, Lookup] = {}
        self._lock = threading.Lock()

    def known(self, *, fresh: bool = True) -> dict[str, Remembered]:
        """Tables by their shortest unique name: those recorded by jobs, and compacted topics.

        The list of topics may be some seconds old.
        """
        log = self._log
        tables = remembered(log.path if isinstance(log, EmbeddedLog) else cast("KafkaLog", log).address)
        topics = self._topics(fresh=fresh)
        tables = [table for table in tables if table.kind != TOPIC or table.name in topics]
        noted = {table.name for table in tables if table.kind == TOPIC}
        compacted = [name for name, is_compacted in topics.items() if is_compacted and name not in noted]
        tables += [text_table(name, self._log) for name in compacted]
        counts = Counter(name for table in tables for name in set(_names(table)))
        chosen = {next(name for name in _names(table) if counts[name] == 1): table for table in tables}
        return dict(sorted(chosen.items()))

    def find(self, name: str) -> Remembered:
        """The table of this name, or else the topic."""
        known = self.known(fresh=False)
        if name in known:
            return known[name]
        known = self.known()
        if name in known:
            return known[name]
        same = [each for each, table in known.items() if name in _names(table)]
        if len(same) > 1:
            raise InvalidInput(f"several tables are named '{name}'", next_step=f"use one of {', '.join(same)}")
        if same:
            return known[same[0]]
        return self._topic(name.removeprefix("topic:"), known)

    def open(self, name: str) -> Lookup:
        """Opens a table until all are closed."""
        table = self.find(name)
        with self._lock:
            if table not in self._open:
                self._open[table] = self.opened(table)
            return self._open[table]

    def row(self, name: str, key: Any) -> Row:
        """The current row of a key; raises NotFound if there is none."""
        table = self.open(name)
        found = table.row(key)
        if found is None:
            some = table.some_keys(EXAMPLES)
            raise NotFound(
                f"the table '{name}' has no row with {table.text(key)}",
                next_step=f"keys that exist: {_listed(some)}" if some else "the table has no rows",
            )
        return found

    def close(self) -> None:
        with self._lock:
            for table in self._open.values():
                table.close()
            self._open.clear()

    def opened(self, table: Remembered, *, room: Callable[[], bool] = always) -> Lookup:
        """Opens a table that the caller closes. `room` decides whether its index may grow."""
        if table.kind != TOPIC:
            return open_lookup(table, self._at)
        if isinstance(self._log, EmbeddedLog):
            return TopicTable(self._log, table, follows=self._follows, room=room)
        from millstream.serving.kafka_topics import KafkaTopicTable

        return KafkaTopicTable(cast("KafkaLog", self._log), table, follows=self._follows, room=room)

    def followed(self, table: Remembered, position: str | None = None) -> Following:
        """The changes of a table, which the caller closes."""
        return Following(self._log, table, position)

    def _topic(self, name: str, known: dict[str, Remembered]) -> Remembered:
        """A switched name has the key of the topic it refers to."""
        try:
            topic = self._log.topic(self._log.resolve(name)).name
        except (UnknownTopic, InvalidName):
            if not known:
                raise NotFound(
                    f"there is no table '{name}'",
                    next_step="there are no tables yet: run a flow that writes one with table.write(…)",
                ) from None
            raise NotFound(f"there is no table '{name}'", next_step=what_exists(name, known, kind="tables")) from None
        read = [table for table in known.values() if (table.kind, table.name) == ("topic", topic)]
        return replace(read[0], name=name) if read else text_table(name, self._log)


class Topics(Protocol):
    """The topics, and whether each is compacted."""

    def __call__(self, *, fresh: bool = True) -> Mapping[str, bool]: ...


class EmbeddedTopics:
    def __init__(self, log: EmbeddedLog) -> None:
        self._log = log

    def __call__(self, *, fresh: bool = True) -> Mapping[str, bool]:
        found = {}
        for name in self._log.topics():
            with suppress(UnknownTopic):  # deleted meanwhile
                found[name] = self._log.topic(name).settings.compaction
        return found


def kafka_topics(log: KafkaLog) -> Topics:
    from millstream.serving.kafka_topics import KafkaTopics

    return KafkaTopics(log)


def _names(table: Remembered) -> list[str]:
    """The possible names of a table, shortest first; the last is unique."""
    if table.kind == TOPIC:
        return [table.name, f"topic:{table.name}"]
    database = PurePath(table.where.partition("?")[0]).name
    return [
        table.name,
        f"{table.kind}:{table.name}",
        f"{table.kind}:{database}:{table.name}",
        f"{table.kind}:{table.where}:{table.name}",
    ]


def _listed(keys: Sequence[str]) -> str:
    return ", ".join(keys) + (", …" if len(keys) == EXAMPLES else "")


class OpenTable:
    """A table opened with `open_table(…)`. It is thread-safe."""

    def __init__(self, name: str, tables: Tables, log: Broker) -> None:
        self.name = name
        self._tables = tables
        self._log = log
        self._table = tables.open(name)

    @property
    def key(self) -> tuple[str, ...]:
        """The key columns."""
        return self._table.key

    def get(self, key: Any) -> dict[str, Any] | None:
        """The current row of a key, or None. A key of several columns is a dict, or a tuple in the order of `key`."""
        row = self._table.row(key)
        return None if row is None else row.values()

    def subscribe(self, position: str | None = None) -> Iterator[Change]:
        """All rows of a table in a topic, then an event `current`, then every change, without end.

        With the position of an event, it continues after that event.
        """
        following = self._tables.followed(self._tables.find(self.name), position)
        try:
            while True:
                yield from following.events()
        finally:
            following.close()

    def close(self) -> None:
        self._tables.close()
        self._log.close()

    def __enter__(self) -> OpenTable:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def open_table(name: str, broker: str | os.PathLike[str] | None = None, *, at: str | None = None) -> OpenTable:
    """Opens a table that a job keeps up to date, or any topic by record key.

    `broker` is the log's folder or the address of Kafka, as in `connect`; `at` is the whole address of a Postgres
    database, since the password in a job's address is not stored.
    """
    log = connect(broker)
    try:
        return OpenTable(name, Tables(log, at=at), log)
    except BaseException:
        log.close()
        raise
