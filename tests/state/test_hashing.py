"""The hash of a key: fixed for all time, equal for equal values, spread evenly."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import InvalidInput
from millstream.state.hashing import key_groups, key_hashes

WORD = (1 << 64) - 1


def hashed(values: list[Any], kind: Any) -> list[int]:
    frame = pl.DataFrame({"key": pl.Series("key", values, kind)})
    return [int(value) for value in key_hashes(frame, ["key"])]


def mix(word: int) -> int:
    """splitmix64, one number at a time."""
    word = (word + 0x9E3779B97F4A7C15) & WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & WORD
    return word ^ (word >> 31)


def test_the_hash_is_a_format_and_does_not_change() -> None:
    assert hashed([0, 1, -1, None], pl.Int64) == [
        0xE220A8397B1DCDAF,
        mix(1),
        mix(WORD),
        0xA0761D6478BD642F,
    ]
    assert hashed(["", "a", "millstream"], pl.String) == [
        0xC0E16B163A85A4DC,
        0xE6F888C664BC44CB,
        0x8DCA8AC3F2452EF4,
    ]
    assert hashed([1.5, float("nan")], pl.Float64) == [mix(0x3FF8000000000000), mix(0x7FF8000000000000)]
    assert hashed([date(1970, 1, 2), None], pl.Date) == [mix(1), 0xA0761D6478BD642F]


@given(st.lists(st.integers(0, 127)))
def test_a_whole_number_has_one_hash_in_every_width(numbers: list[int]) -> None:
    expected = [mix(number) for number in numbers]
    for kind in (pl.Int8, pl.UInt8, pl.Int16, pl.UInt16, pl.Int32, pl.UInt32, pl.Int64, pl.UInt64, pl.Int128):
        assert hashed(numbers, kind) == expected


def test_negative_and_very_large_numbers() -> None:
    assert hashed([-3], pl.Int8) == hashed([-3], pl.Int64) == hashed([-3], pl.Int128)
    assert hashed([2**63 + 5], pl.UInt64) == hashed([2**63 + 5], pl.Int128) == hashed([2**63 + 5], pl.UInt128)
    wide = [7, 2**64 + 7, 2**65 + 7, -(2**64) + 7, -(2**65) + 7]
    assert len(set(hashed(wide, pl.Int128))) == len(wide)


def test_booleans_are_numbers() -> None:
    assert hashed([True, False, None], pl.Boolean) == hashed([1, 0, None], pl.Int32)


def test_a_moment_has_one_hash_in_every_unit_and_zone() -> None:
    moments = [datetime(2024, 5, 6, 7, 8, 9), datetime(1901, 1, 1), None]
    expected = hashed(moments, pl.Datetime("us"))
    assert hashed(moments, pl.Datetime("ms")) == hashed(moments, pl.Datetime("ns")) == expected
    zoned = [moment and moment.replace(tzinfo=UTC) for moment in moments]
    assert hashed(zoned, pl.Datetime("us", "UTC")) == expected
    spans = [timedelta(seconds=3), timedelta(days=-2)]
    assert hashed(spans, pl.Duration("ms")) == hashed(spans, pl.Duration("us"))
    assert len(set(hashed([time(1, 2), time(1, 3)], pl.Time))) == 2


def test_zeros_are_one_and_so_are_nans_and_widths_of_floats() -> None:
    negative_nan = np.array([0xFFF8000000000001], np.uint64).view(np.float64)[0]
    zero, minus_zero, nan, other_nan = hashed([0.0, -0.0, float("nan"), negative_nan], pl.Float64)
    assert zero == minus_zero
    assert nan == other_nan != zero
    assert hashed([1.5, -2.25], pl.Float32) == hashed([1.5, -2.25], pl.Float64)


def test_decimals_are_equal_by_value() -> None:
    values = [Decimal("1.5"), Decimal("-20"), Decimal("0"), Decimal("0.1"), None]
    narrow = hashed(values, pl.Decimal(10, 1))
    assert hashed(values, pl.Decimal(38, 9)) == narrow
    assert len(set(narrow)) == len(values)
    assert narrow[1] == hashed([-20], pl.Int64)[0]
    wide = [Decimal("12345678901234567890123.5"), Decimal("-12345678901234567890123.5")]
    assert hashed(wide, pl.Decimal(38, 1)) == hashed(wide, pl.Decimal(38, 6))
    assert len(set(hashed(wide, pl.Decimal(38, 1)))) == 2


@given(st.lists(st.none() | st.binary(max_size=40) | st.binary(min_size=500, max_size=530), max_size=20))
def test_a_text_has_one_hash_whatever_its_neighbours_are(texts: list[bytes | None]) -> None:
    together = hashed(texts, pl.Binary)
    assert together == [hashed([text], pl.Binary)[0] for text in texts]
    assert len(set(together)) == len(set(texts))


def test_a_text_has_one_hash_in_every_type() -> None:
    words = ["red", "grün", "", None, "red", "a text longer than a word of eight bytes"]
    plain = hashed(words, pl.String)
    assert hashed(words, pl.Categorical) == plain
    assert hashed(words, pl.Enum([word for word in dict.fromkeys(words) if word is not None])) == plain
    assert hashed([None if word is None else word.encode() for word in words], pl.Binary) == plain
    sliced = pl.DataFrame({"key": ["left out", *words]})[1:]
    assert [int(value) for value in key_hashes(sliced, ["key"])] == plain
    pieces = pl.concat([pl.DataFrame({"key": words[:2]}), pl.DataFrame({"key": words[2:]})], rechunk=False)
    assert [int(value) for value in key_hashes(pieces, ["key"])] == plain


def test_texts_that_end_in_zero_bytes_differ() -> None:
    texts = [b"", b"\0", b"\0\0", b"\0" * 8, b"\0" * 9, b"\0" * 16]
    assert len(set(hashed(texts, pl.Binary))) == len(texts)


def test_the_order_of_the_columns_counts() -> None:
    frame = pl.DataFrame({"a": [1, 2, None, 1], "b": [2, 1, 1, None]})
    hashes = key_hashes(frame, ["a", "b"])
    assert len(set(hashes.tolist())) == 4
    assert hashes.tolist() != key_hashes(frame, ["b", "a"]).tolist()


def test_without_keys_all_rows_have_one() -> None:
    assert key_hashes(pl.DataFrame({"a": [1, 2]}), []).tolist() == [0, 0]


def test_structures_and_lists() -> None:
    kind = pl.Struct({"a": pl.Int64, "b": pl.String})
    structures = hashed([{"a": 1, "b": "x"}, {"a": 1, "b": None}, None], kind)
    assert len(set(structures)) == 3
    lists = [[1, 2], [2, 1], [], None, [1, 2, None], [0], [0, 0]]
    hashes = hashed(lists, pl.List(pl.Int64))
    assert len(set(hashes)) == len(lists)
    assert hashes == [hashed([items], pl.List(pl.Int64))[0] for items in lists]
    assert hashed([[1, 2]], pl.Array(pl.Int64, 2))[0] == hashes[0]


def test_a_type_that_cannot_be_a_key_is_refused() -> None:
    with pytest.raises(InvalidInput, match="cannot be a key"):
        hashed([object()], pl.Object)


def test_no_rows() -> None:
    for kind in (pl.Int64, pl.Int128, pl.String, pl.Float64, pl.Decimal(10, 2), pl.List(pl.String), pl.Null):
        assert hashed([], kind) == []


@pytest.mark.parametrize("count", [1, 3, 8, 100])
def test_groups_are_about_equal(count: int) -> None:
    rows = 100_000
    for frame in (
        pl.DataFrame({"key": np.arange(rows)}),
        pl.DataFrame({"key": np.arange(rows) * 1024}),
        pl.DataFrame({"key": [f"user-{number}" for number in range(rows)]}),
    ):
        sizes = np.bincount(key_groups(frame, ["key"], count), minlength=count)
        assert len(sizes) == count
        assert abs(sizes - rows / count).max() < 6 * (rows / count) ** 0.5
