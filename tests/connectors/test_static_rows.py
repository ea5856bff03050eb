"""Static rows: from files, tables and frames, in the types of the schema, or a clear error."""

from __future__ import annotations

import json
import sqlite3
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pandas as pd
import polars as pl
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream as ms
from millstream.connectors.static_rows import load
from millstream.errors import InvalidInput, NotFound, StorageError
from millstream.records import Schema
from postgres_server import Server

SCHEMA = Schema.of("id int NOT NULL, name string, score double")
ROWS = [{"id": 1, "name": "ann", "score": 1.5}, {"id": 2, "name": None, "score": 2.0}]
WIDE = Schema.of(
    "id bigint, is_good boolean, at timestamp, local timestamp_ntz, day date, cost decimal(9,2), took interval day to "
    "second, content binary, tags array<string>"
)
WIDE_ROW = {
    "id": 7,
    "is_good": True,
    "at": datetime(2026, 1, 1, 12, tzinfo=UTC),
    "local": datetime(2026, 1, 1, 13),
    "day": date(2026, 1, 2),
    "cost": Decimal("1.50"),
    "took": timedelta(seconds=5),
    "content": b"\x00",
    "tags": ["a", "b"],
}


def written(folder: Path, format: str) -> Path:
    """The rows in one file of a format."""
    path = folder / f"rows.{format}"
    if format == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS, SCHEMA.arrow), path)
    elif format == "json":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif format == "csv":
        path.write_text("id,name,score\n1,ann,1.5\n2,,2.0\n")
    else:
        fields = [
            {"name": "id", "type": "int"},
            {"name": "name", "type": ["null", "string"]},
            {"name": "score", "type": "double"},
        ]
        with path.open("wb") as file:
            fastavro.writer(file, {"type": "record", "name": "row", "fields": fields}, ROWS)
    return path


def sqlite_table(path: Path, statement: str, rows: list[tuple[Any, ...]]) -> Path:
    db = sqlite3.connect(path)
    db.execute(f"CREATE TABLE rows ({statement})")
    db.executemany(f"INSERT INTO rows VALUES ({', '.join('?' * len(rows[0]))})", rows)
    db.commit()
    db.close()
    return path


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("format", ["parquet", "json", "csv", "avro"])
def test_a_file_and_a_folder_of_files(tmp_path: Path, format: str) -> None:
    path = written(tmp_path, format)
    for place in (path, tmp_path):
        found = load(ms.files(place, format), SCHEMA)
        assert found.schema == SCHEMA.arrow
        assert found.to_pylist() == ROWS


def test_a_folder_without_files_has_no_rows(tmp_path: Path) -> None:
    found = load(ms.files(tmp_path), SCHEMA)
    assert (found.num_rows, found.schema) == (0, SCHEMA.arrow)


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such folder or file") as refusal:
        load(ms.files(tmp_path / "gone.csv", "csv"), SCHEMA)
    assert "gone.csv" in str(refusal.value)


@pytest.mark.parametrize(
    ("format", "content", "said"),
    [
        ("csv", "id,name,score\n1,ann,1.5\n\n2,bob,much\n", "line 4 of rows.csv does not fit"),
        ("json", '{"id": 1}\n{"id": "two"}\n', "line 2 of rows.json does not fit"),
        ("csv", "id,name,score\n,ann,1.5\n", "line 2 of rows.csv does not fit: column 'id'"),
        ("parquet", "no", "row 0 of rows.parquet does not fit: not a Parquet file"),
    ],
)
def test_a_row_of_a_file_that_does_not_fit(tmp_path: Path, format: str, content: str, said: str) -> None:
    (tmp_path / f"rows.{format}").write_text(content)
    with pytest.raises(InvalidInput) as refusal:
        load(ms.files(tmp_path, format), SCHEMA)
    assert refusal.value.what.startswith(said)
    assert str(tmp_path) in str(refusal.value)
    assert "id int NOT NULL" in str(refusal.value)


def test_a_column_that_a_file_lacks(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("name,score\nann,1\n")
    with pytest.raises(InvalidInput, match="no column 'id'") as refusal:
        load(ms.files(tmp_path, "csv"), SCHEMA)
    assert "the file's columns: name, score" in str(refusal.value)


# ---------------------------------------------------------------- what is in memory


@pytest.mark.parametrize(
    "given",
    [
        ROWS,
        tuple(ROWS),
        pl.DataFrame(ROWS),
        pl.DataFrame(ROWS).with_columns(more=1),
        pa.Table.from_pylist(ROWS),
        pa.RecordBatch.from_pylist(ROWS),
        pd.DataFrame({"id": [1, 2], "name": ["ann", None], "score": [1.5, 2.0]}),
    ],
    ids=["list", "tuple", "polars", "polars with more", "arrow table", "arrow batch", "pandas"],
)
def test_rows_in_memory(given: Any) -> None:
    found = load(given, SCHEMA)
    assert found.schema == SCHEMA.arrow
    assert found.to_pylist() == ROWS


def test_a_frame_without_rows() -> None:
    found = load(pl.DataFrame(ROWS).clear(), SCHEMA)
    assert (found.num_rows, found.schema) == (0, SCHEMA.arrow)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([ROWS[0], {"id": "2"}], "row 1 of the list does not fit"),
        ([{"id": 1, "nam": "ann"}], "row 0 of the list does not fit: there is no column 'nam'"),
        (pl.DataFrame({"id": [1, 1 << 40], "name": ["a", "b"], "score": [1.0, 2.0]}), "row 1 of the polars frame"),
        (pl.DataFrame({"id": [1, None], "name": ["a", "b"], "score": [1.0, 2.0]}), "row 1 of the polars frame"),
        (pd.DataFrame({"id": ["1"], "name": ["a"], "score": [1.0]}), "row 0 of the pandas frame does not fit"),
        (pl.DataFrame({"id": [1], "Name": ["a"], "score": [1.0]}), "the polars frame has no column 'name'"),
        (7, "rows cannot be read from int"),
        ("rows.csv", "rows cannot be read from str"),
    ],
)
def test_rows_in_memory_that_do_not_fit(given: Any, said: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        load(given, SCHEMA)
    assert refusal.value.what.startswith(said)
    assert refusal.value.next_step


# ---------------------------------------------------------------- SQLite


def test_a_table_of_sqlite(tmp_path: Path) -> None:
    path = sqlite_table(tmp_path / "a.db", "score REAL, id INT, name TEXT", [(1.5, 1, "ann"), (2, 2, None)])
    assert load(ms.sqlite(path, "rows"), SCHEMA).to_pylist() == ROWS


def test_sqlite_has_times_as_texts(tmp_path: Path) -> None:
    values = (7, 1, "2026-01-01T12:00:00.000000Z", "2026-01-01T13:00:00", "2026-01-02", "1.50", 5_000_000, b"\x00")
    path = sqlite_table(tmp_path / "a.db", ", ".join(f"'{name}'" for name in WIDE.names), [(*values, '["a","b"]')])
    assert load(ms.sqlite(path, "rows"), WIDE).to_pylist() == [WIDE_ROW]


def test_a_time_of_sqlite_without_a_zone_is_in_utc(tmp_path: Path) -> None:
    path = sqlite_table(tmp_path / "a.db", "at TEXT", [("2026-01-01 12:00:00",)])
    assert load(ms.sqlite(path, "rows"), Schema.of("at timestamp")).to_pylist() == [{"at": WIDE_ROW["at"]}]


def test_what_is_wrong_with_a_table_of_sqlite(tmp_path: Path) -> None:
    path = sqlite_table(tmp_path / "a.db", "id, name, scores", [(1, "ann", 1.0), ("x", "bob", 1.0)])
    with pytest.raises(InvalidInput, match="the table 'rows' has no column 'score'") as refusal:
        load(ms.sqlite(path, "rows"), SCHEMA)
    assert "did you mean 'scores'? columns that exist: id, name, scores" in str(refusal.value)
    with pytest.raises(NotFound, match="there is no table 'row'") as missing:
        load(ms.sqlite(path, "row"), SCHEMA)
    assert "tables that exist: rows" in str(missing.value)
    with pytest.raises(InvalidInput, match="row 1 of table 'rows' does not fit") as unfit:
        load(ms.sqlite(path, "rows"), Schema.of("id int, name string"))
    assert str(path) in str(unfit.value)
    with pytest.raises(NotFound, match="there is no such file"):
        load(ms.sqlite(tmp_path / "gone.db", "rows"), SCHEMA)
    assert not (tmp_path / "gone.db").exists()
    (tmp_path / "no.db").write_text("this is no database, and long enough to be seen to be none" * 20)
    with pytest.raises(StorageError, match="SQLite cannot be read"):
        load(ms.sqlite(tmp_path / "no.db", "rows"), SCHEMA)


# ---------------------------------------------------------------- Postgres


def test_a_table_of_postgres(server: Server) -> None:
    dsn = server.new_database()
    with psycopg.connect(dsn) as db:
        db.execute("CREATE SCHEMA games")
        db.execute("CREATE TABLE games.rows (score numeric, name text, id int, more text)")
        db.execute("INSERT INTO games.rows VALUES (1.5, 'ann', 1, ''), (2, NULL, 2, '')")
        db.execute(
            "CREATE TABLE wide (id bigint, is_good boolean, at timestamptz, local timestamp, day date, "
            "cost numeric(9,2), took interval, content bytea, tags jsonb)"
        )
        marks = ", ".join(["%s"] * len(WIDE_ROW))
        db.execute(f"INSERT INTO wide VALUES ({marks})", [*list(WIDE_ROW.values())[:-1], '["a", "b"]'])
    assert load(ms.postgres(dsn, "games.rows"), SCHEMA).to_pylist() == ROWS
    assert load(ms.postgres(dsn, "wide"), WIDE).to_pylist() == [WIDE_ROW]


def test_what_is_wrong_with_a_table_of_postgres(server: Server) -> None:
    dsn = server.new_database()
    with psycopg.connect(dsn) as db:
        db.execute("CREATE TABLE rows (id text, name text)")
        db.execute("INSERT INTO rows VALUES ('1', 'ann')")
    with pytest.raises(InvalidInput, match="the table 'rows' has no column 'score'") as refusal:
        load(ms.postgres(dsn, "rows"), SCHEMA)
    assert "columns that exist: id, name" in str(refusal.value)
    with pytest.raises(NotFound, match="there is no table 'row'") as missing:
        load(ms.postgres(dsn, "row"), SCHEMA)
    assert "did you mean 'rows'?" in str(missing.value)
    with pytest.raises(InvalidInput, match="row 0 of table 'rows' does not fit"):
        load(ms.postgres(dsn, "rows"), Schema.of("id int, name string"))
    with pytest.raises(StorageError, match="Postgres cannot be read"):
        load(ms.postgres(dsn.replace("millstream@", "nobody:secret@"), "rows"), SCHEMA)
    with pytest.raises(InvalidInput, match="the address of the database cannot be read") as unreadable:
        load(ms.postgres("postgresql://me:sec%ret@localhost/db", "rows"), SCHEMA)
    assert "sec" not in str(unreadable.value)
