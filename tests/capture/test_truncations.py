"""Tables of a flow whose database truncates them, on Spark."""

from collections import Counter

import pytest

import millstream as ms
from jobs.support import CAUGHT_UP, read
from millstream.capture.capturing import Capture
from millstream.capture.postgres.database import PostgresDatabase

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.more]


@pytest.mark.parametrize("source", ["database", "topic"])
def test_a_table_goes_on_after_a_truncation(log, db, dsn, source) -> None:
    """Goal: the rows are retracted, and those that the same transaction inserts stay, in whatever partition they are.

    Method: the table that the changes add up to, after runs of a job that stops in between.
    """
    name = f"app_{dsn.rpartition('/')[2][-12:]}"

    def check():
        if source == "topic":
            opened = lambda name: PostgresDatabase(dsn, {"orders": "orders"}, name)  # noqa: E731
            with Capture(log, name, opened, partitions=3) as running:
                running.catch_up()
        flow = ms.Flow("orders", log=log.path)
        orders = ms.captured("orders", key="id") if source == "topic" else ms.postgres_changes(dsn, tables="orders")
        flow.table(orders).select("id", "product").changes().write("changes")
        flow.run(until=CAUGHT_UP, progress="none")
        found = Counter()
        for row in read(log, "changes"):
            found[row["id"], row["product"]] += row["weight"]
        rows = db.execute("SELECT id, product FROM orders").fetchall()
        assert {row: n for row, n in found.items() if n} == dict.fromkeys(rows, 1)

    db.execute("INSERT INTO orders SELECT n, 'tea' FROM generate_series(1, 40) AS n")
    check()
    with db.transaction():
        db.execute("DELETE FROM orders WHERE id = 3")
        db.execute("UPDATE orders SET product = 'gone' WHERE id % 2 = 0")
        db.execute("TRUNCATE orders, places")
        db.execute("INSERT INTO orders SELECT n, 'milk' FROM generate_series(21, 60) AS n")
    db.execute("UPDATE orders SET product = 'jam' WHERE id % 3 = 0")
    check()
    db.execute("TRUNCATE orders")
    check()
    db.execute("INSERT INTO orders VALUES (1, 'salt')")
    check()
