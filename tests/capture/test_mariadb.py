"""Capture of MariaDB: a topic replayed is the table itself, whatever happened to the table and to the capture."""

import threading
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial

import pyarrow as pa
import pymysql
import pytest
from typer.testing import CliRunner

import millstream as ms
from mariadb_server import MariadbServer
from millstream.capture import adding
from millstream.capture.capturing import Capture
from millstream.capture.mariadb.address import parsed
from millstream.capture.mariadb.database import MariadbDatabase
from millstream.cli.app import app
from millstream.errors import InvalidInput, MillstreamError, NotFound, OffsetLost
from millstream.log import EmbeddedLog
from waiting import until

from .killed import capture_mariadb, kill_captures, lives
from .support import (
    Altering,
    check_altered_tables_have_records,
    check_columns_may_change,
    check_first_changes,
    check_orders_are_a_source,
    records,
    running,
)
from .workload import KEYS, Workload, captured_while_written, check_equal

pytestmark = pytest.mark.xdist_group("mariadb")
TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, product varchar(300), amount decimal(10, 2));
CREATE TABLE places (x int, name varchar(20) CHARACTER SET latin1, PRIMARY KEY (x, name));
CREATE TABLE notes (text text);
"""


@pytest.fixture(scope="module")
def mariadb():
    made = MariadbServer()
    yield made
    made.close()


@pytest.fixture
def dsn(mariadb):
    return mariadb.new_database()


class Db:
    """A connection that runs one statement after the other."""

    def __init__(self, dsn, *, autocommit=True):
        address = parsed(dsn)
        where = {"host": address.host, "port": address.port, "user": address.user, "database": address.database}
        self.connection = pymysql.connect(**where, autocommit=autocommit, charset="utf8mb4")

    def execute(self, sql, *values):
        with self.connection.cursor(pymysql.cursors.DictCursor) as cursor:
            for statement in filter(str.strip, sql.split(";")):
                cursor.execute(statement, values or None)
            return cursor.fetchall()


@pytest.fixture
def db(dsn):
    made = Db(dsn)
    made.execute(TABLES)
    yield made
    made.connection.close()


def opened(dsn, topics, name, types=None):
    return MariadbDatabase(dsn, topics, name, types)


def capture(log, dsn, *tables, name="app", types=None):
    return Capture(log, name, partial(opened, dsn, {table: table for table in tables}, types=types))


def rows(db, table):
    return {KEYS[table](row): row for row in db.execute(f"SELECT * FROM {table}")}


# ---------------------------------------------------------------- what is captured


def test_a_snapshot_then_every_change_in_commit_order(log, db, dsn) -> None:
    db.execute("INSERT INTO orders VALUES (1, 'tea €', 2.5)")
    with capture(log, dsn, "orders", "places", "notes") as running:
        running.catch_up()
        db.execute(
            "BEGIN; UPDATE orders SET amount = -3 WHERE id = 1; INSERT INTO places VALUES (1, 'hère'); COMMIT; "
            "BEGIN; DELETE FROM orders; ROLLBACK; UPDATE places SET x = 2; "
            "INSERT INTO notes VALUES ('hello'), (NULL); TRUNCATE notes"
        )
        running.catch_up()
    tea = {"id": 1, "product": "tea €", "amount": Decimal("2.50")}
    check_first_changes(log, tea, Decimal("-3.00"), "hère")


TYPES = {
    "a": ("tinyint", "-7", -7),
    "y": ("year", "2024", 2024),
    "b": ("tinyint unsigned", "255", 255),
    "c": ("smallint unsigned", "65535", 65535),
    "d": ("mediumint", "-8388608", -8388608),
    "e": ("int unsigned", "4294967295", 4294967295),
    "f": ("bigint unsigned", "18446744073709551615", Decimal(18446744073709551615)),
    "g": ("float", "0.1", 0.10000000149011612),
    "h": ("double", "1.7976931348623157e308", 1.7976931348623157e308),
    "i": ("decimal(20,6)", "-12345678901234.000001", Decimal("-12345678901234.000001")),
    "i2": ("decimal(5,5)", "0.00012", Decimal("0.00012")),
    "j": ("decimal(65,0)", "9" * 65, "9" * 65),
    "k": ("date", "2024-02-29", date(2024, 2, 29)),
    "l": ("datetime(3)", "2024-01-01 10:00:00.5", datetime(2024, 1, 1, 10, 0, 0, 500_000)),
    "m": ("timestamp(6) null", "2024-01-01 10:00:00.000001", datetime(2024, 1, 1, 8, 0, 0, 1, tzinfo=UTC)),
    "n": ("time(1)", "-120:30:01.5", "-120:30:01.5"),
    "o": ("binary(4)", "\x01\0", b"\x01\0\0\0"),
    "p": ("varbinary(300)", "\x01\0", b"\x01\0"),
    "q": ("blob", "x" * 300, b"x" * 300),
    "r": ("char(200) character set utf8mb4", "añ😀", "añ😀"),
    "s": ("varchar(10) character set latin1", "a€", "a€"),
    "t": ("text character set utf16", "a😀", "a😀"),
    "u": ("enum('x','ÿ') character set utf8mb4", "ÿ", "ÿ"),
    "v": ("set('a','b','c')", "c,a", "a,c"),
    "w": ("set('a')", "", ""),
    "x": ("bit(10)", 513, b"\x02\x01"),
    "z": ("json", '{"a": [1]}', '{"a": [1]}'),
    "aa": ("longtext", "x" * 70000, "x" * 70000),
    "ab": ("tinyint(1)", "1", 1),
}


def test_types_are_kept_by_snapshot_and_changes_alike(log, db, dsn) -> None:
    columns = ", ".join(f"`{name}` {kind}" for name, (kind, *_) in TYPES.items())
    db.execute(f"CREATE TABLE kinds (id int PRIMARY KEY, {columns}, twice int AS (id * 2) VIRTUAL)")
    names = ", ".join(f"`{name}`" for name in TYPES)
    values = [text for _, text, _ in TYPES.values()]
    insert = f"INSERT INTO kinds (id, {names}) VALUES (%s, {', '.join('%s' for _ in TYPES)})"
    for id in (1, 2):
        db.execute("SET time_zone = '+02:00'")
        db.execute(insert, 10 * id, *values)
        db.execute("INSERT INTO kinds (id) VALUES (%s)", 10 * id + 1)
        with capture(log, dsn, "kinds") as running:
            running.catch_up()
    expected = {name: value for name, (_, _, value) in TYPES.items()}
    nothing = dict.fromkeys(TYPES)
    assert [change["after"] for change in records(log, "kinds")] == [
        {"id": id, **kept, "twice": 2 * id}
        for start in (10, 20)
        for id, kept in ((start, expected), (start + 1, nothing))
    ]


def test_a_value_that_cannot_be_mapped_names_the_row_and_what_to_do(log, db, dsn) -> None:
    db.execute("CREATE TABLE days (id int PRIMARY KEY, day date); SET sql_mode = ''")
    with capture(log, dsn, "days") as running:
        running.catch_up()
        db.execute("INSERT INTO days VALUES (1, '2024-00-00')")
        with pytest.raises(InvalidInput, match="'day' of table 'days' has '2024-00-00'"):
            running.catch_up()
    with EmbeddedLog(log.path.parent / "other") as other:
        types = {("days", "day"): pa.string()}
        for name in ("rows", "changes"):
            with capture(other, dsn, "days", types=types) as running:
                running.catch_up()
            if name == "rows":
                db.execute("INSERT INTO days VALUES (2, '0000-00-00')")
        assert [each["after"]["day"] for each in records(other, "days")] == ["2024-00-00", "0000-00-00"]


def test_columns_may_change(log, db, dsn) -> None:
    """Goal: also while no capture runs, so that the binary log has rows with the old columns before the new ones."""
    meanwhile = """
        INSERT INTO orders VALUES (1, 'tea', 1);
        ALTER TABLE orders ADD COLUMN more text, MODIFY id bigint;
        INSERT INTO orders VALUES (3000000000, 'milk', 1, 'x');
    """
    between = """
        INSERT INTO orders VALUES (2, 'jam', 1, 'y');
        ALTER TABLE orders DROP COLUMN amount, ADD COLUMN extra int FIRST;
        INSERT INTO orders VALUES (5, 4, 'egg', 'z');
    """
    check_columns_may_change(log, db, partial(capture, log, dsn, "orders"), meanwhile, between)
    with capture(log, dsn, "orders") as running:
        db.execute("SET sql_mode = ''; ALTER TABLE orders MODIFY product int")
        db.execute("INSERT INTO orders VALUES (1, 5, 7, NULL)")
        with pytest.raises(InvalidInput, match="do not fit the topic 'orders'"):
            running.catch_up()


def test_the_stored_position_follows_transactions_of_other_tables(log, db, dsn, monkeypatch) -> None:
    monkeypatch.setattr("millstream.capture.mariadb.database.BEAT_SECONDS", 0.0)
    with capture(log, dsn, "orders") as running:
        running.catch_up()
        before = running.position["place"]
        db.execute("INSERT INTO notes VALUES ('x')")
        until(lambda: running.step(0.05) and running.position["place"] > before, "the position has moved")
    with capture(log, dsn, "orders") as running:
        db.execute("INSERT INTO orders (id) VALUES (1)")
        running.catch_up()
    assert len(records(log, "orders")) == 1


def test_a_step_ends_in_time_while_other_tables_change(log, db, dsn) -> None:
    """Method: more transactions of another table than can be passed over in the time that a step waits."""
    with capture(log, dsn, "orders") as running:
        running.catch_up()
        db.execute("INSERT INTO notes VALUES ('x');" * 300)
        db.execute("INSERT INTO orders (id) VALUES (1)")
        end = running.database.end()
        assert not running.step(0.0)
        assert running.database.seen < end
        running.catch_up()
    assert len(records(log, "orders")) == 1


# ---------------------------------------------------------------- what is refused


def test_a_mistake_is_reported_before_anything_is_changed(log, db, dsn, mariadb) -> None:
    name = dsn.rpartition("/")[2]
    db.execute(
        "CREATE USER reader@'127.0.0.1'; CREATE VIEW seen AS SELECT 1 AS n; "
        "CREATE TABLE old (n int PRIMARY KEY) ENGINE = MyISAM; CREATE TABLE ids (id uuid PRIMARY KEY); "
        "CREATE TABLE items (id int PRIMARY KEY, FOREIGN KEY (id) REFERENCES orders (id) ON DELETE CASCADE)"
    )
    db.execute(f"GRANT SELECT ON {name}.* TO reader@'127.0.0.1'")
    as_reader = mariadb.address(name, "reader")

    def refused(error, match, table="orders", address=dsn, types=None):
        with pytest.raises(error, match=match) as found:
            capture(log, address, table, types=types)
        assert found.value.next_step

    refused(InvalidInput, "refuses this user.*BINLOG MONITOR", address=as_reader)
    db.execute("GRANT BINLOG MONITOR ON *.* TO reader@'127.0.0.1'")
    refused(InvalidInput, "refuses this user.*REPLICATION SLAVE", address=as_reader)
    refused(NotFound, "there is no table 'ordres'", "ordres")
    refused(InvalidInput, "is not a table name", "a.b.c")
    refused(InvalidInput, "is not a table of InnoDB", "seen")
    refused(InvalidInput, "is not a table of InnoDB", "old")
    refused(InvalidInput, "'id' has the type uuid", "ids")
    refused(InvalidInput, "does not log such changes", "items")
    refused(NotFound, "'orders' has no column 'amuont'", types={("orders", "amuont"): pa.string()})
    refused(MillstreamError, "Unknown database", address=dsn + "x")
    refused(InvalidInput, "is not a MariaDB address", address=dsn.replace("mariadb:", "postgresql:"))
    for setting, wrong, right in (
        ("binlog_format", "MIXED", "ROW"),
        ("binlog_row_image", "MINIMAL", "FULL"),
        ("binlog_row_metadata", "NO_LOG", "FULL"),
        ("log_bin_compress", "1", "0"),
    ):
        db.execute(f"SET GLOBAL {setting} = {wrong}")
        refused(InvalidInput, setting)
        db.execute(f"SET GLOBAL {setting} = {right}")
    assert log.topics() == []


@pytest.mark.more
def test_a_server_without_a_binary_log_is_refused(log) -> None:
    server = MariadbServer(log_bin=None)
    try:
        dsn = server.new_database()
        Db(dsn).execute(TABLES)
        with pytest.raises(InvalidInput, match="has no binary log"):
            capture(log, dsn, "orders")
    finally:
        server.close()


def test_a_position_that_was_purged_is_an_error(log, db, dsn) -> None:
    with capture(log, dsn, "orders") as running:
        running.catch_up()
    db.execute("INSERT INTO orders (id) VALUES (1); FLUSH BINARY LOGS; FLUSH BINARY LOGS")
    newest = db.execute("SHOW MASTER STATUS")[0]["File"]

    def purged():
        db.execute(f"PURGE BINARY LOGS TO '{newest}'")
        return len(db.execute("SHOW BINARY LOGS")) == 1

    until(purged, "the binary log is purged")
    with pytest.raises(OffsetLost, match="cannot send its binary log"):
        capture(log, dsn, "orders")


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE orders",
        "RENAME TABLE orders TO old, notes TO orders",
        "ALTER TABLE orders RENAME TO old",
        "SET SESSION binlog_format = STATEMENT; INSERT INTO orders (id) VALUES (1)",
        "XA START 'a'; INSERT INTO orders (id) VALUES (1); XA END 'a'; XA PREPARE 'a'; XA ROLLBACK 'a'",
        "DROP DATABASE {database}",
        "CREATE OR REPLACE SCHEMA `{database}`",
        "BEGIN; INSERT INTO orders (id) VALUES (1); CREATE TEMPORARY TABLE t (n int); ROLLBACK",
        "BEGIN; INSERT INTO orders (id) VALUES (1); SAVEPOINT s; INSERT INTO orders (id) VALUES (2); "
        "INSERT INTO logged VALUES (1); ROLLBACK TO s; COMMIT",
    ],
)
def test_what_cannot_be_followed_stops_the_capture(log, db, dsn, statement) -> None:
    db.execute("CREATE TABLE logged (n int) ENGINE = MyISAM")
    with capture(log, dsn, "orders") as running:
        running.catch_up()
        db.execute(statement.replace("{database}", dsn.rpartition("/")[2]))
        with pytest.raises(OffsetLost):
            running.catch_up()
    assert "orders" not in log.topics() or records(log, "orders") == []


def test_other_tables_may_be_rolled_back(log, db, dsn) -> None:
    db.execute("CREATE TABLE logged (n int) ENGINE = MyISAM")
    with capture(log, dsn, "orders") as running:
        running.catch_up()
        db.execute("BEGIN; INSERT INTO notes VALUES ('x'); CREATE TEMPORARY TABLE t (n int); ROLLBACK")
        db.execute(
            "BEGIN; INSERT INTO orders (id) VALUES (1); SAVEPOINT `A b`; INSERT INTO notes VALUES ('x'); "
            "INSERT INTO logged VALUES (1); ROLLBACK TO `a B`; COMMIT"
        )
        running.catch_up()
    assert [change["after"]["id"] for change in records(log, "orders")] == [1]


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_xa_transactions_of_other_tables_are_passed_over(log, db, dsn, end, monkeypatch) -> None:
    monkeypatch.setattr("millstream.capture.mariadb.database.IN_TRANSACTION_SECONDS", 0.5)
    with capture(log, dsn, "orders") as running:
        running.catch_up()
        db.execute(f"XA START 'a'; INSERT INTO notes VALUES ('x'); XA END 'a'; XA PREPARE 'a'; XA {end} 'a'")
        place = running.database.end()
        until(lambda: not running.step(0.05) and running.database.seen >= place, "the XA transaction has passed")
        db.execute("INSERT INTO orders (id) VALUES (1)")
        running.catch_up()
    assert len(records(log, "orders")) == 1


def test_a_capture_does_not_start_while_an_xa_transaction_is_prepared(log, db, dsn) -> None:
    db.execute("XA START 'a'; INSERT INTO orders (id) VALUES (1); XA END 'a'; XA PREPARE 'a'")
    with pytest.raises(InvalidInput, match="is prepared"):
        capture(log, dsn, "orders")
    db.execute("XA ROLLBACK 'a'")
    assert log.topics() == []


# ---------------------------------------------------------------- random work, and kills


class MariadbWorkload(Workload):
    def __init__(self, dsn, seed):
        super().__init__(seed)
        self._db = Db(dsn, autocommit=False)

    def run(self, transactions):
        for _ in range(transactions):
            for statement, values in self.statements():
                with suppress(pymysql.IntegrityError, pymysql.OperationalError):  # a deadlock
                    self._db.execute(statement, *values)
            if self.is_rolled_back():
                self._db.connection.rollback()
            else:
                self._db.connection.commit()


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.more)])
def test_a_random_workload_is_captured_exactly(log, db, dsn, seed, monkeypatch) -> None:
    """Method: a snapshot in chunks of a few rows, by captures that end and start again, while others write."""
    monkeypatch.setattr("millstream.capture.mariadb.steps.CHUNK_ROWS", 2)
    monkeypatch.setattr("millstream.capture.stream_steps.PIECE_ROWS", 7)
    monkeypatch.setattr("millstream.capture.stream_steps.STEP_CHANGES", 20)
    db.execute("SET GLOBAL innodb_lock_wait_timeout = 1")
    work = MariadbWorkload(dsn, seed), MariadbWorkload(dsn, -seed)
    captured_while_written(partial(capture, log, dsn, "orders", "places"), *work)
    check_equal(log, partial(rows, db))


def test_a_table_can_be_added_when_a_capture_starts_again(log, db, dsn) -> None:
    db.execute("INSERT INTO places VALUES (1, 'here')")
    with capture(log, dsn, "orders") as running:
        running.catch_up()
    other = Db(dsn, autocommit=False)
    other.execute("INSERT INTO places VALUES (2, 'there')")
    with capture(log, dsn, "orders", "places") as running:
        running.step()
        db.execute("INSERT INTO places VALUES (3, 'far')")
        other.connection.commit()
        running.catch_up()
    other.connection.close()
    check_equal(log, partial(rows, db))


@pytest.mark.more
def test_a_table_is_added_to_a_running_capture(log, db, dsn, monkeypatch) -> None:
    """Method: both tables are written all the time, in the same transactions, and the capture starts again later."""
    monkeypatch.setattr(adding, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr("millstream.capture.mariadb.steps.CHUNK_ROWS", 3)
    work = MariadbWorkload(dsn, 11)
    work.run(20)
    with running(capture(log, dsn, "orders")) as started:
        writing = threading.Thread(target=work.run, args=(60,))
        writing.start()
        until(lambda: started.changes > 0, "the capture has begun")
        assert ms.add_to_capture(log, started.name, "places", wait_s=60)
        writing.join()
        with pytest.raises(InvalidInput, match="there is no table 'placs'"):
            ms.add_to_capture(log, started.name, "placs", wait_s=30)
        work.run(5)
    work.run(10)
    with capture(log, dsn, "orders") as again:
        again.catch_up()
        assert again.position["tables"].keys() == {"orders", "places"}
    check_equal(log, partial(rows, db))
    assert {change["op"] for change in records(log, "orders")[1:]} > {"update", "delete"}


@pytest.mark.parametrize("kills", [pytest.param(4, marks=pytest.mark.more), pytest.param(20, marks=pytest.mark.soak)])
def test_a_killed_capture_loses_and_repeats_nothing(tmp_path, db, dsn, kills) -> None:
    work, tables = MariadbWorkload(dsn, kills), ["orders", "places"]
    work.run(20)
    for life, killed in enumerate(lives(kills)):
        folder = tmp_path / f"log{life}"
        kill_captures(killed, work, capture_mariadb, folder, "app", dsn, tables)
        with EmbeddedLog(folder) as log:
            with capture(log, dsn, *tables) as running:
                running.catch_up()
            check_equal(log, partial(rows, db))


def test_a_table_that_is_altered_and_not_written_has_a_record(log, db, dsn) -> None:
    check_altered_tables_have_records(log, db.execute, partial(capture, log, dsn, "orders", "places"))


@pytest.mark.parametrize("kills", [pytest.param(4, marks=pytest.mark.more), pytest.param(20, marks=pytest.mark.soak)])
def test_a_killed_capture_records_each_change_of_columns_once(tmp_path, db, dsn, kills) -> None:
    work = Altering(db.execute)
    kill_captures(kills, work, capture_mariadb, tmp_path / "log", "app", dsn, ["orders", "places"])
    with EmbeddedLog(tmp_path / "log") as log:
        with capture(log, dsn, "orders", "places") as running:
            running.catch_up()
            work.alter()  # all others may have come before the capture began
            running.catch_up()
        work.check_records(log, "app")


@pytest.mark.more
def test_a_server_that_restarts_is_waited_for(log, dsn, mariadb) -> None:
    db = Db(dsn)
    db.execute(TABLES)
    with capture(log, dsn, "orders") as running:
        running.catch_up()
        stop = threading.Event()
        thread = threading.Thread(target=running.run, args=(stop,))
        thread.start()
        mariadb.stop()
        mariadb.start()
        Db(dsn).execute("INSERT INTO orders (id) VALUES (1)")
        until(lambda: running.changes == 1 or not thread.is_alive(), "the change is captured")
        stop.set()
        thread.join()
    assert [change["op"] for change in records(log, "orders")] == ["insert"]


# ---------------------------------------------------------------- as a source, and as a command


def test_changes_and_rows_are_sources(db, dsn, tmp_path) -> None:
    db.execute("INSERT INTO orders VALUES (1, 'tea', 2.5)")
    endpoint = ms.mariadb_changes(dsn, tables=["orders"])
    check_orders_are_a_source(endpoint, ("id", "product", "amount"), db, tmp_path / "job")
    assert dsn not in repr(endpoint)


def test_the_command(db, dsn, tmp_path) -> None:
    db.execute("INSERT INTO orders VALUES (1, 'tea', 2.5)")
    command = ["--log", str(tmp_path / "log"), "capture", "mariadb", dsn, "--table", "orders=o", "--until-caught-up"]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    with EmbeddedLog(tmp_path / "log") as log:
        assert [each["after"]["product"] for each in records(log, "o")] == ["tea"]
    db.execute("INSERT INTO notes VALUES ('x'); CREATE VIEW seen AS SELECT 1")
    shown = CliRunner().invoke(app, [*command[:5], "--name", "all", "--until-caught-up"])
    assert (shown.exit_code, "tables: notes, orders, places" in shown.output) == (0, True), shown.output
