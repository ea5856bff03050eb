"""JSON numbers for a timestamp column are read in the unit that the schema names, and never guessed."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import InvalidSchema
from millstream.records import Schema
from millstream.records.codecs import codec
from millstream.records.ddl import TIME_UNITS

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SECONDS = int(NOON.timestamp())


def decoded(schema: str, *values: Any) -> tuple[list[Any], list[str]]:
    """The instants that were read, and why others were not."""
    found = codec("json", schema).decode([json.dumps({"at": value}).encode() for value in values])
    return found.rows.column("at").to_pylist(), [failure.reason for failure in found.failures]


@pytest.mark.parametrize(
    ("unit", "number"),
    [("timestamp_seconds", SECONDS), ("timestamp_millis", SECONDS * 1000), ("timestamp_micros", SECONDS * 1_000_000)],
)
def test_a_number_is_read_in_its_unit(unit: str, number: int) -> None:
    assert decoded(f"at {unit}", number, None, -number) == ([NOON, None, datetime.fromtimestamp(-SECONDS, UTC)], [])


def test_text_and_fractions_are_read_too() -> None:
    rows, reasons = decoded("at timestamp_seconds", SECONDS + 0.25, "2026-01-31T12:00:00Z", SECONDS)
    assert rows == [NOON.replace(microsecond=250_000), NOON, NOON]
    assert not reasons


def test_what_is_no_time_is_a_dead_letter() -> None:
    rows, reasons = decoded("at timestamp_millis", True, "noon", 1 << 62, 1e300, [1], SECONDS * 1000)
    assert rows == [NOON]
    assert len(reasons) == 5
    assert reasons[0] == "column 'at': expected timestamp_millis (a number, or ISO 8601 text), found true"
    assert "out of its range" in reasons[2]


def test_a_number_without_a_unit_is_a_dead_letter_that_names_the_units() -> None:
    rows, reasons = decoded("at timestamp", SECONDS, "2026-01-31T12:00:00Z")
    assert rows == [NOON]
    for part in (str(SECONDS), "timestamp_seconds, timestamp_millis, timestamp_micros"):
        assert part in reasons[0]


def test_the_column_is_a_timestamp_and_is_printed_with_its_unit() -> None:
    schema = Schema.of("at TIMESTAMP_MILLIS NOT NULL, more struct<seen:timestamp_seconds,n:int>")
    assert schema == Schema.of("at timestamp NOT NULL, more struct<seen: timestamp, n: int>")
    assert str(schema) == "at timestamp_millis NOT NULL, more struct<seen:timestamp_seconds,n:int>"
    assert str(Schema.of(str(schema))) == str(schema)
    assert str(Schema.from_arrow(schema.arrow)).startswith("at timestamp NOT NULL")


def test_inside_a_struct() -> None:
    schema = "more struct<seen:timestamp_seconds>"
    found = codec("json", schema).decode([json.dumps({"more": {"seen": SECONDS}}).encode()])
    assert found.rows.column("more").to_pylist() == [{"seen": NOON}]


@pytest.mark.parametrize("schema", ["at array<timestamp_millis>", "at map<string, timestamp_millis>"])
def test_units_inside_arrays_and_maps_are_refused(schema: str) -> None:
    with pytest.raises(InvalidSchema, match="timestamp_millis is the type of a column or of a struct's field"):
        Schema.of(schema)


@pytest.mark.parametrize(("form", "value"), [("csv", b"2026-01-31T12:00:00Z")])
def test_other_codecs_ignore_the_unit(form: str, value: bytes) -> None:
    assert codec(form, "at timestamp_millis").decode([value]).rows.column("at").to_pylist() == [NOON]


@given(st.sampled_from(sorted(TIME_UNITS)), st.lists(st.none() | st.integers(-(1 << 70), 1 << 70), max_size=5))
def test_one_by_one_or_all_at_once(unit: str, numbers: list[int | None]) -> None:
    """A column is read the same whether its neighbours are good or bad."""
    together, _ = decoded(f"at {unit}", *numbers)
    singly = [decoded(f"at {unit}", number)[0] for number in numbers]
    assert together == [each for found in singly for each in found]
