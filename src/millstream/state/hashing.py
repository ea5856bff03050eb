"""The hash of a key is the same on every machine, in every process and with every version of the libraries used.

State on disk and the distribution over key groups depend on it, so a change here is a change of format. Equal values
have equal hashes, whatever the width, unit or scale of their column.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import polars as pl

from millstream.errors import InvalidInput

Hashes = npt.NDArray[np.uint64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
SEED_BYTES = np.uint64(0x2545F4914F6CDD1D)
SEED_LIST = np.uint64(0xD6E8FEB86659FD93)
NULL = np.uint64(0xA0761D6478BD642F)
NAN = np.uint64(0x7FF8000000000000)
ONE_WORD = 1 << 64

CHUNK = 1 << 14  # values mixed at a time: they stay in the L1 cache
LONG_BYTES = 512  # longer strings are hashed one by one, in C
NANOSECONDS = {"ns": 1, "us": 1_000, "ms": 1_000_000}
WORD_MASKS = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)


def key_hashes(frame: pl.DataFrame, keys: list[str]) -> Hashes:
    """The hash of each row's key. Without keys there is one key, and its hash is 0."""
    if not keys:
        return np.zeros(len(frame), np.uint64)
    return _combined([frame[key] for key in keys])


def key_groups(frame: pl.DataFrame, keys: list[str], count: int) -> npt.NDArray[np.int32]:
    """The key group of each row, from 0 to `count` - 1."""
    return groups_of(key_hashes(frame, keys), count)


def groups_of(hashes: Hashes, count: int) -> npt.NDArray[np.int32]:
    """Uses the low half of the hash, so that the hashes within a group still differ in their first bits."""
    low = hashes & np.uint64(0xFFFFFFFF)
    low *= np.uint64(count)
    low >>= np.uint64(32)
    return low.astype(np.int32)


def _combined(columns: list[pl.Series]) -> Hashes:
    hashes = _column(columns[0])
    for column in columns[1:]:
        hashes = hashes * MIX_1
        hashes ^= _column(column)
        _mix(hashes)
    return hashes


def _column(column: pl.Series) -> Hashes:
    hashes = _values(column)
    if column.null_count():
        hashes[column.is_null().to_numpy()] = NULL
    return hashes


def _values(column: pl.Series) -> Hashes:
    """Hashes of the values; those of nulls are arbitrary."""
    kind = column.dtype
    if kind in (pl.Int128, pl.UInt128):
        return _wide(column)
    if kind.is_integer() or kind in (pl.Boolean, pl.Date):
        return _mix(_words(column))
    if isinstance(kind, pl.Datetime | pl.Duration):
        return _mix(_words(column) * np.uint64(NANOSECONDS[kind.time_unit]))  # wraps around, which does no harm
    if kind == pl.Time:
        return _mix(_words(column))
    if kind.is_float():
        return _floats(column)
    if kind.is_decimal():
        return _decimals(column)
    if kind in (pl.String, pl.Binary):
        return _texts(column)
    if kind in (pl.Categorical, pl.Enum):
        return _texts(column.cast(pl.String))
    if kind == pl.Struct:
        fields = column.struct.unnest().get_columns()
        return _combined(fields) if fields else np.zeros(len(column), np.uint64)
    if isinstance(kind, pl.List | pl.Array):
        return _lists(column)
    if kind == pl.Null:
        return np.full(len(column), NULL)
    raise InvalidInput(
        f"a column of type {kind} cannot be a key",
        where=f"column {column.name!r}",
        next_step="use a number, a string, a time, a boolean or a struct of these as the key",
    )


def _words(column: pl.Series) -> Hashes:
    """Integers as 64 bits in two's complement, as a copy."""
    physical = column.cast(pl.Int64) if column.dtype.is_temporal() else column
    if physical.null_count():
        physical = physical.fill_null(False if physical.dtype == pl.Boolean else 0)
    numbers = physical.to_numpy()
    if numbers.dtype == np.uint64:
        return numbers.copy()
    words: Hashes = numbers.astype(np.int64).view(np.uint64)
    return words


def _wide(column: pl.Series) -> Hashes:
    low = _words((column & (ONE_WORD - 1)).cast(pl.UInt64))
    high = (column // ONE_WORD).cast(pl.Int128)
    negative = low >> np.uint64(63) == 1
    beyond = ((high != 0) & ~((high == -1) & pl.Series(negative))).fill_null(False).to_numpy()
    hashes = _mix(low)
    if beyond.any():
        more = _words((high & (ONE_WORD - 1)).cast(pl.UInt64))[beyond]
        hashes[beyond] = _mix(hashes[beyond] * MIX_1 ^ more)
    return hashes


def _floats(column: pl.Series) -> Hashes:
    numbers = column.cast(pl.Float64).fill_null(0.0).to_numpy() + 0.0  # turns -0.0 into 0.0, and makes a copy
    words = numbers.view(np.uint64)
    words[np.isnan(numbers)] = NAN
    return _mix(words)


def _decimals(column: pl.Series) -> Hashes:
    """The digits without trailing zeros, and how many of them are decimal places."""
    scale_given = column.dtype.scale if isinstance(column.dtype, pl.Decimal) else 0
    digits = column.to_physical().fill_null(0)
    narrow = digits.cast(pl.Int64, strict=False)
    small = narrow.fill_null(0).to_numpy().copy()
    scales = np.full(len(small), scale_given, np.uint64)
    rows = np.flatnonzero(small % 10 == 0)
    for _ in range(scale_given):
        small[rows] //= 10
        scales[rows] -= np.uint64(1)
        rows = rows[small[rows] % 10 == 0]
    hashes = _scaled(_mix(small.view(np.uint64)), scales)
    wide = narrow.is_null().to_numpy()
    if wide.any():
        hashes[wide] = [_wide_decimal(number, scale_given) for number in digits.filter(wide).to_list()]
    return hashes


def _wide_decimal(number: int, scale: int) -> int:
    while scale and number % 10 == 0:
        number, scale = number // 10, scale - 1
    hashes = _wide(pl.Series([number], dtype=pl.Int128))
    return int(_scaled(hashes, np.array([scale], np.uint64))[0])


def _scaled(hashes: Hashes, scales: Hashes) -> Hashes:
    """A decimal without a fraction has the hash of the integer."""
    return np.where(scales > 0, _mix(hashes * MIX_1 ^ scales), hashes)


def _texts(column: pl.Series) -> Hashes:
    """Mixes eight bytes of every string per round, the last ones padded with zeros and distinguished by the length."""
    if column.null_count():
        column = column.fill_null("" if column.dtype == pl.String else b"")
    array = column.rechunk().to_arrow()
    _, offset_buffer, content_buffer = array.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64, len(array) + 1, array.offset * 8)
    starts, lengths = offsets[:-1] - offsets[0], np.diff(offsets)
    size = int(offsets[-1] - offsets[0])
    content = np.zeros(size + 8, np.uint8)  # so that a word that starts at the last byte is in bounds
    if size:
        content[:size] = np.frombuffer(content_buffer, np.uint8, size, int(offsets[0]))
    words: Hashes = np.ndarray((size + 1,), np.dtype("<u8"), content, strides=(1,))
    hashes = lengths.astype(np.uint64)
    hashes ^= SEED_BYTES
    _mix(hashes)
    longest = int(lengths.max(initial=0))
    for at in range(0, min(longest, LONG_BYTES), 8):
        if bool((lengths <= at).any()):
            rows = np.flatnonzero(lengths > at)
            hashes[rows] = _absorbed(hashes[rows], words, starts[rows] + at, lengths[rows] - at)
        else:
            hashes = _absorbed(hashes, words, starts + at, lengths - at)
    for row in np.flatnonzero(lengths > LONG_BYTES) if longest > LONG_BYTES else ():
        text = content[starts[row] : starts[row] + lengths[row]].tobytes()
        hashes[row] = int.from_bytes(blake2b(text, digest_size=8).digest(), "little")
    return hashes


def _absorbed(hashes: Hashes, words: Hashes, at: npt.NDArray[np.int64], left: npt.NDArray[np.int64]) -> Hashes:
    word = words[at]
    if bool((left < 8).any()):
        word &= WORD_MASKS[np.minimum(left, 8)]
    word ^= hashes * MIX_1
    return _mix(word)


def _lists(column: pl.Series) -> Hashes:
    """Every item is mixed with its position, and a list is the sum of its items."""
    if isinstance(column.dtype, pl.Array):
        column = column.arr.to_list()
    column = column.fill_null([])
    lengths = column.list.len().to_numpy().astype(np.int64)
    hashes = _mix(lengths.astype(np.uint64) ^ SEED_LIST)
    filled = np.flatnonzero(lengths)
    if len(filled):
        items = _column(column.gather(filled).explode())
        firsts = np.cumsum(lengths[filled]) - lengths[filled]
        places = np.arange(len(items), dtype=np.int64) - np.repeat(firsts, lengths[filled])
        items ^= places.astype(np.uint64) * GOLDEN
        hashes[filled] += np.add.reduceat(_mix(items), firsts)
    return _mix(hashes)


def _mix(words: Hashes) -> Hashes:
    """The finalizer of splitmix64, in place: every input bit flips half of the output bits."""
    spare = np.empty(min(len(words), CHUNK), np.uint64)
    for start in range(0, len(words), CHUNK):
        part = words[start : start + CHUNK]
        shifted = spare[: len(part)]
        part += GOLDEN
        np.right_shift(part, np.uint64(30), out=shifted)
        part ^= shifted
        part *= MIX_1
        np.right_shift(part, np.uint64(27), out=shifted)
        part ^= shifted
        part *= MIX_2
        np.right_shift(part, np.uint64(31), out=shifted)
        part ^= shifted
    return words
