"""Topics, groups, queues and tables over HTTP."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Any

import orjson
from starlette.requests import Request

from millstream.connectors.catalog import TOPIC
from millstream.errors import InvalidInput, NotFound
from millstream.log import Broker, TopicInfo, connect
from millstream.log.agreement.groups import GroupPartition
from millstream.records import codec
from millstream.serving.tables import Tables
from millstream.supervision.http import MoreRoute, number_of
from millstream.supervision.masking import Masking
from millstream.supervision.store import Store
from millstream.web_console.record_search import Search, histogram, search, written_at
from millstream.web_console.shown_records import plain

NAMES_MAX = 10_000


class Topics:
    """The log of a supervisor, opened when it is first asked for."""

    def __init__(self, log_address: str, store: Store, user: str, masking: Masking) -> None:
        self._log_address, self._store, self._user = log_address, store, user
        self._masking = masking
        self._lock = threading.Lock()
        self._log: Broker | None = None
        self._tables: Tables | None = None

    def routes(self) -> list[MoreRoute]:
        asked = "partition, offset, since, key, text, where, limit"
        return [
            MoreRoute("/topics", {"GET /v1/topics": "the names of all topics"}, self._names),
            MoreRoute("/topics/{topic}", {"GET /v1/topics/NAME": "settings and partitions of one"}, self._topic),
            MoreRoute(
                "/topics/{topic}/records",
                {
                    "GET /v1/topics/NAME/records": f"records, by default the newest: {asked}",
                    "POST /v1/topics/NAME/records": "produces one record: key, value, partition, headers",
                },
                self._records,
                ("GET", "POST"),
            ),
            MoreRoute(
                "/topics/{topic}/histogram",
                {"GET /v1/topics/NAME/histogram": "how many of the records there are over time, with the same filters"},
                self._histogram,
            ),
            MoreRoute(
                "/groups/{group}/reset",
                {"POST /v1/groups/NAME/reset": "moves a group: topic, to; check: only returns what it would do"},
                self._reset,
                ("POST",),
            ),
            MoreRoute("/groups", {"GET /v1/groups": "consumer groups, with their lag"}, self._groups),
            MoreRoute("/queues", {"GET /v1/queues": "queues, with what waits in them"}, self._queues),
            MoreRoute("/tables", {"GET /v1/tables": "the tables that jobs write"}, self._table_names),
            MoreRoute("/tables/{table}", {"GET /v1/tables/NAME?key=VALUE": "the row of a key"}, self._row),
        ]

    @property
    def log(self) -> Broker:
        with self._lock:
            if self._log is None:
                self._log = connect(self._log_address)
            return self._log

    @property
    def tables(self) -> Tables:
        log = self.log
        with self._lock:
            if self._tables is None:
                self._tables = Tables(log)
            return self._tables

    def close(self) -> None:
        with self._lock:
            if self._tables is not None:
                self._tables.close()
            if self._log is not None:
                self._log.close()

    # ------------------------------------------------------------ topics

    def _names(self, request: Request, body: dict[str, Any]) -> Any:
        return self.log.topics()

    def _topic(self, request: Request, body: dict[str, Any]) -> Any:
        return _described(self.log.describe_topic(request.path_params["topic"]))

    def _records(self, request: Request, body: dict[str, Any]) -> Any:
        topic = request.path_params["topic"]
        if request.method == "POST":
            return self._produce(topic, body, request.state.account or self._user)
        return search(self.log, topic, _search(request), self._masking.now()).document()

    def _histogram(self, request: Request, body: dict[str, Any]) -> Any:
        return histogram(self.log, request.path_params["topic"], _search(request), self._masking.now())

    def _produce(self, topic: str, body: dict[str, Any], user: str) -> Any:
        schema = self.log.topic(topic).settings.schema
        value, key, partition = body.get("value"), body.get("key"), body.get("partition")
        if not isinstance(key, str | None) or isinstance(partition, bool) or not isinstance(partition, int | None):
            raise InvalidInput("a key is text, and a partition a number", next_step='{"key": "a", "value": …}')
        headers = _headers(body.get("headers"))
        if schema is not None and value is not None:
            decoded = codec("json", schema).decode([orjson.dumps(value)])
            if decoded.failures:
                raise InvalidInput(f"the value does not fit the topic: {decoded.failures[0].reason}")
            value = decoded.rows.to_pylist()[0]
        elif value is not None:
            value = (value if isinstance(value, str) else orjson.dumps(value).decode()).encode()
        with self.log.producer() as producer:
            sent = producer.send(topic, value, key, partition=partition, headers=headers or None)
        self._store.note(user, "produce", None, topic)
        return {"partition": sent.partition, "offset": sent.offset}

    # ------------------------------------------------------------ groups, queues and tables

    def _groups(self, request: Request, body: dict[str, Any]) -> Any:
        found = []
        for name in self.log.groups()[:NAMES_MAX]:
            group = self.log.describe_group(name)
            parts = [
                {
                    "topic": each.topic,
                    "partition": each.partition,
                    "committed": each.next_offset,
                    "lag": each.lag,
                    "lag_s": self._lag_s(each),
                }
                for each in group.partitions
            ]
            found.append({"name": name, "members": len(group.members), "lag": group.lag, "partitions": parts})
        return found

    def _lag_s(self, part: GroupPartition) -> float | None:
        """How long the first record has waited that the group has not committed; 0 if there is none."""
        if part.next_offset is None or not part.lag:
            return 0.0 if part.next_offset is not None else None
        written = written_at(self.log, part.topic, part.partition, part.next_offset)
        return None if written is None else max(0.0, time.time() - written.timestamp())

    def _reset(self, request: Request, body: dict[str, Any]) -> Any:
        """By partition: where the group reads next, and where it would after the reset, with the lag it would have."""
        group, topic, to = request.path_params["group"], body.get("topic"), body.get("to")
        if not isinstance(topic, str) or not isinstance(to, str) or not to:
            raise InvalidInput("a reset has a topic and a position", next_step='{"topic": "scores", "to": "earliest"}')
        parts = self.log.describe_group(group).partitions
        before = {each.partition: each.next_offset for each in parts if each.topic == topic}
        ends = {each.number: each.end_offset for each in self.log.describe_topic(topic).partitions}
        start = _start(to)
        with self.log.consumer(topic, start=start) as reader:
            after = {place: reader.position(*place) for place in sorted(reader.assignment)}
        if not body.get("check"):
            self.log.reset_group(group, topic, start)
            self._store.note(request.state.account or self._user, "reset group", None, f"{group} {topic} {to}"[:200])
        moves = [
            {"partition": number, "before": before.get(number), "after": position, "lag_after": ends[number] - position}
            for (_, number), position in after.items()
        ]
        return {"group": group, "topic": topic, "reset": not body.get("check"), "partitions": moves}

    def _queues(self, request: Request, body: dict[str, Any]) -> Any:
        counts = ("waiting", "in_flight", "acknowledged", "dead", "lost", "consumers")
        return [
            {"name": each.name, "topic": each.topic, **{name: getattr(each, name) for name in counts}}
            for each in self.log.queues()
        ]

    def _table_names(self, request: Request, body: dict[str, Any]) -> Any:
        return [
            {
                "name": name,
                "kind": table.kind,
                "key": list(table.key),
                "job": table.job,
                "topic": table.name if table.kind == TOPIC else None,
            }
            for name, table in self.tables.known(fresh=False).items()
        ]

    def _row(self, request: Request, body: dict[str, Any]) -> Any:
        key: Any = dict(request.query_params)
        if not key:
            raise InvalidInput("a row is found by its key", next_step="?column=value for each key column")
        name, mask = request.path_params["table"], self._masking.now()
        try:
            row = self.tables.row(name, key)
        except NotFound as error:
            if mask and any(map(mask.hides, self.tables.find(name).key)):  # the error lists some that exist
                raise NotFound(f"the table '{name}' has no such row", next_step="its keys are masked") from None
            raise error
        return mask.row(plain(row.values()))


def _headers(given: Any) -> list[tuple[str, bytes | str]]:
    """Of a record to produce: an object, or pairs, in which a name may be more than once."""
    pairs = list(given.items()) if isinstance(given, dict) else given or []
    if isinstance(pairs, list):
        found = [tuple(pair) for pair in pairs if isinstance(pair, list | tuple) and len(pair) == 2]
        if len(found) == len(pairs) and all(isinstance(part, str) for pair in found for part in pair):
            return found
    raise InvalidInput("headers are names and values, all texts", next_step='{"headers": {"trace": "7"}, "value": …}')


def _described(info: TopicInfo) -> dict[str, Any]:
    settings = info.settings
    return {
        "name": info.name,
        "schema": None if settings.schema is None else settings.schema.ddl,
        "codec": settings.codec,
        "compaction": settings.compaction,
        "retention": None if settings.retention is None else str(settings.retention),
        "size_bytes": info.size_bytes,
        "records": info.records_max,
        "switched_to": info.switched_to,
        "partitions": [
            {
                "partition": each.number,
                "start": each.start_offset,
                "end": each.end_offset,
                "size_bytes": each.size_bytes,
                "open_transactions": each.open_transactions,
            }
            for each in info.partitions
        ],
    }


def _search(request: Request) -> Search:
    given = request.query_params
    return Search(
        partition=number_of(request, "partition"),
        offset=number_of(request, "offset"),
        since=_instant(given.get("since")),
        key=given.get("key") or None,
        text=given.get("text") or None,
        where=given.get("where") or None,
        limit=number_of(request, "limit") or 50,
    )


def _start(text: str) -> str | int | datetime:
    """earliest, latest, an offset or a time."""
    if text in ("earliest", "latest"):
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    found = _instant(text)
    assert found is not None
    return found


def _instant(text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            f"{text[:50]!r} is not a time", next_step="write it as 2026-01-31T12:00:00, in UTC"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
