"""A capture for which no table is named has all of the database, and keeps the topics that it has had."""

import sqlite3
from contextlib import closing

import pytest
from typer.testing import CliRunner

from millstream.cli.app import app
from millstream.log import EmbeddedLog

from .support import records


def captured(folder, *command):
    found = CliRunner().invoke(app, ["--log", str(folder / "log"), "capture", *command, "--until-caught-up"])
    return found.exit_code, found.output


def topics(folder):
    with EmbeddedLog(folder / "log") as log:
        return {
            topic: [each["after"]["id"] for each in records(log, topic)] for topic in log.topics() if topic[0] != "_"
        }


@pytest.fixture
def shop(tmp_path):
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        db.execute("INSERT INTO orders VALUES (1)")
    return path


def change(path, *statements):
    with closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            db.execute(statement)


def test_all_tables_of_a_database_are_captured(shop, tmp_path) -> None:
    change(shop, "CREATE VIRTUAL TABLE words USING fts5(text)", "CREATE VIEW seen AS SELECT 1")
    change(shop, "CREATE TABLE words_of_users (id INTEGER PRIMARY KEY)")
    code, output = captured(tmp_path, "sqlite", str(shop))
    assert (code, "tables: orders, words_of_users" in output) == (0, True), output
    assert topics(tmp_path) == {"orders": [1], "words_of_users": []}
    change(shop, "CREATE TABLE items (id INTEGER PRIMARY KEY)", "INSERT INTO items VALUES (2)")
    assert captured(tmp_path, "sqlite", str(shop))[0] == 0
    assert topics(tmp_path) == {"orders": [1], "words_of_users": [], "items": [2]}


def test_a_table_stays_in_its_topic(shop, tmp_path) -> None:
    """Goal: the changes after a restart are never in another topic than the rows before them."""
    captured(tmp_path, "sqlite", str(shop), "--table", "orders=first")
    change(shop, "INSERT INTO orders VALUES (2)")
    code, output = captured(tmp_path, "sqlite", str(shop), "--table", "orders")
    assert (code, "has 'orders' in the topic 'first', not in 'orders'" in output) == (2, True), output
    assert captured(tmp_path, "sqlite", str(shop))[0] == 0
    assert topics(tmp_path) == {"first": [1, 2]}


def test_a_table_that_is_gone_is_reported(shop, tmp_path) -> None:
    change(shop, "CREATE TABLE items (id INTEGER PRIMARY KEY)")
    captured(tmp_path, "sqlite", str(shop))
    change(shop, "DROP TABLE items")
    code, output = captured(tmp_path, "sqlite", str(shop))
    assert (code, "there is no table 'items'" in output) == (3, True), output


def test_a_database_without_tables_is_refused(tmp_path) -> None:
    change(tmp_path / "empty.db", "PRAGMA user_version = 1")
    code, output = captured(tmp_path, "sqlite", str(tmp_path / "empty.db"))
    assert (code, "there are no tables" in output) == (3, True), output


def test_all_tables_of_postgres_have_a_change_log(db, dsn, tmp_path) -> None:
    """Goal: not those that have none, and partitions as the table that they are of."""
    db.execute(
        "DROP TABLE places, notes; CREATE UNLOGGED TABLE quick (id int PRIMARY KEY); CREATE VIEW seen AS SELECT 1; "
        "CREATE TEMPORARY TABLE draft (id int PRIMARY KEY); CREATE SCHEMA sales; "
        "CREATE TABLE sales.items (id int PRIMARY KEY) PARTITION BY RANGE (id); "
        "CREATE TABLE sales.first PARTITION OF sales.items DEFAULT; INSERT INTO sales.items VALUES (2)"
    )
    code, output = captured(tmp_path, "postgres", dsn)
    assert (code, "tables: orders, sales.items" in output) == (0, True), output
    assert topics(tmp_path) == {"orders": [], "sales.items": [2]}
