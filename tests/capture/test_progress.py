"""A snapshot on a terminal: how much of each table is captured, in each kind of database."""

import re
import sqlite3
from contextlib import closing
from functools import partial

from millstream.capture.capturing import Capture
from millstream.capture.sqlite.database import SqliteDatabase
from millstream.cli import progress
from millstream.cli.bridge_commands.capture import SnapshotProgress
from terminals import OF_RICH, terminal

from .support import captured_postgres


def test_a_snapshot_shows_its_part_of_the_rows(log, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", -1.0)
    monkeypatch.setattr("millstream.capture.sqlite.database.CHUNK_ROWS", 300)
    with closing(sqlite3.connect(tmp_path / "app.db")) as db, db:
        for table, rows in ("orders", 1000), ("people", 400):
            db.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY)")
            db.executemany(f"INSERT INTO {table} VALUES (?)", [(n,) for n in range(rows)])
    opened = partial(SqliteDatabase, tmp_path / "app.db", {"orders": "orders", "people": "people"})
    with terminal("stderr") as screen, Capture(log, "app", opened) as capture:
        shown = SnapshotProgress(capture)
        for _ in range(3):
            capture.step()
            shown.show()
        shown.close()
        assert "━" in screen.text
        capture.catch_up(watch=shown.show)
    found = re.findall(r"snapshot of (\w+) \S+ +(\d+)% ([\d,]+) rows", OF_RICH.sub("", screen.text))
    assert ("orders", "90", "900") in found
    assert ("people", "75", "300") in found


def test_postgres_knows_about_how_many_rows_there_are(log, db, dsn, monkeypatch) -> None:
    """Goal: also of a table that was never analysed, and of one with partitions."""
    monkeypatch.setattr("millstream.capture.postgres.steps.CHUNK_ROWS", 1000)
    db.execute("CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    db.execute("CREATE TABLE part PARTITION OF parts DEFAULT")
    for table in ("parts", "orders"):
        db.execute(f"INSERT INTO {table} SELECT generate_series(1, 3000)")
    db.execute("ANALYZE parts")
    seen = []
    with captured_postgres(log, dsn, "parts", "orders") as running:
        running.catch_up(watch=lambda: seen.append(running.database.progress(running.position)))
    assert {(each.table, each.rows) for each in seen if each} >= {("parts", 2000), ("orders", 1000), ("orders", 2000)}
    assert {each.total for each in seen if each and each.table == "parts"} == {3000}
    assert all(300 < each.total < 30_000 for each in seen if each)
    assert seen[-1] is None
