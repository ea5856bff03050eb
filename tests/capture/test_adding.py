"""Tables are added to a capture while it runs: their rows are read beside the changes of the others."""

import sqlite3
import threading
from contextlib import closing
from functools import partial

import pytest
from typer.testing import CliRunner

import millstream as ms
from millstream.capture import adding
from millstream.capture.capturing import Capture
from millstream.capture.postgres.database import PostgresDatabase
from millstream.capture.sqlite.database import SqliteDatabase
from millstream.cli.app import app
from millstream.errors import InvalidInput, UnknownTopic
from waiting import until

from .support import records, running
from .test_postgres import PostgresWorkload, rows
from .workload import check_equal


@pytest.fixture(autouse=True)
def looks_often(monkeypatch):
    monkeypatch.setattr(adding, "LOOK_SECONDS", 0.05)


def postgres(log, dsn):
    name = f"app_{dsn.rpartition('/')[2][-12:]}"
    return Capture(log, name, partial(PostgresDatabase, dsn, {"orders": "orders"}))


@pytest.mark.more
def test_a_table_is_added_to_a_running_capture_of_postgres(log, db, dsn, monkeypatch) -> None:
    """Method: both tables are written all the time, in the same transactions, and the capture starts again later."""
    monkeypatch.setattr("millstream.capture.postgres.steps.CHUNK_ROWS", 3)
    work = PostgresWorkload(dsn, 11)
    work.run(20)
    with running(postgres(log, dsn)) as capture:
        writing = threading.Thread(target=work.run, args=(60,))
        writing.start()
        until(lambda: capture.changes > 0, "the capture has begun")
        assert ms.add_to_capture(log, capture.name, "places", wait_s=60)
        writing.join()
    work.run(10)
    with postgres(log, dsn) as capture:  # which was asked for 'orders' alone
        capture.catch_up()
        assert capture.position["tables"].keys() == {"orders", "places"}
    check_equal(log, partial(rows, db))
    assert {change["op"] for change in records(log, "orders")[1:]} > {"update", "delete"}


@pytest.mark.more
def test_a_request_that_cannot_be_met_is_refused_and_the_capture_goes_on(log, db, dsn) -> None:
    log.create_topic("taken")
    with log.producer() as producer:
        producer.send("taken", "of something else")
    db.execute("CREATE TABLE keyless (n int)")
    with running(postgres(log, dsn)) as capture:
        for tables, reason in (
            ("placs", "there is no table 'placs'"),
            ("keyless", "has no key"),
            ({"places": "taken"}, "has records already"),
            ({"public.orders": "others"}, "another name of the table"),
        ):
            with pytest.raises(InvalidInput, match=reason) as refused:
                ms.add_to_capture(log, capture.name, tables, wait_s=30)
            assert refused.value.where == f"capture '{capture.name}'"
        db.execute("INSERT INTO orders VALUES (1)")
        until(lambda: capture.changes == 1, "the change is captured")
        db.execute("INSERT INTO places VALUES (1, 'here')")
        assert ms.add_to_capture(log, capture.name, "places", wait_s=30)
    assert [change["op"] for change in records(log, "orders")] == ["insert"]
    assert [change["op"] for change in records(log, "places")] == ["snapshot"]


def test_a_table_is_added_on_the_command_line_while_no_capture_runs(log, tmp_path) -> None:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        db.execute("CREATE TABLE items (id INTEGER PRIMARY KEY)")
        db.execute("INSERT INTO items VALUES (7)")
    opened = partial(SqliteDatabase, path, {"orders": "orders"})
    with Capture(log, "shop", opened) as capture:
        capture.catch_up()
    command = ["--log", str(log.path), "capture", "add", "shop", "--table", "items=goods", "--wait", "0"]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    assert "will add items when it runs" in shown.output
    for _ in range(2):
        with Capture(log, "shop", opened) as capture:
            capture.catch_up()
    assert [change["key"] for change in records(log, "goods")] == ["7"]


def test_a_name_that_is_written_otherwise_is_refused(log, tmp_path) -> None:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        db.execute("CREATE TABLE items (id INTEGER PRIMARY KEY)")
    with running(Capture(log, "shop", partial(SqliteDatabase, path, {"orders": "orders"}))):
        with pytest.raises(InvalidInput, match="otherwise") as refused:
            ms.add_to_capture(log, "shop", "Items", wait_s=30)
        assert "items" in refused.value.next_step
        assert ms.add_to_capture(log, "shop", "items", wait_s=30)


def test_an_unknown_capture_is_reported(log) -> None:
    with pytest.raises(UnknownTopic, match="there is no capture 'shop'"):
        ms.add_to_capture(log, "shop", "orders")


def test_a_table_that_is_listed_before_one_that_is_being_read(log, db, dsn, monkeypatch) -> None:
    """Goal: changes of rows that were read already count, whichever table is next."""
    monkeypatch.setattr("millstream.capture.postgres.steps.CHUNK_ROWS", 1)
    db.execute("INSERT INTO orders (id) VALUES (1), (2); INSERT INTO places VALUES (1, 'here')")
    with postgres(log, dsn) as capture:
        capture.step()
    db.execute("UPDATE orders SET amount = 5")
    tables = {"places": "places", "orders": "orders"}
    with Capture(log, capture.name, partial(PostgresDatabase, dsn, tables)) as capture:
        capture.catch_up()
    check_equal(log, partial(rows, db))


def test_a_table_is_named_once(log, db, dsn, tmp_path) -> None:
    with pytest.raises(InvalidInput, match=r"'public\.orders' is another name of the table 'orders'"):
        Capture(log, "app", partial(PostgresDatabase, dsn, {"orders": "one", "public.orders": "two"}))
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as lite:
        lite.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    with pytest.raises(InvalidInput, match="'ORDERS' is another name of the table 'orders'"):
        Capture(log, "shop", partial(SqliteDatabase, path, {"orders": "one", "ORDERS": "two"}))
    assert log.topics() == []
