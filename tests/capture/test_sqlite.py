"""Capture of SQLite: a topic replayed is the table itself, whatever happened to the table and to the capture."""

import random
import sqlite3
from contextlib import closing, suppress
from functools import partial

import pyarrow as pa
import pytest

import millstream as ms
from millstream.capture.capturing import Capture
from millstream.capture.sqlite import database
from millstream.capture.sqlite.database import SqliteDatabase
from millstream.connectors.opening import open_source
from millstream.errors import AlreadyExists, InvalidInput, MillstreamError, NotFound, OffsetLost, ProducerFenced
from millstream.log import EmbeddedLog

from .killed import capture_sqlite, kill_captures
from .support import Altering, check_altered_tables_have_records, check_transactions, records, replayed

TABLES = """
CREATE TABLE orders (id INTEGER PRIMARY KEY, product TEXT, amount REAL, email TEXT UNIQUE, raw BLOB);
CREATE TABLE tags (name TEXT COLLATE NOCASE, place INT, PRIMARY KEY (name, place)) WITHOUT ROWID;
CREATE TABLE codes (code TEXT PRIMARY KEY, n INT);
CREATE TABLE notes (text TEXT);
"""
KEYS = {
    "orders": lambda row: row["id"],
    "tags": lambda row: (row["name"], row["place"]),
    "codes": lambda row: row["code"],
    "notes": lambda row: row["rowid"],
}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(TABLES)
    return path


def capture(log, path, *tables, name="app", **settings):
    topics = {table: table for table in tables or KEYS}
    return Capture(log, name, partial(_opened, path, topics, settings))


def _opened(path, topics, settings, name):
    return SqliteDatabase(path, topics, name, **settings)


def connected(path):
    return closing(sqlite3.connect(path, isolation_level=None))


def table(db, name):
    """By key, as `replayed` returns it."""
    select = "SELECT *, rowid FROM notes" if name == "notes" else f"SELECT * FROM {name}"
    cursor = db.execute(select)
    names = [column[0] for column in cursor.description]
    rows = [dict(zip(names, row, strict=True)) for row in cursor]
    return {KEYS[name](row): row for row in rows}


def check_equal(log, db):
    for name, key in KEYS.items():
        changes = records(log, name)
        assert replayed(changes, key) == table(db, name)
        check_transactions(changes)


# ---------------------------------------------------------------- what is captured


def test_a_snapshot_then_every_change_with_its_images(log, path) -> None:
    with connected(path) as db:
        db.execute("INSERT INTO orders VALUES (1, 'tea', 2.5, NULL, x'00ff')")
    with connected(path) as db, capture(log, path, "orders") as running:
        running.catch_up()
        db.execute("BEGIN")
        db.execute("UPDATE orders SET amount = 3 WHERE id = 1")
        db.execute("UPDATE orders SET id = 2")
        db.execute("COMMIT")
        running.catch_up()
        version = running.position["schema"]
    row = {"id": 1, "product": "tea", "amount": 2.5, "email": None, "raw": b"\x00\xff"}
    more, moved = row | {"amount": 3.0}, row | {"amount": 3.0, "id": 2}
    found = [
        (r["op"], r["before"], r["after"], r["key"], r["transaction"], r["number"]) for r in records(log, "orders")
    ]
    assert found == [
        ("snapshot", None, row, "1", f"snapshot {version}.0 orders.0", 0),
        ("update", row, more, "1", "1", 0),
        ("delete", more, None, "1", "1", 1),
        ("insert", None, moved, "2", "1", 2),
    ]


def test_rows_that_replace_removes_are_deleted(log, path) -> None:
    """Goal: SQLite fires no trigger for them, unless recursive_triggers is on; and never two changes for one row."""
    for recursive in ("off", "on"):
        with connected(path) as db, capture(log, path, "orders", "tags", "codes", "notes") as running:
            db.execute(f"PRAGMA recursive_triggers = {recursive}")
            db.execute("DELETE FROM orders")
            db.execute("INSERT INTO orders VALUES (1, 'tea', 1, 'a', NULL), (2, 'tea', 1, 'b', NULL)")
            db.execute("INSERT OR REPLACE INTO orders VALUES (3, 'milk', 1, 'a', NULL)")
            db.execute("UPDATE OR REPLACE orders SET email = 'a' WHERE id = 2")
            db.execute("INSERT OR IGNORE INTO orders VALUES (2, 'x', 1, 'c', NULL)")
            db.execute("INSERT INTO orders VALUES (2, 'x', 1, 'c', NULL) ON CONFLICT (id) DO UPDATE SET product = 'y'")
            db.execute("REPLACE INTO tags VALUES ('Red', 1), ('red', 1), ('blue', 1)")
            db.execute("REPLACE INTO codes VALUES ('a', 1), ('a', 2)")
            running.catch_up()
            check_equal(log, db)


def test_rolled_back_changes_are_not_captured(log, path) -> None:
    with connected(path) as db, capture(log, path) as running:
        db.execute("BEGIN")
        db.execute("INSERT INTO notes VALUES ('no')")
        running.step()
        db.execute("ROLLBACK")
        db.execute("INSERT INTO notes VALUES ('yes')")
        running.catch_up()
    assert [record["after"]["text"] for record in records(log, "notes")] == ["yes"]


def test_a_new_column_is_added_to_the_topic_and_the_table_read_again(log, path) -> None:
    with connected(path) as db, capture(log, path, "codes") as running:
        db.execute("INSERT INTO codes VALUES ('a', 1), ('b', 2)")
        running.catch_up()
        db.execute("ALTER TABLE codes ADD COLUMN note TEXT DEFAULT 'none'")
        db.execute("UPDATE codes SET note = 'new' WHERE code = 'a'")
        db.execute("DELETE FROM codes WHERE code = 'b'")
        running.catch_up()
        db.execute("ALTER TABLE codes RENAME COLUMN n TO m")
        running.catch_up()
        assert log.topic("codes").settings.schema.field("after").type.names == ["code", "n", "note", "m"]
        rows = replayed(records(log, "codes"), KEYS["codes"])
    assert rows == {"a": {"code": "a", "m": 1, "note": "new", "n": None}}


@pytest.mark.parametrize("is_running", [True, False])
def test_a_table_that_was_created_again_stops_the_capture(log, path, is_running) -> None:
    """Goal: not even if it has the same columns. That is how SQLite's documentation changes a key or a constraint."""
    with connected(path) as db:
        with capture(log, path, "codes", "notes") as running:
            running.catch_up()
            db.executescript(
                "CREATE TABLE new (code TEXT, n INT PRIMARY KEY); INSERT INTO new SELECT * FROM codes; "
                "DROP TABLE codes; ALTER TABLE new RENAME TO codes; INSERT INTO codes VALUES ('a', 1)"
            )
            if is_running:
                with pytest.raises(OffsetLost, match="codes was dropped and created again"):
                    running.catch_up()
        with pytest.raises(OffsetLost, match="codes was dropped and created again"):
            capture(log, path, "codes", "notes")
        with capture(log, path, "notes") as running:
            running.catch_up()


def test_two_captures_of_a_database_do_not_disturb_each_other(log, path) -> None:
    with (
        connected(path) as db,
        capture(log, path, "notes") as one,
        Capture(log, "other", partial(_opened, path, {"notes": "copy"}, {})) as other,
    ):
        one.catch_up()
        version = db.execute("PRAGMA schema_version").fetchone()
        db.execute("INSERT INTO notes VALUES ('hello')")
        for running in (one, other, one, other):
            running.catch_up()
        assert db.execute("PRAGMA schema_version").fetchone() == version
    assert len(records(log, "notes")) == len(records(log, "copy")) == 1


def test_recorded_changes_are_removed_once_the_log_has_them(log, path) -> None:
    with connected(path) as db, capture(log, path) as running:
        running.catch_up()
        db.execute("INSERT INTO notes VALUES ('hello')")
        running.catch_up()
        assert db.execute("SELECT count(*) FROM _millstream_changes_app").fetchone() == (0,)
        running.database.remove()
        left = db.execute("SELECT name FROM sqlite_master WHERE name LIKE '%millstream%'").fetchall()
    assert left == []


# ---------------------------------------------------------------- what is refused


def test_a_mistake_is_reported_before_anything_is_changed(log, path, tmp_path) -> None:
    with pytest.raises(NotFound, match="there is no such file"):
        capture(log, tmp_path / "none.db", "orders")
    with pytest.raises(NotFound, match="there is no table 'ordres'") as missing:
        capture(log, path, "ordres")
    assert "orders" in missing.value.next_step
    (tmp_path / "text.db").write_text("not a database, but long enough to be looked at as if it were one" * 20)
    with pytest.raises(MillstreamError, match="not a database"):
        capture(log, tmp_path / "text.db", "orders")
    assert log.topics() == []
    with connected(path) as db:
        assert not db.execute("SELECT name FROM sqlite_master WHERE name LIKE '%millstream%'").fetchall()


def test_a_topic_with_other_records_is_refused(log, path) -> None:
    log.create_topic("codes")
    with log.producer() as producer:
        producer.send("codes", b"hello")
    with pytest.raises(AlreadyExists, match="'codes' has records already"):
        capture(log, path, "codes")


def test_a_value_of_another_type_stops_the_capture_and_a_type_helps(log, path) -> None:
    with connected(path) as db:
        db.execute("INSERT INTO codes VALUES ('a', 'many')")
        with capture(log, path, "codes") as running, pytest.raises(InvalidInput, match=r"has 'many'.*not int64"):
            running.catch_up()
        db.execute("UPDATE codes SET n = 2")
        with capture(log, path, "codes") as running:  # again, though the first step was aborted
            running.catch_up()
        assert [change["after"]["n"] for change in records(log, "codes")] == [2]
        with Capture(log, "text", partial(_opened, path, {"codes": "texts"}, {"types": {("codes", "n"): pa.string()}})):
            pass


def test_another_database_under_the_name_is_refused(log, path, tmp_path) -> None:
    with capture(log, path) as running:
        running.catch_up()
    with connected(path) as db:
        db.execute("VACUUM INTO ?", (str(tmp_path / "old.db"),))
        db.execute("INSERT INTO notes VALUES ('hello')")
    with capture(log, path) as running:
        running.catch_up()
    with pytest.raises(OffsetLost, match="older copy"):
        capture(log, tmp_path / "old.db")
    with connected(tmp_path / "old.db") as db:
        for number in range(3):
            db.execute("INSERT INTO notes VALUES (?)", (f"other {number}",))
    with pytest.raises(OffsetLost, match="is not the one that the log has"):
        capture(log, tmp_path / "old.db")
    with closing(sqlite3.connect(tmp_path / "new.db")) as db:
        db.executescript(TABLES)
    with pytest.raises(OffsetLost, match="is not the one"):
        capture(log, tmp_path / "new.db")


def test_a_capture_into_another_log_does_not_take_the_triggers(log, path, tmp_path) -> None:
    """Method: also while the first has not stored a position yet, and after it was removed."""
    with EmbeddedLog(tmp_path / "another") as another, connected(path) as db:

        def refused():
            before = list(db.iterdump())
            with pytest.raises(AlreadyExists, match="'_millstream_changes_app' and its triggers") as found:
                capture(another, path, "notes", "codes")
            assert "--remove" in found.value.next_step
            assert list(db.iterdump()) == before
            assert another.topics() == []

        with capture(log, path, "notes"):
            pass
        refused()
        with capture(log, path, "notes") as running:
            running.catch_up()
        db.execute("INSERT INTO notes VALUES ('hello')")
        refused()
        with capture(log, path, "notes") as running:
            running.catch_up()
            running.database.remove()
        assert len(records(log, "notes")) == 1
        with capture(another, path, "notes") as running:
            running.catch_up()
        assert len(records(another, "notes")) == 1


def test_the_newest_capture_of_a_name_takes_over(log, path) -> None:
    with connected(path) as db, capture(log, path) as old:
        old.catch_up()
        with capture(log, path) as new:
            db.execute("INSERT INTO notes VALUES ('hello')")
            with pytest.raises(ProducerFenced):
                old.step()
            new.catch_up()
    assert len(records(log, "notes")) == 1


# ---------------------------------------------------------------- random work, and kills


class Workload:
    """Random statements, some of which fail, in random transactions, some of which are rolled back."""

    def __init__(self, path, seed):
        self._random = random.Random(seed)
        self._db = sqlite3.connect(path, isolation_level=None, timeout=30)

    def run(self, transactions):
        for _ in range(transactions):
            self._db.execute("BEGIN IMMEDIATE")
            for _ in range(self._random.choice([1, 1, 2, 5, 30])):
                with suppress(sqlite3.IntegrityError):
                    self._db.execute(*self._statement())
            self._db.execute(self._random.choice(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK"]))

    def _statement(self):
        pick, n = self._random.choice, self._random.randrange
        how = pick(["", "", "OR REPLACE", "OR IGNORE"])
        id, text = n(30), pick(["a", "B", "b", "it's", "", None])
        return pick(
            [
                (f"INSERT {how} INTO orders VALUES (?, ?, ?, ?, ?)", (id, text, n(9) / 7, f"m{n(20)}", b"\x00" * n(3))),
                (f"UPDATE {how} orders SET id = ?, email = ? WHERE id = ?", (n(30), f"m{n(20)}", id)),
                ("UPDATE orders SET amount = amount + 0.1 WHERE id % 7 = ?", (n(7),)),
                ("DELETE FROM orders WHERE id = ?", (id,)),
                (f"INSERT {how} INTO tags VALUES (?, ?)", (pick("aAbB"), n(4))),
                (f"UPDATE {how} tags SET place = ? WHERE name = ?", (n(4), pick("aAbB"))),
                ("DELETE FROM tags WHERE name = ? AND place = ?", (pick("ab"), n(4))),
                (f"INSERT {how} INTO codes VALUES (?, ?)", (pick("abcdef"), n(4))),
                (f"UPDATE {how} codes SET code = ? WHERE code = ?", (pick("abcdef"), pick("abcdef"))),
                ("INSERT INTO notes VALUES (?)", (text,)),
                ("DELETE FROM notes WHERE rowid % 5 = ?", (n(5),)),
            ]
        )


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.more) for seed in (2, 3))])
def test_a_random_workload_is_captured_exactly(log, path, seed, monkeypatch) -> None:
    """Method: a snapshot in chunks of a few rows, while the rows change, by captures that end and start again."""
    monkeypatch.setattr(database, "CHUNK_ROWS", 3)
    monkeypatch.setattr(database, "PIECE_ROWS", 2)
    work = Workload(path, seed)
    work.run(20)
    for _ in range(3):
        with capture(log, path) as running:
            for _ in range(4):
                running.step()
                work.run(2)
    with capture(log, path) as running:
        running.catch_up()
    with connected(path) as db:
        check_equal(log, db)


@pytest.mark.parametrize("kills", [pytest.param(6, marks=pytest.mark.more), pytest.param(20, marks=pytest.mark.soak)])
def test_a_killed_capture_loses_and_repeats_nothing(tmp_path, path, kills) -> None:
    work = Workload(path, kills)
    work.run(30)
    kill_captures(kills, work, capture_sqlite, tmp_path / "log", "app", path, list(KEYS))
    with EmbeddedLog(tmp_path / "log") as log:
        with capture(log, path) as running:
            running.catch_up()
        with connected(path) as db:
            check_equal(log, db)


@pytest.fixture
def places(path):
    with connected(path) as db:
        db.execute("CREATE TABLE places (x INT, name TEXT, PRIMARY KEY (x, name))")
        yield db


def test_a_table_that_is_altered_and_not_written_has_a_record(log, path, places) -> None:
    check_altered_tables_have_records(log, places.execute, partial(capture, log, path, "orders", "places"))


@pytest.mark.parametrize("kills", [pytest.param(6, marks=pytest.mark.more), pytest.param(20, marks=pytest.mark.soak)])
def test_a_killed_capture_records_each_change_of_columns_once(tmp_path, path, places, kills) -> None:
    work = Altering(places.execute)
    kill_captures(kills, work, capture_sqlite, tmp_path / "log", "app", path, ["orders", "places"])
    with EmbeddedLog(tmp_path / "log") as log:
        with capture(log, path, "orders", "places") as running:
            running.catch_up()
            work.alter()  # all others may have come before the capture began
            running.catch_up()
        work.check_records(log, "app")


@pytest.mark.more
def test_a_capture_into_kafka(kafka_log, path) -> None:
    """Goal: it continues on Kafka as on the embedded log."""
    own = f"notes-{path.parent.name}"
    opened = partial(_opened, path, {"notes": own}, {})
    for text in ("one", "two"):
        with connected(path) as db, Capture(kafka_log, own, opened) as running:
            running.catch_up()
            db.execute("INSERT INTO notes VALUES (?)", (text,))
            running.catch_up()
    changes = records(kafka_log, own)
    assert [(change["op"], change["after"]["text"]) for change in changes] == [("insert", "one"), ("insert", "two")]
    assert replayed(changes, KEYS["notes"]).keys() == {1, 2}


# ---------------------------------------------------------------- as a source


def rows_of(source, start=None):
    found = []
    for task in source.slices(start or source.earliest(), source.latest(), tasks=2):
        for piece in task:
            for slab in source.read(piece):
                found += slab.rows.to_pylist()
    return found


def test_changes_are_a_source_that_continues(path, tmp_path) -> None:
    endpoint = ms.sqlite_changes(path, tables=["orders"])
    schema = endpoint.own_schema(None)

    def opened():
        return open_source(endpoint, schema, broker=None, folder=tmp_path / "job", name="orders")

    with connected(path) as db:
        db.execute("INSERT INTO orders VALUES (1, 'tea', 2.5, NULL, NULL)")
        source = opened()
        assert [row["op"] for row in rows_of(source)] == ["snapshot"]
        reached = source.latest()
        db.execute("UPDATE orders SET amount = 3")
        assert source.wait(reached, 60)
        assert [row["op"] for row in rows_of(source, reached)] == ["update"]
        source.close()
        db.execute("ALTER TABLE orders ADD COLUMN more TEXT")
        source = opened()
        assert [row["op"] for row in rows_of(source)] == ["snapshot", "update", "snapshot"]
        source.close()


def test_a_flow_reads_one_table_and_knows_its_columns(path) -> None:
    flow = ms.Flow("f")
    changes = flow.read(ms.sqlite_changes(path, tables=["orders"]), event_time="at")
    assert "after" in changes.schema.names
    orders = flow.table(ms.sqlite_changes(path, tables="orders"))
    assert orders.is_table
    assert orders.schema.names == ("id", "product", "amount", "email", "raw")
    with pytest.raises(InvalidInput, match="from one table"):
        flow.table(ms.sqlite_changes(path, tables=["orders", "codes"]))
    with pytest.raises(InvalidInput, match="at least one"):
        ms.sqlite_changes(path, tables=[])
    with pytest.raises(NotFound, match="there is no table"):
        flow.read(ms.sqlite_changes(path, tables=["none"]))
