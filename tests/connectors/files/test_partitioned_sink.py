"""Files in folders named by values: which rows are where, and that no crash loses or doubles one."""

import errno
import json
import os
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import polars as pl
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import millstream as ms
from connectors.support import table, weights
from millstream.connectors import file_ledger
from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.files.drafts import Drafting
from millstream.connectors.files.sink import FilesSink
from millstream.connectors.opening import open_sink
from millstream.errors import InvalidPlan, SinkFailed, SinkUnavailable
from millstream.plan.steps.partition_folders import folder_name, folder_values
from millstream.records import Schema

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


def breaking(monkeypatch, what, at):
    """The `at`-th call of a method cannot be done; all others can."""
    owner, name = what
    calls, whole = [], getattr(owner, name)

    def broken(self, *given):
        calls.append(self)
        if len(calls) == at:
            raise OSError(errno.ENOSPC, "no room", "a file")
        return whole(self, *given)

    monkeypatch.setattr(owner, name, broken)
    return calls


def rows_in(folder, format):
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert all(path.suffix == f".{format}" for path in files), files
    assert not any(path.name.startswith(".") for path in folder.iterdir())
    if format == "parquet":
        return sum(pq.read_metadata(path).num_rows for path in files)
    return sum(len(path.read_text().splitlines()) - (format == "csv") for path in files)


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_a_batch_of_which_one_file_cannot_be_written_has_no_file_yet(tmp_path, opened, monkeypatch, format):
    breaking(monkeypatch, (Drafting, "_write"), 2)
    sink = opened(format=format)
    with pytest.raises(SinkUnavailable):
        sink.write(0, table(BIDS, DAYS), None)
    assert list((tmp_path / "out").rglob(f"*.{format}")) == []
    sink.write(0, table(BIDS, DAYS), None)
    sink.write(0, table(BIDS, DAYS), None)
    opened(format=format).write(0, table(BIDS, DAYS), None)
    assert rows_in(tmp_path / "out", format) == len(DAYS)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_batch_that_stopped_between_renames_continues_with_the_drafts_that_were_noted(
    tmp_path, opened, monkeypatch, at
):
    """Also if the rows come in other pieces then, as on a machine with more cores."""
    breaking(monkeypatch, (Path, "rename"), at)
    with pytest.raises(SinkUnavailable):
        opened().write(0, table(BIDS, DAYS), None)
    seen = {path: path.stat().st_ino for path in (tmp_path / "out").rglob("*.parquet")}
    assert len(seen) == at - 1
    again = opened()
    drafts = again.preparer().prepare(0, 1, table(BIDS, DAYS[:2]), None).receipt
    again.write_prepared(0, table(BIDS, DAYS[2:]), None, [drafts])
    again.close()
    assert {path: path.stat().st_ino for path in seen} == seen
    assert rows_in(tmp_path / "out", "parquet") == len(DAYS)


def test_a_file_that_was_taken_away_before_the_batch_was_noted_is_not_missed(tmp_path, opened, monkeypatch):
    breaking(monkeypatch, (FileLedger, "record"), 1)
    with pytest.raises(OSError, match="no room"):
        opened().write(0, table(BIDS, DAYS), None)
    for path in (tmp_path / "out/dt=2023-11-15").rglob("*.parquet"):
        path.unlink()
    opened().write(0, table(BIDS, DAYS), None)
    assert rows_in(tmp_path / "out", "parquet") == len(DAYS) - 1


def stopped_before_renames(opened, monkeypatch, **options):
    with monkeypatch.context() as patch:
        breaking(patch, (Path, "rename"), 1)
        sink = opened(**options)
        with pytest.raises(SinkUnavailable):
            sink.write(0, table(BIDS, DAYS), None)
        sink.close()


def test_a_disk_that_is_gone_before_the_renames_is_retried(tmp_path, opened, monkeypatch):
    stopped_before_renames(opened, monkeypatch)
    (tmp_path / "out").rename(tmp_path / "away")
    sink = opened()
    with pytest.raises(SinkUnavailable, match="cannot be reached"):
        sink.write(0, table(BIDS, DAYS), None)
    assert not (tmp_path / "out").exists()
    (tmp_path / "away").rename(tmp_path / "out")
    sink.write(0, table(BIDS, DAYS), None)
    assert rows_in(tmp_path / "out", "parquet") == len(DAYS)


def test_a_recorded_batch_is_completed_in_the_folder_where_it_started(tmp_path, opened, monkeypatch):
    stopped_before_renames(opened, monkeypatch)
    sink = opened(path="elsewhere")
    sink.write(0, table(BIDS, DAYS), None)
    sink.write(1, table(BIDS, DAYS[:1]), None)
    assert len(list((tmp_path / "out").rglob("*.parquet"))) == 3
    assert rows_in(tmp_path / "elsewhere", "parquet") == 1


def test_a_record_that_may_have_reached_the_disk_counts(tmp_path, opened, monkeypatch):
    """Goal: recorded drafts are not removed, although the process that recorded them saw a failure."""
    sink = opened()
    with monkeypatch.context() as patch:
        whole = file_ledger.sync_folder

        def broken(folder):
            whole(folder)
            if "writing" in sink._ledger.path.read_text():
                raise OSError(errno.EIO, "no answer", str(folder))

        patch.setattr(file_ledger, "sync_folder", broken)
        with pytest.raises(SinkUnavailable):
            sink.write(0, table(BIDS, DAYS), None)
    sink.close()
    opened().write(0, table(BIDS, DAYS), None)
    assert rows_in(tmp_path / "out", "parquet") == len(DAYS)


@pytest.mark.parametrize("what", [(FilesSink, "_make_folders"), (Drafting, "_write")])
def test_a_batch_that_is_tried_often_does_not_fill_the_disk(tmp_path, opened, monkeypatch, what):
    sink, rows = opened("dt"), table(BIDS, DAYS)
    with monkeypatch.context() as patch:
        for number in range(1, 20):
            breaking(patch, what, number)
        for _ in range(5):
            with pytest.raises(SinkUnavailable):
                sink.write(0, rows, None)
        assert len(list((tmp_path / "out").rglob("*.tmp"))) <= 2
    sink.write(0, rows, None)
    assert rows_in(tmp_path / "out", "parquet") == len(DAYS)


@pytest.mark.parametrize(
    "changed",
    [
        {"moves": [["../precious", "{name}"]]},
        {"moves": [["{draft}", "../{name}"]]},
        {"moves": [["{draft}", "/{name}"]]},
        {"moves": [["{draft}", "precious"]]},
        {"hidden": "{folder}/../elsewhere"},
    ],
)
def test_an_edited_note_moves_no_file_but_drafts_and_nowhere_else(tmp_path, opened, monkeypatch, changed):
    stopped_before_renames(opened, monkeypatch)
    (tmp_path / "out/precious").write_text("kept")
    [ledger] = [path for path in tmp_path.rglob("*.json") if "writing" in path.read_text()]
    content = json.loads(ledger.read_text())
    [(draft, path), *_] = content["writing"]["moves"]
    known = {"draft": draft, "name": Path(path).name, "folder": content["writing"]["folder"]}
    for key, value in changed.items():
        pairs = [[part.format(**known) for part in pair] for pair in value] if key == "moves" else value.format(**known)
        content["writing"][key] = pairs
    ledger.write_text(json.dumps(content))
    with pytest.raises(SinkFailed, match="cannot be read"):
        opened().write(0, table(BIDS, DAYS), None)
    assert (tmp_path / "out/precious").read_text() == "kept"
    assert list(tmp_path.rglob("*.parquet")) == []


# ---------------------------------------------------------------- drafts of workers


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_what_workers_drafted_appears_with_what_the_driver_has(tmp_path, opened, format):
    sink = opened("dt", format=format)
    drafting = pickle.loads(pickle.dumps(sink.preparer()))  # as it comes to a worker
    drafts = [
        drafting.prepare(3, shard, table(BIDS, days), None).receipt for shard, days in ((1, DAYS[:2]), (2, DAYS[2:3]))
    ]
    assert list((tmp_path / "out").rglob(f"*.{format}")) == []
    sink.write_prepared(3, table(BIDS, DAYS[3:]), None, drafts)
    names = sorted(path.name.partition("-0000000003")[2] for path in (tmp_path / "out").rglob(f"*.{format}"))
    assert names == [f"-0001.{format}", f"-0001.{format}", f"-0002.{format}", f".{format}"]
    sink.close()
    assert rows_in(tmp_path / "out", format) == len(DAYS)


def test_drafts_of_a_try_that_failed_are_removed(tmp_path, opened):
    sink = opened()
    lost, used = (sink.preparer().prepare(0, 1, table(BIDS, DAYS), None).receipt for _ in range(2))
    sink.write_prepared(0, table(BIDS, []), None, [used])
    sink.write_prepared(0, table(BIDS, []), None, [lost])
    sink.close()
    assert rows_in(tmp_path / "out", "parquet") == len(DAYS)


def test_drafts_that_are_gone_stop_the_job(tmp_path, opened):
    sink = opened()
    drafts = sink.preparer().prepare(0, 1, table(BIDS, DAYS), None).receipt
    for path in (tmp_path / "out").rglob("*.tmp"):
        path.unlink()
    with pytest.raises(SinkFailed, match="drafts of this batch are missing"):
        sink.write_prepared(0, table(BIDS, []), None, [drafts])
    sink.write(0, table(BIDS, DAYS), None)
    sink.close()
    assert rows_in(tmp_path / "out", "parquet") == len(DAYS)


def test_a_disk_that_went_away_behind_a_worker_is_waited_for(tmp_path, opened):
    sink = opened()
    drafts = sink.preparer().prepare(0, 1, table(BIDS, DAYS), None).receipt
    (tmp_path / "out").rename(tmp_path / "away")
    with pytest.raises(SinkUnavailable, match="cannot be reached"):
        sink.write_prepared(0, table(BIDS, []), None, [drafts])
    assert not (tmp_path / "out").exists()
    (tmp_path / "away").rename(tmp_path / "out")
    sink.write_prepared(0, table(BIDS, []), None, [drafts])
    sink.close()
    assert rows_in(tmp_path / "out", "parquet") == len(DAYS)


def test_retracted_rows_have_their_weight_in_drafts_too(tmp_path, opened):
    sink = opened("dt")
    sink.write_prepared(
        0, table(BIDS, []), None, [sink.preparer().prepare(0, 1, table(BIDS, DAYS[:1]), weights(-1)).receipt]
    )
    sink.close()
    assert found(tmp_path / "out") == {"dt=2023-11-14": [{"price": 1, "hm": "22:13", "weight": -1}]}


def test_the_note_comes_after_all_files_and_their_folders(tmp_path, opened, monkeypatch):
    """Goal: a batch that is noted is durable. Method: what is synced is written down, in its order."""
    synced = []
    monkeypatch.setattr("millstream.connectors.files.sink.sync_folder", lambda folder: synced.append(str(folder)))
    monkeypatch.setattr(
        "millstream.connectors.file_ledger.FileLedger.record", lambda self, batch: synced.append("noted")
    )
    opened().write(0, table(BIDS, DAYS), None)
    made, drafts, *folders, last = synced
    below = [os.path.relpath(folder, tmp_path / "out") for folder in folders]
    assert made == str(tmp_path / "out")
    assert ".drafts-write_x" in drafts
    assert last == "noted"
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
        (["price", "dt", "hm", "f", "b", "a", "i"], "cannot be a folder name"),
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


def test_a_value_too_long_for_a_folder_name_raises_without_dead_letters(tmp_path, opened):
    with pytest.raises(SinkFailed, match="its value of 'dt' makes a folder name of 303 bytes"):
        opened("dt").write(0, table(BIDS, [{"price": 1, "dt": "x" * 300}]), None)


def test_folders_that_are_the_same_on_disk_are_refused(tmp_path, opened):
    """As where capitals are the same as small letters: here by a link."""
    (tmp_path / "out/dt=a").mkdir(parents=True)
    (tmp_path / "out/dt=A").symlink_to(tmp_path / "out/dt=a")
    rows = [{"price": 1, "dt": "a"}, {"price": 2, "dt": "A"}]
    with pytest.raises(SinkFailed, match="rows would be mixed"):
        opened("dt").write(0, table(BIDS, rows), None)
