"""Tables that are followed: first what they hold, then their changes, from any position on; also over HTTP."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.log import EmbeddedLog
from millstream.serving import Tables, open_table
from millstream.serving.connection import BoundedConnection
from millstream.serving.events import Subscribers
from millstream.serving.following import Change, Following, NotFollowed
from millstream.serving.served import Served
from waiting import until

from .running import Running, head
from .support import Job, put, total, totals_flow


def until_current(events: Iterator[Change]) -> list[tuple[str, Any]]:
    return [shown(change) for change in takewhile(lambda change: change.kind != "current", events)]


def shown(change: Change) -> tuple[str, Any]:
    return change.kind, change.values() if change.kind == "row" else change.key


def state_of(events: list[tuple[str, Any]]) -> dict[str, Any]:
    """The table of a client that applies events."""
    held: dict[str, Any] = {}
    for kind, given in events:
        if kind == "row":
            held[given["team"]] = given["total"]
        elif kind == "deleted":
            held.pop(given, None)
    return held


def test_first_what_a_table_holds_then_its_changes(log: EmbeddedLog) -> None:
    job = Job(log, totals_flow("totals"))
    job.write((total("red", 5), 1), (total("blue", 1), 1))
    job.write((total("red", 5), -1), (total("red", 7), 1))
    job.write((total("blue", 1), -1))
    with open_table("totals", log.path) as table:
        changes = table.subscribe()
        assert state_of(until_current(changes)) == {"red": 7}
        job.write((total("green", 2), 1))
        green = next(changes)
        assert shown(green) == ("row", total("green", 2))
        job.write((total("red", 7), -1))
        assert shown(next(changes)) == ("deleted", "red")
        changes.close()
        assert green.position is not None
        assert shown(next(table.subscribe(green.position))) == ("deleted", "red")


def test_a_position_that_is_too_old_or_of_another_topic_starts_over(log: EmbeddedLog) -> None:
    for name in ("first", "second"):
        log.create_topic(name, compaction=True)
        put(log, name, ("a", "1"))
    first, second = (Tables(log).find(name) for name in ("first", "second"))
    now = [1000.0]

    def position(table: Any) -> str:
        following = Following(log, table, clock=lambda: now[0])
        found = [change for _ in range(3) for change in following.events(0.01)]
        following.close()
        assert found[-1].kind == "current"
        assert found[-1].position is not None
        return found[-1].position

    def kinds(table: Any, given: str) -> list[str]:
        following = Following(log, table, given, clock=lambda: now[0])
        found = [change.kind for _ in range(3) for change in following.events(0.01)]
        following.close()
        return found

    given = position(first)
    assert kinds(first, given) == ["current"]
    assert kinds(second, given) == ["reset", "row", "current"]
    now[0] += timedelta(days=1).total_seconds()
    assert kinds(first, given) == ["reset", "row", "current"]
    with pytest.raises(NotFollowed, match="not a position"):
        kinds(first, "nonsense")


def test_a_table_in_a_database_cannot_be_followed(log: EmbeddedLog, tmp_path: Path) -> None:
    Job(log, totals_flow(ms.sqlite(tmp_path / "tables.db", "totals"))).close()
    with open_table("totals", log.path) as table, pytest.raises(NotFollowed, match="cannot be followed"):
        next(table.subscribe())


# ---------------------------------------------------------------- over HTTP


class Subscription:
    """A client of server-sent events."""

    def __init__(self, running: Running, path: str, **headers: str) -> None:
        self.connection: socket.socket = running.connect()
        self.connection.sendall(head("GET", path, {"Host": f"127.0.0.1:{running.port}", **headers}))
        self._lines = self.connection.makefile("rb")
        self.status = int(self._lines.readline().split()[1])
        while self._lines.readline().strip():
            pass

    def event(self) -> dict[str, str]:
        """The next event, comments aside; the chunks of the answer have lines with their sizes between them."""
        found: dict[str, str] = {}
        while True:
            line = self._lines.readline()
            assert line, "the server has closed the connection"
            text = line.decode().rstrip("\r\n")
            name, separator, value = text.partition(": ")
            if separator and name:
                found[name] = value
            elif not text and "data" in found:
                return found

    def close(self) -> None:
        self._lines.close()
        self.connection.close()


@pytest.fixture
def followed(log: EmbeddedLog) -> Iterator[Running]:
    running = Running(Served(Tables(log)), subscribers=Subscribers())
    yield running
    running.close()


def test_events_over_http_resume_after_the_last_one(log: EmbeddedLog, followed: Running) -> None:
    job = Job(log, totals_flow("totals"))
    job.write((total("red", 5), 1))
    client = Subscription(followed, "/changes/totals")
    assert client.status == 200
    row, current = client.event(), client.event()
    assert (row["event"], json.loads(row["data"])) == ("row", {"key": "red", "row": total("red", 5)})
    assert current["event"] == "current"
    job.write((total("red", 5), -1))
    gone = client.event()
    assert (gone["event"], json.loads(gone["data"])) == ("deleted", {"key": "red"})
    client.close()
    job.write((total("blue", 1), 1))
    by_header = Subscription(followed, "/changes/totals", Last_Event_ID=gone["id"])
    by_query = Subscription(followed, f"/changes/totals?position={gone['id']}")
    for again in (by_header, by_query):
        assert json.loads(again.event()["data"]) == {"key": "blue", "row": total("blue", 1)}
        again.close()


@pytest.mark.more
def test_a_quiet_stream_stays_open(log: EmbeddedLog, followed: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: the server's patience with silent clients ends while nothing changes."""
    monkeypatch.setattr(BoundedConnection, "patience_s", 2.0)
    job = Job(log, totals_flow("totals"))
    job.write((total("red", 5), 1))
    client = Subscription(followed, "/changes/totals")
    assert [client.event()["event"] for _ in range(2)] == ["row", "current"]
    time.sleep(2.5)
    job.write((total("red", 5), -1), (total("red", 6), 1))
    assert json.loads(client.event()["data"])["row"] == total("red", 6)
    client.close()


def test_what_cannot_be_followed_is_refused(log: EmbeddedLog, followed: Running) -> None:
    Job(log, totals_flow("totals")).close()
    assert followed.ask("/changes/missing").status == 404
    assert followed.ask("/changes/totals", Last_Event_ID="nonsense").status == 400


def test_there_are_only_so_many_subscribers(log: EmbeddedLog) -> None:
    Job(log, totals_flow("totals")).close()
    running = Running(Served(Tables(log)), subscribers=Subscribers(1))
    try:
        client = Subscription(running, "/changes/totals")
        assert client.event()["event"] == "current"
        assert running.ask("/changes/totals").status == 503
        client.close()
        until(lambda: _status(running) == 200, "the first one is gone")
    finally:
        running.close()


def _status(running: Running) -> int:
    client = Subscription(running, "/changes/totals")
    client.close()
    return client.status


def test_tables_are_not_followed_unless_the_server_allows_it(log: EmbeddedLog, running: Running) -> None:
    Job(log, totals_flow("totals")).close()
    assert running.ask("/changes/totals").status == 404
