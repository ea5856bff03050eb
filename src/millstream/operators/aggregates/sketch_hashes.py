"""Which values decide an HLL sketch: of thousands that share a register, only the one with the rarest hash.

The hashes are those of DataSketches (MurmurHash3, 128 bits), computed for a whole column. The sketch is then updated
with a few thousand values instead of all of them, one call each. The result is the same.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

Words = npt.NDArray[np.uint64]
SEED = 9001
C1, C2 = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)
FIVE, FIRST, SECOND = np.uint64(5), np.uint64(0x52DCE729), np.uint64(0x38495AB5)
MASKS = np.array([(1 << 8 * bytes_left) - 1 for bytes_left in range(9)], np.uint64)
LONG_BYTES = 256
"""Longer strings are all given to the sketch."""
ADDRESS_BITS = np.uint64((1 << 26) - 1)


def deciding(values: pl.Series, lg_k: int) -> pl.Series:
    """Values of which a sketch with 2^lg_k registers is made, equal to that of all values. There are no nulls."""
    if len(values) < 4 << lg_k or not (values.dtype == pl.String or values.dtype.is_integer()):
        return values.unique()
    if values.dtype == pl.String and (values.str.len_bytes() > LONG_BYTES).any():
        return values.unique()
    address, rank = _registers(*hashes(values))
    slots = (address & np.uint64((1 << lg_k) - 1)).astype(np.int64)
    best = np.zeros(1 << lg_k, np.uint8)
    np.maximum.at(best, slots, rank)
    return values.filter(pl.Series(rank == best[slots])).unique() if (best > 0).mean() > 0.5 else values.unique()


def _registers(low: Words, high: Words) -> tuple[Words, npt.NDArray[np.uint8]]:
    """The 26-bit address of each hash, and the position of its first one-bit."""
    leading = np.full(len(high), 63, np.uint8)
    known = high > 0
    exponent = np.zeros(len(high), np.int64)
    upper = (high >> np.uint64(32)).astype(np.float64)
    lower = (high & np.uint64(0xFFFFFFFF)).astype(np.float64)
    in_upper = upper > 0
    exponent[in_upper] = np.frexp(upper[in_upper])[1] + 31
    rest = known & ~in_upper
    exponent[rest] = np.frexp(lower[rest])[1] - 1
    leading[known] = np.minimum(63 - exponent[known], 62)
    return low & ADDRESS_BITS, (np.minimum(leading, 62) + 1).astype(np.uint8)


def hashes(values: pl.Series) -> tuple[Words, Words]:
    """MurmurHash3 of strings as UTF-8, or of integers as eight bytes."""
    if values.dtype == pl.String:
        words, starts, lengths = _bytes_of(values)
    else:
        words = values.cast(pl.Int64).to_numpy().view(np.uint64).copy()
        return _ended(*_tail(_seeds(len(words)), words, np.zeros_like(words)), np.uint64(8))
    h1, h2 = _seeds(len(lengths))
    for at in range(0, int(lengths.max(initial=0)) + 1, 16):
        whole = np.flatnonzero(lengths >= at + 16)
        if len(whole):
            first, second = words[starts[whole] + at], words[starts[whole] + at + 8]
            h1[whole], h2[whole] = _block(h1[whole], h2[whole], first, second)
        last = np.flatnonzero((lengths >= at) & (lengths < at + 16))
        if len(last):
            left = lengths[last] - at
            first = words[starts[last] + at] & MASKS[np.minimum(left, 8)]
            second = words[starts[last] + at + 8] & MASKS[np.clip(left - 8, 0, 8)]
            h1[last], h2[last] = _tail((h1[last], h2[last]), first, second)
    return _ended(h1, h2, lengths.astype(np.uint64))


def _bytes_of(values: pl.Series) -> tuple[Words, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The eight bytes at every position of all strings, and the position and length of each string."""
    array = values.rechunk().to_arrow()
    _, offset_buffer, content_buffer = array.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64, len(array) + 1, array.offset * 8)
    size = int(offsets[-1] - offsets[0])
    content = np.zeros(size + 24, np.uint8)  # a block that starts behind the last byte is in bounds
    if size:
        content[:size] = np.frombuffer(content_buffer, np.uint8, size, int(offsets[0]))
    words: Words = np.ndarray((size + 16,), np.dtype("<u8"), content, strides=(1,))
    return words, offsets[:-1] - offsets[0], np.diff(offsets)


def _seeds(count: int) -> tuple[Words, Words]:
    return np.full(count, SEED, np.uint64), np.full(count, SEED, np.uint64)


def _rotated(words: Words, bits: int) -> Words:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))


def _block(h1: Words, h2: Words, first: Words, second: Words) -> tuple[Words, Words]:
    h1 = h1 ^ (_rotated(first * C1, 31) * C2)
    h1 = (_rotated(h1, 27) + h2) * FIVE + FIRST
    h2 = h2 ^ (_rotated(second * C2, 33) * C1)
    return h1, (_rotated(h2, 31) + h1) * FIVE + SECOND


def _tail(hashes: tuple[Words, Words], first: Words, second: Words) -> tuple[Words, Words]:
    h1, h2 = hashes
    return h1 ^ (_rotated(first * C1, 31) * C2), h2 ^ (_rotated(second * C2, 33) * C1)


def _ended(h1: Words, h2: Words, lengths: Words | np.uint64) -> tuple[Words, Words]:
    h1, h2 = h1 ^ lengths, h2 ^ lengths
    h1 = h1 + h2
    h2 = h2 + h1
    h1, h2 = _final(h1), _final(h2)
    h1 = h1 + h2
    return h1, h2 + h1


def _final(words: Words) -> Words:
    words = (words ^ (words >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    words = (words ^ (words >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return words ^ (words >> np.uint64(33))
