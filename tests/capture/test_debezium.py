"""Debezium's records, JSON: those of its own engine are read, and those that are written are read back the same."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

import millstream as ms
from millstream.capture.changes import envelope
from millstream.connectors.opening import open_sink, open_source
from millstream.errors import InvalidInput, InvalidPlan, InvalidSchema, SinkFailed
from millstream.records import Schema
from waiting import until

from .test_debezium_agrees import debezium
from .test_topics import rows_of

COLUMNS = Schema.of(
    "id int, born date, at timestamp, local timestamp_ntz, amount decimal(10, 2), large decimal(38, 0), data binary, "
    "tags array<string>, days array<date>, story string"
)
ROW = {
    "id": 1,
    "born": date(1960, 1, 2),
    "at": datetime(2020, 5, 6, 7, 8, 9, 123456, UTC),
    "local": datetime(1999, 12, 31, 23, 59, 59, 999999),
    "amount": Decimal("-1.20"),
    "large": Decimal(10**38 - 1),
    "data": b"\0\xff",
    "tags": ["x", None],
    "days": [date(2000, 2, 29)],
    "story": "short",
}
NOTHING = dict.fromkeys(ROW) | {"id": 2}


def rows(endpoint, log):
    return rows_of(endpoint, endpoint.own_schema(None), log)


@pytest.mark.more
def test_records_of_debeziums_engine_are_read(log, dsn, db, tmp_path) -> None:
    """Goal: every type with Debezium's own settings, and a large value that it did not send is marked."""
    db.execute(
        "CREATE TABLE people (id int PRIMARY KEY, born date, at timestamptz, local timestamp, amount numeric(10, 2), "
        "large numeric(38, 0), data bytea, tags text[], days date[], story text)"
    )
    marks = ", ".join(["%s"] * len(ROW))
    story = "".join(chr(97 + n * n % 23) + chr(97 + n * 7 % 19) for n in range(9000))
    values = [ROW | {"story": story}, NOTHING]
    slot = f"read_{dsn.rpartition('/')[2][-12:]}"
    with debezium(dsn, slot, tmp_path, ["people"], decimal_handling_mode="precise") as peer:
        active = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND active"
        until(lambda: peer.runs() and db.execute(active, (slot,)).fetchone(), "Debezium streams")
        for row in values:
            db.execute(f"INSERT INTO people VALUES ({marks})", list(row.values()))
        db.execute("ALTER TABLE people ALTER story SET STORAGE EXTERNAL")
        db.execute("UPDATE people SET story = %s WHERE id = 1", (story,))
        db.execute("UPDATE people SET amount = 0 WHERE id = 1")
        db.execute("DELETE FROM people WHERE id = 1")
        until(lambda: len(peer.changes()) >= 5, "Debezium has captured everything")
        changes = peer.changes()
    log.create_topic("people")
    with log.producer() as producer:
        for change in changes:
            producer.send("people", json.dumps(change))
    found = rows(ms.debezium("people", COLUMNS, key="id"), log)
    assert [(each["op"], each["unsent"]) for each in found] == [
        ("insert", None),
        ("insert", None),
        ("update", None),
        ("update", ["story"]),
        ("delete", None),
    ]
    assert [each["after"] for each in found[:2]] == values
    assert found[3]["after"] == ROW | {"amount": Decimal("0.00"), "story": None}


def change(op, before, after, unsent=None):
    return {
        "table": "people",
        "op": op,
        "key": "1",
        "before": before,
        "after": after,
        "unsent": unsent,
        "transaction": "7",
        "number": 0,
        "position": 5,
        "at": datetime(2021, 1, 1, tzinfo=UTC),
    }


CHANGES = [
    change("snapshot", None, ROW),
    change("insert", None, NOTHING),
    change("update", ROW, ROW | {"story": None, "data": None}, ["data", "story"]),
    change("delete", ROW, None),
    change("truncate", None, None),
]


def written(endpoint, log, changes=CHANGES, weights=None):
    """Twice, as after a crash."""
    schema = envelope(COLUMNS)
    folder = log.path.parent / "sink"
    for _ in range(2):
        sink = open_sink(endpoint, schema, job="j", step="out", broker=str(log.path), folder=folder)
        try:
            sink.write(0, pa.Table.from_pylist(changes, schema=schema.arrow), weights)
        finally:
            sink.close()


@pytest.mark.parametrize("decimals", ["precise", "string"])
def test_what_is_written_is_read_back(log, decimals) -> None:
    endpoint = ms.debezium("shop.people", COLUMNS, key="id", decimals=decimals)
    written(endpoint, log)
    kept = ("op", "before", "after", "unsent", "at")
    assert [{name: each[name] for name in kept} for each in rows(endpoint, log)] == [
        {name: each[name] for name in kept} for each in CHANGES
    ]


def test_records_are_as_debezium_writes_them(log) -> None:
    written(ms.debezium("shop.people", key="id"), log)
    with log.consumer("shop.people") as consumer:
        found = [(record.key, record.value and json.loads(record.value)) for record in consumer.until_caught_up()]
    assert [key for key, _ in found] == [b'{"id":1}', b'{"id":2}', b'{"id":1}', b'{"id":1}', b'{"id":1}', None]
    assert found[4][1] is None, "no tombstone follows the delete"
    first, update = found[0][1], found[2][1]
    assert (first["op"], first["before"], first["ts_ms"]) == ("r", None, 1609459200000)
    assert first["after"] == {
        "id": 1,
        "born": -3652,
        "at": "2020-05-06T07:08:09.123456Z",
        "local": 946684799999999,
        "amount": "iA==",
        "large": "SztMqFqGxHoJiiI//////w==",
        "data": "AP8=",
        "tags": ["x", None],
        "days": [11016],
        "story": "short",
    }
    assert update["after"]["story"] == "__debezium_unavailable_value"
    source = {name: first["source"][name] for name in ("table", "ts_ms", "lsn", "snapshot", "txId")}
    assert source == {"table": "people", "ts_ms": 1609459200000, "lsn": 5, "snapshot": "true", "txId": "7"}


def test_a_record_that_does_not_fit_is_a_dead_letter(log) -> None:
    log.create_topic("people")
    with log.producer() as producer:
        for amount in ("!", "iA==", "////////////////////////"):
            producer.send("people", json.dumps({"op": "c", "after": {"id": 1, "amount": amount}}))
    endpoint = ms.debezium("people", "id int, amount decimal(3, 2)", key="id")
    source = open_source(endpoint, endpoint.own_schema(None), broker=str(log.path), folder=log.path / "j", name="x")
    try:
        (slab,) = source.read(source.slices(source.earliest(), source.latest(), 1)[0][0])
    finally:
        source.close()
    assert [row["after"]["amount"] for row in slab.rows.to_pylist()] == [Decimal("-1.20"), Decimal("-0.01")]
    assert [letter["offset"] for letter in slab.dead.to_pylist()] == [0]


def test_what_cannot_be_written_is_refused(log) -> None:
    flow = ms.Flow("f", log=log.path)
    scores = flow.read("scores", "user string")
    with pytest.raises(InvalidPlan, match="no column 'table'"):
        scores.write(ms.debezium("out", key="user"))
    with pytest.raises(InvalidInput, match="is unknown"):
        ms.debezium("out", key="user", decimals="double")
    with pytest.raises(InvalidInput, match="Avro with one"):
        ms.debezium(ms.kafka("host:9092", topic="out", format="avro"), key="user")
    with pytest.raises(InvalidSchema, match="are not known"):
        flow.table(ms.debezium("out", key="user"))
    with pytest.raises(InvalidPlan, match="no column 'user'"):
        written(ms.debezium("out", key="user"), log)
    with pytest.raises(SinkFailed, match="retracted"):
        written(ms.debezium("out", key="id"), log, CHANGES[:1], pa.array([-1], pa.int8()))
