"""Transactions of a database are read as a whole, however many topics and partitions their changes are in."""

import random
import sqlite3
import threading
from collections import defaultdict
from contextlib import closing, suppress
from functools import partial
from itertools import islice

import pyarrow as pa
import pytest

import millstream as ms
from millstream.capture import whole_transactions
from millstream.capture.capturing import Capture
from millstream.capture.changes import INSERT, Change, TableShape
from millstream.capture.ports import Piece
from millstream.capture.postgres.database import PostgresDatabase
from millstream.capture.sqlite.database import SqliteDatabase
from millstream.capture.transactions import LIST, SCHEMA, Tally
from millstream.capture.transactions import records as listed
from millstream.errors import InvalidInput, OffsetLost, ProducerFenced, UnknownTopic
from millstream.records import Schema
from waiting import until

from .support import records
from .test_postgres import PostgresWorkload

TABLES = ["orders", "places"]


def capture(log, dsn, partitions=3):
    name = f"app_{dsn.rpartition('/')[2][-12:]}"
    return Capture(log, name, partial(PostgresDatabase, dsn, {table: table for table in TABLES}), partitions=partitions)


def by_transaction(log):
    """The changes of all topics, put together without the list."""
    found = defaultdict(list)
    for table in TABLES:
        for change in records(log, table):
            found[change["transaction"]].append(change)
    return {id: sorted(changes, key=lambda change: change["number"]) for id, changes in found.items()}


def read_with_breaks(log, name, chance):
    """By readers of a group that end at any time, some before they have committed: then the next reads again."""
    committed = []
    while True:
        with ms.captured_transactions(log, name, TABLES, group="copy") as reader:
            read, most = [], chance.randrange(1, 8)
            for transaction in reader.until_caught_up():
                read.append(transaction)
                if len(read) == most:
                    break
            if not read:
                return committed
            if chance.randrange(3):
                reader.commit()
                committed += read


@pytest.mark.more
def test_transactions_over_topics_and_partitions_are_read_as_a_whole(log, db, dsn, monkeypatch) -> None:
    """Method: a snapshot in small chunks and random changes; read while they are captured, and by a group."""
    monkeypatch.setattr("millstream.capture.postgres.steps.CHUNK_ROWS", 3)
    monkeypatch.setattr("millstream.capture.stream_steps.PIECE_ROWS", 7)
    monkeypatch.setattr("millstream.capture.stream_steps.STEP_CHANGES", 20)
    monkeypatch.setattr(whole_transactions, "POLL_RECORDS", 4)
    work = PostgresWorkload(dsn, 5)
    work.run(10)
    with capture(log, dsn) as running:
        name, live, stop = running.name, [], threading.Event()

        def read():
            with ms.captured_transactions(log, name, TABLES) as reader:
                while not stop.is_set():
                    live.extend(reader.until_caught_up())
                live.extend(reader.until_caught_up())

        reading = threading.Thread(target=read)
        reading.start()
        for _ in range(4):
            running.step(0.1)
            work.run(5)
        running.catch_up()
        work.run(15)
        running.catch_up()
        stop.set()
        reading.join()
    expected = by_transaction(log)
    assert any(len({change["table"] for change in changes}) > 1 for changes in expected.values())
    for found in (live, read_with_breaks(log, name, random.Random(1))):
        assert [each.id for each in found] == list(dict.fromkeys(each.id for each in found))
        assert {each.id: each.changes for each in found} == expected
        assert [each.position for each in found] == sorted(each.position for each in found)


def filled(log, *transactions):
    """A topic with changes, and the list of its transactions: id, position, and how many changes are listed and there.

    The position is that of the first change; those that are listed and not there come first.
    """
    shape = TableShape.of("t", "t", Schema.of("id int"), ["id"])
    log.create_topic("t", schema=shape.envelope)
    log.create_topic(LIST + "app", schema=SCHEMA)
    with log.producer() as producer:
        for id, position, count, there in transactions:
            changes = [Change(INSERT, None, (n,), id, n, position, 0) for n in range(max(count, there))]
            batch = shape.batch(changes, lambda values, field: pa.array(values, field.type))
            if there:
                producer.send_batch("t", batch.slice(len(changes) - there), key="key")
            if count:
                tally = Tally()
                tally.add(Piece(shape, batch.slice(0, count)))
                producer.send_batch(LIST + "app", listed(tally.entries))
    return ms.captured_transactions(log, "app", "t", group="g")


def test_what_retention_has_begun_to_delete_is_left_out_at_the_start(log) -> None:
    with filled(log, ("a", 1, 2, 0), ("b", 2, 3, 1), ("c", 3, 2, 2)) as reader:
        assert [(each.id, len(each.changes)) for each in reader.until_caught_up()] == [("c", 2)]


def test_changes_before_the_list_are_left_out_at_the_start(log) -> None:
    with filled(log, ("a", 1, 0, 2), ("b", 2, 1, 1)) as reader:
        assert [each.id for each in reader.until_caught_up()] == ["b"]


@pytest.mark.parametrize("gap", [(3, 1), (0, 1)])
def test_a_gap_later_is_an_error(log, gap) -> None:
    with filled(log, ("a", 1, 1, 1), ("b", 2, *gap), ("c", 3, 1, 1)) as reader:
        reading = reader.until_caught_up()
        assert next(reading).id == "a"
        with pytest.raises(OffsetLost) as lost:
            next(reading)
        assert lost.value.next_step


def test_the_newest_reader_of_a_group_takes_over(log) -> None:
    with filled(log, ("a", 1, 1, 1), ("b", 2, 1, 1)) as older:
        assert older.poll().id == "a"
        with ms.captured_transactions(log, "app", "t", group="g") as newer:
            with pytest.raises(ProducerFenced):
                older.commit()
            assert [each.id for each in newer.until_caught_up()] == ["a", "b"]
            newer.commit()
    with ms.captured_transactions(log, "app", "t", group="g") as next_one:
        assert next_one.poll() is None


def test_what_is_sent_and_what_is_read_can_be_one_transaction(log) -> None:
    log.create_topic("out")
    with filled(log, ("a", 1, 1, 1)) as reader, log.producer(name="copy") as producer:
        transaction = reader.poll()
        with suppress(ZeroDivisionError), producer.transaction():
            producer.send("out", transaction.id)
            reader.commit(within=producer)
            raise ZeroDivisionError
    with ms.captured_transactions(log, "app", "t", group="g") as reader, log.producer(name="copy") as producer:
        transaction = reader.poll()
        with producer.transaction():
            producer.send("out", transaction.id)
            reader.commit(within=producer)
    with ms.captured_transactions(log, "app", "t", group="g") as reader:
        assert reader.poll() is None
    assert records(log, "out") == [b"a"]


def test_a_reader_that_is_interrupted_commits_whole_transactions_only(log, monkeypatch) -> None:
    with filled(log, ("a", 1, 1, 1), ("b", 2, 3, 3)) as reader:
        assert reader.poll().id == "a"

        def interrupted(part, entry, most, wait_s, take=whole_transactions.Part.take):
            reader._taken += take(part, entry, 1, wait_s)[0]
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(whole_transactions.Part, "take", interrupted)
            with pytest.raises(KeyboardInterrupt):
                reader.poll()
        reader.commit()
        assert len(reader.poll().changes) == 3  # it can go on
    with ms.captured_transactions(log, "app", "t", group="g") as reader:
        assert [(each.id, len(each.changes)) for each in reader.until_caught_up()] == [("b", 3)]


def test_names_with_dots_do_not_share_a_place(log) -> None:
    with filled(log, ("a", 1, 1, 1)):
        pass
    for capture in ("x.y", "x"):
        log.create_topic(LIST + capture, schema=SCHEMA)
    tally = Tally()
    shape = TableShape.of("t", "t", Schema.of("id int"), ["id"])
    changes = [Change(INSERT, None, (0,), "a", 0, 1, 0)]
    tally.add(Piece(shape, shape.batch(changes, lambda values, field: pa.array(values, field.type))))
    with log.producer() as producer:
        for capture in ("x.y", "x"):
            producer.send_batch(LIST + capture, listed(tally.entries))
    for capture, group in (("x.y", "z"), ("x", "y.z")):
        with ms.captured_transactions(log, capture, "t", group=group) as reader:
            assert reader.poll() is not None
            reader.commit()


def test_a_mistake_is_reported(log) -> None:
    with filled(log, ("a", 1, 1, 1)):
        pass
    with pytest.raises(UnknownTopic):
        ms.captured_transactions(log, "other", "t")
    with pytest.raises(InvalidInput, match="different names"):
        ms.captured_transactions(log, "app", ["t", "t"])
    with ms.captured_transactions(log, "app", "t") as reader, pytest.raises(InvalidInput, match="with a group"):
        reader.commit()


@pytest.mark.more
@pytest.mark.xdist_group("kafka")
def test_transactions_are_read_as_a_whole_from_kafka(kafka_log, tmp_path) -> None:
    """Method: two tables, and topics of two partitions; one of the tables is added while the capture is open."""
    path, own = tmp_path / "app.db", f"app-{tmp_path.name}"
    topics = {table: f"{own}.{table}" for table in ("a", "b")}
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for table in topics:
            db.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY)")
        opened = partial(SqliteDatabase, path, {"a": topics["a"]})
        with Capture(kafka_log, own, opened, partitions=2) as running:
            running.catch_up()
            assert not ms.add_to_capture(kafka_log, own, {"b": topics["b"]}, wait_s=0)
            until(lambda: running.step() or "b" in running.position["tables"], "the table is added")
            for start in (0, 10, 20):
                rows = ", ".join(f"({start + n})" for n in range(10))
                db.execute("BEGIN")
                for table in topics:
                    db.execute(f"INSERT INTO {table} VALUES {rows}")
                db.execute("COMMIT")
                running.catch_up()
    read = []
    for most in (1, 5):
        with ms.captured_transactions(kafka_log, own, list(topics.values()), group="g") as reader:
            found = list(islice(reader.until_caught_up(), most))
            reader.commit()
        read += [[(change["table"], change["key"]) for change in each.changes] for each in found]
    assert read == [[(table, str(start + n)) for table in topics for n in range(10)] for start in (0, 10, 20)]
