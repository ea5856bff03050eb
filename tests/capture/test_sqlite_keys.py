"""Tables of SQLite without row numbers are read in chunks by their keys, in the order that SQLite has."""

import random
import sqlite3
from contextlib import closing, suppress
from functools import partial

import pyarrow as pa
import pytest

from millstream.capture.capturing import Capture
from millstream.capture.sqlite import database
from millstream.capture.sqlite.keys import KeyOrder
from millstream.capture.sqlite.tables import find_table

from .support import records, replayed

VALUES = [0, 5, -3, 10, 2.5, 1e300, "", "a", "A", "b", "a ", "10", "5", "x\0y", "x\0z", "it's", b"", b"a", b"\xff"]
KINDS = {
    "anything": ("k", [(value,) for value in VALUES]),
    "texts": (
        "k TEXT COLLATE NOCASE",
        [(value,) for value in ("", "a", "B", "b c", "C", "é", "É", "10")],
    ),
    "several": (
        "a INTEGER, k TEXT COLLATE RTRIM, c",
        [(a, k, c) for a in (-1, 9, 10) for k in ("b", "B", "a") for c in (1, "1", b"1")],
    ),
}


def created(path, table):
    columns, keys = KINDS[table]
    names = [part.split()[0] for part in columns.split(", ")]
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(f"CREATE TABLE {table} ({columns}, n INT, PRIMARY KEY ({', '.join(names)})) WITHOUT ROWID")
    return db, names, keys


@pytest.mark.parametrize("table", KINDS)
def test_keys_are_compared_as_the_database_does(tmp_path, table) -> None:
    db, names, keys = created(tmp_path / "app.db", table)
    with closing(db):
        marks = ", ".join(["?"] * len(names))
        db.executemany(f"INSERT INTO {table} VALUES ({marks}, 0)", keys)
        order = KeyOrder(db, find_table(db, table, ""))
        rows = db.execute(f"SELECT {', '.join(names)} FROM {table} ORDER BY {order.by}").fetchall()
        limits = db.execute(f"SELECT {', '.join(order.literals)} FROM {table} ORDER BY {order.by}").fetchall()
        assert len(rows) == len(keys)
        for place, limit in enumerate(limits):
            assert [order.is_after(row, limit) for row in rows] == [each > place for each in range(len(rows))]
            count = db.execute(f"SELECT count(*) FROM {table} WHERE {order.after(limit)}").fetchone()[0]
            assert count == len(rows) - place - 1


@pytest.mark.parametrize("table", ["texts", "several"])
def test_chunks_and_changes_add_up_to_the_table(log, tmp_path, table, monkeypatch) -> None:
    """Method: chunks of two rows, and changes between them, by captures that end and start again."""
    monkeypatch.setattr(database, "CHUNK_ROWS", 2)
    path, chance = tmp_path / "app.db", random.Random(3)
    db, names, keys = created(path, table)
    is_key, moved = (joint.join(f"{name} = ?" for name in names) for joint in (" AND ", ", "))
    marks = ", ".join(["?"] * len(names))
    types = {(table, "c"): pa.binary()} if "c" in names else {}
    if types:
        keys = [key for key in keys if isinstance(key[-1], bytes)]

    def work(changes):
        for _ in range(changes):
            key, other, n = chance.choice(keys), chance.choice(keys), chance.randrange(1000)
            with suppress(sqlite3.IntegrityError):
                db.execute(
                    *chance.choice(
                        [
                            (f"INSERT INTO {table} VALUES ({marks}, ?)", (*key, n)),
                            (f"INSERT INTO {table} VALUES ({marks}, ?)", (*key, n)),
                            (f"UPDATE {table} SET n = ? WHERE {is_key}", (n, *key)),
                            (f"UPDATE {table} SET {moved} WHERE {is_key}", (*other, *key)),
                            (f"DELETE FROM {table} WHERE {is_key}", key),
                        ]
                    )
                )

    opened = partial(database.SqliteDatabase, path, {table: table}, types=types)
    with closing(db):
        work(30)
        for _ in range(3):
            with Capture(log, "app", opened) as running:
                running.step()
                work(10)
        with Capture(log, "app", opened) as running:
            running.catch_up()
        changes = records(log, table)
        found = replayed(changes, lambda row: tuple(row[name] for name in names))
        assert sorted(row["n"] for row in found.values()) == sorted(n for (n,) in db.execute(f"SELECT n FROM {table}"))
    assert len({change["transaction"] for change in changes if change["op"] == "snapshot"}) > 1
