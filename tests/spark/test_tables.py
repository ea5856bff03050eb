"""Tables and joins through running flows: restarts, copies in databases and topics, and sources that fall silent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from jobs.support import CAUGHT_UP, SCHEMA, put, read, row, scores, sqlite_rows, t
from millstream.errors import JobChanged
from millstream.jobs.versions.kept_steps import CheckpointProgress, first_fit, fitted
from millstream.log import EmbeddedLog
from millstream.operators.clock import Clock
from millstream.operators.elementwise import frame_of
from millstream.operators.stateful import stateful
from millstream.spark.query.physical_plan import PhysicalPlan
from step_names import by_kind
from waiting import until

pytestmark = pytest.mark.usefixtures("spark")
PROFILES = "user string, city string, since timestamp"


@pytest.fixture
def log(log: EmbeddedLog) -> EmbeddedLog:
    log.create_topic("scores", schema=SCHEMA)
    log.create_topic("profiles", schema=PROFILES, partitions=2)
    return log


def move(log: EmbeddedLog, *moves: tuple[str, str | None, float]) -> None:
    """Users and where they live from when on; without a city they are gone."""
    with log.producer() as producer:
        for user, city, second in moves:
            value = None if city is None else {"user": user, "city": city, "since": t(second)}
            producer.send("profiles", value, user)


def latest(log: EmbeddedLog, topic: str) -> dict[str, Any]:
    """The newest value of each key."""
    with log.consumer(topic) as consumer:
        newest = {record.key.decode(): record.value for record in consumer.until_caught_up()}
    return {key: value for key, value in newest.items() if value is not None}


@pytest.mark.more
def test_copies_of_tables_follow_them_over_restarts(log: EmbeddedLog, tmp_path: Path) -> None:
    database = tmp_path / "copies.db"

    def built() -> ms.Flow:
        flow = ms.Flow("copies")
        homes = flow.read("profiles", f"key string, {PROFILES}").to_table(key="key")
        homes = homes.select("key", "city")
        homes.write("homes")
        homes.write(ms.sqlite(database, "homes"))
        homes.group_by("city").agg(people=ms.count()).write(ms.sqlite(database, "cities"))
        return flow

    move(log, ("ann", "Oslo", 0), ("bob", "Oslo", 0), ("cid", "Bergen", 0))
    built().run(broker=log.path, until=CAUGHT_UP)
    assert sorted(sqlite_rows(database, "*", "cities")) == [("Bergen", 1), ("Oslo", 2)]
    move(log, ("ann", "Bergen", 1), ("cid", None, 1), ("dan", "Voss", 1))
    job = built().run(broker=log.path, until=CAUGHT_UP)
    assert sorted(sqlite_rows(database, "*", "homes")) == [("ann", "Bergen"), ("bob", "Oslo"), ("dan", "Voss")]
    assert sorted(sqlite_rows(database, "*", "cities")) == [("Bergen", 1), ("Oslo", 1), ("Voss", 1)]
    assert {key: value["city"] for key, value in latest(log, "homes").items()} == {
        "ann": "Bergen",
        "bob": "Oslo",
        "dan": "Voss",
    }
    assert log.topic("homes").settings.compaction
    assert {by_kind(name): held for name, held in job.progress.rows_held.items()}["to_table"] == 3


@pytest.mark.more
def test_streams_are_joined_over_a_restart(log: EmbeddedLog) -> None:
    log.create_topic("bonus", schema=SCHEMA)

    def built() -> ms.Flow:
        flow = ms.Flow("pairs")
        bonus = scores(flow, "bonus").select("user", "n", "at")
        joined = scores(flow).join(bonus, on="user", within=("-10 seconds", "10 seconds"), how="full")
        joined.write("pairs")
        joined.late.write("pairs.late")
        return flow

    put(log, "scores", [("ann", 1, 0), ("bob", 2, 0), ("cid", 3, 30)])
    put(log, "bonus", [("dan", 4, 1), ("eve", 5, 30)])
    built().run(broker=log.path, until=CAUGHT_UP)
    put(log, "bonus", [("ann", 6, 8), ("cid", 7, 40), ("zoe", 8, 90)])
    put(log, "scores", [("zoe", 9, 90)])
    built().run(broker=log.path, until=CAUGHT_UP)
    found = {(pair["user"], pair["n"], pair["n_right"]) for pair in read(log, "pairs")}
    assert found == {
        ("ann", 1, None),
        ("bob", 2, None),
        ("dan", None, 4),
        ("cid", 3, 7),
        ("eve", None, 5),
        ("zoe", 9, 8),
    }
    assert [(late["user"], late["n_right"], late["side"], late["reason"]) for late in read(log, "pairs.late")] == [
        ("ann", 6, "right", "expired")
    ]


@pytest.mark.more
def test_rows_are_joined_with_the_version_of_their_time_though_the_table_is_silent(log: EmbeddedLog) -> None:
    flow = ms.Flow("homes")
    silent = ms.bounded("0 seconds", idle="200 milliseconds")
    homes = flow.read("profiles", PROFILES, "since", silent).to_table(key="user")
    scores(flow).join(homes, on="user", how="left", as_of="event_time").write("located")
    move(log, ("ann", "Oslo", 0), ("ann", "Bergen", 10), ("bob", "Voss", 0))
    put(log, "scores", [("ann", 1, 5), ("ann", 2, 15), ("bob", 3, 15), ("cid", 4, 15), ("end", 5, 60)])
    job = flow.start(broker=log.path, tick_s=0.1)
    try:
        until(lambda: len(read(log, "located")) >= 4, "rows of a stream, while the table says nothing")
    finally:
        job.stop()
    found = {(each["n"], each["city"]) for each in read(log, "located")}
    assert found == {(1, "Oslo"), (2, "Bergen"), (3, "Voss"), (4, None)}


@pytest.mark.more
def test_a_batch_over_all_makes_the_tables_that_streaming_made(log: EmbeddedLog, tmp_path: Path) -> None:
    def built(name: str) -> ms.Flow:
        flow = ms.Flow(name)
        homes = flow.read("profiles", PROFILES, "since").to_table(key="user")
        totals = scores(flow).group_by("user").agg(total=ms.sum("n"))
        joined = totals.join(homes, on="user", how="full").select("user", "total", "city")
        joined.top(2, by="total desc", rank="place").write(ms.sqlite(tmp_path / "made.db", f"{name}_top"))
        joined.group_by("city").agg(most=ms.max("total"), n=ms.count()).write(
            ms.sqlite(tmp_path / "made.db", f"{name}_cities")
        )
        return flow

    moves = [("ann", "Oslo", 0.0), ("bob", "Oslo", 1.0), ("ann", "Bergen", 9.0), ("eve", "Voss", 10.0)]
    rows = [("ann", 5, 0.0), ("bob", 7, 1.0), ("ann", 4, 2.0), ("cid", 1, 3.0), ("bob", -6, 4.0), ("cid", 3, 5.0)]
    for place in range(3):
        move(log, *moves[place::3])
        put(log, "scores", rows[place::3])
        built("streamed").run(broker=log.path, until=CAUGHT_UP)
    built("whole").run(broker=log.path, batch=True)
    tops, cities = (
        sorted(sqlite_rows(tmp_path / "made.db", "*", f"whole_{what}"), key=repr) for what in ("top", "cities")
    )
    assert tops == [("ann", 9, "Bergen", 1), ("cid", 4, None, 2)]
    assert cities == sorted([("Bergen", 9, 1), ("Oslo", 1, 1), ("Voss", None, 1), (None, 4, 1)], key=repr)
    assert sorted(sqlite_rows(tmp_path / "made.db", "*", "streamed_top"), key=repr) == tops
    assert sorted(sqlite_rows(tmp_path / "made.db", "*", "streamed_cities"), key=repr) == cities


def test_what_lies_before_a_step_over_a_table_may_not_change() -> None:
    """Rows that it was given could otherwise never be taken back."""

    def changed(condition: str, other: str = "b", price: int = 1) -> PhysicalPlan:
        flow = ms.Flow("kept")
        table = flow.read("scores", SCHEMA, "at").to_table(key="user").where(condition)
        prices = flow.table([{"user": "ann", "price": price}], "user string, price int")
        table.join(prices, on="user").group_by("n").agg(k=ms.count()).write("counts")
        streams = {name: flow.read(name, SCHEMA, "at", name=name) for name in ("a", "b")}
        one, two = streams.pop(other), next(iter(streams.values()))
        one.join(two, on="user", within=("0 seconds", "1 second"), name="pairs").write("pairs")
        return PhysicalPlan(tuple(flow.outputs), 1)

    before = first_fit(changed("n > 1")).steps
    progress = CheckpointProgress(0, 0, ("read_scores", "a", "b"))
    assert fitted("kept", "kept", changed("n > 1"), before, progress).steps == before
    for now, part in [
        (changed("n > 2"), "where"),
        (changed("n > 1", price=2), "1 rows"),
        (changed("n > 1", "a"), "pairs"),
    ]:
        with pytest.raises(JobChanged, match=part):
            fitted("kept", "kept", now, before, progress)


def test_a_side_that_is_only_read_is_not_rewritten() -> None:
    flow = ms.Flow("hot")
    one, other = (flow.read(name, SCHEMA, "at") for name in ("a", "b"))
    step = stateful(one.join(other, on="user", within=("0 seconds", "1 hour")).node)
    assert step is not None
    rows = frame_of([{**row("ann", 1, 0), "__time": 0, "__weight": 1}], one.node)
    inputs = {**step.nothing, "rows": step.fed(rows, 0, 0)}
    changes, _ = step.step(step.tables(), inputs, Clock(0, 0, 0, 0))
    assert list(changes) == ["left"]


@pytest.mark.more
def test_changes_that_were_written_are_the_same_table_when_they_are_read(log: EmbeddedLog, tmp_path: Path) -> None:
    """What takes a row back differs from it in weight and event time, and in nothing else."""
    database = tmp_path / "copies.db"
    move(log, ("ann", "Oslo", 0), ("bob", "Oslo", 1), ("ann", "Bergen", 2))
    flow = ms.Flow("written")
    homes = flow.read("profiles", f"key string, {PROFILES}", "since").to_table(key="key")
    homes.select("user", "city").changes().write("moves")
    flow.run(broker=log.path, until=CAUGHT_UP)
    flow = ms.Flow("read")
    columns = "user string, city string, weight int, event_time timestamp"
    homes = flow.read("moves", columns, "event_time", changes=True).to_table(key="user")
    homes.write(ms.sqlite(database, "homes"))
    homes.distinct("city").write(ms.sqlite(database, "cities"))
    homes.top(5, by="city").write(ms.sqlite(database, "first"))
    homes.join(homes.select("user", c="city"), on="user").write(ms.sqlite(database, "twice"))
    flow.run(broker=log.path, until=CAUGHT_UP)
    expected = [("ann", "Bergen"), ("bob", "Oslo")]
    for table in ("homes", "cities", "first"):
        assert sorted(sqlite_rows(database, "*", table)) == expected
    assert sorted(sqlite_rows(database, "*", "twice")) == [("ann", "Bergen", "Bergen"), ("bob", "Oslo", "Oslo")]


def test_a_row_without_a_weight_comes(log: EmbeddedLog, tmp_path: Path) -> None:
    put(log, "scores", [("ann", 1, 0.0), ("bob", 5, 1.0)])
    flow = ms.Flow("unweighted")
    flow.read("scores", "user string, weight int", changes=True).write(ms.memory("unweighted"))
    flow.run(broker=log.path, until=CAUGHT_UP)
    assert sorted(row["user"] for row in ms.memory("unweighted").rows()) == ["ann", "bob"]
    assert {row.get("weight", 1) for row in ms.memory("unweighted").rows()} == {1}


@pytest.mark.more
def test_copies_of_all_rows_follow_them_over_restarts(log: EmbeddedLog, tmp_path: Path) -> None:
    """Equal rows are there as often as they came, in a database and in a topic, and go one at a time."""
    database = tmp_path / "copies.db"
    log.create_topic("changes", schema="user string, n int, weight int")

    def built() -> ms.Flow:
        flow = ms.Flow("bags")
        came = flow.read("scores", "user string, n int").to_table()
        came.write(ms.sqlite(database, "came"))
        came.write("came")
        came.write(ms.memory("came"))
        left = flow.read("changes", "user string, n int, weight int", changes=True).to_table()
        left.write(ms.sqlite(database, "left"))
        came.union(left).group_by("user").agg(k=ms.count()).write(ms.sqlite(database, "both"))
        return flow

    def change(*rows: tuple[str, int, int]) -> None:
        with log.producer() as producer:
            for user, n, weight in rows:
                producer.send("changes", {"user": user, "n": n, "weight": weight})

    put(log, "scores", [("ann", 1, 0), ("ann", 1, 1), ("bob", 2, 2)])
    change(("ann", 1, 1), ("ann", 1, 1), ("cid", 3, 1))
    built().run(broker=log.path, until=CAUGHT_UP)
    assert sorted(sqlite_rows(database, "*", "came")) == [("ann", 1), ("ann", 1), ("bob", 2)]
    put(log, "scores", [("ann", 1, 0)])
    change(("ann", 1, -1), ("cid", 3, -1))
    job = built().run(broker=log.path, until=CAUGHT_UP)
    assert sorted(sqlite_rows(database, "*", "came")) == [("ann", 1), ("ann", 1), ("ann", 1), ("bob", 2)]
    assert sorted(sqlite_rows(database, "*", "left")) == [("ann", 1)]
    assert sorted(sqlite_rows(database, "*", "both")) == [("ann", 4), ("bob", 1)]
    assert sum(change["weight"] for change in read(log, "came") if change["user"] == "ann") == 3
    assert sum(change["weight"] for change in ms.memory("came").rows()) == 4
    assert set(map(by_kind, job.progress.rows_held)) == {"group_by"}
