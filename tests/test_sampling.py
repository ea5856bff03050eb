"""Samples and Bloom filters: every row has its chance, and values that were there are found."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import millstream as ms
from millstream import bloom_filters
from millstream.errors import InvalidAggregate, InvalidRecord
from millstream.testing import Add, Watermark, play
from times import t

SCHEMA = "key string, user string, n int, weight int, at timestamp"
RUNNERS = ["reference", "local", pytest.param("spark", marks=pytest.mark.more)]


def rows(count: int, second: int = 0) -> list[dict[str, Any]]:
    return [
        {"key": "a", "user": f"u{n}", "n": n, "weight": n % 3, "at": t(second) + timedelta(microseconds=n)}
        for n in range(count)
    ]


@pytest.mark.parametrize("on", RUNNERS)
def test_a_sample_has_the_values_of_rows_in_every_kind_of_step(on: str) -> None:
    made = {"few": ms.sample("n", 3), "all": ms.sample("user", 99), "heavy": ms.sample("n", 99, weight="weight")}

    def build(given: Any) -> Any:
        windowed = given.key_by("key").window(ms.fixed("1 minute"))
        return {
            "window": windowed.agg(**made),
            "table": given.group_by("key").agg(**made).changes(),
            "each": windowed.trigger(ms.each()).agg(**made),
            "sessions": given.key_by("key").window(ms.sessions("10 seconds")).agg(**made),
        }

    given = [*rows(8), {**rows(1)[0], "n": None, "user": None, "weight": None}]
    out = play(build, [Add(given[:4]), Add(given[4:]), Watermark(None)], schema=SCHEMA, event_time="at", on=on)
    for name in out[0]:
        last = [row for step in out for row in step[name] if row["weight"] > 0][-1]
        assert len(set(last["few"])) == 3
        assert set(last["few"]) <= set(range(8))
        assert sorted(last["all"]) == [f"u{n}" for n in range(8)]
        assert sorted(last["heavy"]) == [1, 2, 4, 5, 7]


def sampled(steps: list[Any], **options: Any) -> list[int]:
    def build(given: Any) -> Any:
        return given.key_by("key").window(ms.fixed("1 minute")).agg(found=ms.sample("n", **options))

    return [n for row in play(build, steps, schema=SCHEMA, event_time="at")[-1] for n in row["found"]]


def test_every_row_has_the_same_chance_whatever_the_bundles() -> None:
    """Method: 400 windows, two bundles each, and a chi-squared test; seeds come from the rows, so it never varies."""
    windows, size, chosen = 400, 20, 5
    given = [each for window in range(windows) for each in rows(size, 60 * window)]
    early = [each for each in given if each["n"] < 7]
    late = [each for each in given if each["n"] >= 7]
    counts = np.bincount(sampled([Add(early), Add(late), Watermark(None)], count=chosen), minlength=size)
    expected = windows * chosen / size
    assert counts.sum() == windows * chosen
    # 19 degrees of freedom: above 43.8 in one of 1,000 cases.
    assert ((counts - expected) ** 2 / (expected * (1 - chosen / size))).sum() * (size - 1) / size < 43.8


def test_a_row_of_twice_the_weight_is_chosen_twice_as_often() -> None:
    windows = 600
    given = [{**each, "weight": 1 + each["n"]} for window in range(windows) for each in rows(2, 60 * window)]
    found = sampled([Add(given), Watermark(None)], count=1, weight="weight")
    assert found.count(1) / windows == pytest.approx(2 / 3, abs=0.06)


def test_a_replay_gives_the_same_sample() -> None:
    steps = [Add(rows(50)), Add(rows(50, 10)), Watermark(None)]
    assert sampled(steps, count=5) == sampled(steps, count=5)


def test_rows_without_event_time_have_the_same_chance_too() -> None:
    """Method: 100 bundles of 10 rows; of 40 chosen rows, not all stand at the same few places of their bundles."""
    bundles = [Add([{"key": "a", "n": 10 * bundle + place} for place in range(10)]) for bundle in range(100)]
    steps = play(lambda given: given.group_by("key").agg(found=ms.sample("n", 40)), bundles, schema="key string, n int")
    found = [row for step in steps for row in step][-1]["found"]
    assert len({n % 10 for n in found}) > 6
    assert len({n // 10 for n in found}) > 20


@pytest.mark.parametrize("on", RUNNERS)
def test_a_bloom_filter_finds_what_was_there(on: str) -> None:
    def build(given: Any) -> Any:
        minutes = given.key_by("key").window(ms.fixed("1 minute")).agg(found=ms.bloom("user", capacity=1000))
        return minutes.key_by("key").window(ms.fixed("1 hour")).agg(
            found=ms.bloom("found", capacity=1000, of_sketches=True)
        )  # fmt: skip

    given = [Add(rows(300)), Add([{**each, "user": f"v{each['n']}"} for each in rows(300, 90)])]
    (row,) = play(build, [*given, Watermark(None)], schema=SCHEMA, event_time="at", on=on)[-1]
    assert all(bloom_filters.might_contain(row["found"], f"{kind}{n}") for kind in "uv" for n in range(300))
    assert sum(bloom_filters.might_contain(row["found"], f"w{n}") for n in range(2000)) < 2000 * 0.02


def test_the_error_is_as_promised() -> None:
    made = bloom_filters.filter_of(range(2000), 2000, 0.05)
    assert all(bloom_filters.might_contain(made, n) for n in range(2000))
    assert sum(bloom_filters.might_contain(made, -n) for n in range(1, 5001)) / 5000 == pytest.approx(0.05, abs=0.015)


@pytest.mark.more
def test_spark_reads_a_bloom_filter(spark: Any) -> None:
    java = spark._jvm.org.apache.spark.util.sketch.BloomFilter
    texts = ["", "a", "ab", "abc", "abcd", "zürich", "東京"]
    found = java.readFrom(bytearray(bloom_filters.filter_of(texts, 100, 0.01)))
    assert all(found.mightContainString(text) for text in texts)
    assert not any(found.mightContainString(text) for text in ("b", "abcde", "osaka"))
    numbers = [0, 1, -1, 2**40, -(2**40)]
    found = java.readFrom(bytearray(bloom_filters.filter_of(numbers, 100, 0.01)))
    assert all(found.mightContainLong(number) for number in numbers)
    assert not found.mightContainLong(7)


def test_wrong_uses_are_refused() -> None:
    for wrong in (0, 1.5, True, 100_001):
        with pytest.raises(InvalidAggregate, match="sample takes"):
            ms.sample("n", wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidAggregate, match="capacity"):
        ms.bloom("n", capacity=0)
    with pytest.raises(InvalidAggregate, match="error"):
        ms.bloom("n", error=2.0)
    table = ms.Flow("wrong").read("rows", SCHEMA, event_time="at").to_table(key="user")
    for aggregate in (ms.sample("n", 3), ms.bloom("n")):
        with pytest.raises(InvalidAggregate, match="retract"):
            table.group_by("key").agg(found=aggregate)
    with pytest.raises(InvalidRecord, match="not a Bloom filter"):
        bloom_filters.might_contain(b"\0" * 20, 1)
    with pytest.raises(InvalidRecord, match="different sizes"):
        bloom_filters.merged([bloom_filters.filter_of([], 10, 0.1), bloom_filters.filter_of([], 1000, 0.1)])
