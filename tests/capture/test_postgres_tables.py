"""Tables of Postgres that are altered while they are captured, and snapshots of which a part was read."""

import multiprocessing
import signal
from contextlib import suppress

import pytest

from millstream.capture.postgres import steps
from millstream.errors import InvalidInput
from millstream.log import EmbeddedLog

from .killed import capture_postgres, kill_captures
from .support import (
    Altering,
    check_altered_tables_have_records,
    check_transactions,
    execute_each,
    records,
    wait_until_free,
)
from .support import captured_postgres as capture

# ---------------------------------------------------------------- keys

NEW_KEY = "ALTER TABLE codes DROP CONSTRAINT codes_pkey, ADD PRIMARY KEY (b)"
REPLACED = {
    "another primary key": (NEW_KEY, r"is \(b\) now, and was \(a\) before"),
    "one more column": (NEW_KEY.replace("(b)", "(a, b)"), r"is \(a, b\) now, and was \(a\) before"),
    "no primary key": ("ALTER TABLE codes DROP CONSTRAINT codes_pkey", r"is none now, and was \(a\) before"),
    "another index": ("ALTER TABLE codes REPLICA IDENTITY USING INDEX codes_b", r"is \(b\) now, and was \(a\) before"),
}


@pytest.fixture
def codes(db):
    db.execute(
        "CREATE TABLE codes (a int PRIMARY KEY, b int NOT NULL, n int); CREATE UNIQUE INDEX codes_b ON codes (b); "
        "INSERT INTO codes VALUES (1, 10, 0)"
    )


@pytest.mark.usefixtures("codes")
@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
@pytest.mark.parametrize("name", REPLACED)
def test_a_key_that_is_replaced_stops_the_capture(log, db, dsn, name, identity) -> None:
    """Goal: rows that differ in the new key only would be one row for those that read the topic."""
    statement, said = REPLACED[name]
    db.execute(f"ALTER TABLE codes REPLICA IDENTITY {identity}")
    with capture(log, dsn, "codes") as running:
        running.catch_up()
        db.execute("INSERT INTO codes VALUES (2, 20, 0)")
        db.execute(statement)
        db.execute("INSERT INTO codes VALUES (3, 30, 0)")
        with pytest.raises(InvalidInput, match=said) as stopped:
            running.catch_up()
        assert "under another name" in stopped.value.next_step
        slot = running.database.slot
    wait_until_free(db, slot)
    before = len(records(log, "codes"))
    with pytest.raises(InvalidInput, match="has no key" if (name, identity) == ("no primary key", "DEFAULT") else said):
        capture(log, dsn, "codes")
    assert len(records(log, "codes")) == before
    with capture(log, dsn, "places", name="other") as running:  # another capture does not mind
        running.catch_up()


@pytest.mark.usefixtures("codes")
def test_a_key_that_is_replaced_before_the_rows_are_read_stops_the_capture(log, db, dsn, monkeypatch) -> None:
    monkeypatch.setattr(steps, "CHUNK_ROWS", 1)
    db.execute("INSERT INTO codes VALUES (2, 20, 0)")
    with capture(log, dsn, "codes") as running:
        running.step()
        db.execute(NEW_KEY)
        with pytest.raises(InvalidInput, match=r"is \(b\) now, and was \(a\) before"):
            running.catch_up()
    assert [each["key"] for each in records(log, "codes")] == ["1"]


def test_the_same_key_in_another_order_goes_on(log, db, dsn) -> None:
    db.execute("INSERT INTO places VALUES (1, 'here')")
    for x in (2, 3):
        with capture(log, dsn, "places") as running:
            running.catch_up()
            if x == 2:
                db.execute("ALTER TABLE places DROP CONSTRAINT places_pkey, ADD PRIMARY KEY (name, x)")
            db.execute("INSERT INTO places VALUES (%s, 'there')", (x,))
            running.catch_up()
    assert [each["key"] for each in records(log, "places")] == ['["1", "here"]', '["2", "there"]', '["3", "there"]']


def test_the_index_that_is_the_replica_identity_is_the_key(log, db, dsn, monkeypatch) -> None:
    """Goal: chunks follow it as well, not the primary key."""
    monkeypatch.setattr(steps, "CHUNK_ROWS", 1)
    db.execute("CREATE TABLE seats (id int PRIMARY KEY, line text NOT NULL, place int NOT NULL, who text)")
    db.execute("CREATE UNIQUE INDEX seats_place ON seats (line, place) INCLUDE (who)")
    db.execute("ALTER TABLE seats REPLICA IDENTITY USING INDEX seats_place")
    db.execute("INSERT INTO seats VALUES (1, 'b', 1, 'ann'), (2, 'a', 2, 'bob')")
    with capture(log, dsn, "seats") as running:
        running.catch_up()
        execute_each(
            db,
            "UPDATE seats SET who = 'eve' WHERE id = 1; UPDATE seats SET id = 3 WHERE id = 2; "
            "UPDATE seats SET place = 5 WHERE id = 3; DELETE FROM seats WHERE id = 1",
        )
        running.catch_up()
    changes = records(log, "seats")
    assert [(each["op"], each["key"], each["after"] and each["after"]["id"]) for each in changes] == [
        ("snapshot", '["a", "2"]', 2),
        ("snapshot", '["b", "1"]', 1),
        ("update", '["b", "1"]', 1),
        ("update", '["a", "2"]', 3),
        ("delete", '["a", "2"]', None),
        ("insert", '["a", "5"]', 3),
        ("delete", '["b", "1"]', None),
    ]
    assert changes[-1]["before"] == {"id": None, "line": "b", "place": 1, "who": None}
    check_transactions(changes)


# ---------------------------------------------------------------- columns


def test_a_column_that_is_renamed_is_a_new_one(log, db, dsn) -> None:
    """Method: while a capture runs, and while none does, between changes with the old name and the new one."""
    db.execute("INSERT INTO orders VALUES (1, 'tea')")
    with capture(log, dsn, "orders") as running:
        running.catch_up()
        execute_each(db, "ALTER TABLE orders RENAME product TO item; INSERT INTO orders VALUES (2, 'milk')")
        running.catch_up()
    execute_each(
        db,
        "UPDATE orders SET item = 'oat' WHERE id = 2; ALTER TABLE orders RENAME item TO what; "
        "INSERT INTO orders VALUES (3, 'jam'); DELETE FROM orders WHERE id = 1",
    )
    with capture(log, dsn, "orders") as running:
        running.catch_up()
    names = ("id", "product", "item", "what")
    found = [tuple((each["after"] or each["before"])[name] for name in names) for each in records(log, "orders")]
    assert found == [
        (1, "tea", None, None),
        (2, None, "milk", None),
        (2, None, "oat", None),
        (3, None, None, "jam"),
        (1, None, None, "tea"),
    ]


# ---------------------------------------------------------------- snapshots


def read_chunks(folder, dsn, chunks, done):
    """A capture that is in the middle of its snapshot for as long as it lives."""
    steps.CHUNK_ROWS = 2
    with EmbeddedLog(folder) as log, capture(log, dsn, "orders") as running:
        for _ in range(chunks):
            running.step()
        done.send(None)
        signal.pause()


def test_chunks_that_were_read_are_not_read_again_after_a_kill(tmp_path, db, dsn, monkeypatch) -> None:
    """Method: what the server sends to the next capture is compared with the rows of the chunks that were left."""
    db.execute("INSERT INTO orders SELECT n, 'first' FROM generate_series(1, 9) n")
    context = multiprocessing.get_context("spawn")
    told, tells = context.Pipe(duplex=False)
    process = context.Process(target=read_chunks, args=(tmp_path / "log", dsn, 3, tells))
    process.start()
    told.recv()
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    db.execute("UPDATE orders SET product = 'second' WHERE id IN (2, 8)")

    sent = []
    copied = steps.copied
    monkeypatch.setattr(steps, "copied", lambda *given: (sent.append(bytes(row)) or row for row in copied(*given)))
    monkeypatch.setattr(steps, "CHUNK_ROWS", 2)
    with EmbeddedLog(tmp_path / "log") as log:
        with capture(log, dsn, "orders") as running:
            running.catch_up()
        changes = records(log, "orders")
    assert [int(row.split(b",")[0].strip(b'"')) for row in sent] == [7, 8, 9]
    rows = [(each["after"]["id"], each["after"]["product"]) for each in changes if each["op"] == "snapshot"]
    assert rows == [(n, "second" if n == 8 else "first") for n in range(1, 10)]
    assert [each["after"]["id"] for each in changes if each["op"] == "update"] == [2]


def test_a_change_of_columns_is_a_record(log, db, dsn) -> None:
    """Method: while a capture runs, and while none does; what is rolled back has none."""
    with capture(log, dsn, "orders", "places") as running:
        running.catch_up()
        name = f"_schemas.{running.name}"
        db.execute("INSERT INTO orders (id) VALUES (1)")
        running.catch_up()
        db.execute("ALTER TABLE orders ADD COLUMN more text")
        db.execute("INSERT INTO orders (id) VALUES (2), (3)")
        db.execute("INSERT INTO places VALUES (1, 'here')")
        with suppress(ZeroDivisionError), db.transaction():
            db.execute("ALTER TABLE orders ADD COLUMN never text; INSERT INTO orders (id) VALUES (4)")
            raise ZeroDivisionError
        running.catch_up()
        assert len(records(log, name)) == 1
        db.execute("ALTER TABLE orders RENAME COLUMN more TO note; ALTER TABLE orders ALTER COLUMN id TYPE bigint")
        db.execute("INSERT INTO orders (id) VALUES (5)")
        running.catch_up()
    db.execute("ALTER TABLE orders DROP COLUMN note; INSERT INTO orders (id) VALUES (6)")
    with capture(log, dsn, "orders", "places") as running:
        running.catch_up()
    first = "product string, amount decimal(10,2), tags array<string>"
    found = records(log, name)
    assert [(each["table"], each["topic"], each["before"], each["after"]) for each in found] == [
        ("orders", "orders", f"id int, {first}", f"id int, {first}, more string"),
        ("orders", "orders", f"id int, {first}, more string", f"id bigint, {first}, note string"),
        ("orders", "orders", f"id bigint, {first}, note string", f"id bigint, {first}"),
    ]
    by_id = {each["after"]["id"]: each for each in records(log, "orders")}
    for each, id in zip(found, (2, 5, 6), strict=True):
        assert all(each[column] == by_id[id][column] for column in ("transaction", "position", "at"))


def test_a_table_that_is_altered_and_not_written_has_a_record(log, db, dsn) -> None:
    check_altered_tables_have_records(log, db.execute, lambda: capture(log, dsn, "orders", "places"))


def test_changes_before_and_after_a_table_is_altered_are_in_order(log, db, dsn, monkeypatch) -> None:
    """Method: it is looked at when the change log has rows that were written before and after."""
    with capture(log, dsn, "orders") as running:
        running.catch_up()
        db.execute("INSERT INTO orders (id) VALUES (1)")
        db.execute("ALTER TABLE orders ADD COLUMN one int; INSERT INTO orders (id) VALUES (2)")
        db.execute("ALTER TABLE orders ADD COLUMN two int")
        running.database.end()  # so that it is looked at now
        running.catch_up()
        db.execute("ALTER TABLE orders DROP COLUMN one; INSERT INTO orders (id) VALUES (3)")
        running.catch_up()
    found = records(log, f"_schemas.{running.name}")
    added = [each["after"].partition("array<string>, ")[2] for each in found]
    assert added == ["one int", "one int, two int", "two int"]
    two, three = (each for each in records(log, "orders") if each["after"]["id"] > 1)
    assert found[0]["transaction"] == two["transaction"]
    assert two["position"] < found[1]["position"] < three["position"]
    assert found[1]["transaction"] is None
    assert found[2]["transaction"] == three["transaction"]


@pytest.mark.parametrize("kills", [pytest.param(8, marks=pytest.mark.more), pytest.param(40, marks=pytest.mark.soak)])
def test_a_killed_capture_records_each_change_of_columns_once(tmp_path, db, dsn, kills) -> None:
    work, name = Altering(db.execute), f"app_{dsn.rpartition('/')[2][-12:]}"
    kill_captures(kills, work, capture_postgres, tmp_path / "log", name, dsn, ["orders", "places"])
    with EmbeddedLog(tmp_path / "log") as log:
        with capture(log, dsn, "orders", "places") as running:
            running.catch_up()
            work.alter()  # all others may have come before the capture began
            running.catch_up()
        work.check_records(log, name)
