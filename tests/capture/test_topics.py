"""Topics with changes, read as tables: of a capture, and of Debezium."""

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from functools import partial

import pytest

import millstream as ms
from millstream.capture.capturing import Capture
from millstream.capture.sqlite.database import SqliteDatabase
from millstream.connectors.opening import open_source
from millstream.errors import InvalidInput, InvalidPlan, InvalidSchema

ROW = {"id": 1, "name": "ann"}


def rows_of(endpoint, schema, log):
    folder = log.path.parent / "job"
    source = open_source(endpoint, schema, broker=str(log.path), folder=folder, name="table")
    try:
        return [
            row
            for task in source.slices(source.earliest(), source.latest(), 1)
            for piece in task
            for slab in source.read(piece)
            for row in slab.rows.to_pylist()
        ]
    finally:
        source.close()


def opened(path, name):
    return SqliteDatabase(path, {"people": "people"}, name)


def test_a_captured_topic_is_a_table(log, tmp_path) -> None:
    """Goal: also after the topic has gained a column, which a flow that is already built does not know."""
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT)")
        db.execute("INSERT INTO people VALUES (1, 'ann'), (2, 'bob')")
        with Capture(log, "app", partial(opened, path)) as capture:
            capture.catch_up()
            endpoint = ms.captured("people", key="id")
            flow = ms.Flow("f", log=log.path)
            table = flow.table(endpoint)
            assert (table.is_table, table.schema.ddl) == (True, "id bigint, name string")
            assert flow.read(endpoint, event_time="at").schema.names[:2] == ("table", "op")
            kept = endpoint.as_table(str(log.path))
            db.execute("ALTER TABLE people ADD COLUMN more TEXT")
            db.execute("DELETE FROM people WHERE id = 2")
            capture.catch_up()
    found = rows_of(kept.source, kept.schema, log)
    assert [(row["id"], row["name"], row["__op"]) for row in found] == [
        (1, "ann", "snapshot"),
        (2, "bob", "snapshot"),
        (2, "bob", "delete"),
        (1, "ann", "snapshot"),
    ]


def test_another_topic_or_key_is_refused(log) -> None:
    log.create_topic("scores", schema="user string")
    flow = ms.Flow("f", log=log.path)
    with pytest.raises(InvalidSchema, match="does not have the changes of a table"):
        flow.table(ms.captured("scores", key="user"))
    with pytest.raises(InvalidSchema, match="no column 'idd'"):
        flow.table(ms.debezium("people", "id int", key="idd"))
    with pytest.raises(InvalidInput, match="key takes column names"):
        ms.captured("scores", key=[])
    with pytest.raises(InvalidPlan, match="knows its columns"):
        flow.table(ms.debezium("people", "id int", key="id"), "id int")


def envelope(op, before, after, second, *, whole=False):
    """As Debezium writes it, with or without its schema."""
    change = {"before": before, "after": after, "op": op, "ts_ms": 9, "source": {"ts_ms": 1000 * second, "db": "x"}}
    return json.dumps({"schema": {"type": "struct"}, "payload": change} if whole else change)


@pytest.mark.parametrize("whole", [False, True])
def test_records_of_debezium_are_a_table(log, whole) -> None:
    log.create_topic("people")
    new = ROW | {"name": "eve"}
    with log.producer() as producer:
        for op, before, after, second in [("r", None, ROW, 1), ("c", None, ROW | {"id": 2}, 2), ("u", ROW, new, 3)]:
            producer.send("people", envelope(op, before, after, second, whole=whole), key="1")
        producer.send("people", envelope("d", new, None, 4, whole=whole), key="1")
        producer.send("people", None, key="1")  # the tombstone that Debezium adds
    endpoint = ms.debezium("people", "id int, name string", key="id")
    assert ms.Flow("f").table(endpoint).schema.ddl == "id int, name string"
    kept = endpoint.as_table(None)
    found = rows_of(kept.source, kept.schema, log)
    assert [(row["id"], row["name"], row["__op"], row["__at"]) for row in found] == [
        (1, "ann", "snapshot", datetime.fromtimestamp(1, UTC)),
        (2, "ann", "insert", datetime.fromtimestamp(2, UTC)),
        (1, "eve", "update", datetime.fromtimestamp(3, UTC)),
        (1, "eve", "delete", datetime.fromtimestamp(4, UTC)),
    ]
    assert {(row["__position"], row["__number"]) for row in found} == {(None, None)}  # in the order of the topic
    changes = rows_of(endpoint, endpoint.own_schema(None), log)
    assert (changes[2]["before"], changes[2]["after"], changes[2]["op"]) == (ROW, new, "update")


def test_a_truncation_is_a_row_without_values(log) -> None:
    """Goal: it has what tells a table which rows it deletes."""
    log.create_topic("people")
    with log.producer() as producer:
        producer.send("people", envelope("t", None, None, 7))
    kept = ms.debezium("people", "id int", key="id").as_table(None)
    (row,) = rows_of(kept.source, kept.schema, log)
    assert (row["id"], row["__op"], row["__at"]) == (None, "truncate", datetime.fromtimestamp(7, UTC))
