"""One file per batch: its name, what is in it, and that nobody's files are taken for one's own."""

import csv
import json
import re
from datetime import UTC, datetime

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest

import millstream as ms
from connectors.support import SCORES, table, weights
from millstream.connectors.opening import open_sink
from millstream.errors import InvalidInput, InvalidSchema, SinkFailed, SinkUnavailable
from millstream.records import Schema

A, B = {"team": "a", "score": 1}, {"team": "b", "score": 2}
PANES = "team string, window struct<start: timestamp, end: timestamp>, names array<string>"
NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)
PANE = {"team": 'a "b", c', "window": {"start": NOON, "end": None}, "names": ["x", None]}


@pytest.fixture
def opened(tmp_path):
    def opened(format="parquet", schema=SCORES, job="job"):
        place = ms.files(tmp_path / "out", format)
        return open_sink(
            place, Schema.of(schema), job=job, step="write_x", broker=tmp_path / "log", folder=tmp_path / job
        )

    return opened


def test_files_are_named_by_step_and_batch_and_readable_as_one_table(tmp_path, opened):
    sink = opened()
    sink.write(7, table(SCORES, [A]), None)
    sink.write(8, table(SCORES, []), None)
    sink.write(12, table(SCORES, [B]), None)
    first, second = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert re.fullmatch(r"write_x-\d{8}T\d{6}-[0-9a-f]{8}-0000000007\.parquet", first)
    assert second == first.replace("07.parquet", "12.parquet")
    assert pq.read_table(tmp_path / "out").to_pylist() == [A, B]
    assert pl.read_parquet(tmp_path / "out").rows() == [("a", 1), ("b", 2)]


def test_json_has_a_row_a_line_and_times_in_utc(tmp_path, opened):
    opened("json", PANES).write(0, table(PANES, [PANE, PANE]), None)
    (path,) = (tmp_path / "out").iterdir()
    lines = path.read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {**PANE, "window": {"start": "2024-03-01T12:00:00.000000Z", "end": None}}
    ] * 2


def test_csv_has_a_header_and_flattened_structs(tmp_path, opened):
    opened("csv", PANES).write(0, table(PANES, [PANE]), None)
    (path,) = (tmp_path / "out").iterdir()
    with path.open(newline="") as file:
        heading, row = csv.reader(file)
    assert heading == ["team", "window_start", "window_end", "names"]
    assert row == ['a "b", c', "2024-03-01T12:00:00.000000Z", "", '["x",null]']
    assert duckdb.sql(f"SELECT team, window_end FROM '{path}'").fetchall() == [('a "b", c', None)]


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_retracted_rows_have_their_weight(tmp_path, opened, format):
    opened(format).write(0, table(SCORES, [A, B]), weights(1, -1))
    (path,) = (tmp_path / "out").iterdir()
    reader = {"parquet": "read_parquet", "json": "read_json", "csv": "read_csv"}[format]
    assert duckdb.sql(f"SELECT team, weight FROM {reader}('{path}')").fetchall() == [("a", 1), ("b", -1)]


def test_files_that_others_have_moved_away_are_not_written_again(tmp_path, opened):
    opened().write(0, table(SCORES, [A]), None)
    (path,) = (tmp_path / "out").iterdir()
    path.unlink()
    opened().write(0, table(SCORES, [A]), None)
    assert list((tmp_path / "out").iterdir()) == []


def test_jobs_may_share_a_folder(tmp_path, opened):
    """Also if their steps have one name: neither takes a file of the other for its own."""
    opened().write(0, table(SCORES, [A]), None)
    opened(job="another").write(0, table(SCORES, [B]), None)
    assert sorted(pq.read_table(tmp_path / "out")["team"].to_pylist()) == ["a", "b"]


def test_a_file_where_the_folder_should_be_is_refused(tmp_path, opened):
    (tmp_path / "out").write_text("x")
    with pytest.raises(InvalidInput):
        opened()


@pytest.mark.parametrize("broken", ["out", "job"])
def test_a_folder_that_is_away_is_tried_again(tmp_path, opened, broken):
    """Goal: neither the files nor the ledger may be lost in silence. Method: a file in the folder's place, for now."""
    sink = opened()
    (tmp_path / "out").mkdir()
    (tmp_path / broken).rename(tmp_path / "away")
    (tmp_path / broken).write_text("in the way")
    with pytest.raises(SinkUnavailable):
        sink.write(0, table(SCORES, [A]), None)
    (tmp_path / broken).unlink()
    (tmp_path / "away").rename(tmp_path / broken)
    sink.write(0, table(SCORES, [A]), None)
    sink.write(0, table(SCORES, [A]), None)
    assert pq.read_table(tmp_path / "out").to_pylist() == [A]


def test_a_damaged_ledger_stops_the_job(tmp_path, opened):
    opened().write(0, table(SCORES, [A]), None)
    (ledger,) = (tmp_path / "job").iterdir()
    ledger.write_text("{")
    with pytest.raises(SinkFailed, match="ledger"):
        opened()


def test_maps_that_json_cannot_hold_are_refused_at_once(opened):
    with pytest.raises(InvalidSchema, match="'m'"):
        opened("json", "m map<struct<a: int>, int>")
