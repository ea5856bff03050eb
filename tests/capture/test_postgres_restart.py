"""A Postgres that restarts is waited for, and one that was restored from an older copy is told apart."""

import shutil
import subprocess
import threading
from functools import partial

import psycopg
import pytest

from millstream.capture.capturing import Capture
from millstream.capture.postgres.database import PostgresDatabase
from millstream.errors import OffsetLost
from postgres_server import Server
from waiting import until

from .support import records


@pytest.mark.more
def test_a_server_that_restarts_is_waited_for(log) -> None:
    server = Server(wal_level="logical")
    dsn = server.new_database()
    stop = threading.Event()

    def write(number):
        with psycopg.connect(dsn, autocommit=True) as db:
            db.execute("INSERT INTO orders VALUES (%s)", (number,))

    try:
        with psycopg.connect(dsn, autocommit=True) as db:
            db.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        with Capture(log, "restarted", partial(PostgresDatabase, dsn, {"orders": "orders"})) as running:
            running.catch_up()
            before = running.database
            thread = threading.Thread(target=running.run, args=(stop,))
            thread.start()
            write(1)
            until(lambda: running.changes == 1 or not thread.is_alive(), "the first change is captured")
            server.stop()
            server.start()
            write(2)
            until(lambda: running.changes == 2 or not thread.is_alive(), "the second change is captured")
            stop.set()
            thread.join()
            assert running.database is not before
        assert [change["after"]["id"] for change in records(log, "orders")] == [1, 2]
    finally:
        server.close()


@pytest.fixture
def restored():
    """A server, and what takes a copy of its data that is put back later."""
    server = Server(wal_level="logical")
    copy = server.data.with_name("copy")

    def take():
        server.stop()
        subprocess.run(["cp", "-a", server.data, copy], check=True)
        server.start()

    def put_back():
        server.stop()
        shutil.rmtree(server.data)
        copy.rename(server.data)
        server.start()

    yield server, take, put_back
    server.close()


@pytest.mark.more
def test_a_restored_database_that_has_written_more_is_refused(log, restored) -> None:
    """Goal: its change log is as long as the one that the log has read, and at the same places has other changes."""
    server, take, put_back = restored
    dsn = server.new_database()
    opened = partial(PostgresDatabase, dsn, {"orders": "orders"})

    def write(first, last):
        with psycopg.connect(dsn, autocommit=True) as db:
            db.execute("INSERT INTO orders SELECT n FROM generate_series(%s::int, %s) n", (first, last))

    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    with Capture(log, "restored", opened) as running:
        running.catch_up()
    take()
    write(1, 1)
    with Capture(log, "restored", opened) as running:
        running.catch_up()
    put_back()
    write(2, 2000)
    for _ in range(2):
        with Capture(log, "restored", opened) as running, pytest.raises(OffsetLost, match="that the server does not"):
            running.catch_up()
    assert [change["after"]["id"] for change in records(log, "orders")] == [1]


@pytest.mark.more
def test_a_restored_database_that_lacks_nothing_goes_on(log, restored, monkeypatch) -> None:
    """Method: since the copy, the log has only followed changes of other tables."""
    monkeypatch.setattr("millstream.capture.postgres.database.BEAT_SECONDS", 0)
    server, take, put_back = restored
    dsn = server.new_database()
    opened = partial(PostgresDatabase, dsn, {"orders": "orders"})

    def write(table):
        with psycopg.connect(dsn, autocommit=True) as db:
            db.execute(f"INSERT INTO {table} VALUES (0)")
            db.execute(f"INSERT INTO {table} SELECT generate_series(1, 500)")

    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute("CREATE TABLE orders (id int PRIMARY KEY); CREATE TABLE others (id int)")
    with Capture(log, "restored", opened) as running:
        running.catch_up()
        before = running.position["lsn"]
        until(lambda: running.step(0.05) or running.position["lsn"] > before, "the slot has moved")
    take()
    with Capture(log, "restored", opened) as running:
        before = running.position["lsn"]
        write("others")
        until(lambda: running.step(0.05) or running.position["lsn"] > before + 10_000, "the slot has moved")
    put_back()
    write("orders")
    with Capture(log, "restored", opened) as running:
        running.catch_up()
    assert [change["after"]["id"] for change in records(log, "orders")] == list(range(501))
