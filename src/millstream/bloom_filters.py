"""Bloom filters: which values there were, in a few bits for each. A value that was there is always found.

The bytes are those of Spark's own `org.apache.spark.util.sketch.BloomFilter`, version 1: so Spark's Java reads them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from millstream.errors import InvalidRecord

VERSION = 1
HEADER = np.dtype([("version", ">i4"), ("hashes", ">i4"), ("words", ">i4")])
MASK = 0xFFFFFFFF
Words = npt.NDArray[np.uint64]


def filter_of(values: Iterable[Any], capacity: int, error: float) -> bytes:
    """The filter of strings or integers, large enough for `capacity` of them at this fraction of false positives."""
    bits = max(64, math.ceil(-capacity * math.log(error) / math.log(2) ** 2))
    words = np.zeros(-(-bits // 64), np.uint64)
    hashes = max(1, round(bits / capacity * math.log(2)))
    for value in values:
        for place in _places(value, hashes, len(words)):
            words[place >> 6] |= np.uint64(1 << (place & 63))
    return _to_bytes(words, hashes)


def merged(filters: Iterable[bytes]) -> bytes:
    """The filter of all values of several filters of the same size."""
    words: Words | None = None
    hashes = 0
    for each in filters:
        found, count = _from_bytes(each)
        if words is None:
            words, hashes = found.copy(), count
        elif len(words) != len(found) or hashes != count:
            raise InvalidRecord(
                "Bloom filters of different sizes cannot be merged",
                next_step="make all of them with the same capacity and error",
            )
        else:
            words |= found
    if words is None:
        raise InvalidRecord("there is no Bloom filter to merge", next_step="merge at least one")
    return _to_bytes(words, hashes)


def might_contain(filter: bytes, value: str | int) -> bool:
    """Whether a value may have been among those of a filter; if not, it certainly was not."""
    words, hashes = _from_bytes(filter)
    return all(int(words[place >> 6]) >> (place & 63) & 1 for place in _places(value, hashes, len(words)))


def _to_bytes(words: Words, hashes: int) -> bytes:
    header = np.array([(VERSION, hashes, len(words))], HEADER)
    return header.tobytes() + words.astype(">u8").tobytes()


def _from_bytes(given: bytes) -> tuple[Words, int]:
    if len(given) >= HEADER.itemsize:
        (version, hashes, count) = np.frombuffer(given[: HEADER.itemsize], HEADER)[0].tolist()
        if version == VERSION and hashes > 0 and len(given) == HEADER.itemsize + 8 * count:
            return np.frombuffer(given, ">u8", offset=HEADER.itemsize).astype(np.uint64), hashes
    raise InvalidRecord("the bytes are not a Bloom filter", next_step="give a value that ms.bloom(…) has made")


def _places(value: str | int, hashes: int, words: int) -> list[int]:
    """The bits of a value: two hashes, combined."""
    if isinstance(value, str):
        content = value.encode()
        first = _hash_bytes(content, 0)
        second = _hash_bytes(content, first)
    else:
        first = _hash_long(value, 0)
        second = _hash_long(value, first)
    bits = words * 64
    combined = [(first + number * second) & MASK for number in range(1, hashes + 1)]
    # As in Java, a negative number is flipped.
    return [(each if each < 1 << 31 else ~each & MASK) % bits for each in combined]


def _hash_long(value: int, seed: int) -> int:
    state = _mixed(seed, value & MASK)
    return _finished(_mixed(state, value >> 32 & MASK), 8)


def _hash_bytes(content: bytes, seed: int) -> int:
    """Murmur3 of 32 bits as Spark has it: the last bytes are mixed one by one, with their sign."""
    aligned = len(content) & ~3
    state = seed
    for place in range(0, aligned, 4):
        state = _mixed(state, int.from_bytes(content[place : place + 4], "little"))
    for byte in content[aligned:]:
        state = _mixed(state, (byte - 256 if byte > 127 else byte) & MASK)
    return _finished(state, len(content))


def _mixed(state: int, part: int) -> int:
    part = part * 0xCC9E2D51 & MASK
    part = (part << 15 | part >> 17) & MASK
    state ^= part * 0x1B873593 & MASK
    state = (state << 13 | state >> 19) & MASK
    return (state * 5 + 0xE6546B64) & MASK


def _finished(state: int, length: int) -> int:
    state ^= length
    state = (state ^ state >> 16) * 0x85EBCA6B & MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & MASK
    return state ^ state >> 16
