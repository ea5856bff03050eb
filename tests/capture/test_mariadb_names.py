"""Capture of a MariaDB server that does not distinguish upper and lower case in names of tables."""

from functools import partial

import pymysql
import pytest

from mariadb_server import MariadbServer
from millstream.capture.capturing import Capture
from millstream.capture.mariadb.address import parsed
from millstream.capture.mariadb.database import MariadbDatabase
from millstream.errors import OffsetLost

from .support import records

pytestmark = pytest.mark.xdist_group("mariadb")


@pytest.fixture(scope="module")
def server():
    made = MariadbServer(lower_case_table_names="1")
    yield made
    made.close()


@pytest.fixture
def dsn(server):
    return server.new_database()


@pytest.fixture
def run(dsn):
    address = parsed(dsn)
    connection = pymysql.connect(
        host=address.host, port=address.port, user=address.user, database=address.database, autocommit=True
    )

    def executed(sql):
        with connection.cursor() as cursor:
            cursor.execute(sql)

    executed("CREATE TABLE Orders (id int PRIMARY KEY)")
    yield executed
    connection.close()


def capture(log, dsn):
    database = dsn.rpartition("/")[2].upper()
    return Capture(log, "app", partial(MariadbDatabase, dsn, {f"{database}.OrderS": "orders"}))


@pytest.mark.more
def test_changes_are_captured_in_any_spelling(log, dsn, run) -> None:
    run("INSERT INTO orders VALUES (1)")
    with capture(log, dsn) as running:
        running.catch_up()
        run("INSERT INTO ORDERS VALUES (2)")
        run("TRUNCATE `oRDERS`")
        running.catch_up()
    found = [(each["op"], each["after"] and each["after"]["id"]) for each in records(log, "orders")]
    assert found == [("snapshot", 1), ("insert", 2), ("truncate", None)]


@pytest.mark.more
@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE ORDERS",
        "RENAME TABLE ORDERS TO old",
        "DROP DATABASE {database}",
        "SET STATEMENT binlog_format = 'STATEMENT' FOR INSERT INTO ORDERS VALUES (1)",
    ],
)
def test_what_cannot_be_followed_stops_the_capture_in_any_spelling(log, dsn, run, statement) -> None:
    with capture(log, dsn) as running:
        running.catch_up()
        run(statement.replace("{database}", dsn.rpartition("/")[2].upper()))
        with pytest.raises(OffsetLost):
            running.catch_up()
