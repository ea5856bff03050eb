"""Capture of Postgres: a topic replayed is the table itself, whatever happened to the table and to the capture."""

import json
import threading
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from functools import partial

import psycopg
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from millstream.capture.capturing import Capture
from millstream.capture.postgres import pgoutput
from millstream.capture.postgres.database import PostgresDatabase
from millstream.capture.postgres.slots import check, slots
from millstream.cli.app import app
from millstream.errors import (
    AlreadyExists,
    InvalidInput,
    MillstreamError,
    NotFound,
    OffsetLost,
    SourceUnavailable,
    StorageError,
)
from millstream.log import EmbeddedLog
from postgres_server import Server
from waiting import until

from .conftest import POSTGRES_TABLES
from .killed import capture_postgres, kill_captures, lives
from .support import captured_postgres as capture
from .support import (
    check_columns_may_change,
    check_first_changes,
    check_transactions,
    records,
    remove_slots,
    wait_until_free,
)
from .workload import KEYS, Workload, captured_while_written, check_equal


def rows(db, table):
    cursor = db.execute(f"SELECT * FROM {table}")
    names = [each.name for each in cursor.description]
    return {KEYS[table](row): row for row in (dict(zip(names, values, strict=True)) for values in cursor)}


# ---------------------------------------------------------------- what is captured


def test_a_snapshot_then_every_change_in_commit_order(log, db, dsn) -> None:
    db.execute("INSERT INTO orders VALUES (1, 'tea', 2.5, '{a,NULL}')")
    with capture(log, dsn, "orders", "places", "notes") as running:
        running.catch_up()
        with db.transaction():
            db.execute("UPDATE orders SET amount = 3 WHERE id = 1")
            db.execute("INSERT INTO places VALUES (1, 'here')")
        with suppress(ZeroDivisionError), db.transaction():
            db.execute("DELETE FROM orders")
            raise ZeroDivisionError
        db.execute("UPDATE places SET x = 2")
        db.execute("INSERT INTO notes VALUES ('hello'), (NULL)")
        db.execute("TRUNCATE notes")
        running.catch_up()
    tea = {"id": 1, "product": "tea", "amount": Decimal("2.50"), "tags": ["a", None]}
    check_first_changes(log, tea, Decimal("3.00"), "here")


def test_a_large_value_that_was_not_sent_is_marked(log, db, dsn) -> None:
    db.execute("CREATE TABLE pages (id int PRIMARY KEY, title text, body text)")
    db.execute("ALTER TABLE pages ALTER body SET STORAGE EXTERNAL")
    db.execute("INSERT INTO pages VALUES (1, 'a', repeat('x', 10000))")
    with capture(log, dsn, "pages") as running:
        running.catch_up()
        db.execute("UPDATE pages SET title = 'b'")
        db.execute("ALTER TABLE pages REPLICA IDENTITY FULL")
        db.execute("UPDATE pages SET title = 'c'")
        running.catch_up()
    _, unsent, whole = records(log, "pages")
    assert (unsent["unsent"], unsent["after"]["body"]) == (["body"], None)
    assert (whole["unsent"], whole["after"]["body"]) == (None, "x" * 10000)


def test_columns_may_change(log, db, dsn) -> None:
    """Goal: also while no capture runs, so that the change log has rows with the old columns before the new ones."""
    meanwhile = """
        INSERT INTO orders VALUES (1, 'tea');
        ALTER TABLE orders ADD COLUMN more text, ALTER id TYPE bigint;
        INSERT INTO orders VALUES (3000000000, 'milk', 1, NULL, 'x');
    """
    between = """
        INSERT INTO orders VALUES (2, 'jam', 1, NULL, 'y');
        ALTER TABLE orders DROP COLUMN tags, ADD COLUMN extra int;
        INSERT INTO orders VALUES (4, 'egg', 1, 'z', 5);
    """
    check_columns_may_change(log, db, partial(capture, log, dsn, "orders"), meanwhile, between)
    with capture(log, dsn, "orders") as running:
        db.execute("ALTER TABLE orders ALTER product TYPE int USING NULL")
        db.execute("INSERT INTO orders VALUES (5, 7)")
        with pytest.raises(InvalidInput, match="do not fit the topic 'orders'"):
            running.catch_up()
    with capture(log, dsn, "places", name="places") as running:
        running.catch_up()
        db.execute("ALTER TABLE places RENAME x TO y; INSERT INTO places VALUES (1, 'here')")
        with pytest.raises(InvalidInput, match="key of table 'places', x, name, was renamed"):
            running.catch_up()


@pytest.mark.more
def test_the_slot_moves_past_what_the_log_has_and_on_a_quiet_database(log, db, dsn, monkeypatch) -> None:
    monkeypatch.setattr("millstream.capture.postgres.database.BEAT_SECONDS", 0.0)
    with capture(log, dsn, "orders") as running:
        running.catch_up()
        slot = running.database.slot

        def confirmed():
            running.step(0.05)
            behind = "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
            return db.execute(behind, (target, slot)).fetchone()[0]

        for statement in ("INSERT INTO orders VALUES (1)", "CREATE TABLE other AS SELECT generate_series(1, 100)"):
            db.execute(statement)
            target = db.execute("SELECT pg_current_wal_lsn()::text").fetchone()[0]
            until(confirmed, "the slot has moved")
    with capture(log, dsn, "orders") as running:
        running.catch_up()
    assert len(records(log, "orders")) == 1


def test_logical_messages_have_a_topic_of_their_own(log, db, dsn) -> None:
    """Goal: each once, also after a restart; those of a transaction that was rolled back do not exist."""
    own = f"app_{dsn.rpartition('/')[2][-12:]}"
    emit = "SELECT pg_logical_emit_message(%s, %s, %s)"
    for start in (1, 2):
        with Capture(log, own, partial(PostgresDatabase, dsn, {"orders": "orders"}, messages="signals")) as running:
            running.catch_up()
            with db.transaction():
                db.execute("INSERT INTO orders VALUES (%s)", (start,))
                db.execute(emit, (True, "order", f"made {start}"))
            with suppress(ZeroDivisionError), db.transaction():
                db.execute(emit, (True, "order", "undone"))
                raise ZeroDivisionError
            db.execute(emit, (False, "cache", f"clear {start}"))
            running.catch_up()
    found = records(log, "signals")
    assert [(each["op"], each["key"], each["after"]["content"]) for each in found] == [
        ("message", "order", b"made 1"),
        ("message", "cache", b"clear 1"),
        ("message", "order", b"made 2"),
        ("message", "cache", b"clear 2"),
    ]
    assert [found[0]["transaction"], found[2]["transaction"]] == [
        each["transaction"] for each in records(log, "orders")
    ]
    check_transactions(found)


# ---------------------------------------------------------------- what is refused


def test_a_mistake_is_reported_before_anything_is_changed(log, db, dsn) -> None:
    user = f"u{dsn[-12:]}"
    db.execute(f"CREATE ROLE {user} LOGIN; GRANT SELECT ON orders TO {user}")
    as_user = dsn.replace("millstream@", f"{user}@")
    db.execute("CREATE TABLE keyless (n int); CREATE VIEW seen AS SELECT 1 AS n")
    db.execute("CREATE TABLE boards (id int PRIMARY KEY, fields int[][])")

    def refused(error, match, table="orders", address=dsn, types=None):
        with pytest.raises(error, match=match) as found:
            capture(log, address, table, types=types)
        assert found.value.next_step

    refused(InvalidInput, "may not replicate", address=as_user)
    db.execute(f"ALTER ROLE {user} REPLICATION")
    refused(InvalidInput, "may not create a publication", address=as_user)
    db.execute(f"GRANT CREATE ON DATABASE {dsn.rpartition('/')[2]} TO {user}")
    refused(InvalidInput, "does not own", address=as_user)
    refused(InvalidInput, "may not read", "places", address=as_user)
    refused(NotFound, "there is no table 'ordres'", "ordres")
    refused(InvalidInput, "is not a table name", "a.b.c")
    refused(InvalidInput, "is not a permanent table", "seen")
    refused(InvalidInput, "has no key", "keyless")
    refused(InvalidInput, "'fields' of table 'boards' is an array of 2 dimensions", "boards")
    refused(NotFound, "'orders' has no column 'amuont'", types={("orders", "amuont"): pa.string()})
    refused(InvalidInput, "'places' is not captured", types={("places", "x"): pa.string()})
    refused(MillstreamError, "cannot be captured", address=dsn + "x")
    assert log.topics() == []
    assert not db.execute("SELECT 1 FROM pg_publication").fetchall()
    assert not db.execute("SELECT 1 FROM pg_replication_slots WHERE database = current_database()").fetchall()
    db.execute(f"DROP OWNED BY {user}; DROP ROLE {user}")


@pytest.mark.more
def test_a_server_without_logical_replication_is_refused(log) -> None:
    server = Server(wal_level="replica")
    try:
        dsn = server.new_database()
        with psycopg.connect(dsn, autocommit=True) as db:
            db.execute(POSTGRES_TABLES)
        with pytest.raises(InvalidInput, match="wal_level is 'replica'") as refused:
            capture(log, dsn, "orders")
        assert "wal_level = logical" in refused.value.next_step
    finally:
        server.close()
    assert log.topics() == []


def everything(db, slot, log):
    """What a capture could have changed: the publication, the slot, and the topics."""
    published = db.execute("SELECT * FROM pg_publication_tables ORDER BY 1, 2, 3").fetchall()
    of_slot = (
        "SELECT plugin, active_pid, restart_lsn, confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s"
    )
    counts = {topic: len(records(log, topic)) for topic in log.topics()}
    return published, db.execute(of_slot, (slot,)).fetchall(), counts


def test_a_slot_in_use_and_a_lost_slot_are_refused(log, db, dsn, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("millstream.capture.postgres.database.FREE_SECONDS", 0.2)
    with capture(log, dsn, "orders") as running:
        running.catch_up()
        running.step(0.05)
        slot = running.database.slot
        with EmbeddedLog(tmp_path / "another") as another:
            for into, error, reason in (
                (log, SourceUnavailable, "is in use by process"),
                (another, AlreadyExists, "made by another capture"),
            ):
                before = everything(db, slot, into)
                with pytest.raises(error, match=reason):
                    capture(into, dsn, "orders", "places")
                assert everything(db, slot, into) == before
            assert another.topics() == []
        db.execute("INSERT INTO orders VALUES (0)")
        running.catch_up()
        assert [each["after"]["id"] for each in records(log, "orders")] == [0]
    wait_until_free(db, slot)
    db.execute("INSERT INTO orders VALUES (1)")
    db.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (slot,))
    with pytest.raises(OffsetLost, match="the log is an older copy"):
        capture(log, dsn, "orders")
    db.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    with pytest.raises(OffsetLost, match="was dropped"):
        capture(log, dsn, "orders")


def test_a_capture_into_another_log_does_not_take_the_slot(log, db, dsn, tmp_path) -> None:
    """Method: no capture runs, so the slot is free; also while the first has not stored a position yet."""
    with EmbeddedLog(tmp_path / "another") as another:

        def refused(slot):
            wait_until_free(db, slot)
            before = everything(db, slot, another)
            with pytest.raises(AlreadyExists, match=f"the slot '{slot}' and its publication") as found:
                capture(another, dsn, "orders", "places")
            assert "--remove" in found.value.next_step
            assert "--name" in found.value.next_step
            assert everything(db, slot, another) == before
            assert another.topics() == []

        with capture(log, dsn, "orders") as running:
            slot = running.database.slot
        refused(slot)
        with capture(log, dsn, "orders") as running:
            running.catch_up()
        db.execute("INSERT INTO orders VALUES (1)")
        refused(slot)
        with capture(log, dsn, "orders") as running:
            running.catch_up()
        assert [each["after"]["id"] for each in records(log, "orders")] == [1]
        wait_until_free(db, slot)
        with capture(another, dsn, "orders", name="other") as running:
            running.catch_up()
        assert records(another, "orders")[0]["after"]["id"] == 1


def test_a_slot_that_another_log_has_now_is_not_read(log, db, dsn, tmp_path) -> None:
    """Method: the capture is removed, and made again into another log, before the first log continues."""
    with capture(log, dsn, "orders") as running:
        running.catch_up()
    slot, name = running.database.slot, running.name
    wait_until_free(db, slot)
    left = PostgresDatabase(dsn, {}, name)
    assert left.remove()
    left.close()
    with EmbeddedLog(tmp_path / "another") as another:
        with capture(another, dsn, "orders") as running:
            running.catch_up()
        wait_until_free(db, slot)
        before = everything(db, slot, log)
        with pytest.raises(OffsetLost, match="made again by another capture"):
            capture(log, dsn, "orders")
        assert everything(db, slot, log) == before
        db.execute("INSERT INTO orders VALUES (1)")
        with capture(another, dsn, "orders") as running:
            running.catch_up()
        assert [each["after"]["id"] for each in records(another, "orders")] == [1]


def test_a_capture_of_an_older_version_continues(log, db, dsn) -> None:
    """Method: without the comment on its publication, and without an owner in the log."""
    with capture(log, dsn, "orders") as running:
        running.catch_up()
        name, position = running.name, running.position
    slot = running.database.slot
    wait_until_free(db, slot)
    db.execute(f"COMMENT ON PUBLICATION {slot} IS NULL; INSERT INTO orders VALUES (1)")
    with log.producer() as producer:
        old = {key: value for key, value in position.items() if key != "owner"}
        producer.send(f"_capture.{name}", json.dumps(old), key=name)
    for id in (2, 3):
        with capture(log, dsn, "orders") as running:
            running.catch_up()
        db.execute("INSERT INTO orders VALUES (%s)", (id,))
        wait_until_free(db, slot)
    assert [each["after"]["id"] for each in records(log, "orders")] == [1, 2]


def test_a_table_that_is_dropped_stops_the_capture(log, db, dsn, monkeypatch) -> None:
    monkeypatch.setattr("millstream.capture.postgres.database.LOOK_SECONDS", 0.0)
    with capture(log, dsn, "orders", "places") as running:
        running.catch_up()
        db.execute("DROP TABLE places; CREATE TABLE places (x int PRIMARY KEY)")
        with pytest.raises(OffsetLost, match="places was dropped"):
            running.catch_up()


def test_what_the_server_keeps_for_a_slot_is_shown_and_limited(log, db, dsn) -> None:
    assert slots(dsn) == []
    with capture(log, dsn, "orders") as running:
        running.catch_up()
        name = running.database.slot
        (reading,) = slots(dsn)
        assert (reading.name, reading.is_active) == (name, True)
    wait_until_free(db, name)
    db.execute("INSERT INTO orders SELECT n, repeat('x', 1000) FROM generate_series(1, 1000) n")
    (left,) = slots(dsn)
    assert (left.is_active, left.status) == (False, "reserved")
    assert left.retained_bytes >= left.lag_bytes > 1_000_000
    check(dsn, [left], left.retained_bytes)
    with pytest.raises(StorageError, match=f"for the slot '{name}', more than the limit") as refused:
        check(dsn, [left], left.retained_bytes - 1)
    assert refused.value.next_step
    with pytest.raises(StorageError, match="has lost changes"):
        check(dsn, [replace(left, status="lost")], 1 << 60)
    shown = CliRunner().invoke(app, ["--json", "capture", "slots", dsn, "--limit", "1KB"])
    assert shown.exit_code != 0
    assert json.loads(shown.stdout)[0]["name"] == name


def test_remove_leaves_nothing_in_the_database(log, db, dsn) -> None:
    with capture(log, dsn, "orders") as running:
        running.catch_up()
    name = running.name
    left = PostgresDatabase(dsn, {}, name)
    wait_until_free(db, left.slot)
    assert left.remove()
    assert not left.remove()
    left.close()
    assert not db.execute("SELECT 1 FROM pg_publication").fetchall()


def test_a_message_of_a_relation() -> None:
    relation = b"R\0\0\0\x07public\0orders\0d\0\x01\x01id\0\0\0\0\x17\xff\xff\xff\xff"
    columns = (pgoutput.Column("id", 23, -1, True),)
    assert pgoutput.decoded(relation) == pgoutput.Relation(7, "public", "orders", "d", columns)


# ---------------------------------------------------------------- random work, and kills


class PostgresWorkload(Workload):
    def __init__(self, dsn, seed):
        super().__init__(seed)
        self._db = psycopg.connect(dsn, autocommit=True, options="-c deadlock_timeout=10ms")

    def run(self, transactions):
        refused = (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected)
        for _ in range(transactions):
            with suppress(ZeroDivisionError), self._db.transaction():
                for statement in self.statements(["x"] * self.random.randrange(3)):
                    with suppress(*refused), self._db.transaction():
                        self._db.execute(*statement)
                if self.is_rolled_back():
                    raise ZeroDivisionError


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.more) for seed in (1, 2)])
def test_a_random_workload_is_captured_exactly(log, db, dsn, seed, monkeypatch) -> None:
    """Method: a snapshot in chunks of a few rows, by captures that end and start again, while others write."""
    monkeypatch.setattr("millstream.capture.postgres.steps.CHUNK_ROWS", 2)
    monkeypatch.setattr("millstream.capture.stream_steps.PIECE_ROWS", 7)
    monkeypatch.setattr("millstream.capture.stream_steps.STEP_CHANGES", 20)
    work = PostgresWorkload(dsn, seed), PostgresWorkload(dsn, -seed)
    captured_while_written(partial(capture, log, dsn, "orders", "places"), *work)
    check_equal(log, partial(rows, db))


def test_a_table_can_be_added_when_a_capture_starts_again(log, db, dsn) -> None:
    """Method: a transaction that has changed the table before, and ends after it was published."""
    db.execute("INSERT INTO places VALUES (1, 'here')")
    with capture(log, dsn, "orders") as running:
        running.catch_up()
    with psycopg.connect(dsn) as other:
        other.execute("INSERT INTO places VALUES (2, 'there')")
        with capture(log, dsn, "orders", "places") as running:
            db.execute("INSERT INTO places VALUES (3, 'far')")
            thread = threading.Thread(target=running.catch_up)
            thread.start()
            other.commit()
            thread.join()
    check_equal(log, partial(rows, db))


@pytest.mark.parametrize("kills", [pytest.param(20, marks=pytest.mark.more), pytest.param(300, marks=pytest.mark.soak)])
def test_a_killed_capture_loses_and_repeats_nothing(tmp_path, db, dsn, kills) -> None:
    work, tables = PostgresWorkload(dsn, kills), ["orders", "places"]
    work.run(20)
    for life, killed in enumerate(lives(kills)):
        folder, name = tmp_path / f"log{life}", f"app{life}_{dsn.rpartition('/')[2][-12:]}"
        kill_captures(killed, work, capture_postgres, folder, name, dsn, tables)
        with EmbeddedLog(folder) as log:
            with capture(log, dsn, *tables, name=f"app{life}") as running:
                running.catch_up()
            check_equal(log, partial(rows, db))
        remove_slots(db)


@pytest.mark.more
def test_a_broken_connection_is_restored(log, db, dsn) -> None:
    with capture(log, dsn, "orders") as running:
        running.catch_up()
        before, stop = running.database, threading.Event()
        thread = threading.Thread(target=running.run, args=(stop,))
        thread.start()
        others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        db.execute(f"SELECT pg_terminate_backend(pid) {others}")
        db.execute("INSERT INTO orders VALUES (1)")
        until(lambda: running.changes == 1 or not thread.is_alive(), "the change is captured")
        stop.set()
        thread.join()
        assert running.database is not before
    assert [change["op"] for change in records(log, "orders")] == ["insert"]
