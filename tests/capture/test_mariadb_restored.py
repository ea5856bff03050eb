"""A MariaDB that was restored from an older copy is told apart, also when its binary log has grown again."""

import shutil
import subprocess

import pytest

from mariadb_server import MariadbServer
from millstream.errors import OffsetLost

from .support import records
from .test_mariadb import TABLES, Db, capture

pytestmark = pytest.mark.xdist_group("mariadb")


@pytest.mark.more
def test_a_restored_database_that_has_written_more_is_refused(log) -> None:
    """Goal: its binary log has the same GTIDs at the same places, with other transactions."""
    server = MariadbServer()
    data, copy = server.data, server.data.with_name("copy")
    try:
        dsn = server.new_database()

        def write(*numbers):
            db = Db(dsn)
            for number in numbers:
                db.execute("INSERT INTO orders (id) VALUES (%s)", number)
            db.connection.close()

        db = Db(dsn)
        db.execute(TABLES)
        db.connection.close()
        with capture(log, dsn, "orders") as started:
            started.catch_up()
        server.stop()
        subprocess.run(["cp", "-a", data, copy], check=True)
        server.start()
        write(1)
        for _ in range(2):  # the server has the newest transaction of the log
            with capture(log, dsn, "orders") as started:
                started.catch_up()
        server.stop()
        shutil.rmtree(data)
        copy.rename(data)
        server.start()
        write(2, 3, 4)
        with pytest.raises(OffsetLost, match="is not the one that the log has"):
            capture(log, dsn, "orders")
        assert [change["after"]["id"] for change in records(log, "orders")] == [1]
    finally:
        server.close()
