"""Text becomes the timestamp that Spark reads, with and without a zone."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from millstream.expressions.timestamp_text import micros_of

from .differential import ERROR, differences, in_duckdb, on_spark
from .nasty import nasty_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ZONES = [
    "", "Z", " Z", "z", "UTC", " UTC", "GMT", "UT", "+02:00", "-02:30", "+2:00", "+02", "+2", "+0200", "+02:3",
    "+18:00", "+18:01", "-18:00", "+02:60", "+02:00:30", "+020030", " Europe/Berlin", "Europe/Berlin",
    "America/New_York", "europe/berlin", "EST", "PST", "GMT+1", "GMT+01:30", "UTC+1:30", "UT-03", "UTC+", "GMT0",
    "Etc/GMT+5", "ROC", "Zulu", "+25:00", "A", "Z ", "  Europe/Paris  ", "-00:00", "+01:00[Europe/Berlin]",
]  # fmt: skip
YEARS = ["2026", "1999", "1970", "9999", "10000", "0000", "202", "1582", "0001", "-2026", "+2026"]


def drawn(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)

    def part(limit: int) -> str:
        number = draw.randint(0, limit)
        return draw.choice([f"{number:02d}", str(number)])

    def text() -> str:
        made = draw.choice(YEARS)
        pieces = ["-" + part(13), "-" + part(32), draw.choice(" TTT t") + part(24), ":" + part(60), ":" + part(60)]
        kept = draw.choice([0, 1, 2, 3, 4, 5, 5, 5, 5, 5, 5])
        made += "".join(pieces[:kept])
        if kept == 5 and draw.random() < 0.6:
            made += "." + "".join(draw.choice("0123456789") for _ in range(draw.choice([0, 1, 3, 6, 7, 9])))
        made += draw.choice(ZONES) if kept == 5 or draw.random() < 0.05 else ""
        if draw.random() < 0.05:
            made = draw.choice(" \t\n\x00\x7f\x0b") + made + draw.choice(["", " ", "\r\n"])
        if draw.random() < 0.05:
            at = draw.randrange(len(made) + 1)
            made = made[:at] + draw.choice("x:-. T\u0663") + made[at:]
        return made

    return [text() for _ in range(count)]


def at(*parts: int) -> int:
    return int(datetime(*parts, tzinfo=UTC).timestamp() * 1_000_000)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2026-03-01T10:00:00+02:00", at(2026, 3, 1, 8)),
        ("2026-03-01 10:00:00.25-05:30", at(2026, 3, 1, 15, 30, 0, 250_000)),
        ("2026-03-01 10:00:00 Europe/Berlin", at(2026, 3, 1, 9)),
        ("2026-03-29 02:30:00 Europe/Berlin", at(2026, 3, 29, 1, 30)),  # skipped by the clocks
        ("2026-10-25 02:30:00 Europe/Berlin", at(2026, 10, 25, 0, 30)),  # comes twice
        ("2026-3-1 9:5", at(2026, 3, 1, 9, 5)),
        ("2026-03", at(2026, 3, 1)),
        ("2026-03-01 10:00:00.1234567", at(2026, 3, 1, 10, 0, 0, 123_456)),
        ("2026-02-30", None),
        ("2026-03-01 10:00:00 Europe/Nowhere", None),
        ("2026-03-01 10:00:00+19:00", None),
        ("10:00:00", None),
        ("10000-01-01", None),
        ("", None),
    ],
)
def test_read_with_and_without_a_zone(text: str, wanted: int | None) -> None:
    assert micros_of(text) == wanted


def test_read_as_on_spark(spark: SparkSession) -> None:
    """What is an error here, because the day or the year is missing in Python, is something else on Spark."""
    texts = drawn(3000, seed=7)
    rows = nasty_rows(len(texts))
    rows = rows.set_column(rows.schema.get_field_index("s"), rows.schema.field("s"), pa.array(texts))
    expression = "try_cast(s as timestamp)"
    kind, values = in_duckdb(expression, rows)
    fine = [value != ERROR for value in values]
    assert sum(fine) > 2000
    assert len({str(value) for value in values}) > 500
    kept = rows.filter(pa.array(fine))
    here = (kind, [value for value in values if value != ERROR])
    wrong = differences(expression, on_spark(spark, [expression], kept)[expression], here, kept)
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.parametrize("text", ["10:00:00", "T10:00", "10000-01-01", "-2026", "0000 "])
def test_without_a_day_in_the_years_of_python_it_is_an_error(text: str) -> None:
    rows = nasty_rows(1)
    rows = rows.set_column(rows.schema.get_field_index("s"), rows.schema.field("s"), pa.array([text]))
    assert in_duckdb("try_cast(s as timestamp)", rows)[1] == [ERROR]
    assert in_duckdb("cast(s as timestamp)", rows)[1] == [ERROR]
