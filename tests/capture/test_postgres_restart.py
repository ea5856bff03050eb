"""A Postgres that restarts is waited for: nothing is lost, and nothing is captured twice."""

import threading
from functools import partial

import psycopg
import pytest

from millstream.capture.capturing import Capture
from millstream.capture.postgres.database import PostgresDatabase
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
