"""Snapshots of MariaDB are read in chunks by keys of most types, in the order that the database has."""

import random
from contextlib import suppress
from functools import partial

import pymysql
import pytest

from mariadb_server import MariadbServer
from millstream.capture.capturing import Capture
from millstream.capture.mariadb.address import parsed
from millstream.capture.mariadb.connections import connect
from millstream.capture.mariadb.database import MariadbDatabase
from millstream.capture.mariadb.keys import KeyOrder
from millstream.capture.mariadb.tables import find_table
from millstream.errors import InvalidInput

from .support import capture_during_writes, check_transactions, records, replayed

pytestmark = pytest.mark.xdist_group("mariadb")
TEXTS = ["", "a", "b", "B2", "ab", "a b", "a-b", "é2", "e", "z", "Z9", "%", "it's", "\\", '"', "10", "9", "_", "~"]
KINDS = {
    "texts": ("k varchar(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci", [(text,) for text in [*TEXTS, "名"]]),
    "plain_texts": ("k char(9) CHARACTER SET latin1 COLLATE latin1_bin", [(text,) for text in TEXTS]),
    "raw": ("k varbinary(4)", [(bytes(raw),) for raw in ([], [0], [0, 0], [1], [10], [127], [128], [255, 0], [37])]),
    "fixed": ("k binary(3)", [(bytes(raw),) for raw in ([], [1], [1, 2], [128], [255, 255, 255], [37, 115, 0])]),
    "times": ("k datetime(3)", [(f"20{year}-03-31 01:30:00.{year}0",) for year in range(10, 24)]),
    "stamps": ("k timestamp", [(f"20{year}-03-31 01:30:00",) for year in range(10, 24)]),
    "digits": ("k decimal(12, 3)", [(each,) for each in ("-1.5", "0", "0.1", "9", "10", "1000", "-100", "2.001")]),
    "large": ("k bigint unsigned", [(n,) for n in (0, 1, 9, 10, 2**63 - 1, 2**63, 2**64 - 1)]),
    "several": (
        "a int, `k%` varchar(5) COLLATE utf8mb4_general_ci, c date",
        [(a, k, f"2024-01-0{c}") for a in (-1, 9, 10) for k in ("b", "A", "~") for c in (1, 2)],
    ),
}


@pytest.fixture(scope="module")
def mariadb():
    made = MariadbServer()
    yield made
    made.close()


@pytest.fixture
def dsn(mariadb):
    return mariadb.new_database()


def connected(dsn):
    address = parsed(dsn)
    where = {"host": address.host, "port": address.port, "user": address.user, "database": address.database}
    settings = "SET time_zone = '+00:00', innodb_lock_wait_timeout = 1"
    return pymysql.connect(**where, autocommit=True, charset="utf8mb4", init_command=settings)


def execute(db, statement, values=None):
    with db.cursor() as cursor:
        cursor.execute(statement, values)
        return list(cursor.fetchall())


class KeyWork:
    """Random rows of a table, whose keys are of a few: they are inserted, changed, moved and deleted."""

    def __init__(self, dsn, table, names, keys, seed):
        self._random = random.Random(seed)
        self._db, self._table, self._keys = connected(dsn), table, keys
        self._names = [name.replace("%", "%%") for name in names]

    def run(self, transactions):
        pick, table = self._random.choice, self._table
        marks = ", ".join(["%s"] * (len(self._names) + 1))
        is_key, moved = (joint.join(f"{name} = %s" for name in self._names) for joint in (" AND ", ", "))
        for _ in range(transactions):
            execute(self._db, "BEGIN")
            for _ in range(pick([1, 1, 3])):
                key, other, n = pick(self._keys), pick(self._keys), self._random.randrange(1000)
                statement, values = pick(
                    [
                        (f"INSERT INTO {table} VALUES ({marks})", (*key, n)),
                        (f"INSERT INTO {table} VALUES ({marks})", (*key, n)),
                        (f"UPDATE {table} SET n = %s WHERE {is_key}", (n, *key)),
                        (f"UPDATE {table} SET {moved} WHERE {is_key}", (*other, *key)),
                        (f"DELETE FROM {table} WHERE {is_key}", key),
                    ]
                )
                with suppress(pymysql.IntegrityError, pymysql.OperationalError):  # the key is taken, or a deadlock
                    execute(self._db, statement, values)
            execute(self._db, "COMMIT")


def create(db, table, columns):
    names = [part.split()[0] for part in columns.split(", ") if " " in part]
    execute(db, f"CREATE TABLE {table} ({columns}, n int, PRIMARY KEY ({', '.join(names)}))")
    return names


def captured(log, dsn, table):
    return Capture(log, "app", partial(MariadbDatabase, dsn, {table: table}))


@pytest.mark.parametrize("table", [pytest.param(table, marks=pytest.mark.more) for table in KINDS])
def test_chunks_and_changes_add_up_to_the_table(log, dsn, table, monkeypatch) -> None:
    """Method: chunks of two rows, while two programs write, by captures that end and start again in the middle."""
    monkeypatch.setattr("millstream.capture.mariadb.steps.CHUNK_ROWS", 2)
    monkeypatch.setattr("millstream.capture.stream_steps.COMPARED_CHANGES", 3)
    monkeypatch.setattr("millstream.capture.mariadb.keys.COMPARED_TEXTS", 2)
    columns, keys = KINDS[table]
    db = connected(dsn)
    names = create(db, table, columns)
    work, other = (KeyWork(dsn, table, names, keys, seed) for seed in (1, 2))
    work.run(40)
    capture_during_writes(partial(captured, log, dsn, table), [partial(each.run, 60) for each in (work, other)])
    changes = records(log, table)
    check_transactions(changes)
    plain = [name.strip("`") for name in names]
    found = replayed(changes, lambda row: tuple(row[name] for name in plain))
    assert sorted(row["n"] for row in found.values()) == sorted(n for (n,) in execute(db, f"SELECT n FROM {table}"))
    assert len({change["transaction"] for change in changes if change["op"] == "snapshot"}) > 1
    db.close()


@pytest.mark.parametrize("table", KINDS)
def test_keys_are_compared_as_the_database_does(dsn, table) -> None:
    columns, keys = KINDS[table]
    db = connect(parsed(dsn))
    names = create(db, table, columns)
    marks = ", ".join(["%s"] * len(keys[0]))
    for key in keys:
        execute(db, f"INSERT INTO {table} VALUES ({marks}, 0)", key)
    listed = ", ".join(names)
    order = KeyOrder.of(db, find_table(db, table, parsed(dsn).database, dsn))
    plain = [name.strip("`") for name in names]
    found = execute(db, f"SELECT {listed} FROM {table} ORDER BY {listed}")
    ordered = [order.key(row, plain) for row in found]
    for place, key in enumerate(ordered):
        assert order.reach(ordered, key) == [False] * (place + 1) + [True] * (len(ordered) - place - 1)
        condition, values = order.after(key)
        escaped = listed.replace("%", "%%")
        assert (
            execute(db, f"SELECT {escaped} FROM {table} WHERE {condition} ORDER BY {escaped}", values)
            == (found[place + 1 :])
        )
    db.close()


def test_a_table_without_an_ordered_key_is_read_at_once(log, dsn, monkeypatch) -> None:
    monkeypatch.setattr("millstream.capture.mariadb.steps.CHUNK_ROWS", 2)
    db = connected(dsn)
    execute(db, "CREATE TABLE moods (k enum('sad', 'ok', 'glad') PRIMARY KEY)")
    execute(db, "INSERT INTO moods VALUES ('sad'), ('ok'), ('glad')")
    with captured(log, dsn, "moods") as running:
        running.catch_up()
        execute(db, "DELETE FROM moods WHERE k = 'ok'")
        running.catch_up()
    found = replayed(records(log, "moods"), lambda row: row["k"])
    assert set(found) == {"sad", "glad"}
    db.close()


def test_a_key_whose_order_changes_while_rows_are_read_stops_the_capture(log, dsn, monkeypatch) -> None:
    monkeypatch.setattr("millstream.capture.mariadb.steps.CHUNK_ROWS", 1)
    db = connected(dsn)
    execute(db, "CREATE TABLE codes (k varchar(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY)")
    execute(db, "INSERT INTO codes VALUES ('9'), ('10')")
    with captured(log, dsn, "codes") as running:
        running.step()
        execute(db, "ALTER TABLE codes MODIFY k varchar(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
        with pytest.raises(InvalidInput, match="the type of the key of table 'codes' has changed"):
            running.catch_up()
    db.close()


@pytest.mark.parametrize("columns", ["b", "a, b", None])
def test_a_key_that_is_replaced_stops_the_capture(log, dsn, columns) -> None:
    """Goal: rows that differ in the new key only would be one row for those that read the topic."""
    db = connected(dsn)
    execute(db, "CREATE TABLE codes (a varchar(9), b int NOT NULL, PRIMARY KEY (a(5)))")
    now = f"({columns})" if columns else "none"
    with captured(log, dsn, "codes") as running:
        running.catch_up()
        execute(db, "INSERT INTO codes VALUES ('x', 1)")
        execute(db, "ALTER TABLE codes DROP PRIMARY KEY" + (f", ADD PRIMARY KEY ({columns})" if columns else ""))
        execute(db, "INSERT INTO codes VALUES ('y', 2)")
        with pytest.raises(InvalidInput) as stopped:
            running.catch_up()
        assert f"the key of table 'codes' is {now} now, and was (a) before" in str(stopped.value)
    with pytest.raises(InvalidInput) as refused:
        captured(log, dsn, "codes")
    assert f"the key of table 'codes' is {now} now, and was (a) before" in str(refused.value)
    db.close()


def test_it_is_known_about_how_many_rows_there_are(log, dsn, monkeypatch) -> None:
    monkeypatch.setattr("millstream.capture.mariadb.steps.CHUNK_ROWS", 100)
    db = connected(dsn)
    execute(db, "CREATE TABLE many (id int PRIMARY KEY)")
    execute(db, "INSERT INTO many SELECT seq FROM seq_1_to_250")
    execute(db, "ANALYZE TABLE many")
    seen = []
    with captured(log, dsn, "many") as running:
        running.catch_up(watch=lambda: seen.append(running.database.progress(running.position)))
    assert {each.rows for each in seen if each} == {200}  # the first step is before the first look
    assert all(100 < each.total < 600 for each in seen if each)
    assert seen[-1] is None
    db.close()
