"""A process that writes batches and is killed at a chosen line of the code that writes them."""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from pathlib import Path

import msgspec
import pyiceberg

import millstream
from millstream.connectors.opening import open_sink  # noqa: F401  loaded before children are forked
from waiting import exit_code_of_child

from .support import SCORES, Target, table, weights

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    [
        "pytest",
        "pandas",
        "psycopg",
        "millstream.connectors.sink",
        "millstream.connectors.topic.sink",
        "millstream.connectors.files.sink",
        "millstream.connectors.databases.sqlite",
        "millstream.connectors.databases.postgres",
        "millstream.connectors.lakes.sink",
        "millstream.connectors.lakes.delta",
        "millstream.connectors.lakes.iceberg",
        "confluent_kafka",
        "deltalake.fs",
        "pyiceberg.catalog.sql",
        "pyiceberg.io.pyarrow",
        __name__,
    ]
)
BATCHES = 5
WATCHED = tuple(
    str(Path(package.__file__).parent / part) + os.sep
    for package, parts in ((millstream, ("connectors", "log")), (pyiceberg, ("catalog", "table")))
    for part in parts
)
"""Iceberg's commit consists of many steps, which are lines of its library; that of Delta is one call."""
IN_TASKS = "in tasks"
"""Instead of a changing stream: rows that tasks prepare, of which the driver commits one attempt each."""


def batch_rows(number, changing):
    """Rows of a batch; a changing stream also takes back and replaces what the batch before sent."""
    rows = [{"team": f"t{team}", "score": 10 * number + team} for team in range(4)]
    if changing in (False, IN_TASKS):
        return rows, None
    back = [] if number == 0 else batch_rows(number - 1, False)[0][:3]
    return back + rows, [-1] * len(back) + [1] * len(rows)


class Fuse:
    """Kills the process at the nth line that it runs in the watched packages, in any thread."""

    def __init__(self, lines):
        self.left = lines
        self.lines = 0

    def trace(self, frame, event, _):
        if not frame.f_code.co_filename.startswith(WATCHED):
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.left:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.trace

    def light(self):
        threading.settrace(self.trace)
        sys.settrace(self.trace)


def write_batches(kind, folder, dsn, key, changing, first, die_at, path):
    """Writes the batches from `first` on; notes each that was written, and how many lines all of it took."""
    fuse = Fuse(die_at)
    fuse.light()
    diary = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sink = Target(kind, folder, dsn, key).open(keys=["team"] if kind in ("topic", "kafka") else ())
    for number in range(first, BATCHES):
        rows, signs = batch_rows(number, changing)
        if changing == IN_TASKS:
            write_in_tasks(sink, number, rows)
        else:
            sink.write(number, table(SCORES, rows), None if signs is None else weights(*signs))
        os.write(diary, b"%d\n" % number)
    sink.close()
    sys.settrace(None)
    os.write(diary, b"lines %d\n" % fuse.lines)


def write_in_tasks(sink, number, rows):
    """Two tasks, the first of which is repeated, and a row that is left to the driver."""
    preparer = pickle.loads(pickle.dumps(sink.preparer()))
    attempts = ((1, rows[:2]), (1, rows[:2]), (2, rows[2:3]))
    receipts = [preparer.prepare(number, shard, table(SCORES, part), None).receipt for shard, part in attempts]
    sent = [msgspec.msgpack.decode(msgspec.msgpack.encode(receipt)) for receipt in receipts]
    sink.write_prepared(number, table(SCORES, rows[3:]), None, sent[1:])


def run(*arguments):
    """The exit code of a child; -9 if it was killed."""
    process = context.Process(target=write_batches, args=arguments, daemon=True)
    process.start()
    return exit_code_of_child(process, "the child that writes batches")
