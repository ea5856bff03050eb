"""Queries that are stored in a topic and matched with the documents of flows: put, remove and list them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from os import fspath
from typing import Self

from millstream.errors import InvalidInput
from millstream.log import Broker, connect
from millstream.log.preparing import prepared_topic
from millstream.plan.flow import Flow
from millstream.plan.stream import Stream
from millstream.plan.tables import Table
from millstream.plan.time.watermarks import bounded
from millstream.search.syntax import parsed
from millstream.user_lines import AtUsersLine, users_line

SCHEMA = "id string, query string, condition string, owner string, since timestamp, at timestamp"
IDLE = "1 second"


@dataclass(frozen=True)
class StoredQuery:
    """A query that is in force."""

    id: str
    query: str
    where: str | None
    owner: str | None
    since: datetime | None
    at: datetime
    """From when on it is in force."""


def queries(
    log: str | os.PathLike[str] | Broker, topic: str, *, idle: str | timedelta = IDLE, compaction: bool = True
) -> StoredQueries:
    """Opens the stored queries of a topic, which is created if it is missing; `log` is a folder or kafka://host:9092.

    The topic is compacted: it keeps the newest version of each query. With `compaction=False` it keeps all versions, so
    that a replay finds at any time what was found then. A flow waits for changes of the queries for `idle`.
    """
    opened: Broker = connect(log) if isinstance(log, str | os.PathLike) else log
    address = fspath(log) if isinstance(log, str | os.PathLike) else None
    try:
        with AtUsersLine():
            prepared_topic(opened, topic, SCHEMA, refused="does not hold stored queries", compaction=compaction)
        return StoredQueries(opened, topic, idle, address)
    except BaseException:
        if address is not None:
            opened.close()
        raise


class StoredQueries:
    """Made by `queries(…)`. Changes take effect in running flows, each from its time on."""

    def __init__(self, broker: Broker, topic: str, idle: str | timedelta, address: str | None) -> None:
        self.topic = topic
        self._broker = broker
        self._idle = idle
        self._address = address
        self._producer = broker.producer(acks="all")

    def put(
        self,
        id: str,
        query: str,
        *,
        where: str | None = None,
        owner: str | None = None,
        since: datetime | None = None,
        at: datetime | None = None,
    ) -> None:
        """Stores a query, or replaces the one of that id: `stored.put("q7", 'title:"spark streaming" AND price:<50')`.

        `where` is a condition in Spark SQL that documents must satisfy besides. The query is in force from `at` on, by
        default from now. With `since`, documents from then on are found as well, those of the log or those that the
        flow holds: `match_queries(…, history="log")` or `history="7 days"`. A query that cannot be read is refused with
        the column of the mistake; whether its fields exist is checked by the flow.
        """
        with AtUsersLine():
            parsed(_text(query, "the query"))
            if where is not None:
                _text(where, "where")
            self._send(id, at, query=query, condition=where, owner=owner, since=_moment(since, "since"))

    def remove(self, id: str, *, at: datetime | None = None) -> None:
        """Removes a query, by default from now on."""
        with AtUsersLine():
            self._send(id, at)

    def list(self) -> list[StoredQuery]:
        """The queries as they are stored now, by id."""
        found: dict[str, StoredQuery] = {}
        with self._broker.consumer(self.topic) as consumer:
            for record in consumer.until_caught_up():
                row = record.value
                if not isinstance(row, dict):
                    continue
                content = (row["query"], row["condition"], row["owner"], row["since"], row["at"])
                before = found.get(row["id"])
                if before is None or before.at <= row["at"]:
                    found[row["id"]] = StoredQuery(row["id"], *content)
        return sorted((each for each in found.values() if each.query is not None), key=lambda each: each.id)

    def as_table(self, flow: Flow) -> Table:
        """The queries as a table of a flow, which reads them from its own log."""
        if flow.log is not None and self._address is not None and flow.log != self._address:
            raise InvalidInput(
                f"the queries are in the log {self._address}, but the flow '{flow.name}' reads from {flow.log}",
                where=users_line(),
                next_step=f"ms.Flow('{flow.name}', log='{self._address}')",
            )
        read: Stream = flow.read(self.topic, SCHEMA, event_time="at", watermark=bounded("0 seconds", idle=self._idle))
        return read.to_table(key="id")

    def close(self) -> None:
        """Closes the log, if `queries` has opened it."""
        self._producer.close()
        if self._address is not None:
            self._broker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _send(self, id: str, at: datetime | None, **content: object) -> None:
        empty = {"query": None, "condition": None, "owner": None, "since": None}
        moment = datetime.now(UTC) if at is None else _moment(at, "at")
        row = {"id": _text(id, "the id of a query"), **empty, **content, "at": moment}
        self._producer.send(self.topic, row, key=id).wait()


def _text(given: object, what: str) -> str:
    if not isinstance(given, str) or not given:
        raise InvalidInput(f"{what} is text, not {given!r}", next_step="stored.put('q7', 'title:spark')")
    return given


def _moment(given: datetime | None, what: str) -> datetime | None:
    if given is not None and (not isinstance(given, datetime) or given.tzinfo is None):
        raise InvalidInput(
            f"{what} is a time with a time zone, not {given!r}", next_step="datetime(2026, 1, 31, tzinfo=timezone.utc)"
        )
    return given
