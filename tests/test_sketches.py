"""Sketches keep their promises about errors, do not depend on order, and are read by Spark itself."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import millstream as ms
from millstream import sketches
from millstream.errors import InvalidRecord
from millstream.log import EmbeddedLog

RUNS = 1_000


def test_distinct_counts_are_within_their_bounds_as_often_as_promised() -> None:
    """Goal: a confidence of 95 percent. Method: 1,000 disjoint sets of values that the sketch cannot hold exactly."""
    size, within = 3_000, 0
    for run in range(RUNS):
        found = sketches.distinct_count(sketches.distinct(range(run * size, (run + 1) * size), lg_k=8))
        within += found.low <= size <= found.high
    assert within >= 0.94 * RUNS


def test_set_sizes_are_within_their_bounds_as_often_as_promised() -> None:
    size, within = 3_000, 0
    for run in range(RUNS):
        found = sketches.set_size(sketches.set_of(range(run * size, (run + 1) * size), lg_k=8))
        within += found.low <= size <= found.high
    assert within >= 0.94 * RUNS


def test_sizes_of_intersections_are_within_their_bounds_as_often_as_promised() -> None:
    """Method: each set has half of its values in common with the one before."""
    half, within, before = 1_000, 0, sketches.set_of(range(2_000), lg_k=8)
    for run in range(1, RUNS + 1):
        now = sketches.set_of(range(run * half, (run + 2) * half), lg_k=8)
        found = sketches.set_size(sketches.intersection(before, now))
        within, before = within + (found.low <= half <= found.high), now
    assert within >= 0.94 * RUNS


def test_quantiles_are_within_their_bounds_as_often_as_promised() -> None:
    rng, within = np.random.default_rng(7), 0
    for _ in range(RUNS):
        values = rng.normal(size=5_000)
        found = sketches.quantile(sketches.quantiles(values, k=64), 0.9)
        assert found is not None
        within += found.low <= np.quantile(values, 0.9, method="inverted_cdf") <= found.high
    assert within >= 0.98 * RUNS


def test_counts_are_within_their_bounds_as_often_as_promised() -> None:
    within = 0
    for run in range(RUNS):
        weights = {f"{run}.{value}": 1 + value % 7 for value in range(300)}
        found = sketches.count_of(sketches.counts(weights, error=0.05), f"{run}.3")
        within += found.low <= 4 <= found.high
    assert within >= 0.98 * RUNS


def test_merged_sketches_are_within_their_bounds_as_often_as_promised() -> None:
    """Method: parts of different sizes, as of windows and tasks, which have some values in common."""
    rng, size, within = np.random.default_rng(8), 2_000, np.zeros(3, int)
    for run in range(RUNS):
        cuts = [0, *sorted(rng.integers(1, size, 3).tolist()), size]
        pairs = list(pairwise(cuts))
        parts = [range(run * size + max(0, start - 50), run * size + end) for start, end in pairs]
        count = sketches.distinct_count(sketches.merged_distinct([sketches.distinct(part, 8) for part in parts], 8))
        number = sketches.set_size(sketches.union([sketches.set_of(part, 8) for part in parts], 8))
        values = rng.normal(size=size)
        merged = sketches.merged_quantiles([sketches.quantiles(values[start:end], 32) for start, end in pairs], 32)
        middle = sketches.quantile(merged, 0.5)
        assert middle is not None
        exact = size, size, np.quantile(values, 0.5, method="inverted_cdf")
        for place, (found, right) in enumerate(zip((count, number, middle), exact, strict=True)):
            within[place] += found.low <= right <= found.high
    assert (within >= np.array([0.94, 0.94, 0.98]) * RUNS).all()


def test_the_bounds_of_frequent_values_always_hold() -> None:
    """Method: of values whose frequencies fall like those of words, a sketch of 24 keeps the most frequent."""
    rng = np.random.default_rng(9)
    for run in range(RUNS):
        weights = {f"{run}.{value}": int(count) for value, count in enumerate(rng.zipf(1.5, 100).clip(max=1_000))}
        items = list(weights.items())
        whole = sketches.frequent(weights, lg_k=5)
        merged = sketches.merged_frequent([sketches.frequent(dict(items[at::2]), lg_k=5) for at in (0, 1)], lg_k=5)
        for found in [*sketches.most_frequent(whole, 10), *sketches.most_frequent(merged, 10)]:
            assert found.low <= weights[found.value] <= found.high


def test_frequent_values_are_found_with_their_bounds() -> None:
    weights = {f"rare {value}": 1 for value in range(20_000)} | {"often": 3_000, "most often": 5_000}
    first, second = sketches.most_frequent(sketches.frequent(weights, lg_k=10), 2)
    assert (first.value, second.value) == ("most often", "often")
    assert first.low <= 5_000 <= first.high
    assert second.low <= 3_000 <= second.high


def test_the_order_and_the_parts_of_values_do_not_matter_to_distinct_counts() -> None:
    values = list(range(20_000))
    whole = sketches.distinct_count(sketches.distinct(values, 12))
    random.Random(3).shuffle(values)
    parts = [sketches.distinct(values[at : at + 900], 12) for at in range(0, len(values), 900)]
    merged = sketches.distinct_count(sketches.merged_distinct(parts, 12))
    assert merged == whole
    stepwise = parts[0]
    for part in parts[1:]:
        stepwise = sketches.merged_distinct([stepwise, part], 12)
    assert sketches.distinct_count(stepwise) == whole


def test_sets_unite_intersect_and_subtract() -> None:
    one, other = sketches.set_of(range(1_000), 12), sketches.set_of(range(600, 1_400), 12)
    assert sketches.set_size(sketches.union([one, other])).estimate == 1_400
    assert sketches.set_size(sketches.intersection(one, other)).estimate == 400
    assert sketches.set_size(sketches.difference(one, other)).estimate == 600


def test_a_million_values_stay_small() -> None:
    assert len(sketches.distinct(range(1_000_000), sketches.distinct_size(0.02))) < 8_000
    assert len(sketches.quantiles(np.arange(1e6), sketches.quantiles_size(0.0133))) < 8_000


@pytest.mark.parametrize(
    "read",
    [
        sketches.distinct_count,
        sketches.set_size,
        lambda sketch: sketches.quantile(sketch, 0.5),
        lambda sketch: sketches.most_frequent(sketch, 1),
        lambda sketch: sketches.count_of(sketch, "x"),
    ],
)
@pytest.mark.parametrize("damaged", [b"", b"\x00", b"not a sketch at all", b"\xff" * 64])
def test_bytes_that_are_not_a_sketch_are_refused(read: Any, damaged: bytes) -> None:
    with pytest.raises(InvalidRecord, match="bytes are not a"):
        read(damaged)


def test_sketches_go_to_a_topic_and_are_merged_later(log: EmbeddedLog) -> None:
    """Method: one flow makes a sketch for each region, and another one reads them from the topic that has them."""
    log.create_topic("visits", schema="region string, user string")
    with log.producer() as producer:
        for number in range(6_000):
            producer.send("visits", {"region": "nw"[number // 4_000], "user": f"user {number % 4_000}"})
    visits = ms.Flow("regions", log=log.path).read("visits")
    regions = visits.group_by("region").agg(users="hll_sketch_agg(user)", members="theta_sketch_agg(user)")
    log.create_topic("regions", schema="region string, users binary, members binary")
    with log.producer() as producer:
        for row in regions.preview().select("region", "users", "members").iter_rows(named=True):
            producer.send("regions", row)
    stored = ms.Flow("all", log=log.path).read("regions")
    (row,) = (
        stored.group_by()
        .agg(
            users=ms.approx_distinct("users", of_sketches=True, bounds=True),
            both=ms.approx_intersection("members", bounds=True),
        )
        .preview()
        .iter_rows(named=True)
    )
    assert row["users"]["low"] <= 4_000 <= row["users"]["high"]
    assert row["both"]["low"] <= 2_000 <= row["both"]["high"]


@pytest.mark.more
def test_spark_reads_sketches(spark: Any) -> None:
    """Goal: Spark's own functions read the bytes. Method: its estimates of our sketches equal ours."""
    numbers, others = list(range(5_000)), list(range(2_500, 9_000))
    hll, theta = sketches.distinct(numbers, 12), sketches.set_of(numbers, 12)
    merged = sketches.merged_distinct([hll, sketches.distinct(others, 12)], 12)
    kll = sketches.quantiles(np.arange(100.0), 200)
    row = spark.createDataFrame(
        [(bytearray(hll), bytearray(theta), bytearray(merged), bytearray(kll))],
        "hll binary, theta binary, merged binary, kll binary",
    )
    found = row.selectExpr(
        "hll_sketch_estimate(hll_union(hll, hll))",
        "theta_sketch_estimate(theta)",
        "hll_sketch_estimate(hll_union(merged, merged))",
        "kll_sketch_get_quantile_double(kll, 0.5D)",
    ).first()
    ours = [
        round(sketches.distinct_count(hll).estimate),
        round(sketches.set_size(theta).estimate),
        round(sketches.distinct_count(merged).estimate),
        sketches.quantile(kll, 0.5).estimate,  # type: ignore[union-attr]
    ]
    assert list(found) == ours


@pytest.mark.more
def test_spark_reads_the_most_frequent_values(spark: Any) -> None:
    one, other = ({"often": 50, "more": 80 * times, "rare": 1} for times in (1, 2))
    merged = sketches.merged_frequent([sketches.frequent(one, 8), sketches.frequent(other, 8)], 8)
    row = spark.createDataFrame([(bytearray(sketches.frequent(one, 8)), bytearray(merged))], "one binary, both binary")
    state = "'maxItemsTracked', 100, 'itemDataType', cast(null as string), 'itemDataTypeDDL', 'item string not null'"
    found = row.selectExpr(*(f"approx_top_k_estimate(named_struct('sketch', {of}, {state}), 2)" for of in row.columns))
    assert [[tuple(item) for item in each] for each in found.first()] == [
        [("more", 80), ("often", 50)],
        [("more", 240), ("often", 100)],
    ]


@pytest.mark.more
def test_sketches_of_spark_are_read(spark: Any) -> None:
    """Goal: sketches that Spark has made of the same values merge with ours, since equal values have equal hashes."""
    words = [f"user {number}" for number in range(3_000)]
    given = spark.createDataFrame([(word, float(at)) for at, word in enumerate(words)], "word string, x double")
    made = ["hll_sketch_agg(word, 12)", "theta_sketch_agg(word, 12)", "kll_sketch_agg_double(x, 200)"]
    top = "approx_top_k_accumulate(if(x < 100, 'often', word), 100).sketch"
    hll, theta, kll, frequent = map(bytes, given.coalesce(1).selectExpr(*made, top).first())
    ours = sketches.distinct(words, 12), sketches.set_of(words, 12)
    assert sketches.distinct_count(sketches.merged_distinct([hll, ours[0]], 12)) == sketches.distinct_count(ours[0])
    assert sketches.set_size(sketches.union([theta, ours[1]])) == sketches.set_size(ours[1])
    assert sketches.set_size(sketches.intersection(theta, ours[1])) == sketches.set_size(ours[1])
    middle = sketches.quantile(kll, 0.5)
    assert middle is not None
    assert middle.low <= 1_499 <= middle.high
    first, *_ = sketches.most_frequent(frequent, 1)
    assert first.value == "often"
    assert first.low <= 100 <= first.high
