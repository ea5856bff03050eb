"""What a topic says about a table: replayed, it must be the table itself."""

import random
import threading
import time
from collections import defaultdict
from contextlib import contextmanager

import millstream as ms
from millstream.capture.capturing import Capture
from millstream.capture.postgres.database import PostgresDatabase
from millstream.connectors.opening import open_source
from waiting import until


def records(log, topic):
    with log.consumer(topic) as consumer:
        return [record.value for record in consumer.until_caught_up()]


def replayed(changes, key):
    """The table that the changes add up to. An image before must be what was there, if the database sent it."""
    rows = {}
    for change in changes:
        old, new = change["before"], change["after"]
        if change["op"] == "truncate":
            rows.clear()
        elif change["op"] == "delete":
            assert rows.pop(key(old)) == old
        else:
            if change["op"] == "update":
                assert old in (None, rows[key(new)])
            elif change["op"] == "insert":
                assert key(new) not in rows, change
            rows[key(new)] = new
    return rows


def check_transactions(changes):
    """The changes of a transaction are consecutive and numbered, and positions and times never decrease."""
    ended, newest = set(), None
    numbers = defaultdict(int)
    for before, change in zip([None, *changes], changes, strict=False):
        transaction = change["transaction"]
        if transaction != newest:
            ended.add(newest)
            newest = transaction
        assert transaction not in ended
        assert change["number"] >= numbers[transaction]
        numbers[transaction] = change["number"] + 1
        if before is not None:
            assert before["position"] <= change["position"]
            assert before["at"] <= change["at"]


def check_first_changes(log, order, amount, place):
    """Of tables with one order: its amount changed with a new place, then the place moved and notes were emptied."""
    orders, places, notes = (records(log, topic) for topic in ("orders", "places", "notes"))
    found = [(change["op"], change["before"], change["after"]) for change in orders]
    assert found == [("snapshot", None, order), ("update", order, order | {"amount": amount})]
    here, there = {"x": 1, "name": place}, {"x": 2, "name": place}
    assert [(each["op"], each["key"], each["before"], each["after"]) for each in places] == [
        ("insert", f'["1", "{place}"]', None, here),
        ("delete", f'["1", "{place}"]', here, None),
        ("insert", f'["2", "{place}"]', None, there),
    ]
    assert places[0]["transaction"] == orders[1]["transaction"]
    assert [each["number"] for each in places] == [1, 0, 1]
    assert [(each["op"], each["key"], each["after"]) for each in notes] == [
        ("insert", None, {"text": "hello"}),
        ("insert", None, {"text": None}),
        ("truncate", None, None),
    ]
    check_transactions(places)


def execute_each(db, statements):
    """In a transaction of its own, each."""
    for statement in filter(str.strip, statements.split(";")):
        db.execute(statement)


def capture_during_writes(capturing, programs):
    """Captures while programs write: in several captures that each take a few steps, and one that reads the rest."""
    writers = [threading.Thread(target=program) for program in programs]
    for writer in writers:
        writer.start()
    for _ in range(3):
        with capturing() as running:
            for _ in range(2):
                running.step(0.05)
    for writer in writers:
        writer.join()
    with capturing() as running:
        running.catch_up()


def check_columns_may_change(log, db, capturing, meanwhile, between):
    """Method: statements while a capture runs, and while none does, add the columns `more` and `extra`, and orders."""
    with capturing() as running:
        running.catch_up()
        execute_each(db, meanwhile)
        running.catch_up()
    execute_each(db, between)
    with capturing() as running:
        running.catch_up()
    found = [(each["after"]["id"], each["after"]["more"], each["after"]["extra"]) for each in records(log, "orders")]
    assert found == [(1, None, None), (3000000000, "x", None), (2, "y", None), (4, "z", 5)]


def check_orders_are_a_source(endpoint, columns, db, folder):
    """Of a database with one order, which is deleted."""
    table = ms.Flow("f").table(endpoint)
    assert (table.is_table, table.schema.names) == (True, columns)
    kept = endpoint.as_table(None)
    source = open_source(kept.source, kept.schema, broker=None, folder=folder, name="orders")
    try:
        reached = source.latest()
        db.execute("DELETE FROM orders")
        assert source.wait(reached, 60)
        found = rows_of(source)
    finally:
        source.close()
    assert [(row["id"], row["__op"]) for row in found] == [(1, "snapshot"), (1, "delete")]


def rows_of(source):
    pieces = [piece for task in source.slices(source.earliest(), source.latest(), 1) for piece in task]
    return [row for piece in pieces for slab in source.read(piece) for row in slab.rows.to_pylist()]


def captured_postgres(log, dsn, *tables, name="app", types=None):
    """Slots belong to the server, which tests share: their names have that of the database."""
    own = f"{name}_{dsn.rpartition('/')[2][-12:]}"
    topics = {table: table for table in tables}
    return Capture(log, own, lambda name: PostgresDatabase(dsn, topics, name, types))


def wait_until_free(db, slot):
    idle = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND active_pid IS NULL"
    until(lambda: db.execute(idle, (slot,)).fetchone(), "the slot is free")


def remove_slots(db):
    """Those of a database of Postgres, which would outlive it."""
    slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    for (slot,) in db.execute(slots).fetchall():
        wait_until_free(db, slot)
        db.execute("SELECT pg_drop_replication_slot(%s)", (slot,))


@contextmanager
def running(capture):
    """In a thread, as `millstream capture` runs."""
    stop, failed = threading.Event(), []

    def run():
        try:
            capture.run(stop)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    with capture:
        thread.start()
        try:
            yield capture
        finally:
            stop.set()
            thread.join()
    assert not failed


def check_altered_tables_have_records(log, execute, capturing):
    """Goal: each once, though `places` is not written; while a capture runs, and while none does.

    The row that comes later has no second record, and is in the topic with the new columns.
    """
    with capturing() as running:
        running.catch_up()
        execute("ALTER TABLE places ADD COLUMN one int")
        running.catch_up()
        name = f"_schemas.{running.name}"
        assert len(records(log, name)) == 1
        execute("INSERT INTO orders (id) VALUES (1)")
        running.catch_up()
    for statement in ("ALTER TABLE places RENAME COLUMN one TO two", "INSERT INTO places (x, name) VALUES (1, 'here')"):
        execute(statement)
        with capturing() as running:
            running.catch_up()
    found = records(log, name)
    assert [added_columns(each) for each in found] == [([], ["one"]), (["one"], ["two"])]
    (row,) = (each for each in records(log, "places") if each["op"] == "insert")
    assert row["after"] == {"x": 1, "name": "here", "one": None, "two": None}
    (order,) = (each for each in records(log, "orders") if each["op"] == "insert")
    for column in ("position", "at"):
        assert found[0][column] <= order[column] <= found[1][column] <= row[column]


def added_columns(record):
    """Of a table that had two, before and after."""
    return tuple([column.split()[0] for column in record[side].split(", ")[2:]] for side in ("before", "after"))


class Altering:
    """Adds columns to a table that nobody writes, now and then, while a capture is killed."""

    def __init__(self, execute):
        self.execute = execute
        self.columns = 0

    def run(self, times):
        for _ in range(times):
            time.sleep(0.05)
            if random.random() < 0.3:
                self.alter()

    def alter(self):
        self.execute(f"ALTER TABLE places ADD COLUMN c{self.columns} int")
        self.columns += 1

    def check_records(self, log, capture):
        """Each change of columns is there once: the columns before one are those after the last."""
        found = records(log, f"_schemas.{capture}")
        columns = [added_columns(each) for each in found]
        assert [before for before, _ in columns[1:]] == [after for _, after in columns[:-1]]
        assert all(len(before) < len(after) for before, after in columns)
        assert columns[-1][1] == [f"c{number}" for number in range(self.columns)]
