"""DuckDB's own readers of Delta Lake and Iceberg see the rows that Millstream has written, and no others."""

from datetime import date

import pytest

from duckdb_lakes import rows

from ..support import LAKES, SCORES, table, weights
from .test_lake_sinks import ROWS, WIDE, A, B, C, opened, place

pytestmark = pytest.mark.more


@pytest.fixture(params=LAKES)
def kind(request):
    return request.param


def scan(kind, folder):
    """The table as DuckDB calls it."""
    if kind == "delta":
        return f"delta_scan('{folder / 'lake'}')"
    newest = place(kind, folder).store().catalog.load_table("games.scores").metadata_location
    return f"iceberg_scan('{newest.removeprefix('file://')}')"


def test_rows_that_are_replaced_and_retracted(kind, tmp_path):
    sink = opened(place(kind, tmp_path, key="team"), SCORES, tmp_path)
    sink.write(0, table(SCORES, [A, B]), None)
    sink.write(1, table(SCORES, [{"team": "a", "score": 8}, C]), None)
    sink.write(2, table(SCORES, [B]), weights(-1))
    assert rows(f"SELECT team, score FROM {scan(kind, tmp_path)} ORDER BY team") == [["a", 8], ["c", 3]]


def test_values_of_every_type(kind, tmp_path):
    opened(place(kind, tmp_path), str(WIDE), tmp_path).write(0, table(str(WIDE), ROWS), None)
    found = rows(
        'SELECT id, tags[2], sizes[$$s$$], price::text, epoch_us("at"), "local"::text, day::text, place.y, hex(raw), '
        f"ok FROM {scan(kind, tmp_path)} ORDER BY id"
    )
    assert found == [
        [
            row["id"],
            "y",
            row["id"],
            "12.50",
            1709294400000000 + row["id"],
            "2024-03-01 12:00:00",
            str(row["day"]),
            float(row["id"]),
            "00FF",
            row["ok"],
        ]
        for row in ROWS
    ]


def test_partitions_and_a_column_that_was_added(kind, tmp_path):
    narrow, wide = "id long, day date, team string", "id long, day date, team string, score int"
    first = [{"id": n, "day": date(2024, 3, 1 + n % 2), "team": ["a b", "c/d=%", None][n % 3]} for n in range(6)]
    opened(place(kind, tmp_path, partition_by=["day", "team"]), narrow, tmp_path).write(0, table(narrow, first), None)
    added = {"id": 6, "day": date(2024, 3, 3), "team": "e", "score": 7}
    opened(place(kind, tmp_path, partition_by=["day", "team"]), wide, tmp_path).write(1, table(wide, [added]), None)
    found = rows(f"SELECT id, day::text, team, score FROM {scan(kind, tmp_path)} ORDER BY id")
    assert found == [[row["id"], str(row["day"]), row["team"], row.get("score")] for row in [*first, added]]
