"""A flow on Spark that writes folders by day and minute, others that read them back, and a crash between two files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.errors import SparkFailed
from millstream.log import EmbeddedLog
from millstream.sinks.files import FilesSink

from .support import CAUGHT_UP, SCHEMA, put, row, scores

pytestmark = pytest.mark.usefixtures("spark")

GIVEN = [("ann", 1, 0), ("bob", 2, 61), ("ann", 3, 2), ("cid", 4, 3600), ("bob", 5, 1)]
FILED = "user string, n int, dt date, hm string"


@pytest.fixture
def log(tmp_path: Path) -> Any:
    with EmbeddedLog(tmp_path / "log", upkeep=False) as opened:
        opened.create_topic("scores", schema=SCHEMA)
        put(opened, "scores", GIVEN)
        yield opened


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


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
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


def test_a_flow_may_look_at_nothing_but_a_folders_column(log: EmbeddedLog, tmp_path: Path) -> None:
    """Then no column of the files is read at all."""
    out = tmp_path / "out"
    filing(out, "parquet").run(broker=log.path, until=CAUGHT_UP)
    days = ms.memory(f"days-{out}")
    flow = ms.Flow("days")
    flow.read(ms.files(out), FILED).select("dt").write(days)
    flow.run(broker=log.path, until=CAUGHT_UP)
    assert [each["dt"] for each in days.rows()] == [each["dt"] for each in expected()]


def test_a_crash_between_two_files_costs_and_doubles_nothing(
    log: EmbeddedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    written: list[Path] = []
    whole = FilesSink._write_file

    def broken(sink: FilesSink, path: Path, rows: pa.Table) -> None:
        written.append(path)
        if len(written) == 2:
            raise RuntimeError("the process ends here")
        whole(sink, path, rows)

    monkeypatch.setattr(FilesSink, "_write_file", broken)
    with pytest.raises(SparkFailed, match="the process ends here"):
        filing(out, "parquet").run(broker=log.path, until=CAUGHT_UP)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.parquet")}
    assert set(before) == set(written) - {written[1]}
    filing(out, "parquet").run(broker=log.path, until=CAUGHT_UP)
    assert all(written.count(path) == 1 for path in before)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    files = sorted(out.rglob("*.parquet"))
    assert len(files) == 3
    source = ms.Flow("reading").read(ms.files(out), FILED)
    kept = ms.memory(f"crash-{out}")
    source.write(kept)
    source.flow.run(broker=log.path, until=CAUGHT_UP)
    assert by_n(kept.rows()) == expected()
