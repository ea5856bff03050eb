"""Kafka's key hash, so that a key goes to the same partition here and in Kafka."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SEED = 0x9747B28C
M = 0x5BD1E995
R = 24
MASK = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """The signed 32-bit hash, equal to that of Kafka's Java client."""
    hashed = int(murmur2_all(pa.array([key], pa.binary()))[0])
    return hashed - (1 << 32) if hashed >> 31 else hashed


def murmur2_all(keys: pa.Array) -> npt.NDArray[np.uint32]:
    """The unsigned hashes of an array of keys without nulls; keys of equal length are hashed together."""
    offsets, content = _buffers(keys)
    lengths = np.diff(offsets)
    hashes = np.empty(len(keys), np.uint32)
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        hashes[rows] = _hash_equal_lengths(content, offsets[rows], int(length))
    return hashes


def _buffers(keys: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    keys = keys.cast(pa.large_binary())
    _, offsets, content = keys.buffers()
    starts = np.frombuffer(offsets, np.int64, len(keys) + 1, keys.offset * 8)
    return starts, np.frombuffer(content or b"", np.uint8)


def _hash_equal_lengths(
    content: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], length: int
) -> npt.NDArray[np.uint32]:
    hashes = np.full(len(starts), SEED ^ length, np.uint32)
    m = np.uint32(M)
    words = length // 4
    for word in range(words):
        k = _bytes_at(content, starts + 4 * word, 4) * m
        k ^= k >> np.uint32(R)
        hashes = (hashes * m) ^ (k * m)
    if rest := length % 4:
        hashes = (hashes ^ _bytes_at(content, starts + 4 * words, rest)) * m
    hashes ^= hashes >> np.uint32(13)
    hashes *= m
    hashes ^= hashes >> np.uint32(15)
    return hashes


def _bytes_at(content: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.uint32]:
    """`count` bytes as one little-endian number."""
    value = np.zeros(len(positions), np.uint32)
    for i in range(count):
        value |= content[positions + i].astype(np.uint32) << np.uint32(8 * i)
    return value
