"""A row that a sink refuses becomes a dead letter with its record, and the job continues; nothing is duplicated."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

import millstream as ms
from millstream.connectors.topic.sink import TopicSink
from millstream.errors import InvalidPlan, MillstreamError, RecordFailed
from millstream.log import EmbeddedLog
from postgres_server import Server

from .support import CAUGHT_UP, SCHEMA, put, read, scores

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with EmbeddedLog(tmp_path / "log", upkeep=False) as opened:
        opened.create_topic("scores", schema=SCHEMA, partitions=2)
        put(opened, "scores", [("ann", 1, 0), ("n\0ul", 2, 1), ("bob", 3, 2)], partition=0)
        put(opened, "scores", [("cid", 4, 3), ("x" * 300, 5, 4)], partition=1)
        yield opened


@pytest.mark.more
def test_bad_rows_of_several_sinks_in_one_topic_of_dead_letters(
    log: EmbeddedLog, server: Server, tmp_path: Path
) -> None:
    dsn = server.new_database()
    flow = ms.Flow("refused")
    rows = scores(flow)
    stored = rows.write(ms.postgres(dsn, "scores", key="user"))
    filed = rows.where("n > 1").write(ms.files(tmp_path / "out", partition_by="user"))
    stored.dead.union(filed.dead, rows.dead).write("scores.dead")
    job = flow.run(broker=log.path, until=CAUGHT_UP)
    with psycopg.connect(dsn) as db:
        assert db.execute("SELECT n FROM scores ORDER BY n").fetchall() == [(1,), (3,), (4,), (5,)]
    assert len(list((tmp_path / "out").rglob("*.parquet"))) == 3
    letters = sorted(read(log, "scores.dead"), key=lambda letter: letter["partition"])
    assert [(letter["topic"], letter["partition"], letter["offset"]) for letter in letters] == [
        ("scores", 0, 1),
        ("scores", 1, 1),
    ]
    assert "NUL character" in letters[0]["reason"]
    assert "'n': 2" in letters[0]["value"].decode()
    assert "a folder name of 305 bytes" in letters[1]["reason"]
    assert job.progress.rows_dead == 2
    assert job.progress.written["write_postgres_scores"] == 4


def test_without_dead_letters_the_job_stops_at_the_record(log: EmbeddedLog, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def built(*, dead: bool) -> ms.Flow:
        flow = ms.Flow("refused")
        written = scores(flow).write(ms.files(out, partition_by="user"))
        if dead:
            written.dead.write("scores.dead")
        return flow

    with pytest.raises(RecordFailed, match="a folder name of 305 bytes") as found:
        built(dead=False).run(broker=log.path, until=CAUGHT_UP)
    assert found.value.where == "topic scores, partition 1, offset 1"
    assert ".write(…).dead" in str(found.value.next_step)
    assert list(out.rglob("*.parquet")) == []
    built(dead=True).run(broker=log.path, until=CAUGHT_UP)
    assert len(list(out.rglob("*.parquet"))) == 4
    assert len(read(log, "scores.dead")) == 1


@pytest.mark.more
def test_rows_that_workers_file_themselves(log: EmbeddedLog, tmp_path: Path) -> None:
    """Goal: the bad one comes back to the driver, and it alone. Method: enough rows beside it for a file of a task."""
    put(log, "scores", [("dan", number, 9) for number in range(20_000)], partition=1)
    flow = ms.Flow("refused")
    rows = scores(flow).with_column("text", "repeat('x', 500)")
    rows.write(ms.files(tmp_path / "out", partition_by="user")).dead.write("scores.dead")
    job = flow.run(broker=log.path, until=CAUGHT_UP)
    assert list((tmp_path / "out").rglob("*-0001.parquet")), "a worker has written"
    assert job.progress.written["write_files_out"] == 20_004
    [letter] = read(log, "scores.dead")
    assert (letter["partition"], letter["offset"]) == (1, 1)


@pytest.mark.more
def test_a_crash_between_the_sink_and_its_dead_letters(
    log: EmbeddedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: what the sink has refused is handed on once, though it would take the row by now."""
    database = tmp_path / "scores.db"
    with sqlite3.connect(database) as db:
        db.execute("CREATE TABLE scores (user TEXT, n INT CHECK (n <> 3))")
    flow = ms.Flow("refused")
    scores(flow).select("user", "n").write(ms.sqlite(database, "scores")).dead.write("scores.dead")

    def dies(*_: Any) -> None:
        raise MillstreamError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(TopicSink, "write", dies)
        with pytest.raises(MillstreamError, match="killed"):
            flow.run(broker=log.path, until=CAUGHT_UP)
    with sqlite3.connect(database) as db:
        assert sorted(db.execute("SELECT n FROM scores").fetchall()) == [(1,), (2,), (4,), (5,)]
        db.execute("ALTER TABLE scores RENAME TO before")
        db.execute("CREATE TABLE scores AS SELECT * FROM before")
    for _ in range(2):
        flow.run(broker=log.path, until=CAUGHT_UP)
    with sqlite3.connect(database) as db:
        assert sorted(db.execute("SELECT n FROM scores").fetchall()) == [(1,), (2,), (4,), (5,)]
    [letter] = read(log, "scores.dead")
    assert (letter["partition"], letter["offset"]) == (0, 2)
    assert "CHECK constraint failed" in letter["reason"]


@pytest.mark.more
def test_a_table_whose_copy_refuses_a_row(log: EmbeddedLog, tmp_path: Path) -> None:
    """Rows that a step has made have no record of their own; what is in them is kept."""
    with sqlite3.connect(tmp_path / "totals.db") as db:
        db.execute("CREATE TABLE totals (user TEXT UNIQUE, total BIGINT CHECK (total <> 4))")
    flow = ms.Flow("refused")
    totals = scores(flow).group_by("user").agg(total=ms.sum("n"))
    totals.write(ms.sqlite(tmp_path / "totals.db", "totals")).dead.write("totals.dead")
    flow.run(broker=log.path, until=CAUGHT_UP)
    with sqlite3.connect(tmp_path / "totals.db") as db:
        assert sorted(total for _, total in db.execute("SELECT * FROM totals")) == [1, 2, 3, 5]
    [letter] = read(log, "totals.dead")
    assert (letter["topic"], letter["offset"]) == (None, None)
    assert letter["value"] == b"{'user': 'cid', 'total': 4}"


def test_no_state_is_kept_behind_a_sink() -> None:
    flow = ms.Flow("refused")
    dead = scores(flow).write(ms.sqlite("x.db", "t")).dead
    dead.group_by("topic").agg(n=ms.count()).write("counts")
    with pytest.raises(InvalidPlan, match="after the dead letters of a sink"):
        flow.check()


@pytest.mark.more
def test_rows_that_a_format_cannot_hold(log: EmbeddedLog) -> None:
    schema = (
        '{"type": "record", "name": "Score", "fields": [{"name": "n", "type": {"type": "enum", "name": "N", "symbols": '
    )
    schema += '["ann", "bob"]}}]}'

    def built(*, dead: bool) -> ms.Flow:
        flow = ms.Flow("written")
        names = scores(flow).select(n="user")
        written = names.write(ms.topic("names", format="avro", avro_schema=schema), partitions=1)
        if dead:
            written.dead.write("names.dead")
        return flow

    with pytest.raises(RecordFailed, match="which its enum does not have: ann, bob") as found:
        built(dead=False).run(broker=log.path, until=CAUGHT_UP)
    assert "offset" in str(found.value.where)
    assert "names" not in log.topics() or read(log, "names") == []
    built(dead=True).run(broker=log.path, until=CAUGHT_UP)
    assert sorted(read(log, "names")) == [b"\x00", b"\x02"]
    letters = {(letter["partition"], letter["offset"]) for letter in read(log, "names.dead")}
    assert letters == {(0, 1), (1, 0), (1, 1)}


AVRO = """{"type": "record", "name": "Amount", "fields": [
    {"name": "id", "type": "string"}, {"name": "n", "type": "long"}, {"name": "price", "type": ["null", {
        "type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}], "default": null}]}"""
PROTO = 'syntax = "proto3"; message Amount { optional string id = 1; int32 n = 2; }'


@pytest.mark.more
def test_every_format_names_the_record_that_it_cannot_hold(log: EmbeddedLog, tmp_path: Path) -> None:
    """Goal: the offset, in a dead letter or in the error that stops the job. Method: one bad row for each format."""
    (tmp_path / "amount.proto").write_text(PROTO)
    schema = "id string, n bigint, price decimal(12,4)"
    log.create_topic("amounts", schema=schema)
    bad = [(None, 1, None), ("b", 2**40, None), ("c", 3, Decimal("1.2345"))]
    with log.producer() as producer:
        for name, n, price in [("a", 0, Decimal("1.25")), *bad]:
            producer.send("amounts", {"id": name, "n": n, "price": price})
    formats: dict[str, tuple[list[str], dict[str, Any], dict[int, str]]] = {
        "avro": (["id", "n", "price"], {"avro_schema": AVRO}, {1: "'id' is null", 3: "'price'"}),
        "protobuf": (["id", "n"], {"descriptors": tmp_path / "amount.proto"}, {2: "out of the range"}),
        "string": (["id"], {}, {1: "null"}),
    }

    def write(flow: ms.Flow, format: str) -> Any:
        columns, options, _ = formats[format]
        place = ms.topic(f"{flow.name}-{format}", format=format, **options)
        return flow.read("amounts", schema).select(*columns).write(place)

    for format, (_, _, refused) in formats.items():
        flow = ms.Flow(f"stops-{format}")
        write(flow, format)
        with pytest.raises(RecordFailed, match=refused[min(refused)]) as stopped:
            flow.run(broker=log.path, until=CAUGHT_UP, progress="none")
        assert f"offset {min(refused)}" in str(stopped.value.where)
        assert read(log, f"{flow.name}-{format}") == []
    flow = ms.Flow("continues")
    for format in formats:
        write(flow, format).dead.write(f"dead-{format}")
    flow.run(broker=log.path, until=CAUGHT_UP, progress="none")
    for format, (_, _, refused) in formats.items():
        letters = {letter["offset"]: letter["reason"] for letter in read(log, f"dead-{format}")}
        assert letters.keys() == refused.keys()
        assert all(part in letters[offset] for offset, part in refused.items())
        assert len(read(log, f"continues-{format}")) == 4 - len(refused)


@pytest.mark.more
def test_a_number_of_json_that_its_column_cannot_hold(log: EmbeddedLog) -> None:
    log.create_topic("raw")
    with log.producer() as producer:
        for value in (b'{"d":999.99}', b'{"d":1000.5}', b'{"d":1.25}', b'{"d":1e400}', b'{"d":"12.34"}'):
            producer.send("raw", value)

    def reading(name: str) -> tuple[ms.Flow, Any]:
        flow = ms.Flow(name)
        rows = flow.read("raw", "d decimal(5,2)")
        rows.write("prices")
        return flow, rows

    flow, _ = reading("stops")
    with pytest.raises(MillstreamError, match=r"1000\.5") as stopped:
        flow.run(broker=log.path, until=CAUGHT_UP, progress="none")
    assert "offset 1" in str(stopped.value.where)
    flow, rows = reading("continues")
    rows.dead.write("raw.dead")
    flow.run(broker=log.path, until=CAUGHT_UP, progress="none", start_over=True)
    assert [letter["offset"] for letter in read(log, "raw.dead")] == [1, 3]
    assert [row["d"] for row in read(log, "prices")] == [Decimal(text) for text in ("999.99", "1.25", "12.34")]
