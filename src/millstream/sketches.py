"""Sketches of Apache DataSketches: a few kilobytes that stand for any number of values, with known error bounds.

A sketch is a value of bytes, in the format that the Java library and Spark's own sketch functions read. Sketches of
parts merge into the sketch of the whole. The aggregates `approx_…` are built from these functions, and a function of a
flow may call them on sketches that were stored in a topic or a table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from millstream.errors import InvalidInput, InvalidRecord

EPOCH, DAY_ZERO, MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), date(1970, 1, 1), timedelta(microseconds=1)
DEVIATIONS = 2
"""Bounds of distinct counts are two standard deviations from the estimate: a confidence of 95 percent."""
COUNT_CONFIDENCE = 0.99
JAVA_PADDING = bytes(8)
"""The Java library, as it is in Spark, writes eight bytes more after frequent items, and does not read a sketch
without them."""


class Estimate(NamedTuple):
    """An approximate number, and the bounds of the exact one."""

    estimate: float
    low: float
    high: float


class Frequent(NamedTuple):
    """A value that is among the most frequent, and how often it occurs."""

    value: str
    estimate: int
    low: int
    high: int


def library() -> Any:
    """The module `datasketches`."""
    try:
        import datasketches
    except ImportError:
        raise InvalidInput(
            "approximate aggregates need the package datasketches", next_step="pip install 'millstream[sketches]'"
        ) from None
    return datasketches


def hashed_value(value: Any) -> int | float | str:
    """A value as it is given to a sketch: equal values alike, in every runner."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, datetime):
        return ((value if value.tzinfo else value.replace(tzinfo=UTC)) - EPOCH) // MICROSECOND
    if isinstance(value, date):
        return (value - DAY_ZERO).days
    if isinstance(value, Decimal):
        return format(value.normalize(), "f")
    return bytes(value).hex()


def _read(kind: Any, sketch: bytes, *more: Any) -> Any:
    try:
        return kind.deserialize(sketch, *more)
    except Exception as error:  # the library raises a type of its own for each kind of damage
        raise InvalidRecord(
            f"{len(sketch)} bytes are not a {kind.__name__.replace('_', ' ')}: {error}",
            next_step="give the bytes that the same aggregate made with sketch=True",
        ) from None


# ---------------------------------------------------------------- distinct values


def distinct_size(error: float) -> int:
    """The base-2 logarithm of the registers that keep the relative standard error of HLL below `error`."""
    return min(21, max(7, math.ceil(math.log2((1.04 / error) ** 2))))


def distinct(values: Iterable[Any], lg_k: int) -> bytes:
    """The HLL sketch of values."""
    kinds = library()
    sketch = kinds.hll_sketch(lg_k, kinds.HLL_8)
    for value in values:
        sketch.update(hashed_value(value))
    return _distinct_bytes([sketch], lg_k)


def merged_distinct(sketches: Iterable[bytes], lg_k: int) -> bytes:
    """The HLL sketch of the union."""
    kind = library().hll_sketch
    return _distinct_bytes([_read(kind, sketch) for sketch in sketches], lg_k)


def _distinct_bytes(sketches: Sequence[Any], lg_k: int) -> bytes:
    kinds = library()
    made = kinds.hll_union(lg_k)
    for sketch in sketches:
        made.update(sketch)
    return bytes(made.get_result(kinds.HLL_8).serialize_compact())


def distinct_count(sketch: bytes) -> Estimate:
    """How many different values an HLL sketch stands for.

    Read through a union with itself: the estimate then depends on the values alone, not on their order and parts.
    """
    kinds = library()
    read = _read(kinds.hll_sketch, sketch)
    both = kinds.hll_union(read.lg_config_k)
    both.update(read)
    both.update(read)
    found = both.get_result(kinds.HLL_8)
    bounds = found.get_lower_bound(DEVIATIONS), found.get_upper_bound(DEVIATIONS)
    return Estimate(found.get_estimate(), *bounds)


# ---------------------------------------------------------------- sets


def set_lg_k(error: float) -> int:
    """The base-2 logarithm of the hashes that keep the relative standard error of a theta sketch below `error`."""
    return min(26, max(5, math.ceil(math.log2(1 / error**2))))


def set_of(values: Iterable[Any], lg_k: int) -> bytes:
    """The theta sketch of values: larger than an HLL sketch of the same error, but sets of it can be intersected."""
    sketch = library().update_theta_sketch(lg_k)
    for value in values:
        sketch.update(hashed_value(value))
    return union([bytes(sketch.compact().serialize())], lg_k)


def union(sketches: Iterable[bytes], lg_k: int = 12) -> bytes:
    """The theta sketch of the values in any of these sketches."""
    kinds = library()
    made = kinds.theta_union(lg_k)
    for sketch in sketches:
        made.update(_read(kinds.compact_theta_sketch, sketch))
    return bytes(made.get_result().serialize())


def intersection(*sketches: bytes) -> bytes:
    """The theta sketch of the values that are in all of these sketches."""
    kinds = library()
    made = kinds.theta_intersection()
    for sketch in sketches:
        made.update(_read(kinds.compact_theta_sketch, sketch))
    return bytes(made.get_result().serialize())


def difference(sketch: bytes, other: bytes) -> bytes:
    """The theta sketch of the values in the first sketch that are not in the second."""
    kinds = library()
    first, second = (_read(kinds.compact_theta_sketch, each) for each in (sketch, other))
    return bytes(kinds.theta_a_not_b().compute(first, second).serialize())


def set_size(sketch: bytes) -> Estimate:
    """How many values a theta sketch stands for."""
    found = _read(library().compact_theta_sketch, sketch)
    bounds = found.get_lower_bound(DEVIATIONS), found.get_upper_bound(DEVIATIONS)
    return Estimate(found.get_estimate(), *bounds)


# ---------------------------------------------------------------- quantiles


def quantiles_size(error: float) -> int:
    """The parameter k that keeps the rank error of KLL below `error`, with a confidence of 99 percent."""
    kind = library().kll_doubles_sketch
    low, high = 8, 65535
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if kind.get_normalized_rank_error(middle, False) <= error else (middle + 1, high)
    return low


def quantiles(values: Any, k: int) -> bytes:
    """The KLL sketch of an array of doubles. NaN is ignored."""
    sketch = library().kll_doubles_sketch(k)
    sketch.update(np.array(values, dtype=np.float64))  # the library rejects an array that cannot be written
    return bytes(sketch.serialize())


def merged_quantiles(sketches: Iterable[bytes], k: int) -> bytes:
    """The KLL sketch of all values."""
    kind = library().kll_doubles_sketch
    made = kind(k)
    for sketch in sketches:
        made.merge(_read(kind, sketch))
    return bytes(made.serialize())


def quantile(sketch: bytes, fraction: float) -> Estimate | None:
    """The value of which this fraction of values is not larger; null for a sketch of nothing."""
    found = _read(library().kll_doubles_sketch, sketch)
    if found.is_empty():
        return None
    error = found.normalized_rank_error(False) if found.is_estimation_mode() else 0.0
    low, high = max(0.0, fraction - error), min(1.0, fraction + error)
    return Estimate(*(found.get_quantile(rank, True) for rank in (fraction, low, high)))


# ---------------------------------------------------------------- frequent values


def frequent(counts: Mapping[str, int], lg_k: int) -> bytes:
    """The frequent items sketch of strings and how often each occurs."""
    sketch = library().frequent_strings_sketch(lg_k)
    for value, count in counts.items():
        sketch.update(value, count)
    return _frequent_bytes(sketch)


def merged_frequent(sketches: Iterable[bytes], lg_k: int) -> bytes:
    """The frequent items sketch of all values."""
    kind = library().frequent_strings_sketch
    made = kind(lg_k)
    for sketch in sketches:
        made.merge(_read(kind, sketch))
    return _frequent_bytes(made)


def _frequent_bytes(sketch: Any) -> bytes:
    written = bytes(sketch.serialize())
    return written if sketch.is_empty() else written + JAVA_PADDING


def most_frequent(sketch: bytes, count: int) -> list[Frequent]:
    """The most frequent values, the most frequent first."""
    kinds = library()
    found = _read(kinds.frequent_strings_sketch, sketch)
    kept = found.get_frequent_items(kinds.frequent_items_error_type.NO_FALSE_NEGATIVES)
    ordered = sorted(kept, key=lambda item: (-item[1], item[0]))
    return [Frequent(*item) for item in ordered[:count]]


# ---------------------------------------------------------------- counts by value


def counts(weights: Mapping[Any, int], error: float) -> bytes:
    """The count-min sketch of values and how often each occurs; a negative number takes a value away."""
    sketch = _empty_counts(error)
    for value, weight in weights.items():
        sketch.update(hashed_value(value), float(weight))
    return bytes(sketch.serialize())


def _empty_counts(error: float) -> Any:
    kind = library().count_min_sketch
    return kind(kind.suggest_num_hashes(COUNT_CONFIDENCE), kind.suggest_num_buckets(error))


def merged_counts(sketches: Iterable[bytes], error: float) -> bytes:
    """The count-min sketch of all values."""
    kind = library().count_min_sketch
    made = _empty_counts(error)
    for sketch in sketches:
        made.merge(_read(kind, sketch))
    return bytes(made.serialize())


def count_of(sketch: bytes, value: Any) -> Estimate:
    """How often a value occurs."""
    found = _read(library().count_min_sketch, sketch)
    high = found.get_estimate(hashed_value(value))  # other values may share all of its counters, and only add to them
    low = max(0.0, high - found.get_relative_error() * found.total_weight)
    return Estimate(high, low, high)
