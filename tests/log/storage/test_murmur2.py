"""Goal: keys go where Kafka would send them, whatever array they come in."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import InvalidSetting
from millstream.log.murmur2 import murmur2, murmur2_all
from millstream.log.partitioners import partitioner

MASK = 0xFFFFFFFF
keys_of_bytes = st.lists(st.binary(max_size=40), max_size=30)


def slow_murmur2(data: bytes) -> int:
    """Kafka's Utils.murmur2, word by word."""
    h = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * 0x5BD1E995 & MASK
        k = (k ^ k >> 24) * 0x5BD1E995 & MASK
        h = (h * 0x5BD1E995 & MASK) ^ k
    rest = data[whole:]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * 0x5BD1E995 & MASK
    h = (h ^ h >> 13) * 0x5BD1E995 & MASK
    return h ^ h >> 15


@pytest.mark.parametrize(
    ("key", "expected"),
    [(b"foobar", -790332482), (b"21", -973932308), (b"a-little-bit-long-string", -985981536)],
)
def test_hashes_known_from_kafka(key, expected):
    assert murmur2(key) == expected
    assert slow_murmur2(key) == expected & MASK


@given(keys_of_bytes)
def test_the_same_as_word_by_word(keys):
    assert murmur2_all(pa.array(keys, pa.binary())).tolist() == [slow_murmur2(key) for key in keys]


@given(keys_of_bytes, st.integers(0, 30), st.integers(0, 30))
def test_slices_of_arrays(keys, start, length):
    """A slice has an offset into its parent's buffers."""
    whole = pa.array(keys, pa.binary())
    expected = [slow_murmur2(key) for key in keys[start : start + length]]
    assert murmur2_all(whole.slice(start, length)).tolist() == expected
    assert murmur2_all(whole.cast(pa.large_binary()).slice(start, length)).tolist() == expected


@given(st.lists(st.none() | st.binary(max_size=20), max_size=30), st.integers(0, 30), st.integers(1, 9))
def test_by_key_with_and_without_keys(keys, start, partitions):
    """Keys go where Kafka sends them; those without one stay together in some partition."""
    chosen = partitioner("key")(pa.array(keys, pa.binary()).slice(start), partitions)
    keys = keys[start:]
    assert len(chosen) == len(keys)
    expected = [None if key is None else (slow_murmur2(key) & 0x7FFFFFFF) % partitions for key in keys]
    assert all(want is None or want == got for want, got in zip(expected, chosen.tolist(), strict=True))
    keyless = {got for key, got in zip(keys, chosen.tolist(), strict=True) if key is None}
    assert len(keyless) <= 1
    assert keyless <= set(range(partitions))


def test_records_without_a_key_are_spread_over_batches():
    choose, nulls = partitioner("key"), pa.nulls(3, pa.binary())
    assert {int(choose(nulls, 4)[0]) for _ in range(500)} == {0, 1, 2, 3}


@given(st.lists(st.integers(0, 7), max_size=8), st.integers(1, 5))
def test_round_robin_continues_where_it_stopped(sizes, partitions):
    choose = partitioner("round_robin")
    chosen = [number for size in sizes for number in choose(pa.nulls(size, pa.binary()), partitions).tolist()]
    assert chosen == [number % partitions for number in range(sum(sizes))]


@given(st.integers(1, 6))
def test_sticky_takes_another_partition_for_the_next_batch(partitions):
    choose = partitioner("sticky")
    chosen = [choose(pa.nulls(4, pa.binary()), partitions) for _ in range(20)]
    assert all(len(set(batch.tolist())) == 1 for batch in chosen)
    firsts = [int(batch[0]) for batch in chosen]
    assert set(firsts) <= set(range(partitions))
    assert partitions == 1 or all(before != after for before, after in pairwise(firsts))


def test_a_function_of_the_user():
    choose = partitioner(lambda key, partitions: len(key or b"") % partitions)
    assert choose(pa.array([b"", None, b"abc", b"abcd"], pa.binary()), 3).tolist() == [0, 0, 0, 1]
    assert choose(pa.array([], pa.binary()), 3).dtype == np.int64


def test_an_unknown_partitioner_is_refused_with_those_there_are():
    with pytest.raises(InvalidSetting, match="no partitioner 'random'") as refused:
        partitioner("random")
    assert "'round_robin'" in refused.value.next_step
