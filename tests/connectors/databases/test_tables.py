"""Tables of databases: how panes lie in them, what taking rows back does, and which tables are refused."""

import json
import sqlite3
import uuid
from collections import Counter
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from connectors.support import SCORES, Target, table, weights
from millstream.connectors.opening import open_sink
from millstream.errors import InvalidPlan, InvalidSchema, SinkFailed
from millstream.records import Schema
from properties import examples

NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)
PANES = (
    "team string, window struct<start: timestamp, end: timestamp>, "
    "pane struct<timing: string, index: bigint, on_time_index: bigint, first: boolean, last: boolean>, "
    "weight int, total bigint, event_time timestamp"
)


@pytest.fixture(params=["sqlite", "postgres"])
def target(request, tmp_path):
    dsn = request.getfixturevalue("dsn") if request.param == "postgres" else None
    return Target(request.param, tmp_path, dsn)


def pane(team, total, weight=1, timing="on_time", index=0, minutes=0):
    start = NOON + timedelta(minutes=minutes)
    end = start + timedelta(minutes=2)
    return {
        "team": team,
        "window": {"start": start, "end": end},
        "pane": {"timing": timing, "index": index, "on_time_index": None, "first": index == 0, "last": False},
        "weight": weight,
        "total": total,
        "event_time": end - timedelta(microseconds=1),
    }


def write(target, *batches, schema=PANES):
    """Rows of each batch; their column `weight` is their weight."""
    sink = target.open(schema)
    for number, rows in enumerate(batches):
        sink.write(number, table(schema, rows), weights(*(row["weight"] for row in rows)))
    sink.close()


def execute(target, statement):
    if target.kind == "sqlite":
        with sqlite3.connect(target.folder / "scores.db") as db:
            db.execute(statement)
    else:
        with psycopg.connect(target.dsn) as db:
            db.execute(statement)


# ---------------------------------------------------------------- panes


def test_structs_become_columns_of_their_own(target):
    write(target, [pane("x", 5)])
    (row,) = target.rows()
    assert list(row) == [
        "team",
        "window_start",
        "window_end",
        "pane_timing",
        "pane_index",
        "pane_on_time_index",
        "pane_first",
        "pane_last",
        "weight",
        "total",
        "event_time",
    ]
    text = target.kind == "sqlite"
    assert row["window_start"] == ("2024-03-01T12:00:00.000000Z" if text else NOON)
    assert row["pane_on_time_index"] is None
    assert row["pane_first"] == 1
    assert row["total"] == 5


def test_an_upsert_keeps_the_newest_pane_of_a_window(target):
    target.key = ["team", "window"]
    write(
        target,
        [pane("x", 1, timing="early"), pane("y", 7), pane("x", 2, minutes=2)],
        [pane("x", 3, index=1)],
        [pane("x", 1, -1, timing="early"), pane("y", 7, -1), pane("y", 8, index=1)],
    )
    found = sorted((row["team"], row["total"], row["weight"]) for row in target.rows())
    assert found == [("x", 2, 1), ("x", 3, 1), ("y", 8, 1)]


def test_a_pane_retracted_and_not_replaced_leaves_the_table(target):
    target.key = ["team", "window"]
    write(target, [pane("x", 1), pane("y", 2)], [pane("x", 1, -1)], [pane("y", 3, -1)])
    assert [row["total"] for row in target.rows()] == [2]


def test_append_retracts_one_equal_row(target):
    write(
        target,
        [pane("x", 1), pane("x", 1), pane("y", 2)],
        [pane("x", 1, -1), pane("y", 2, -1), pane("y", 4, index=1)],
    )
    assert sorted((row["team"], row["total"]) for row in target.rows()) == [("x", 1), ("y", 4)]


def test_a_retraction_of_a_missing_row_is_reported_and_harmless(target, caplog):
    write(target, [pane("x", 1)], [pane("x", 9, -1)])
    assert [row["total"] for row in target.rows()] == [1]
    assert "1 rows were retracted that table 'scores' does not have" in caplog.text


def test_windows_without_an_end_have_null_and_are_still_one_key(target):
    target.key = "window"
    everything = {**pane("x", 1), "window": {"start": None, "end": None}, "event_time": None}
    write(target, [everything], [{**everything, "total": 2}], [{**everything, "total": 3}])
    assert [row["total"] for row in target.rows()] == [3]
    write(target, [], [], [], [{**everything, "total": 3, "weight": -1}])
    assert target.rows() == []


def test_a_null_key_is_a_key(target):
    target.key = "team"
    sink = target.open()
    sink.write(0, table(SCORES, [{"team": None, "score": 1}, {"team": "a", "score": 1}]), None)
    sink.write(1, table(SCORES, [{"team": None, "score": 2}]), None)
    sink.close()
    assert sorted((row["score"], row["team"]) for row in target.rows()) == [(1, "a"), (2, None)]


def test_a_table_of_keys_alone(target):
    target.key = ["team", "score"]
    sink = target.open()
    sink.write(0, table(SCORES, [{"team": "a", "score": 1}] * 2), None)
    sink.write(1, table(SCORES, [{"team": "a", "score": 1}]), None)
    sink.close()
    assert target.rows() == [{"team": "a", "score": 1}]


# ---------------------------------------------------------------- types

EVERY_TYPE = (
    "b boolean, i8 tinyint, i16 smallint, i32 int, i64 bigint, f32 float, f64 double, d decimal(12,9), s string, "
    "bin binary, day date, at timestamp, wall timestamp_ntz, took interval day to second, "
    "list array<struct<x: int, at: timestamp>>, names map<string,int>"
)
FULL = {
    "b": True, "i8": -128, "i16": 32767, "i32": -(2**31), "i64": 2**63 - 1, "f32": 0.5, "f64": 1e300,
    "d": Decimal("0.000000001"), "s": 'tab\t"quote", \\N back\\slash\nline\r\n\\.\nend', "bin": b"\x00\xff\\",
    "day": date(2024, 2, 29), "at": NOON + timedelta(microseconds=1), "wall": datetime(1969, 12, 31, 23, 59, 59),
    "took": timedelta(days=1, microseconds=7), "list": [{"x": 1, "at": NOON}, None], "names": {"ä": 1},
}  # fmt: skip
EMPTY = dict.fromkeys(FULL)


def test_every_type_finds_a_fitting_one(target):
    """Also that a row with every type, and one with nothing but nulls, can be taken back."""
    sink = target.open(EVERY_TYPE)
    sink.write(0, table(EVERY_TYPE, [FULL, EMPTY, {**EMPTY, "s": "", "list": [], "names": {}}]), None)
    full, empty, blank = target.rows()
    text = target.kind == "sqlite"
    assert empty == EMPTY
    assert blank["s"] == ""
    assert json.loads(blank["list"]) == [] if text else blank["list"] == []
    plain = ("b", "i8", "i16", "i32", "i64", "f32", "f64", "s", "bin")
    assert {name: full[name] for name in plain} == {name: FULL[name] for name in plain}
    expected = {
        "d": "0.000000001" if text else FULL["d"],
        "day": "2024-02-29" if text else FULL["day"],
        "at": "2024-03-01T12:00:00.000001Z" if text else FULL["at"],
        "wall": "1969-12-31T23:59:59.000000" if text else FULL["wall"],
        "took": 86_400_000_007 if text else FULL["took"],
    }
    assert {name: full[name] for name in expected} == expected
    held = json.loads(full["list"]) if text else full["list"]
    assert held == [{"x": 1, "at": "2024-03-01T12:00:00.000000Z"}, None]
    assert (json.loads(full["names"]) if text else full["names"]) == {"ä": 1}
    sink.write(1, table(EVERY_TYPE, [FULL, EMPTY]), weights(-1, -1))
    sink.close()
    assert target.rows() == [blank]


def test_nan_infinity_and_negative_zero(target):
    """SQLite has no NaN and holds null; Postgres has."""
    rows = [{"x": value} for value in (float("nan"), float("inf"), float("-inf"), -0.0)]
    sink = target.open("x double")
    sink.write(0, table("x double", rows), None)
    assert [str(row["x"]) for row in target.rows()][1:] == ["inf", "-inf", "0.0"]
    sink.write(1, table("x double", rows), weights(-1, -1, -1, -1))
    sink.close()
    assert target.rows() == []


# ---------------------------------------------------------------- tables that are there


def test_a_table_that_fits_is_used(target):
    execute(target, "CREATE TABLE scores (score INTEGER, team TEXT)")
    sink = target.open()
    sink.write(0, table(SCORES, [{"team": "a", "score": 1}]), None)
    sink.close()
    assert target.rows() == [{"score": 1, "team": "a"}]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("team TEXT", "no column 'score'"),
        ("team TEXT, score INTEGER, at TEXT", "the rows have no column 'at'"),
        ("team TEXT, score TEXT", "'score' is text"),
    ],
)
def test_a_table_with_other_columns_is_refused(target, columns, said):
    execute(target, f"CREATE TABLE scores ({columns})")
    with pytest.raises(InvalidSchema) as refused:
        target.open()
    assert said.lower() in refused.value.what.lower()


def test_an_upsert_into_a_postgres_table_needs_a_unique_index(tmp_path, dsn):
    target = Target("postgres", tmp_path, dsn, key="team")
    execute(target, "CREATE TABLE scores (team text, score integer)")
    with pytest.raises(InvalidSchema) as refused:
        target.open()
    execute(target, refused.value.next_step)
    sink = target.open()
    sink.write(0, table(SCORES, [{"team": "a", "score": 1}]), None)
    sink.write(1, table(SCORES, [{"team": "a", "score": 2}]), None)
    sink.close()
    assert target.rows() == [{"team": "a", "score": 2}]


def test_a_table_of_a_schema_has_its_ledger_beside_it(tmp_path, dsn):
    with psycopg.connect(dsn) as db:
        db.execute("CREATE SCHEMA games")
    place = ms.postgres(dsn, "games.scores")
    sink = open_sink(place, SCORES, job="j", step="s", broker=tmp_path / "log", folder=tmp_path)
    sink.write(7, table(SCORES, [{"team": "a", "score": 1}]), None)
    sink.close()
    with psycopg.connect(dsn) as db:
        assert db.execute("SELECT job, step, batch FROM games._millstream_batches").fetchall() == [("j", "s", 7)]
        assert db.execute("SELECT score FROM games.scores").fetchall() == [(1,)]


def test_rows_that_the_database_refuses_raise_an_error_that_is_not_retried(target):
    """Nothing of such a batch remains, and the sink continues with the next."""
    execute(target, "CREATE TABLE scores (team TEXT NOT NULL, score INTEGER)")
    sink = target.open()
    with pytest.raises(SinkFailed, match="row 1 of the batch"):
        sink.write(0, table(SCORES, [{"team": "a", "score": 1}, {"team": None, "score": 2}]), None)
    sink.write(1, table(SCORES, [{"team": "b", "score": 3}]), None)
    sink.close()
    assert target.rows() == [{"team": "b", "score": 3}]


def test_columns_that_would_have_one_name_are_refused(target):
    with pytest.raises(InvalidPlan, match="window_start"):
        target.open("window struct<start: int>, window_start int")


def test_odd_names_are_quoted(target):
    schema = '`a "b" %s` int'
    sink = target.open(schema)
    sink.write(0, table(schema, [{'a "b" %s': 1}]), None)
    sink.close()
    assert target.rows() == [{'a "b" %s': 1}]


# ---------------------------------------------------------------- against a recomputation from scratch

ROWS = st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([0, 1, None]), st.integers(0, 2))
COLUMNS = "k string, j int, v int"


@st.composite
def weighted_batches(draw):
    """Batches of (row, weight); what is taken back was there before, as a stream promises."""
    held = Counter()
    batches = []
    for _ in range(draw(st.integers(1, 4))):
        batch = []
        for _ in range(draw(st.integers(0, 8))):
            present = sorted((row for row, count in held.items() if count > 0), key=repr)
            back = present and draw(st.booleans())
            row = draw(st.sampled_from(present)) if back else draw(ROWS)
            held[row] += -1 if back else 1
            batch.append((row, -1 if back else 1))
        batches.append(batch)
    return batches


def appended(batches):
    sums = Counter()
    for row, weight in (change for batch in batches for change in batch):
        sums[row] += weight
    return sums


def upserted(batches, key):
    """Row after row, as one would by hand."""
    held = {}
    for row, weight in (change for batch in batches for change in batch):
        place = tuple(row[at] for at in key)
        if weight > 0:
            held[place] = row
        elif held.get(place) == row:
            del held[place]
    return Counter(held.values())


def check(batches, again, key, place, read, folder):
    """Writes the batches, one of them twice, and compares what stands there with what should."""
    sink = open_sink(place, Schema.of(COLUMNS), job="j", step="s", broker=folder / "log", folder=folder)
    for number, batch in enumerate(batches):
        rows = table(COLUMNS, [dict(zip("kjv", row, strict=True)) for row, _ in batch])
        for _ in range(2 if number == again else 1):
            sink.write(number, rows, pa.array([weight for _, weight in batch], pa.int32()))
    sink.close()
    expected = upserted(batches, ["kjv".index(name) for name in key]) if key else appended(batches)
    assert Counter(read()) == +expected


@pytest.mark.parametrize("key", [(), ("k",), ("k", "j")])
@given(batches=weighted_batches(), again=st.integers(0, 3))
@examples(100)
def test_sqlite_holds_what_a_recomputation_gives(tmp_path, key, batches, again):
    path = tmp_path / f"{uuid.uuid4().hex}.db"

    def read():
        with sqlite3.connect(path) as db:
            return db.execute("SELECT k, j, v FROM t").fetchall()

    check(batches, again, key, ms.sqlite(path, "t", key=key or None), read, tmp_path)
    path.unlink()


@pytest.mark.parametrize("key", [(), ("k",), ("k", "j")])
@given(batches=weighted_batches(), again=st.integers(0, 3))
@examples(40)
def test_postgres_holds_what_a_recomputation_gives(tmp_path, dsn, key, batches, again):
    name = f"t{uuid.uuid4().hex}"

    def read():
        with psycopg.connect(dsn) as db:
            found = db.execute(f"SELECT k, j, v FROM {name}").fetchall()
            db.execute(f"DROP TABLE {name}")
            db.execute("TRUNCATE _millstream_batches")
            return found

    check(batches, again, key, ms.postgres(dsn, name, key=key or None), read, tmp_path)


def test_a_table_that_takes_no_rows_is_named_with_what_can_be_done(tmp_path):
    path = tmp_path / "results.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE kept (n)")
        db.execute("CREATE VIEW t AS SELECT n FROM kept")
        db.commit()
    sink = open_sink(
        ms.sqlite(path, "t"), Schema.of("n int"), job="j", step="out", broker=tmp_path / "log", folder=tmp_path / "job"
    )
    with pytest.raises(SinkFailed, match="cannot modify t because it is a view") as failed:
        sink.write(0, pa.table({"n": pa.array([1], pa.int32())}), None)
    assert "sqlite3 results.db .schema" in failed.value.next_step
    assert "write to another table" in failed.value.next_step
