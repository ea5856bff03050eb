"""A flow on Spark that writes folders by day and minute, others that read them back, and a crash between two files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession

import millstream as ms
from jobs.support import CAUGHT_UP, SCHEMA, put, row, scores
from millstream.errors import ConnectorFailed
from millstream.log import EmbeddedLog

pytestmark = pytest.mark.usefixtures("spark")

GIVEN = [("ann", 1, 0), ("bob", 2, 61), ("ann", 3, 2), ("cid", 4, 3600), ("bob", 5, 1)]
FILED = "user string, n int, dt date, hm string"


@pytest.fixture
def log(log: EmbeddedLog) -> EmbeddedLog:
    log.create_topic("scores", schema=SCHEMA)
    put(log, "scores", GIVEN)
    return log


def filing(folder: Path, format: str) -> ms.Flow:
    flow = ms.Flow("filing")
    texts = {"dt": "cast(at as date)", "hm": "date_format(at, 'HH:mm')"}
    rows = scores(flow).select("user", "n", **texts)
    rows.write(ms.files(folder, format, partition_by=["dt", "hm"]))
    return flow


def expected() -> list[dict[str, Any]]:
    made = [row(*given) for given in GIVEN]
    return [
        {"user": each["user"], "n": each["n"], "dt": each["at"].date(), "hm": each["at"].strftime("%H:%M")}
        for each in made
    ]


def by_n(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda each: int(each["n"]))


@pytest.mark.parametrize(
    "format", ["parquet", *(pytest.param(each, marks=pytest.mark.more) for each in ("json", "csv"))]
)
def test_what_one_flow_files_another_reads(log: EmbeddedLog, tmp_path: Path, format: str, spark: SparkSession) -> None:
    out = tmp_path / "out"
    filing(out, format).run(broker=log.path, until=CAUGHT_UP)
    again = ms.Flow("reading").read(ms.files(out, format), FILED)
    kept, counted = ms.memory(f"read-{out}"), ms.memory(f"counted-{out}")
    again.write(kept)
    again.select("hm").write(counted)
    again.flow.run(broker=log.path, until=CAUGHT_UP)
    assert by_n(kept.rows()) == expected()
    assert sorted(each["hm"] for each in counted.rows()) == sorted(each["hm"] for each in expected())
    if format == "parquet":
        by_spark = spark.read.schema(FILED).parquet(str(out)).orderBy("n").collect()
        assert [each.asDict() for each in by_spark] == expected()


@pytest.mark.more
def test_a_flow_may_look_at_nothing_but_a_folders_column(log: EmbeddedLog, tmp_path: Path) -> None:
    """Then no column of the files is read at all."""
    out = tmp_path / "out"
    filing(out, "parquet").run(broker=log.path, until=CAUGHT_UP)
    days = ms.memory(f"days-{out}")
    flow = ms.Flow("days")
    flow.read(ms.files(out), FILED).select("dt").write(days)
    flow.run(broker=log.path, until=CAUGHT_UP)
    assert [each["dt"] for each in days.rows()] == [each["dt"] for each in expected()]


@pytest.mark.more
def test_a_crash_between_two_files_loses_and_duplicates_nothing(
    log: EmbeddedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    renamed: list[Path] = []
    whole = Path.rename

    def broken(path: Path, target: Path) -> Path:
        if Path(target).suffix == ".parquet":
            renamed.append(target)
            if len(renamed) == 2:
                raise RuntimeError("the process ends here")
        return whole(path, target)

    monkeypatch.setattr(Path, "rename", broken)
    with pytest.raises(ConnectorFailed, match="the process ends here"):
        filing(out, "parquet").run(broker=log.path, until=CAUGHT_UP)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.parquet")}
    assert set(before) == {renamed[0]}
    filing(out, "parquet").run(broker=log.path, until=CAUGHT_UP)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len(list(out.rglob("*.parquet"))) == 3
    assert by_n(read(out, log)) == expected()


def read(folder: Path, log: EmbeddedLog) -> list[dict[str, Any]]:
    source = ms.Flow("reading").read(ms.files(folder), FILED)
    kept = ms.memory(f"read-{folder}")
    source.write(kept)
    source.flow.run(broker=log.path, until=CAUGHT_UP)
    return list(kept.rows())


MANY = 60_000


def many(folder: Path, log: EmbeddedLog) -> ms.Flow:
    """So many wide rows that workers write the files themselves; of two kinds of output."""
    log.create_topic("wide", schema="n long, text string", partitions=2)
    columns = {"n": range(MANY), "text": [f"{n:0200}" for n in range(MANY)]}
    frame = pl.DataFrame(columns, schema={"n": pl.Int64, "text": pl.String})
    with log.producer(acks=1) as producer:
        for part in range(2):
            producer.send_batch("wide", frame.filter(pl.col("n") % 2 == part), partition=part)
    flow = ms.Flow("many")
    wide = flow.read("wide", "n long, text string")
    wide.with_column("kind", "n % 3").write(ms.files(folder / "rows", partition_by="kind"))
    latest = wide.to_table(key="n").where("n % 2 = 0")
    latest.changes().write(ms.files(folder / "changes"))
    return flow


@pytest.mark.more
def test_workers_write_files_of_many_rows_and_the_driver_puts_them_in_place(log: EmbeddedLog, tmp_path: Path) -> None:
    out = tmp_path / "out"
    job = many(out, log).run(broker=log.path, until=CAUGHT_UP)
    names = [path.name for path in (out / "rows").rglob("*.parquet")]
    assert len(names) >= 3
    assert all(re.search(r"-\d{10}-\d{4}\.parquet$", name) for name in names), names
    assert not any(path.name.startswith(".drafts") for path in (out / "rows").iterdir())
    found = pl.read_parquet(out / "rows/**/*.parquet", hive_partitioning=True).sort("n")
    assert found["n"].to_list() == list(range(MANY))
    assert found.filter(pl.col("kind") != pl.col("n") % 3).is_empty()
    assert found["text"].to_list() == [f"{n:0200}" for n in range(MANY)]
    changes = pl.read_parquet(out / "changes/*.parquet").sort("n")
    assert changes["n"].to_list() == list(range(0, MANY, 2))
    assert set(changes["weight"].to_list()) == {1}
    assert sorted(job.progress.written.values()) == [MANY // 2, MANY]


@pytest.mark.more
def test_workers_that_do_not_share_the_disk_send_their_rows(
    log: EmbeddedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the hidden folder is not there."""
    monkeypatch.setattr("millstream.connectors.files.sink.FilesSink.preparer", lambda sink: sink._drafting)
    out = tmp_path / "out"
    many(out, log).run(broker=log.path, until=CAUGHT_UP)
    names = [path.name for path in (out / "rows").rglob("*.parquet")]
    assert not any(re.search(r"-\d{10}-\d{4}\.parquet$", name) for name in names), names
    found = pl.read_parquet(out / "rows/**/*.parquet")
    assert sorted(found["n"].to_list()) == list(range(MANY))
