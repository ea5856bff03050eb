"""Tables of a lake as sinks: what a commit holds, how tables grow columns, and what others read."""

import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import msgspec
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import millstream as ms
from millstream.connectors.opening import open_sink
from millstream.errors import InvalidInput, InvalidPlan, InvalidSchema, SinkFailed, SinkUnavailable
from millstream.records import Schema

from ..support import LAKES, SCORES, Target, catalog, delta_files, iceberg_files, table, weights

A, B, C = ({"team": "a", "score": 1}, {"team": "b", "score": 2}, {"team": "c", "score": 3})
WIDE = Schema.of(
    "id tinyint, tags array<string>, sizes map<string, int>, price decimal(10, 2), at timestamp, local timestamp_ntz, "
    "day date, place struct<x: double, y: double>, raw binary, ok boolean"
)
ROWS = [
    {
        "id": number,
        "tags": ["x", "y"],
        "sizes": {"s": number},
        "price": Decimal("12.50"),
        "at": datetime(2024, 3, 1, 12, 0, 0, number, tzinfo=UTC),
        "local": datetime(2024, 3, 1, 12),
        "day": date(2024, 3, number + 1),
        "place": {"x": 1.5, "y": float(number)},
        "raw": b"\x00\xff",
        "ok": number % 2 == 0,
    }
    for number in range(4)
]


def opened(place, schema, folder, step="out", **more):
    return open_sink(
        place, Schema.of(schema), job="job", step=step, broker=folder / "log", folder=folder / "job", **more
    )


def place(kind, folder, **more):
    if kind == "delta":
        return ms.delta_table(folder / "lake", **more)
    return ms.iceberg("tests", "games.scores", settings=catalog(folder), **more)


def files(kind, folder):
    return delta_files(folder / "lake") if kind == "delta" else iceberg_files(folder)


def whole(kind, folder):
    """All rows, as the library of the format reads them."""
    if kind == "delta":
        return pl.scan_delta(str(folder / "lake")).collect().to_arrow()
    return place(kind, folder).store().catalog.load_table("games.scores").scan().to_arrow()


@pytest.fixture(params=LAKES)
def kind(request):
    return request.param


def by(column, rows):
    return sorted(rows, key=lambda row: (row[column] is not None, row[column]))


def test_every_type_comes_back(kind, tmp_path):
    sink = opened(place(kind, tmp_path), WIDE, tmp_path)
    sink.write(0, table(WIDE, ROWS), None)
    found = whole(kind, tmp_path).to_pylist()
    as_map = [{**row, "sizes": dict(row["sizes"] if kind == "iceberg" else _pairs(row["sizes"]))} for row in found]
    assert by("id", as_map) == ROWS


def _pairs(value):
    return [(each["key"], each["value"]) if isinstance(each, dict) else each for each in value]


def test_rows_of_every_type_are_retracted(kind, tmp_path):
    sink = opened(place(kind, tmp_path), WIDE, tmp_path)
    sink.write(0, table(WIDE, ROWS), None)
    sink.write(1, table(WIDE, ROWS[1:3]), weights(-1, -1))
    assert sorted(whole(kind, tmp_path).column("id").to_pylist()) == [0, 3]


@pytest.mark.parametrize("key", [None, "id"])
def test_partitions(kind, tmp_path, key):
    schema = "id long, day date, team string"
    made = place(kind, tmp_path, partition_by=["day", "team"], key=key)
    rows = [{"id": n, "day": date(2024, 3, 1 + n % 2), "team": ["a b", "c/d=%", None][n % 3]} for n in range(12)]
    sink = opened(made, schema, tmp_path)
    sink.write(0, table(schema, rows), None)
    assert len(files(kind, tmp_path)) == 6
    sink.write(1, table(schema, [rows[0]]), weights(-1))
    assert by("id", whole(kind, tmp_path).to_pylist()) == rows[1:]
    opened(place(kind, tmp_path, key=key), schema, tmp_path)
    with pytest.raises(InvalidSchema, match="partitioned by day, team, not by team"):
        opened(place(kind, tmp_path, partition_by="team", key=key), schema, tmp_path)


def test_an_upsert_replaces_only_the_files_that_have_its_keys(kind, tmp_path):
    schema = "id long, name string"
    sink = opened(place(kind, tmp_path), schema, tmp_path)
    for batch in range(4):
        sink.write(batch, table(schema, [{"id": batch * 10 + n, "name": "old"} for n in range(10)]), None)
    before = set(files(kind, tmp_path))
    sink = opened(place(kind, tmp_path, key="id"), schema, tmp_path, step="changes")
    sink.write(0, table(schema, [{"id": 12, "name": "new"}, {"id": 15, "name": "new"}]), None)
    assert len(before - set(files(kind, tmp_path))) == 1
    names = {row["id"]: row["name"] for row in whole(kind, tmp_path).to_pylist()}
    assert names == {n: "new" if n in (12, 15) else "old" for n in range(40)}


def test_new_columns_are_added_and_other_changes_are_refused(kind, tmp_path):
    sink = opened(place(kind, tmp_path), SCORES, tmp_path)
    sink.write(0, table(SCORES, [A]), None)
    wider = "team string, score int, at timestamp"
    sink = opened(place(kind, tmp_path), wider, tmp_path)
    at = datetime(2024, 3, 1, tzinfo=UTC)
    sink.write(1, table(wider, [{**B, "at": at}]), None)
    assert by("team", whole(kind, tmp_path).to_pylist()) == [{**A, "at": None}, {**B, "at": at}]
    sink.write(2, table(wider, [{**A, "at": None}]), weights(-1))  # from a file without the column
    assert whole(kind, tmp_path).to_pylist() == [{**B, "at": at}]
    with pytest.raises(InvalidSchema) as raised:
        opened(place(kind, tmp_path), "team string, score string", tmp_path)
    assert "column 'score' is int in the table and string in the rows" in str(raised.value)
    assert "the rows have no column 'at' (timestamp)" in str(raised.value)


def test_tasks_write_files_and_the_driver_commits_them(kind, tmp_path):
    """Goal: what tasks prepare is invisible until it is committed, and what is not committed is removed."""
    sink = opened(place(kind, tmp_path), SCORES, tmp_path)
    preparer = pickle.loads(pickle.dumps(sink.preparer()))
    prepared = [preparer.prepare(0, shard, table(SCORES, [row]), None) for shard, row in ((1, A), (2, B), (2, B))]
    assert whole(kind, tmp_path).num_rows == 0
    receipts = [msgspec.msgpack.decode(msgspec.msgpack.encode(each.receipt)) for each in prepared]
    sink.write_prepared(0, table(SCORES, [C]), None, receipts[:2])  # the second attempt of shard 2 got lost
    assert by("team", whole(kind, tmp_path).to_pylist()) == [A, B, C]
    sink.write_prepared(0, table(SCORES, [C]), None, receipts[1:])
    assert by("team", whole(kind, tmp_path).to_pylist()) == [A, B, C]
    on_disk = {str(path) for path in tmp_path.rglob("millstream-*/**/*.parquet")}
    assert on_disk == set(files(kind, tmp_path))
    assert preparer.prepare(1, 1, table(SCORES, [A]), weights(1)) is None


def test_leftovers_of_a_killed_attempt_are_removed(kind, tmp_path):
    opened(place(kind, tmp_path), SCORES, tmp_path).prepare(0, 0, table(SCORES, [A]), None)
    sink = opened(place(kind, tmp_path), SCORES, tmp_path)
    sink.write(0, table(SCORES, [A]), None)
    assert {str(path) for path in tmp_path.rglob("millstream-*/**/*.parquet")} == set(files(kind, tmp_path))


def test_a_commit_that_depends_on_an_older_version_is_computed_again(kind, tmp_path):
    one = opened(place(kind, tmp_path, key="team"), SCORES, tmp_path)
    two = opened(place(kind, tmp_path, key="team"), SCORES, tmp_path, step="other")
    one.write(0, table(SCORES, [A]), None)
    assert not one.is_decided(1)
    prepared = one.prepare(1, 0, table(SCORES, [{"team": "a", "score": 7}]), None)
    two.write(0, table(SCORES, [{"team": "a", "score": 5}]), None)
    with pytest.raises(SinkUnavailable, match="another writer has changed the table"):
        one.commit(1, [prepared.receipt])
    one.write(1, table(SCORES, [{"team": "a", "score": 7}]), None)
    assert whole(kind, tmp_path).to_pylist() == [{"team": "a", "score": 7}]


def test_a_second_process_of_the_same_run_cannot_write_a_batch_again(kind, tmp_path):
    one, two = (opened(place(kind, tmp_path), SCORES, tmp_path) for _ in range(2))
    assert not one.is_decided(0)
    assert not two.is_decided(0)
    prepared = [sink.prepare(0, 0, table(SCORES, [A]), None).receipt for sink in (one, two)]
    one.commit(0, [prepared[0]])
    with pytest.raises(SinkUnavailable):
        two.commit(0, [prepared[1]])
    two.write(0, table(SCORES, [A]), None)
    assert whole(kind, tmp_path).to_pylist() == [A]


def test_rows_that_a_table_cannot_store_are_refused(tmp_path):
    required = pa.schema([pa.field("team", pa.string(), nullable=False), pa.field("score", pa.int32())])
    DeltaTable.create(tmp_path / "lake", required)
    refused = []
    sink = opened(place("delta", tmp_path), SCORES, tmp_path)
    sink.write(0, table(SCORES, [A, {"team": None, "score": 2}]), None, refused.extend)
    assert [(each.row, each.reason) for each in refused] == [
        (1, "column 'team' is null, and the table declares it NOT NULL")
    ]
    assert whole("delta", tmp_path).to_pylist() == [A]


def test_tables_with_features_that_are_not_written(tmp_path):
    write_deltalake(tmp_path / "lake", pa.table({"team": ["a"], "score": pa.array([1], pa.int32())}))
    DeltaTable(tmp_path / "lake").alter.add_constraint({"positive": "score > 0"})
    with pytest.raises(InvalidSchema, match="constraint"):
        opened(place("delta", tmp_path), SCORES, tmp_path)


def test_a_table_of_others_is_appended_to(tmp_path):
    write_deltalake(tmp_path / "lake", pa.table({"team": ["a"], "score": pa.array([1], pa.int32())}))
    sink = opened(place("delta", tmp_path, key="team"), SCORES, tmp_path)
    sink.write(0, table(SCORES, [{"team": "a", "score": 9}, B]), None)
    assert by("team", whole("delta", tmp_path).to_pylist()) == [{"team": "a", "score": 9}, B]


def test_what_is_written_is_read_by_duckdb(kind, tmp_path):
    sink = opened(place(kind, tmp_path, key="team"), SCORES, tmp_path)
    sink.write(0, table(SCORES, [A, B]), None)
    sink.write(1, table(SCORES, [{"team": "a", "score": 8}, C]), None)
    listed = files(kind, tmp_path)
    found = duckdb.execute("SELECT team, score FROM read_parquet(?) ORDER BY team", [listed]).fetchall()
    assert found == [("a", 8), ("b", 2), ("c", 3)]


def test_statistics_let_readers_skip_files(tmp_path):
    schema = "id long, name string, at timestamp"
    sink = opened(place("delta", tmp_path), schema, tmp_path)
    at = datetime(2024, 3, 1, 0, 0, 0, 1500, tzinfo=UTC)
    sink.write(0, table(schema, [{"id": 1, "name": "x", "at": at}, {"id": 5, "name": None, "at": at}]), None)
    about = pa.table(DeltaTable(tmp_path / "lake").get_add_actions(flatten=True)).to_pylist()[0]
    assert (about["num_records"], about["min.id"], about["max.id"], about["null_count.name"]) == (2, 1, 5, 1)
    assert about["min.at"] <= at <= about["max.at"]
    found = pl.scan_delta(str(tmp_path / "lake")).filter(pl.col("at") == at).collect()
    assert found.height == 2


def test_mistakes_are_refused_when_the_flow_is_built(tmp_path):
    with pytest.raises(InvalidInput, match="is not the name of a table"):
        ms.iceberg("lake", "scores")
    with pytest.raises(InvalidInput, match="no key="):
        ms.delta_table(tmp_path, mode="upsert")
    flow = ms.Flow("mistakes")
    stream = flow.read("scores", SCORES)
    with pytest.raises(InvalidPlan, match="no such column"):
        stream.write(ms.delta_table(tmp_path, partition_by="day"))
    with pytest.raises(InvalidPlan, match="partition_by apply to writing"):
        flow.read(ms.delta_table(tmp_path, partition_by="team"), SCORES)


def test_a_catalog_that_is_away_is_reported_before_the_job_starts(tmp_path):
    missing = {"type": "sql", "uri": "sqlite:////nowhere/at/all.db", "warehouse": f"file://{tmp_path}"}
    with pytest.raises(SinkUnavailable, match="unable to open"):
        opened(ms.iceberg("tests", "games.scores", settings=missing), SCORES, tmp_path)
    with pytest.raises((SinkFailed, SinkUnavailable)):
        opened(ms.iceberg("no-such-catalog", "games.scores"), SCORES, tmp_path)


def test_passwords_are_not_shown(tmp_path):
    lake = ms.delta_table("s3://bucket/scores", options={"AWS_SECRET_ACCESS_KEY": "Xq7JmzW9Vt"})
    iceberg = ms.iceberg("c", "a.b", settings={"uri": "postgresql://me:Xq7JmzW9Vt@host/db", "s3.region": "x"})
    for each in (lake, iceberg):
        assert "Xq7JmzW9Vt" not in f"{each} {each!r}"
        assert b"Xq7JmzW9Vt" not in pickle.dumps(each)


def test_targets_are_the_same_table(tmp_path):
    assert ms.delta_table(tmp_path / "t", key="a").target == ms.delta_table(f"{tmp_path}/t/").target
    assert Path(ms.delta_table("t").uri).is_absolute()
    assert Target("delta", tmp_path).place().name == "delta lake"
