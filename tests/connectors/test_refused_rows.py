"""One row never stops a batch: a sink names those that it will not take, writes the others, and that once."""

import json
import os
import sqlite3
from datetime import UTC, date, datetime

import psycopg
import pyarrow as pa
import pytest
from psycopg.rows import dict_row

import millstream as ms
from millstream.connectors.opening import open_sink
from millstream.errors import SinkFailed, SinkUnavailable
from millstream.records import Schema

from .support import SCORES, Target, table, weights

A, B, C = ({"team": "a", "score": 1}, {"team": "b", "score": 2}, {"team": "c", "score": 3})
NUL = {"team": "n\0ul", "score": 9}
FAR = 400_000 * 365 * 86_400_000_000 // 2  # microseconds, far behind the year 9999


class Refused(list):
    """What a sink was asked to leave out, batch by batch."""

    def __call__(self, refusals):
        self.append({refusal.row: refusal.reason for refusal in refusals})

    @property
    def rows(self):
        return [sorted(each) for each in self]


def execute(target, statement):
    if target.kind == "sqlite":
        with sqlite3.connect(target.folder / "scores.db") as db:
            db.execute(statement)
    else:
        with psycopg.connect(target.dsn) as db:
            db.execute(statement)


@pytest.fixture(params=["sqlite", "postgres"])
def target(request, tmp_path):
    dsn = request.getfixturevalue("dsn") if request.param == "postgres" else None
    return Target(request.param, tmp_path, dsn)


# ---------------------------------------------------------------- Postgres and NUL


@pytest.mark.parametrize("key", [None, "team"])
@pytest.mark.parametrize("signs", [None, (1, 1, 1)])
def test_a_nul_character_in_a_text_of_postgres(tmp_path, dsn, key, signs):
    target, refused = Target("postgres", tmp_path, dsn, key), Refused()
    sink = target.open()
    sink.write(0, table(SCORES, [A, NUL, B]), signs and weights(*signs), refused)
    sink.write(1, table(SCORES, [C]), signs and weights(1), refused)
    sink.close()
    assert sorted(row["team"] for row in target.rows()) == ["a", "b", "c"]
    assert refused.rows == [[1], []]
    assert "column 'team' has a NUL character" in refused[0][1]


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("array<string>", ["x"], ["x", "\0"]),
        ("map<string, string>", {"x": "y"}, {"x": "\0"}),
        ("map<string, string>", {"x": "y"}, {"\0": "y"}),
        ("struct<a: string>", {"a": "x"}, {"a": "\0"}),
        ("array<struct<a: map<string, array<string>>>>", [{"a": {"x": ["y"]}}], [{"a": {"x": ["y", "\0"]}}]),
    ],
)
def test_a_nul_character_inside_a_nested_value(tmp_path, dsn, kind, good, bad):
    schema = f"n int, v {kind}"
    refused = Refused()
    sink = Target("postgres", tmp_path, dsn).open(schema)
    rows = [{"n": 0, "v": good}, {"n": 1, "v": bad}, {"n": 2, "v": None}, {"n": 3, "v": good}, {"n": 4, "v": bad}]
    sink.write(0, table(schema, rows).slice(1), None, refused)  # a slice, whose buffers begin elsewhere
    sink.close()
    with psycopg.connect(dsn) as db:
        assert db.execute("SELECT n FROM scores ORDER BY n").fetchall() == [(2,), (3,)]
    assert refused.rows == [[0, 3]]


def test_text_that_only_looks_like_a_nul_character_is_taken(tmp_path, dsn):
    schema = "v array<string>"
    sink = Target("postgres", tmp_path, dsn).open(schema)
    sink.write(0, table(schema, [{"v": ["\\u0000"]}]), None)
    sink.close()
    with psycopg.connect(dsn) as db:
        assert db.execute("SELECT v FROM scores").fetchall() == [(["\\u0000"],)]


# ---------------------------------------------------------------- what only the database knows


@pytest.mark.parametrize("key", [None, "team"])
def test_rows_that_break_a_constraint_are_left_out(target, key):
    """Goal: each of them, wherever it stands, and no other. Method: a table of the user's own with a check."""
    target.key = key
    execute(target, "CREATE TABLE scores (team text NOT NULL UNIQUE, score int CHECK (score < 100))")
    rows = [{"team": f"t{n}", "score": 100 if n in (0, 7, 8, 40) else n} for n in range(41)]
    rows[5]["team"] = None
    refused = Refused()
    sink = target.open()
    sink.write(0, table(SCORES, rows), None, refused)
    sink.write(0, table(SCORES, rows), None, refused)
    sink.close()
    assert refused.rows == [[0, 5, 7, 8, 40]], "asked once: the batch that comes again was written"
    assert sorted(row["score"] for row in target.rows()) == [n for n in range(41) if n not in (0, 5, 7, 8, 40)]
    assert all("refuses it" in reason for reason in refused[0].values())


def test_the_first_of_conflicting_rows_is_kept(target):
    execute(target, "CREATE TABLE scores (team text UNIQUE, score int)")
    refused = Refused()
    sink = target.open()
    rows = [A, B, {"team": "a", "score": 7}, C, {"team": "c", "score": 8}]
    sink.write(0, table(SCORES, rows), None, refused)
    sink.close()
    assert refused.rows == [[2, 4]]
    assert sorted(row["score"] for row in target.rows()) == [1, 2, 3]


def test_a_row_that_comes_and_goes_beside_a_bad_one_is_not_left_over(target):
    """A row that goes before it comes again, within one batch: taken one after the other, one would be too many."""
    execute(target, "CREATE TABLE scores (team text, score int CHECK (score < 100))")
    refused = Refused()
    sink = target.open()
    sink.write(0, table(SCORES, [A, {"team": "x", "score": 100}, A, B]), weights(-1, 1, 1, 1), refused)
    sink.close()
    assert refused.rows == [[1]]
    assert target.rows() == [B]


def test_what_was_done_before_a_bad_row_is_not_done_again_after_it(target):
    """Goal: deletions and keys of one half have no second effect in the next. Method: copies that must not all go."""
    execute(target, "CREATE TABLE scores (team text, score int CHECK (score < 100))")
    bad, refused = {"team": "x", "score": 100}, Refused()
    sink = target.open()
    sink.write(0, table(SCORES, [A, A, A, A, B, B]), weights(1, 1, 1, 1, 1, 1), refused)
    sink.write(1, table(SCORES, [A, bad, B, C]), weights(-1, 1, -1, 1), refused)
    sink.close()
    assert sorted(row["team"] for row in target.rows()) == ["a", "a", "a", "b", "c"]
    assert refused.rows == [[], [1]]


def test_a_key_on_both_sides_of_a_bad_row(target):
    target.key = "team"
    execute(target, "CREATE TABLE scores (team text UNIQUE, score int CHECK (score < 100))")
    refused = Refused()
    sink = target.open()
    rows = [A, {"team": "x", "score": 100}, {"team": "a", "score": 5}, B]
    sink.write(0, table(SCORES, rows), None, refused)
    sink.close()
    assert sorted(row["score"] for row in target.rows()) == [2, 5]
    assert refused.rows == [[1]]


def test_a_row_that_was_refused_can_be_retracted_and_replaced(target):
    target.key = "team"
    execute(target, "CREATE TABLE scores (team text UNIQUE, score int CHECK (score < 100))")
    bad, refused = {"team": "a", "score": 100}, Refused()
    sink = target.open()
    sink.write(0, table(SCORES, [A]), weights(1), refused)
    sink.write(1, table(SCORES, [A, bad]), weights(-1, 1), refused)
    assert target.rows() == []
    sink.write(2, table(SCORES, [bad, {"team": "a", "score": 5}]), weights(-1, 1), refused)
    sink.close()
    assert target.rows() == [{"team": "a", "score": 5}]
    assert refused.rows == [[], [1], []]


def test_nothing_is_written_if_the_refused_rows_cannot_be_kept(target):
    execute(target, "CREATE TABLE scores (team text, score int CHECK (score < 100))")
    rows = table(SCORES, [A, {"team": "x", "score": 100}])

    def down(refusals):
        raise SinkUnavailable("no room")

    sink = target.open()
    with pytest.raises(SinkUnavailable, match="no room"):
        sink.write(0, rows, None, down)
    with pytest.raises(SinkFailed, match="refuses it"):
        sink.write(0, rows, None)
    assert target.rows() == []
    refused = Refused()
    sink.write(0, rows, None, refused)
    sink.close()
    assert (target.rows(), refused.rows) == ([A], [[1]])


def test_a_key_that_is_too_long_for_the_index_of_postgres(tmp_path, dsn):
    """It is no server that is down, though the driver counts it as one."""
    target, refused = Target("postgres", tmp_path, dsn, "team"), Refused()
    sink = target.open()
    long = {"team": os.urandom(8000).hex(), "score": 1}
    sink.write(0, table(SCORES, [A, long, B]), None, refused)
    sink.close()
    assert sorted(row["team"] for row in target.rows()) == ["a", "b"]
    assert "index row" in refused[0][1]


def test_numbers_and_times_that_postgres_cannot_hold(tmp_path, dsn):
    schema = Schema.of("d decimal(10,2), x double, at timestamp, day date")
    with psycopg.connect(dsn) as db:
        db.execute("CREATE TABLE scores (d numeric(4,2), x double precision, at timestamptz, day date)")
    at, day = pa.timestamp("us", "UTC"), pa.date32()
    rows = pa.table(
        {
            "d": pa.array(["1.00", "100.00", "1.00", "1.00", "1.00"]).cast(pa.decimal128(10, 2)),
            "x": [float("nan"), 1.0, float("inf"), 1.0, 1.0],
            "at": pa.array([0, 0, 0, FAR, 0]).cast(at),
            "day": pa.array([0, 0, 0, 0, 2**31 - 1], pa.int32()).cast(day),
        },
        schema.arrow,
    )
    refused = Refused()
    sink = Target("postgres", tmp_path, dsn).open(schema)
    sink.write(0, rows, None, refused)
    sink.close()
    with psycopg.connect(dsn, row_factory=dict_row) as db:
        assert len(db.execute("SELECT * FROM scores").fetchall()) == 2
    assert refused.rows == [[1, 3, 4]]


def test_deferred_constraints_of_postgres_are_checked_in_time(tmp_path, dsn):
    with psycopg.connect(dsn) as db:
        db.execute("CREATE TABLE teams (team text PRIMARY KEY)")
        db.execute("INSERT INTO teams VALUES ('a'), ('b')")
        db.execute("CREATE TABLE scores (team text REFERENCES teams DEFERRABLE INITIALLY DEFERRED, score int)")
    target, refused = Target("postgres", tmp_path, dsn), Refused()
    sink = target.open()
    sink.write(0, table(SCORES, [A, C, B]), None, refused)
    sink.close()
    assert (target.rows(), refused.rows) == ([A, B], [[1]])


# ---------------------------------------------------------------- times that have no text


TIMES = Schema.of("n int, at timestamp, day date, all array<timestamp>")


def times():
    at = pa.timestamp("us", "UTC")
    moments = pa.array([0, FAR, 0, 0, -FAR]).cast(at)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3, 5, 5], pa.int32()), pa.array([0, 0, 0, 0, FAR]).cast(at))
    days = pa.array([0, 0, -(2**31), 0, 0], pa.int32()).cast(pa.date32())
    return pa.table({"n": range(5), "at": moments, "day": days, "all": lists}, TIMES.arrow)


@pytest.mark.parametrize("kind", ["json", "csv", "sqlite", "topic", "console"])
def test_times_that_have_no_text_are_refused_where_texts_are_written(tmp_path, log, capsys, kind):
    """Before, they were written as '<value out of range>', or ended the job."""
    if kind == "topic":
        log.create_topic("scores")  # without a schema: its values are JSON
    refused = Refused()
    target = Target(kind, tmp_path)
    place = ms.console() if kind == "console" else target.place()
    sink = open_sink(place, TIMES, job="j", step="s", broker=log, folder=tmp_path / "job")
    sink.write(0, times(), None, refused)
    sink.close()
    assert refused.rows == [[1, 2, 3, 4]]
    assert "outside the years 1 to 9999" in refused[0][1]
    shown = capsys.readouterr().out
    if kind == "console":
        assert "1 row" in shown
    elif kind == "topic":
        with log.consumer("scores") as consumer:
            assert [json.loads(record.value)["n"] for record in consumer.until_caught_up()] == [0]
    elif kind == "sqlite":
        assert [row["n"] for row in target.rows()] == [0]
    else:
        assert [path.read_text().count("1970-01-01") for path in (tmp_path / "out").glob(f"*.{kind}")] == [3]


# ---------------------------------------------------------------- folders by value


BIDS = "price int, place string"


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_values_that_make_no_folder_are_refused(tmp_path, format):
    values = ["a", "x" * 300, "ü" * 130, "/" * 90, "..", "", "\0", "a/b", "x" * 249, "x" * 250, None, "."]
    refused = Refused()
    place = ms.files(tmp_path / "out", format, partition_by="place")
    sink = open_sink(place, Schema.of(BIDS), job="j", step="s", broker=tmp_path, folder=tmp_path / "job")
    rows = [{"price": n, "place": value} for n, value in enumerate(values)]
    for _ in range(2):
        sink.write(0, table(BIDS, rows), None, refused)
    sink.close()
    assert refused.rows == [[1, 2, 3, 9]]
    assert refused[0][2] == "its value of 'place' makes a folder name of 266 bytes, more than the limit of 255"
    files = list((tmp_path / "out").rglob(f"*.{format}"))
    assert {path.parent.parent for path in files} == {tmp_path / "out"}, "one folder deep, whatever a value says"
    # Empty text and null have one folder.
    assert len(files) == len(values) - len(refused[0]) - 1


def test_a_path_that_is_too_long_in_all_is_refused(tmp_path):
    columns = [f"c{n:02}" for n in range(20)]
    schema = "n int, " + ", ".join(f"{column} string" for column in columns)
    refused = Refused()
    place = ms.files(tmp_path / "out", "json", partition_by=columns)
    sink = open_sink(place, Schema.of(schema), job="j", step="s", broker=tmp_path, folder=tmp_path / "job")
    rows = [{"n": n, **dict.fromkeys(columns, "x" * size)} for n, size in enumerate((1, 240, 150))]
    sink.write(0, table(schema, rows), None, refused)
    sink.close()
    assert refused.rows == [[1]]
    assert "make a path that is too long" in refused[0][1]
    assert len(list((tmp_path / "out").rglob("*.json"))) == 2


def test_refused_rows_of_a_resumed_batch_of_files_are_not_reported_again(tmp_path, monkeypatch):
    refused = Refused()
    place = ms.files(tmp_path / "out", partition_by="place")

    def opened():
        return open_sink(place, Schema.of(BIDS), job="j", step="s", broker=tmp_path, folder=tmp_path / "job")

    rows = table(BIDS, [{"price": 1, "place": "a"}, {"price": 2, "place": "x" * 300}])
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.rename", lambda *_: (_ for _ in ()).throw(OSError(5, "no answer")))
        with pytest.raises(SinkUnavailable):
            opened().write(0, rows, None, refused)
    opened().write(0, rows, None, refused)
    assert refused.rows == [[1]]
    assert len(list((tmp_path / "out").rglob("*.parquet"))) == 1


def test_rows_that_are_only_dates_and_texts_are_taken_by_every_sink(tmp_path, log):
    schema = "at timestamp, day date"
    row = {"at": datetime(9999, 12, 31, 23, 59, 59, 999999, UTC), "day": date(1, 1, 1)}
    refused = Refused()
    for number, format in enumerate(("json", "csv", "parquet")):
        place = ms.files(tmp_path / "out", format)
        sink = open_sink(place, Schema.of(schema), job="j", step=f"s{number}", broker=log, folder=tmp_path / "job")
        sink.write(0, table(schema, [row]), None, refused)
        sink.close()
    assert refused.rows == [[], [], []]
