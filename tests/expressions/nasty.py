"""Rows of values that engines disagree about: nulls, extremes, NaN, letters outside the BMP, dates before 1582."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa

from millstream.records import Schema, rows_to_batch

NAN, INF = float("nan"), float("inf")
INTS = [0, 1, -1, 2, 3, 5, -3, 7, 10, 31, 60, 127, 255, 256, 1000, 2**31 - 1, -(2**31)]
LONGS = [*INTS, 2**53 + 1, 2**63 - 1, -(2**63), 1_772_372_706, 1_772_372_706_789, -62_135_596_800]
DOUBLES = [
    0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 2.675, 0.1, 1e-10, -1e-10, 1e10, 123456.789, 1e300, -1e300, 5e-324,
    1.7976931348623157e308, INF, -INF, NAN, 9007199254740993.0, 1e18, 9.3e18,
]  # fmt: skip
FLOATS = [0.0, -0.0, 1.5, -2.5, 3.4028234663852886e38, 1.401298464324817e-45, INF, -INF, NAN]
DECIMALS = [Decimal(text) for text in ("0.00", "12.34", "-0.50", "0.05", "99999999.99", "-99999999.99", "2.50", "3.50")]
TEXTS = [
    "", " ", "a", "A", "abc", "Abc", "ABC", "aaa", "aa", "hello world", "  a b  ", "HELLO, World", "a,b,,c", ",",
    "a.b.c",
    "ß", "straße", "İstanbul", "ΑΣ", "é", "e\u0301", "日本", "\U0001d4b3\U0001d4b4", "a\U0001d4b3b", "👨‍👩‍👧",
    "tab\tand\nline",
    "x\r\n",
    "nul\x00nul", "%_\\",
    "'quoted'", '"', "O'Neill", "foo1bar22", "2026-01-31", "12", "-7", "1.5", "zz top", "ab cd-ef_gh", "\u00a0x\u00a0",
    "ǆ", "ﬁ", "YWJj", "ZmZm", "4A", "FFFF", "0", "k=v;a=b", "x" * 60,
]  # fmt: skip
DAYS = [
    date(1, 1, 1), date(1582, 10, 4), date(1582, 10, 15), date(1600, 2, 29), date(1900, 2, 28), date(1969, 12, 31),
    date(1970, 1, 1), date(2000, 2, 29), date(2024, 12, 30), date(2026, 1, 31), date(2026, 3, 29), date(2026, 10, 25),
    date(9999, 12, 31), date(2021, 1, 3), date(2020, 12, 31), date(2026, 11, 17),
]  # fmt: skip
MOMENTS = [
    datetime(1, 1, 1, tzinfo=UTC), datetime(1582, 10, 4, 23, 59, 59, 999_999, UTC), datetime(1582, 10, 15, tzinfo=UTC),
    datetime(1883, 11, 18, 17, 0, 1, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 500_000, UTC),
    datetime(1970, 1, 1, tzinfo=UTC), datetime(2026, 3, 29, 1, 0, 0, 1, UTC), datetime(2026, 3, 29, 2, 30, tzinfo=UTC),
    datetime(2026, 10, 25, 0, 59, 59, 999_000, UTC), datetime(2000, 2, 29, 12, 30, 15, 123_456, UTC),
    datetime(2026, 1, 31, 23, 59, 59, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC),
]  # fmt: skip
BYTES = [b"", b"a", b"abc", b"\x00\xff", "é\U0001d4b3".encode(), bytes(range(80))]
JSON = [
    '{"a":1,"b":"x","c":[1,2,3],"d":{"e":true,"f":null}}', '{"a":"1","b":2}', '{"a":1.5,"b":null}', '{"a":1e2}',
    "{}", "[]", "[1,2,3]", '[{"a":1},{"a":2,"b":"y"}]', "", " ", "null", "1", '"text"', "not json", '{"a":', '{"a":1',
    '{"a":1} trailing', '{"a":1,"a":2}', '{"A":5}', '{"b":"\\u00e9\\ud835\\udcb3\\n\\"q\\""}', '{"a":2147483648}',
    '{"a":9223372036854775808}', '{"a":true,"b":false}', '{"b":{"x": 1 , "y":[ 1, 2 ]}}', "{'a':3,'b':'single'}",
    '  {"a" : 7 , "b" : "spaces" }  ', '{"a":01}', '{"a":NaN}', '{"a":-0.0,"b":1.10}', '{"c":[]}', '{"c":null}',
    '{"c":[1,"x",null]}', '{"c":{"k":1}}', '{"d":{"e":1}}', '{"d":[]}', '{"d":"text"}', '{"b":""}', '{"b":["p","q"]}',
    '{"t":"2026-03-01T13:45:06.789Z","day":"2026-03-01"}', '{"t":"2026-03-01 13:45:06","day":"1500-02-28"}',
    '{"t":1772372706,"day":20000}', '{"x":1.5,"y":2}', '{"x":"NaN","y":"1.5"}', '{"x":1e400}', '{"a.b":1}',
    '{"a":[{"b":1},{"b":2}]}',
    '{"b":"tab\there"}', '{"a":1,}', "[1,2", "{\"a\":{\"b\":\"c\"}}", '{"a": 1 /* no */}', '{"b":"/slash"}', "{a:1}",
]  # fmt: skip
SCHEMA = Schema.of(
    "i int, j int, sm smallint, l bigint, k bigint, d double, e double, f float, p decimal(10,2), s string, t string,"
    " y boolean, z boolean, at timestamp, at2 timestamp, day date, day2 date, b binary, xs array<int>, ys array<int>,"
    " ds array<double>, es array<double>, ss array<string>, ts array<string>, nest array<array<int>>,"
    " m map<string,int>, m2 map<string,int>, im map<int,string>, u struct<name: string, age: int>,"
    " us array<struct<k: string, v: int>>, js string, flags array<boolean>, days array<date>"
)


class _Draw:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def one(self, values: list[Any], at: int) -> Any:
        """The first rows show each value once, the others are random."""
        if at < len(values):
            return values[at]
        return None if self.random.random() < 0.07 else self.random.choice(values)

    def some(self, values: list[Any], at: int, *, nulls: bool = True) -> list[Any] | None:
        if at < 3:
            return [None, [], [None] if nulls else []][at]
        if self.random.random() < 0.05:
            return None
        few = self.random.sample(values, min(4, len(values)))
        return [
            None if nulls and self.random.random() < 0.12 else self.random.choice(few)
            for _ in range(self.random.randint(0, 6))
        ]

    def map(self, keys: list[Any], values: list[Any], at: int) -> dict[Any, Any] | None:
        chosen = self.some(keys, at, nulls=False)
        return None if chosen is None else {key: self.one(values, 10_000) for key in chosen}

    def row(self, at: int) -> dict[str, Any]:
        small = [0, 1, 2, 3, 5, -1, 2**31 - 1]
        words = ["", "a", "b", "A", "é", "\U0001d4b3", "key", "a,b"]
        later = 10_000
        return {
            "i": self.one(INTS, at), "j": self.one(INTS, later), "sm": self.one([0, 1, -1, 32767, -32768], at),
            "l": self.one(LONGS, at), "k": self.one(LONGS, later), "d": self.one(DOUBLES, at),
            "e": self.one(DOUBLES, later), "f": self.one(FLOATS, at), "p": self.one(DECIMALS, at),
            "s": self.one(TEXTS, at), "t": self.one(TEXTS[:20], later), "y": self.one([True, False], at),
            "z": self.one([True, False], later), "at": self.one(MOMENTS, at), "at2": self.one(MOMENTS, later),
            "day": self.one(DAYS, at), "day2": self.one(DAYS, later), "b": self.one(BYTES, at),
            "xs": self.some(small, at), "ys": self.some(small, at + 1), "ds": self.some(DOUBLES, at),
            "es": self.some(DOUBLES, at + 1), "ss": self.some(words, at), "ts": self.some(words, later),
            "nest": None if at == 0 else [self.some(small, self.random.randint(0, 12))
                                          for _ in range(self.random.randint(0, 3))],
            "m": self.map(words, small, at), "m2": self.map(words[:4], small, at + 1),
            "im": self.map(small, words, at), "u": None if at == 0 else {"name": self.one(words, later),
                                                                        "age": self.one(small, later)},
            "us": None if at == 0 else [None if self.random.random() < 0.1 else {"k": self.one(words, later),
                                        "v": self.one(small, later)} for _ in range(self.random.randint(0, 3))],
            "js": self.one(JSON, at), "flags": self.some([True, False], at), "days": self.some(DAYS, at),
        }  # fmt: skip


def nasty_rows(count: int = 120, seed: int = 0) -> pa.Table:
    draw = _Draw(seed)
    batch, failures = rows_to_batch([draw.row(at) for at in range(count)], SCHEMA)
    assert not failures, failures[:3]
    return pa.Table.from_batches([batch])


def switching_rows(zone: str) -> pa.Table:
    """Rows around each change of a zone's clocks in 2026, with the local time as a text in several forms."""
    start, local = datetime(2026, 1, 1, tzinfo=UTC), ZoneInfo(zone)
    quarters = [start + timedelta(minutes=15 * each) for each in range(4 * 24 * 365)]
    changes = [
        each
        for each, after in pairwise(quarters)
        if each.astimezone(local).utcoffset() != after.astimezone(local).utcoffset()
    ]
    moments = [change + timedelta(minutes=20 * each) for change in changes for each in range(-9, 10)]
    forms = ["", "Z", "T", "+02:00", f" {zone}"]
    rows = nasty_rows(len(moments))
    at, at2 = moments, [*moments[7:], *moments[:7]]
    # What clocks show, and in the gap what they skip.
    texts = [f"{each.replace(tzinfo=None) + change_of(each, local):%Y-%m-%d %H:%M:%S}" for each in moments]
    made = {
        "at": at,
        "at2": at2,
        "day": [each.astimezone(local).date() for each in moments],
        "day2": [each.date() for each in at2],
        "s": [_formed(text, forms[place % len(forms)]) for place, text in enumerate(texts)],
        "l": [int(each.timestamp()) for each in moments],
    }
    for name, values in made.items():
        rows = rows.set_column(
            rows.schema.get_field_index(name), rows.schema.field(name), pa.array(values, rows.schema.field(name).type)
        )
    return rows


def change_of(moment: datetime, zone: ZoneInfo) -> timedelta:
    """The offset of a zone before its next change, for a moment close to it."""
    return (moment - timedelta(hours=4)).astimezone(zone).utcoffset() or timedelta()


def _formed(text: str, form: str) -> str:
    return text.replace(" ", "T") if form == "T" else text + form
