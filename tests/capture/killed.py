"""Captures in processes that are killed at any moment: while they start, read rows, or store changes."""

import multiprocessing
import random
import signal
import threading
import time
from contextlib import closing
from functools import partial
from pathlib import Path

from millstream.capture.capturing import Capture
from millstream.capture.mariadb import steps as mariadb_steps
from millstream.capture.mariadb.database import MariadbDatabase
from millstream.capture.postgres import steps as postgres_steps
from millstream.capture.postgres.database import PostgresDatabase
from millstream.capture.sqlite import database as sqlite
from millstream.log import EmbeddedLog
from waiting import until

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    [
        "pytest",
        "millstream.capture.capturing",
        "millstream.capture.mariadb.database",
        "millstream.capture.postgres.database",
        "millstream.capture.sqlite.database",
        "psycopg",
        "pyarrow.csv",
        __name__,
    ]
)
KILLS_OF_A_LIFE = 15
"""Then another capture begins with a snapshot, so that snapshots are killed, too."""
LIFE_SECONDS = 0.4


def capture(folder, name, opened, ready):
    with EmbeddedLog(folder) as log, Capture(log, name, opened) as running:
        ready.send(True)
        running.run(threading.Event())


def capture_postgres(folder, name, dsn, tables, ready):
    postgres_steps.CHUNK_ROWS = 1
    capture(folder, name, partial(PostgresDatabase, dsn, {table: table for table in tables}), ready)


def capture_mariadb(folder, name, dsn, tables, ready):
    mariadb_steps.CHUNK_ROWS = 1
    capture(folder, name, partial(MariadbDatabase, dsn, {table: table for table in tables}), ready)


def capture_sqlite(folder, name, path, tables, ready):
    sqlite.CHUNK_ROWS = 5
    capture(folder, name, partial(sqlite.SqliteDatabase, Path(path), {table: table for table in tables}), ready)


def kill_captures(kills, work, target, *arguments):
    """Kills a capture while others write: every other one at any time after its start, else after it was ready.

    One that ends by itself fails the test.
    """
    chance = random.Random(str(arguments[1]))
    for number in range(kills):
        ready, told = context.Pipe(duplex=False)
        process = context.Process(target=target, args=(*arguments, told))
        process.start()
        told.close()
        with closing(ready):
            if number % 2:
                until(lambda ready=ready: ready.poll(0.1), "the capture to start")
            deadline = time.monotonic() + chance.uniform(0, LIFE_SECONDS)
            while time.monotonic() < deadline:
                work.run(1)
            process.kill()
            process.join()
        assert process.exitcode == -signal.SIGKILL
        work.run(2)


def lives(kills):
    """How often each of several captures is killed."""
    return [min(KILLS_OF_A_LIFE, kills - start) for start in range(0, kills, KILLS_OF_A_LIFE)]
