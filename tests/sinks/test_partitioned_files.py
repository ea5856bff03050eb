"""Files in folders named by values: which rows are where, and that no crash loses or doubles one."""

import errno
import json
import os
from datetime import UTC, date, datetime
from decimal import Decimal

import duckdb
import polars as pl
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import millstream as ms
from millstream.errors import InvalidPlan, SinkFailed, SinkUnavailable
from millstream.plan.folders import folder_name, folder_values
from millstream.records import Schema
from millstream.sinks import open_sink
from millstream.sinks.files import FilesSink

from .support import table, weights

BIDS = "price int, dt string, hm string"
DAYS = [
    {"price": 1, "dt": "2023-11-14", "hm": "22:13"},
    {"price": 2, "dt": "2023-11-15", "hm": "00:00"},
    {"price": 3, "dt": "2023-11-14", "hm": "22:13"},
    {"price": 4, "dt": "2023-11-14", "hm": "22:14"},
]


@pytest.fixture
def opened(tmp_path):
    def opened(partition_by=("dt", "hm"), format="parquet", schema=BIDS, path="out"):
        place = ms.files(tmp_path / path, format, partition_by=partition_by)
        return open_sink(
            place, Schema.of(schema), job="job", step="write_x", broker=tmp_path / "log", folder=tmp_path / "job"
        )

    return opened


def found(folder, read=lambda path: pq.read_table(path, partitioning=None).to_pylist()):
    """Folder -> rows, of all files, hidden ones too."""
    return {
        str(path.parent.relative_to(folder)): read(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() or path.name.startswith(".")
    }


def test_rows_are_in_the_folder_of_their_values_in_their_order(tmp_path, opened):
    opened().write(7, table(BIDS, DAYS), None)
    assert found(tmp_path / "out") == {
        "dt=2023-11-14/hm=22%3A13": [{"price": 1}, {"price": 3}],
        "dt=2023-11-14/hm=22%3A14": [{"price": 4}],
        "dt=2023-11-15/hm=00%3A00": [{"price": 2}],
    }
    (path,) = (tmp_path / "out/dt=2023-11-15/hm=00%3A00").iterdir()
    assert path.name.startswith("write_x-")
    assert path.name.endswith("-0000000007.parquet")


def test_other_readers_find_the_columns(tmp_path, opened):
    opened().write(0, table(BIDS, DAYS), None)
    glob = f"{tmp_path}/out/**/*.parquet"
    wanted = sorted((row["price"], row["dt"], row["hm"]) for row in DAYS)
    by_duckdb = f"SELECT price, dt::varchar, hm::varchar FROM read_parquet('{glob}', hive_types_autocast=false)"
    assert sorted(duckdb.sql(by_duckdb).fetchall()) == wanted
    by_polars = pl.read_parquet(glob, hive_schema={"dt": pl.String, "hm": pl.String})
    assert sorted(by_polars.rows()) == wanted
    by_arrow = ds.dataset(tmp_path / "out", format="parquet", partitioning="hive").to_table()
    assert sorted(by_arrow["hm"].to_pylist()) == sorted(row["hm"] for row in DAYS)


@pytest.mark.parametrize("format", ["json", "csv"])
def test_text_files_leave_the_columns_out_as_well(tmp_path, opened, format):
    opened("dt", format).write(0, table(BIDS, DAYS), weights(1, 1, -1, 1))
    texts = found(tmp_path / "out", lambda path: path.read_text().splitlines())
    assert list(texts) == ["dt=2023-11-14", "dt=2023-11-15"]
    if format == "csv":
        assert texts["dt=2023-11-14"] == ["price,hm,weight", "1,22:13,1", "3,22:13,-1", "4,22:14,1"]
    else:
        assert json.loads(texts["dt=2023-11-14"][1]) == {"price": 3, "hm": "22:13", "weight": -1}


def test_null_and_empty_text_have_one_folder(tmp_path, opened):
    rows = [{"price": n, "dt": text, "hm": None} for n, text in enumerate([None, "", "x", ""])]
    opened("dt").write(0, table(BIDS, rows), None)
    prices = {folder: [row["price"] for row in rows] for folder, rows in found(tmp_path / "out").items()}
    assert prices == {"dt=__HIVE_DEFAULT_PARTITION__": [0, 1, 3], "dt=x": [2]}


def test_values_of_every_simple_type_are_names(tmp_path, opened):
    schema = "n int, flag boolean, day date, at timestamp, clock timestamp_ntz, cents decimal(10,2), small tinyint"
    at = datetime(2024, 3, 1, 12, tzinfo=UTC)
    row = {
        "n": 1,
        "flag": True,
        "day": date(2024, 3, 1),
        "at": at,
        "clock": at.replace(tzinfo=None),
        "cents": Decimal("-1.50"),
        "small": -7,
    }
    opened(list(row)[1:], schema=schema).write(0, table(schema, [row]), None)
    assert found(tmp_path / "out") == {
        "flag=true/day=2024-03-01/at=2024-03-01T12%3A00%3A00.000000Z/clock=2024-03-01T12%3A00%3A00.000000/"
        "cents=-1.50/small=-7": [{"n": 1}]
    }


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a/b", "a%2Fb"),
        ("50%", "50%25"),
        ("a=b", "a%3Db"),
        ("..", ".."),
        ("ä b+c", "ä b+c"),
        ("\0\n\x7f", "%00%0A%7F"),
        ("\"#'*:?\\{[]^", "%22%23%27%2A%3A%3F%5C%7B%5B%5D%5E"),
        ("__HIVE_DEFAULT_PARTITION__", "%5F_HIVE_DEFAULT_PARTITION__"),
        (None, "__HIVE_DEFAULT_PARTITION__"),
    ],
)
def test_special_characters_are_escaped_and_come_back(text, name):
    assert folder_name("c", text) == f"c={name}"
    assert folder_values(f"c={name}/file") == {"c": text}


def test_names_of_columns_are_escaped_too():
    assert folder_name(".a=b", "c") == "%2Ea%3Db=c"
    assert folder_values("x/%2Ea%3Db=c/.d=e/=f/file") == {".a=b": "c"}
    assert folder_values("a=1") == {}


def test_two_values_that_only_look_alike_stay_apart(tmp_path, opened):
    """Two columns whose texts join to the same one."""
    rows = [{"price": 1, "dt": "a", "hm": "bc"}, {"price": 2, "dt": "ab", "hm": "c"}]
    opened().write(0, table(BIDS, rows), None)
    assert found(tmp_path / "out") == {"dt=a/hm=bc": [{"price": 1}], "dt=ab/hm=c": [{"price": 2}]}


def test_a_thousand_folders_and_many_rows(tmp_path, opened):
    rows = [{"price": n, "dt": str(n % 1000), "hm": "x"} for n in range(5000)]
    opened("dt").write(0, table(BIDS, rows), None)
    prices = {folder: [row["price"] for row in rows] for folder, rows in found(tmp_path / "out").items()}
    assert prices == {f"dt={n}": list(range(n, 5000, 1000)) for n in range(1000)}


# ---------------------------------------------------------------- once


def breaking(monkeypatch, at):
    """The `at`-th file that is written cannot be; all others can."""
    calls, whole = [], FilesSink._write_file

    def broken(self, path, rows):
        calls.append(path)
        if len(calls) == at:
            raise OSError(errno.ENOSPC, "no room", str(path))
        whole(self, path, rows)

    monkeypatch.setattr(FilesSink, "_write_file", broken)
    return calls


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_a_batch_that_stopped_between_files_writes_only_those_that_are_missing(tmp_path, opened, monkeypatch, format):
    calls = breaking(monkeypatch, 2)
    with pytest.raises(SinkUnavailable):
        opened(format=format).write(0, table(BIDS, DAYS), None)
    first = {path: path.stat().st_ino for path in (tmp_path / "out").rglob(f"*.{format}")}
    assert set(first) == {calls[0], calls[2]}  # each is written, whatever becomes of another
    again = opened(format=format)  # as after a crash
    again.write(0, table(BIDS, DAYS), None)
    assert len(calls) == 4
    assert calls.count(calls[0]) == 1
    assert [path.stat().st_ino for path in first] == list(first.values())
    again.write(0, table(BIDS, DAYS), None)
    opened(format=format).write(0, table(BIDS, DAYS), None)
    assert len(calls) == 4
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(files) == 3
    lines = sum(pq.read_metadata(path).num_rows if format == "parquet" else 0 for path in files)
    texts = [path.read_text().splitlines() for path in files if format != "parquet"]
    assert lines + sum(len(text) - (format == "csv") for text in texts) == len(DAYS)


def test_the_note_comes_after_all_files_and_their_folders(tmp_path, opened, monkeypatch):
    """Goal: a batch that is noted is durable. Method: what is synced is written down, in its order."""
    synced = []
    monkeypatch.setattr("millstream.sinks.files.sync_folder", lambda folder: synced.append(str(folder)))
    monkeypatch.setattr("millstream.sinks.file_ledger.FileLedger.record", lambda self, batch: synced.append("noted"))
    opened().write(0, table(BIDS, DAYS), None)
    below = [os.path.relpath(folder, tmp_path / "out") for folder in synced[:-1]]
    assert synced[-1] == "noted"
    assert sorted(below) == [
        ".",
        "dt=2023-11-14",
        "dt=2023-11-14/hm=22%3A13",
        "dt=2023-11-14/hm=22%3A14",
        "dt=2023-11-15",
        "dt=2023-11-15/hm=00%3A00",
    ]


def test_batches_share_folders(tmp_path, opened):
    sink = opened("dt")
    sink.write(0, table(BIDS, DAYS[:2]), None)
    sink.write(1, table(BIDS, []), None)
    sink.write(2, table(BIDS, DAYS[2:]), None)
    assert len(list((tmp_path / "out/dt=2023-11-14").iterdir())) == 2
    assert len(list((tmp_path / "out/dt=2023-11-15").iterdir())) == 1


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("DT", "no such column"),
        (["price", "dt", "hm", "f", "b", "a", "i"], "cannot be the name of a folder"),
        ("f", "'f' is float"),
        ("b", "'b' is binary"),
        ("a", "'a' is array"),
        ("i", "'i' is interval"),
    ],
)
def test_columns_that_cannot_name_a_folder_are_refused_where_they_are_written(columns, said):
    schema = f"{BIDS}, f float, b binary, a array<int>, i interval day to second"
    rows = ms.Flow("f").read("bids", schema)
    with pytest.raises(InvalidPlan) as refused:
        rows.write(ms.files("out", partition_by=columns))
    assert said in refused.value.what
    assert refused.value.where.startswith(f"{__file__}:")


def test_a_column_is_left_for_the_files():
    rows = ms.Flow("f").read("bids", BIDS)
    with pytest.raises(InvalidPlan, match="all columns"):
        rows.write(ms.files("out", partition_by=["hm", "dt", "price"]))


def test_a_value_too_long_for_a_name_stops_the_job(tmp_path, opened):
    with pytest.raises(SinkFailed, match="a value of 'dt' makes a folder's name of 303 bytes"):
        opened("dt").write(0, table(BIDS, [{"price": 1, "dt": "x" * 300}]), None)


def test_folders_that_the_disk_takes_for_one_lose_no_rows(tmp_path, opened):
    """As where capitals are the same as small letters: here by a link."""
    (tmp_path / "out/dt=a").mkdir(parents=True)
    (tmp_path / "out/dt=A").symlink_to(tmp_path / "out/dt=a")
    rows = [{"price": 1, "dt": "a"}, {"price": 2, "dt": "A"}]
    with pytest.raises(SinkFailed, match="rows would be lost"):
        opened("dt").write(0, table(BIDS, rows), None)
