"""The columns that the expressions of the tests are about."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from millstream.records import Schema

SCHEMA = Schema.of(
    "n int, small smallint, big bigint, zero int, none int, f float, d double, p decimal(10,2), s string, t string,"
    " yes boolean, at timestamp, day date, wall timestamp_ntz, xs array<int>, holes array<int>, words array<string>,"
    " m map<string,int>, u struct<name: string, age: int>, b binary, `odd name` int"
)
ROW: dict[str, Any] = {
    "n": 7, "small": 32767, "big": 5_000_000_000, "zero": 0, "none": None, "f": 1.5, "d": 2.5, "p": Decimal("12.34"),
    "s": "Hello, World", "t": "  a b  ", "yes": True, "at": datetime(2026, 3, 1, 13, 45, 6, 789012, UTC),
    "day": date(2026, 1, 31), "wall": datetime(2026, 1, 1), "xs": [10, 20, 30], "holes": [1, None],
    "words": ["a", None, "b"],
    "m": {"a": 1}, "u": {"name": "Ann", "age": 30}, "b": b"x", "odd name": 3,
}  # fmt: skip
