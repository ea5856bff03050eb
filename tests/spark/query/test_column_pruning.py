"""Of a source only the columns are read that somebody looks at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream as ms
from millstream.connectors.files.source import FilesSource
from millstream.records import Schema
from millstream.spark.query.physical_plan import PhysicalPlan

SCHEMA = "user string, n int, price double, note string, at timestamp"
ALL = {"user", "n", "price", "note", "at"}


def late(rows: Any) -> Any:
    panes = rows.key_by("user").window(ms.fixed("1 minute")).agg(total=ms.sum("n"))
    panes.late.write(ms.discard())
    return panes


def sessions_that_close(rows: Any) -> Any:
    windows = rows.key_by("user").window(ms.sessions("1 minute"))
    return windows.trigger(ms.after_watermark()).agg(total=ms.sum("n"))


def dead(rows: Any) -> Any:
    made = rows.select("n", "note").map(dict, schema="n int, note string")
    made.dead.write(ms.discard())
    return made.select("n")


def beside(rows: Any, condition: str | None = None) -> Any:
    """Joined with static rows, one of whose columns has the same name as one here."""
    side = rows.flow.table(pa.table({"k": [1, 2], "note": ["a", "b"]}), "k int, note string")
    return rows.join(side, on={"n": "k"}, how="left", suffix="_side", condition=condition)


@pytest.mark.parametrize(
    ("build", "read"),
    [
        (lambda rows: rows, ALL),
        (beside, ALL),
        (lambda rows: beside(rows).select("user"), {"user", "n", "at"}),
        (lambda rows: beside(rows).select("note_side"), {"n", "at"}),
        (lambda rows: beside(rows, "user < note_side").select("note_side"), {"user", "n", "at"}),
        (lambda rows: beside(rows).where("price > 1").select("note"), {"n", "price", "note", "at"}),
        (lambda rows: rows.select("user"), {"user", "at"}),
        (lambda rows: rows.where("n > 0").select("user"), {"user", "n", "at"}),
        (lambda rows: rows.where("n > 0"), ALL),
        (lambda rows: rows.with_column("double", "2 * n").select("double"), {"n", "at"}),
        (lambda rows: rows.with_column("double", "2 * n").select("user"), {"user", "n", "at"}),
        (lambda rows: rows.group_by("user").agg(total=ms.sum("n")), {"user", "n", "at"}),
        (lambda rows: rows.with_column("day", "to_date(at)").group_by("day").agg(k=ms.count()), {"at"}),
        (lambda rows: rows.key_by("user").window(ms.sessions("1 minute")).agg(k=ms.count()), {"user", "at"}),
        (lambda rows: rows.union(rows.where("price > 1")).select("user"), {"user", "price", "at"}),
        (lambda rows: rows.map(dict, schema=SCHEMA).select("user"), ALL),
        (lambda rows: rows.top(1, by="n", per="user").select("user"), ALL),
        (lambda rows: rows.select("user", "n").top(1, by="n", per="user"), {"user", "n", "at"}),
        (late, ALL),
        (sessions_that_close, ALL),
        (dead, {"n", "note", "at"}),
    ],
)
def test_what_is_read(build: Callable[[Any], Any], read: set[str]) -> None:
    flow = ms.Flow("narrow")
    build(flow.read("rows", SCHEMA, "at")).write("out")
    assert set(*(schema.names for schema in PhysicalPlan(tuple(flow.outputs), 4).reading.values())) == read


@pytest.mark.parametrize(
    ("watermark", "read"),
    [
        (ms.bounded("1 second"), {"user", "at"}),
        (ms.punctuated("case when note = 'mark' then at end"), {"user", "note", "at"}),
        (ms.custom(lambda rows: None), ALL),
    ],
)
def test_a_watermark_looks_at_columns_too(watermark: Any, read: set[str]) -> None:
    flow = ms.Flow("narrow")
    flow.read("rows", SCHEMA, "at", watermark).select("user").write("out")
    assert set(*(schema.names for schema in PhysicalPlan(tuple(flow.outputs), 4).reading.values())) == read


def test_rows_are_read_whole_where_one_may_be_refused() -> None:
    flow = ms.Flow("narrow")
    flow.read("rows", "user string not null, n int").select("n").write("out")
    assert set(*(schema.names for schema in PhysicalPlan(tuple(flow.outputs), 4).reading.values())) == {"user", "n"}


def test_one_column_is_read_of_unused_rows() -> None:
    flow = ms.Flow("narrow")
    flow.read("rows", "user string, n int").select(one="1").write("out")
    assert set(*(schema.names for schema in PhysicalPlan(tuple(flow.outputs), 4).reading.values())) == {"user"}


def test_a_file_gives_no_other_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"user": ["a"], "n": [1], "note": ["x"]}), tmp_path / "a.parquet")
    schema, columns = Schema.of("user string, n long, note string"), Schema.of("n long")
    (tmp_path / "own").mkdir()
    source = FilesSource(ms.files(tmp_path), schema, folder=tmp_path / "own", columns=columns)
    parts = source.slices(source.earliest(), source.latest(), 1)
    slabs = [slab for part in parts for each in part for slab in source.read(each)]
    assert [slab.rows.to_pylist() for slab in slabs] == [[{"n": 1}]]


@pytest.mark.usefixtures("spark")
def test_discarded_rows_are_counted(tmp_path: Path) -> None:
    pq.write_table(pa.table({"user": ["a", "b", "a"], "n": [1, 2, 3]}), tmp_path / "a.parquet")
    flow = ms.Flow("counted")
    rows = flow.read(ms.files(tmp_path, files_per_batch=1), "user string, n long")
    rows.where("n > 1").write(ms.discard(), name="some")
    rows.group_by("user").agg(total=ms.sum("n")).write(ms.discard(), name="totals")
    job = flow.run(broker=tmp_path / "log", until="caught up", progress="none")
    assert job.progress.written == {"some": 2, "totals": 2}
    assert job.progress.rows_read == 3
