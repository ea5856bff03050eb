"""The outbox: an event reaches its topic once if its transaction is committed, and never if it is not."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress

import psycopg
import pytest

import millstream as ms
from millstream.capture.outbox import OutboxCapture, ranges
from millstream.errors import InvalidInput, InvalidName, InvalidRecord, SourceUnavailable
from millstream.log import EmbeddedLog
from waiting import until

from .support import records, remove_slots


class Shop:
    """A database with an outbox, and a connection of its application."""

    def __init__(self, address, connection):
        self.address = address
        self.db = connection
        self.box = ms.outbox(address)
        self.box.create()
        connection.cursor().execute("CREATE TABLE orders (id int PRIMARY KEY)")
        connection.commit()
        self.mark = self.box.store.mark

    def order(self, id, topic="ordered", **event):
        self.db.cursor().execute(f"INSERT INTO orders VALUES ({self.mark})", (id,))
        self.box.put(self.db, topic, {"order": id}, key=f"o{id}", **event)

    def left(self):
        with closing(self.db.cursor()) as cursor:
            found = cursor.execute("SELECT count(*) FROM outbox").fetchone()[0]
        self.db.commit()
        return found


@pytest.fixture(params=["sqlite", "postgres"])
def shop(request, tmp_path):
    if request.param == "sqlite":
        path = tmp_path / "shop.db"
        with closing(sqlite3.connect(path)) as db:
            yield Shop(path, db)
        return
    address = request.getfixturevalue("dsn")
    with psycopg.connect(address) as db:
        yield Shop(address, db)
    with psycopg.connect(address, autocommit=True) as db:
        remove_slots(db)


def events(log, topic):
    return [json.loads(value) for value in records(log, topic)]


def test_an_event_is_sent_once_if_it_is_committed(log, shop) -> None:
    shop.order(1)
    shop.db.commit()  # before there is a capture
    with shop.box.capture(log) as capture:
        capture.catch_up()
        shop.order(2, headers={"by": "ann"})
        shop.db.commit()
        shop.order(3)
        shop.db.rollback()
        shop.order(4, "shipped")
        shop.db.commit()
        capture.catch_up()
    with shop.box.capture(log) as capture:
        capture.catch_up()
    assert events(log, "ordered") == [{"order": 1}, {"order": 2}]
    assert events(log, "shipped") == [{"order": 4}]
    with log.consumer("ordered") as consumer:
        found = list(consumer.until_caught_up())
    assert [record.key for record in found] == [b"o1", b"o2"]
    assert dict(found[1].headers)["by"] == b"ann"
    assert shop.left() == 0


@pytest.mark.more
def test_rows_are_kept_by_choice(log, shop) -> None:
    box = ms.outbox(shop.address, keep=True)
    for id in (1, 2):
        shop.order(id)
        shop.db.commit()
        with box.capture(log) as capture:
            capture.catch_up()
    assert events(log, "ordered") == [{"order": 1}, {"order": 2}]
    assert shop.left() == 2


def test_an_event_that_does_not_fit_its_topic_is_kept_apart(log, shop) -> None:
    log.create_topic("typed", schema="order int")
    shop.box.put(shop.db, "typed", {"order": "none"}, key="a")
    shop.box.put(shop.db, "typed", {"order": 7})
    for statement in ("'no/name', '{}', NULL", "'ordered', '{}', 'no json'"):
        shop.db.cursor().execute(f"INSERT INTO outbox (topic, value, headers) VALUES ({statement})")
    shop.db.commit()
    with shop.box.capture(log) as capture:
        capture.catch_up()
    assert records(log, "typed") == [{"order": 7}]
    assert [each["topic"] for each in events(log, "outbox.rejected")] == ["typed", "no/name", "ordered"]
    with log.consumer("outbox.rejected") as consumer:
        assert b"none" in dict(next(consumer.until_caught_up()).headers)["reason"]


@pytest.mark.more
def test_what_was_sent_and_not_removed_is_removed_later(log, shop, monkeypatch) -> None:
    """Goal: neither a repeated event nor a row that stays. Method: the process ends between the two."""
    shop.order(1)
    shop.db.commit()

    def ends(*_):
        raise SourceUnavailable("the process ends here")

    with shop.box.capture(log) as capture, monkeypatch.context() as patch, suppress(SourceUnavailable):
        patch.setattr(OutboxCapture, "_remove", ends)
        capture.step()
    with shop.box.capture(log) as capture, suppress(SourceUnavailable), monkeypatch.context() as patch:
        patch.setattr(type(shop.box.store), "run", ends)
        until(lambda: _steps(capture), "the removal fails")
    assert shop.left() == 1
    with shop.box.capture(log) as capture:
        capture.catch_up()
    assert events(log, "ordered") == [{"order": 1}]
    assert shop.left() == 0


def _steps(capture):
    """Raises when something is to be removed."""
    capture.step(0.05)
    return False


def test_mistakes_are_refused(log, shop, tmp_path) -> None:
    with pytest.raises(InvalidName):
        shop.box.put(shop.db, "../x", {})
    with pytest.raises(InvalidRecord, match="JSON"):
        shop.box.put(shop.db, "t", {1, 2})
    with pytest.raises(InvalidRecord, match="key"):
        shop.box.put(shop.db, "t", {}, key=1)
    shop.db.rollback()
    with pytest.raises(InvalidInput, match="is not an outbox"):
        ms.outbox(shop.address, table="orders").capture(log)
    assert log.topics() == []


def test_an_event_by_itself_is_refused(tmp_path, dsn) -> None:
    for address, connect in ((tmp_path / "a.db", _sqlite), (dsn, psycopg.connect)):
        box = ms.outbox(address)
        box.create()
        with closing(connect(str(address), autocommit=True)) as db:
            with pytest.raises(InvalidInput, match="no open transaction"):
                box.put(db, "t", {})
            db.execute("BEGIN")
            box.put(db, "t", {})
            db.execute("ROLLBACK")


def _sqlite(path, autocommit):
    return sqlite3.connect(path, isolation_level=None)


def test_consecutive_numbers_are_ranges() -> None:
    assert ranges([5, 1, 2, 9, 3]) == [(1, 3), (5, 5), (9, 9)]
    assert ranges([]) == []


KILLED = """
import sys, threading
import millstream as ms
from millstream.log import EmbeddedLog
with EmbeddedLog(sys.argv[1]) as log, ms.outbox(sys.argv[2]).capture(log) as capture:
    print("ready", flush=True)
    capture.run(threading.Event())
"""


@pytest.mark.parametrize("kills", [pytest.param(2, marks=pytest.mark.more), pytest.param(20, marks=pytest.mark.soak)])
def test_a_killed_capture_loses_and_repeats_no_event(tmp_path, shop, kills) -> None:
    chance, made, number = random.Random(kills), [], 0
    for _ in range(kills):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path / "log"), str(shop.address)], stdout=subprocess.PIPE
        )
        assert process.stdout.readline() == b"ready\n"
        for _ in range(chance.randrange(1, 40)):
            number += 1
            shop.order(number)
            if chance.randrange(4):
                shop.db.commit()
                made.append({"order": number})
            else:
                shop.db.rollback()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with EmbeddedLog(tmp_path / "log") as log:
        with shop.box.capture(log) as capture:
            capture.catch_up()
        assert events(log, "ordered") == made
    assert shop.left() == 0
