"""Snapshots of Postgres are read in chunks by keys of any type, in the order that the database has."""

import random
from contextlib import suppress
from functools import partial

import psycopg
import pytest

from millstream.capture.postgres.keys import KeyOrder
from millstream.capture.postgres.tables import find_table
from millstream.errors import InvalidInput

from .support import capture_during_writes, check_transactions, records, replayed
from .support import captured_postgres as captured

TEXTS = ["", "a", "A", "b", "B", "ab", "a b", "a-b", "é", "e", "z", "Z", "ß", "%", "it's", "\\", '"', "10", "9", "名"]
MOODS = ["sad", "low", "ok", "fine", "glad", "calm", "wild", "odd"]
KINDS = {
    "texts": ('k text COLLATE "C"', [(text,) for text in TEXTS]),
    "sorted_texts": ('k text COLLATE "ucs_basic"', [(text,) for text in TEXTS]),
    "fixed_texts": ("k char(4)", [("a",), ("ab",), ("b",), ("B",), ("abcd",), (" ",)]),
    "uuids": ("k uuid", [(f"{n:x}0000000-0000-0000-0000-0000000000{15 - n:x}0",) for n in range(16)]),
    "times": ("k timestamptz", [(f"20{year}-03-31 01:30:00+02",) for year in range(10, 24)] + [("infinity",)]),
    "digits": ("k numeric", [(text,) for text in ("-1.5", "0", "0.10", "9", "10", "1e3", "NaN", "-1e2", "2.000001")]),
    "raw": ("k bytea", [(f"\\x{n:02x}",) for n in (0, 1, 10, 127, 128, 255)]),
    "moods": ("k mood", [(mood,) for mood in MOODS]),
    "several": ("a int, k text, c date", [(a, k, f"2024-01-0{c}") for a in (-1, 9, 10) for k in "bB" for c in (1, 2)]),
}


class KeyWork:
    """Random rows of a table, whose keys are of a few: they are inserted, changed, moved and deleted."""

    def __init__(self, dsn, table, keys, seed):
        self._random = random.Random(seed)
        self._db = psycopg.connect(dsn, autocommit=True, options="-c deadlock_timeout=10ms")
        self._table, self._keys = table, keys
        names = [each.name for each in self._db.execute(f"SELECT * FROM {table} LIMIT 0").description][:-1]
        self._names = names
        self._is_key = " AND ".join(f"{name} = %s" for name in names)

    def run(self, transactions):
        pick, table = self._random.choice, self._table
        marks = ", ".join(["%s"] * (len(self._names) + 1))
        moved = ", ".join(f"{name} = %s" for name in self._names)
        for _ in range(transactions):
            refused = (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected)
            with suppress(*refused), self._db.transaction():
                for _ in range(self._random.choice([1, 1, 3])):
                    key, other, n = pick(self._keys), pick(self._keys), self._random.randrange(1000)
                    statement, values = pick(
                        [
                            (f"INSERT INTO {table} VALUES ({marks}) ON CONFLICT DO NOTHING", (*key, n)),
                            (f"INSERT INTO {table} VALUES ({marks}) ON CONFLICT DO NOTHING", (*key, n)),
                            (f"UPDATE {table} SET n = %s WHERE {self._is_key}", (n, *key)),
                            (f"UPDATE {table} SET {moved} WHERE {self._is_key}", (*other, *key)),
                            (f"DELETE FROM {table} WHERE {self._is_key}", key),
                        ]
                    )
                    self._db.execute(statement, values)


def create(db, table, columns):
    with suppress(psycopg.errors.DuplicateObject):
        db.execute(f"CREATE TYPE mood AS ENUM ({str(MOODS)[1:-1]})")
    names = ", ".join(part.split()[0] for part in columns.split(", "))
    db.execute(f"CREATE TABLE {table} ({columns}, n int, PRIMARY KEY ({names}))")
    return names.split(", ")


@pytest.mark.parametrize("table", [pytest.param(table, marks=pytest.mark.more) for table in KINDS])
def test_chunks_and_changes_add_up_to_the_table(log, db, dsn, table, monkeypatch) -> None:
    """Method: chunks of two rows, while two programs write, by captures that end and start again in the middle."""
    monkeypatch.setattr("millstream.capture.postgres.steps.CHUNK_ROWS", 2)
    monkeypatch.setattr("millstream.capture.stream_steps.COMPARED_CHANGES", 3)
    columns, keys = KINDS[table]
    names = create(db, table, columns)
    work, other = (KeyWork(dsn, table, keys, seed) for seed in (1, 2))
    work.run(40)
    capture_during_writes(partial(captured, log, dsn, table), [partial(each.run, 80) for each in (work, other)])
    changes = records(log, table)
    check_transactions(changes)
    found = {}
    for change in changes:
        key = tuple(str((change["after"] or change["before"])[name]) for name in names)
        if change["op"] == "delete":
            del found[key]
        else:
            assert (change["op"] == "update") == (key in found), change
            found[key] = change["after"]["n"]
    assert sorted(found.values()) == sorted(n for (n,) in db.execute(f"SELECT n FROM {table}"))
    assert len({change["transaction"] for change in changes if change["op"] == "snapshot"}) > 1


@pytest.mark.parametrize("table", KINDS)
def test_keys_are_compared_as_the_database_does(db, dsn, table) -> None:
    columns, keys = KINDS[table]
    names = create(db, table, columns)
    marks = ", ".join(["%s"] * len(keys[0]))
    for key in keys:
        db.execute(f"INSERT INTO {table} VALUES ({marks})", key)
    texts, listed = (", ".join(form.format(name) for name in names) for form in ("{}::text", "t.{}"))
    ordered = [list(row) for row in db.execute(f"SELECT {texts} FROM {table} AS t ORDER BY {listed}")]
    order = KeyOrder(db, find_table(db, table, dsn))
    for place, key in enumerate(ordered):
        assert order.reach(ordered, key) == [False] * (place + 1) + [True] * (len(ordered) - place - 1)
        assert order.at(key, 1) == (ordered[place + 1] if place + 1 < len(ordered) else None)
        count = db.execute(f"SELECT count(*) FROM {table} WHERE {order.between(ordered[0], key)}").fetchone()[0]
        assert count == place


def test_a_table_without_a_key_is_read_at_once(log, db, dsn, monkeypatch) -> None:
    """Goal: rows that are equal, and changes while it is read."""
    monkeypatch.setattr("millstream.capture.postgres.steps.CHUNK_ROWS", 2)
    db.execute("INSERT INTO notes VALUES ('a'), ('a'), ('b'), (NULL)")
    with captured(log, dsn, "notes") as running:
        running.catch_up()
        db.execute("DELETE FROM notes WHERE text = 'b'")
        running.catch_up()
    found = [(change["op"], (change["after"] or change["before"])["text"]) for change in records(log, "notes")]
    assert found == [("snapshot", "a"), ("snapshot", "a"), ("snapshot", "b"), ("snapshot", None), ("delete", "b")]


def test_a_key_whose_order_changes_while_rows_are_read_stops_the_capture(log, db, dsn, monkeypatch) -> None:
    monkeypatch.setattr("millstream.capture.postgres.steps.CHUNK_ROWS", 1)
    db.execute("CREATE TABLE codes (k varchar(9) COLLATE \"C\" PRIMARY KEY); INSERT INTO codes VALUES ('9'), ('10')")
    with captured(log, dsn, "codes") as running:
        running.step()
        db.execute('ALTER TABLE codes ALTER k TYPE varchar(9) COLLATE "ucs_basic"')
        with pytest.raises(InvalidInput, match="the type of the key of table 'codes' has changed"):
            running.catch_up()


def test_a_large_key_that_an_update_leaves_is_known(log, db, dsn) -> None:
    db.execute("CREATE TABLE large (k text PRIMARY KEY, n int)")
    db.execute("ALTER TABLE large ALTER k SET STORAGE EXTERNAL")
    db.execute("INSERT INTO large VALUES (repeat('x', 2500), 1)")
    with captured(log, dsn, "large") as running:
        running.catch_up()
        db.execute("UPDATE large SET n = 2")
        running.catch_up()
    changes = records(log, "large")
    assert [(change["op"], len(change["key"]), change["unsent"]) for change in changes] == [
        ("snapshot", 2500, None),
        ("update", 2500, None),
    ]
    assert replayed(changes, lambda row: row["k"]) == {"x" * 2500: {"k": "x" * 2500, "n": 2}}
