"""Sources, sinks, unions, chains and clocks, each through a running flow."""

from __future__ import annotations

import io
import json
import socket
import threading
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream as ms
from jobs.support import CAUGHT_UP, SCHEMA, START, frozen, per_user, put, read, row, scores, seconds, sqlite_rows, t
from millstream.log import EmbeddedLog
from millstream.testing import Add, play
from waiting import until

pytestmark = pytest.mark.usefixtures("spark")
ROWS = [("ann", 1, 0.0), ("bob", 2, 3.0), ("ann", 4, 12.0), ("bob", 8, 31.0)]


@pytest.fixture
def log(log: EmbeddedLog) -> EmbeddedLog:
    log.create_topic("scores", schema=SCHEMA)
    return log


# ---------------------------------------------------------------- sources


def as_file(format: str, rows: list[dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    if format == "parquet":
        kinds = pa.schema([("user", pa.string()), ("n", pa.int32()), ("at", pa.timestamp("us", "UTC"))])
        pq.write_table(pa.Table.from_pylist(rows, kinds), out)
    elif format == "avro":
        instant = {"type": "long", "logicalType": "timestamp-micros"}
        fields = [{"name": "user", "type": "string"}, {"name": "n", "type": "int"}, {"name": "at", "type": instant}]
        fastavro.writer(out, {"type": "record", "name": "score", "fields": fields}, rows)
    elif format == "json":
        lines = (json.dumps({**each, "at": each["at"].isoformat()}) for each in rows)
        out.write("".join(f"{line}\n" for line in lines).encode())
    else:
        out.write(b"user,n,at\n")
        out.write("".join(f"{each['user']},{each['n']},{each['at'].isoformat()}\n" for each in rows).encode())
    return out.getvalue()


def test_the_event_time_of_topics_is_computed(log: EmbeddedLog) -> None:
    """By an expression where the topic is read, and by a step after a function; each partition has a watermark."""
    log.create_topic("raw", schema="user string, n int, ts long", partitions=2)
    with log.producer() as producer:
        for user, n, second in ROWS:
            value = {"user": user, "n": n, "ts": round(t(second).timestamp() * 1000)}
            for partition in (0, 1):
                producer.send("raw", value, partition=partition)
    flow = ms.Flow("timed", log=log.path)
    rows = flow.read("raw", event_time="timestamp_millis(ts)", watermark=ms.bounded("5 seconds"))
    per_user(rows).write("totals")
    later = flow.read("raw", name="again").map(lambda row: row).where("n > 0")
    timed = later.with_event_time("timestamp_millis(ts)", ms.bounded("5 seconds"))
    timed.key_by("user").window(ms.fixed("10 seconds")).agg(total=ms.sum("n")).write("again")
    flow.run(broker=log.path, until=CAUGHT_UP)
    expected = [("ann", 0, 2), ("ann", 10, 8), ("bob", 0, 4)]
    assert seconds(read(log, "totals")) == seconds(read(log, "again")) == expected


def test_files_of_every_format_as_they_appear(log: EmbeddedLog, tmp_path: Path) -> None:
    """One flow reads a folder of each; new files are seen while it runs, and none is read twice by the next run."""
    formats = ("parquet", "json", "csv", "avro")

    def built() -> ms.Flow:
        flow = ms.Flow("folders")
        for format in formats:
            place = ms.files(tmp_path / format, format)
            flow.read(place, SCHEMA, event_time="at").write(f"from.{format}")
        return flow

    for format in formats:
        (tmp_path / format).mkdir()
        (tmp_path / format / "one").write_bytes(as_file(format, [row(*each) for each in ROWS[:2]]))
    job = built().start(broker=log.path, tick_s=0.1)
    until(lambda: all(len(read(log, f"from.{format}")) == 2 for format in formats), "the first files")
    for format in formats:
        draft = tmp_path / format / "two.tmp"
        draft.write_bytes(as_file(format, [row(*each) for each in ROWS[2:]]))
        draft.rename(tmp_path / format / "two")
    until(lambda: all(len(read(log, f"from.{format}")) == 4 for format in formats), "the second files")
    job.stop()
    built().run(broker=log.path, until=CAUGHT_UP)
    for format in formats:
        assert read(log, f"from.{format}") == [row(*each) for each in ROWS], format


def test_a_steady_rate(log: EmbeddedLog) -> None:
    """No number is missing and none comes twice, over a restart."""

    def built() -> ms.Flow:
        flow = ms.Flow("steady")
        flow.read(ms.rate(50), "value long, at timestamp", event_time="at").write("numbers")
        return flow

    for least in (20, 60):
        job = built().start(broker=log.path)
        until(lambda least=least: len(read(log, "numbers")) > least, "numbers")
        job.stop()
    values = [each["value"] for each in read(log, "numbers")]
    assert values == list(range(len(values)))


def test_lines_from_a_socket(log: EmbeddedLog) -> None:
    """Exactly one connection is made, and every line comes once."""
    connections: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connections.append(connection)
                connection.sendall(b"".join(b"line %d\n" % n for n in range(100)))

        threading.Thread(target=serve, daemon=True).start()
        flow = ms.Flow("lines")
        flow.read(ms.socket("127.0.0.1", server.getsockname()[1]), "value string").write("lines")
        job = flow.start(broker=log.path)
        until(lambda: len(read(log, "lines")) >= 100, "the lines")
        job.lag()
        job.stop()
        assert len(connections) == 1
        for connection in connections:
            connection.close()
        server.shutdown(socket.SHUT_RDWR)
    assert [each["value"] for each in read(log, "lines")] == [f"line {n}" for n in range(100)]


def test_several_outputs_from_one_reading(log: EmbeddedLog, tmp_path: Path) -> None:
    put(log, "scores", ROWS)
    flow = ms.Flow("many")
    stream = scores(flow)
    collected = ms.memory(f"many-{tmp_path.name}")
    stream.write("copy")
    stream.where("n > 2").write(ms.files(tmp_path / "csv", "csv"))
    panes = per_user(stream)
    panes.write(ms.sqlite(tmp_path / "totals.sqlite", "totals"))
    panes.write(collected)
    split = stream.split({"ann": "user = 'ann'"}, rest="others")
    split["others"].write("others")
    job = flow.run(broker=log.path, until=CAUGHT_UP)
    assert job.progress.rows_read == len(ROWS)
    assert [each["n"] for each in read(log, "copy")] == [1, 2, 4, 8]
    assert [each["n"] for each in read(log, "others")] == [2, 8]
    (written,) = (tmp_path / "csv").glob("*.csv")
    assert len(written.read_text().splitlines()) == 3
    assert sorted(sqlite_rows(tmp_path / "totals.sqlite", "user, total")) == [("ann", 1), ("ann", 4), ("bob", 2)]
    assert seconds(collected.rows()) == [("ann", 0, 1), ("ann", 10, 4), ("bob", 0, 2)]


# ---------------------------------------------------------------- watermarks


@pytest.mark.more
def test_a_union_waits_for_the_slower(log: EmbeddedLog) -> None:
    log.create_topic("others", schema=SCHEMA)
    put(log, "scores", [("ann", 1, 0.0), ("ann", 2, 100.0)])
    put(log, "others", [("ann", 4, 1.0), ("ann", 8, 12.0)])

    def built() -> ms.Flow:
        flow = ms.Flow("both")
        others = scores(flow, "others", watermark=ms.bounded("10 seconds"))
        per_user(scores(flow).union(others)).write("totals")
        return flow

    built().run(broker=log.path, until=CAUGHT_UP)
    assert read(log, "totals") == []  # the other topic has only come to second two
    put(log, "others", [("ann", 16, 60.0)])
    built().run(broker=log.path, until=CAUGHT_UP)
    assert seconds(read(log, "totals")) == [("ann", 0, 5), ("ann", 10, 8)]


@pytest.mark.more
def test_an_idle_partition_does_not_hold_the_others_back(log: EmbeddedLog) -> None:
    log.create_topic("wide", schema=SCHEMA, partitions=2)
    put(log, "wide", [("ann", 1, 0.0), ("ann", 2, 50.0)], partition=0)
    patient, hasty = ms.Flow("patient"), ms.Flow("hasty")
    per_user(scores(patient, "wide")).write("patient")
    per_user(scores(hasty, "wide", watermark=ms.bounded("5 seconds", idle="1 second"))).write("hasty")
    patient.run(broker=log.path, until=CAUGHT_UP)
    job = hasty.start(broker=log.path, tick_s=0.2)

    def one_more() -> list[Any]:
        put(log, "wide", [("ann", 4, 51.0)], partition=0)  # while all are silent the watermark stands still
        return read(log, "hasty")

    until(one_more, "the window")
    job.stop()
    assert seconds(read(log, "hasty")) == [("ann", 0, 1)]
    assert read(log, "patient") == []


@pytest.mark.more
def test_processing_time_advances_without_rows(log: EmbeddedLog) -> None:
    put(log, "scores", [("ann", 1, 0.0)])
    flow = ms.Flow("ticking")
    per_user(scores(flow), trigger=ms.repeatedly(ms.after("1 second"))).write("totals")
    job = flow.start(broker=log.path, tick_s=0.2)
    until(lambda: read(log, "totals"), "the pane")
    put(log, "scores", [("ann", 2, 1.0)])
    until(lambda: len(read(log, "totals")) == 2, "the next pane")
    job.stop()
    assert [(each["total"], each["pane"]["timing"]) for each in read(log, "totals")] == [(1, "early"), (3, "early")]


# ---------------------------------------------------------------- chains


def windows_of_windows(stream: Any) -> dict[str, Any]:
    panes = per_user(stream, trigger=ms.after_watermark(early=ms.after_count(2)), mode="retracting")
    per_minute = panes.window(ms.fixed("30 seconds")).agg(high=ms.max("total"), n=ms.count(), sum=ms.sum("total"))
    return {"panes": panes, "minutes": per_minute}


@pytest.mark.more
def test_windows_of_windows_are_those_of_local(log: EmbeddedLog) -> None:
    """The same rows in the same batches, each of one row; at the end a row that closes everything before it."""
    rows = [(f"u{n % 3}", n, float(n * 3 + (n * 5) % 4)) for n in range(24)] + [("end", 0, 1000.0)]
    put(log, "scores", rows)
    flow = ms.Flow("chained")
    for name, stream in windows_of_windows(scores(flow)).items():
        stream.write(name)
    flow.run(broker=log.path, until=CAUGHT_UP, batch_rows=4, key_groups=3)
    bundles = [rows[start : start + 4] for start in range(0, len(rows), 4)]
    steps: list[Any] = [Add([row(*each) for each in bundle]) for bundle in bundles]
    played = play(
        windows_of_windows, steps, schema=SCHEMA, event_time="at", on="local", watermark=ms.bounded("5 seconds")
    )
    for name in ("panes", "minutes"):
        wanted = [frozen(each) for step in played for each in step[name]]
        assert sorted(map(frozen, read(log, name))) == sorted(wanted)
        assert wanted


@pytest.mark.more
def test_state_is_spread_over_many_keys(log: EmbeddedLog) -> None:
    """More keys than key groups, more partitions than cores, rows of a key in several batches."""
    log.create_topic("wide", schema=SCHEMA, partitions=5)
    for partition in range(5):
        rows = [(f"user {n % 97}", n, float(n % 50)) for n in range(partition, 2000, 5)]
        put(log, "wide", rows, partition=partition)
    flow = ms.Flow("spread")
    per_user(scores(flow, "wide"), window=ms.fixed("1 minute")).write("totals")
    flow.run(broker=log.path, batch_rows=300, until=CAUGHT_UP, key_groups=7)
    for partition in range(5):
        put(log, "wide", [("end", 0, 500.0)], partition=partition)
    flow = ms.Flow("spread")
    per_user(scores(flow, "wide"), window=ms.fixed("1 minute")).write("totals")
    flow.run(broker=log.path, until=CAUGHT_UP)
    panes = read(log, "totals")
    assert len(panes) == 97
    for each in panes:
        number = int(each["user"].split()[1])
        assert each["total"] == sum(n for n in range(2000) if n % 97 == number)
    assert {each["window"]["start"] for each in panes} == {START}


@pytest.mark.more
def test_a_function_with_state_and_timers(log: EmbeddedLog) -> None:
    """Over a restart: what was kept and the timers that wait are still there."""
    over = t(20)

    def count(row: dict[str, Any], key: Any) -> None:
        key.state["n"] = key.state.get("n", 0) + row["n"]
        key.at_event_time(over, "over")

    def give(tag: str, time: Any, key: Any) -> dict[str, Any]:
        return {"total": key.state["n"]}

    def built() -> ms.Flow:
        flow = ms.Flow("timers")
        stream = scores(flow).key_by("user")
        stream.process(count, "total int", on_timer=give).write("given")
        return flow

    put(log, "scores", [("ann", 1, 0.0), ("bob", 2, 3.0)])
    built().run(broker=log.path, until=CAUGHT_UP)
    put(log, "scores", [("ann", 4, 6.0), ("end", 0, 60.0)])
    built().run(broker=log.path, until=CAUGHT_UP)
    # The last row waits: rows that are earlier could still come.
    assert sorted(each["total"] for each in read(log, "given")) == [2, 5]
