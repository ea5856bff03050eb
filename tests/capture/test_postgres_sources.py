"""Tables of a Postgres as sources of a flow: their changes, and their rows."""

import pytest

import millstream as ms
from millstream.capture.postgres.slots import slots
from millstream.connectors.opening import open_source
from millstream.errors import InvalidInput

from .support import check_orders_are_a_source, rows_of, wait_until_free


def test_several_tables_are_one_source(db, dsn, tmp_path) -> None:
    """Goal: also after a restart, and with a column that a table gains."""
    db.execute("INSERT INTO orders VALUES (1, 'tea', 2.5); INSERT INTO places VALUES (1, 'here')")
    endpoint = ms.postgres_changes(dsn, tables=["orders", "places"])
    schema = endpoint.own_schema(None)
    assert [field.name for field in schema.field("after").type] == ["id", "product", "amount", "tags", "x", "name"]
    found = changes_of(endpoint, schema, tmp_path)
    assert [(each["table"], each["after"]["id"], each["after"]["x"]) for each in found] == [
        ("orders", 1, None),
        ("places", None, 1),
    ]
    db.execute("ALTER TABLE orders ADD COLUMN more text; INSERT INTO orders (id, more) VALUES (2, 'm')")
    db.execute("DELETE FROM places")
    wait_until_free(db, slots(dsn)[0].name)
    found = changes_of(endpoint, schema, tmp_path)[2:]
    assert [(each["table"], each["op"]) for each in found] == [("orders", "insert"), ("places", "delete")]
    with pytest.raises(InvalidInput, match="from one table"):
        ms.Flow("f").table(endpoint)
    db.execute("CREATE TABLE others (id text PRIMARY KEY)")
    with pytest.raises(InvalidInput, match="have the column 'id' with different types"):
        ms.Flow("f").read(ms.postgres_changes(dsn, tables=["orders", "others"]))


def changes_of(endpoint, schema, folder):
    source = open_source(endpoint, schema, broker=None, folder=folder / "job", name="changes")
    try:
        return rows_of(source)
    finally:
        source.close()


def test_changes_and_rows_are_sources(db, dsn, tmp_path) -> None:
    db.execute("INSERT INTO orders VALUES (1, 'tea', 2.5)")
    endpoint = ms.postgres_changes(dsn, tables=["orders"])
    check_orders_are_a_source(endpoint, ("id", "product", "amount", "tags"), db, tmp_path / "job")
    assert dsn not in repr(endpoint)


def test_a_truncation_is_a_row_and_a_change(db, dsn, tmp_path) -> None:
    """Goal: among the rows, it has what tells a table which of them it deletes."""
    db.execute("INSERT INTO orders VALUES (1, 'tea', 2.5)")
    endpoint = ms.postgres_changes(dsn, tables=["orders"])
    kept, changes = endpoint.as_table(None), endpoint.own_schema(None)
    for _ in range(2):
        rows = changes_of(kept.source, kept.schema, tmp_path / "table")
        found = changes_of(endpoint, changes, tmp_path / "changes")
        assert [each["op"] for each in found] == [row["__op"] for row in rows]
        with db.transaction():
            db.execute("INSERT INTO orders VALUES (2, 'milk', 1)")
            db.execute("TRUNCATE places, orders")
            db.execute("INSERT INTO orders VALUES (3, 'salt', 4)")
        for slot in slots(dsn):
            wait_until_free(db, slot.name)
    assert [(row["id"], row["__op"], row["__number"]) for row in rows] == [
        (1, "snapshot", -1),
        (2, "insert", 0),
        (None, "truncate", 1),
        (3, "insert", 2),
    ]
    assert len({row["__position"] for row in rows[1:]}) == len({row["__at"] for row in rows[1:]}) == 1
