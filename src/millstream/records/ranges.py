"""Whether a value fits a type depends on the value and the type alone, for every kind of input."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.records.columns import NotAllFit, Refused

# The range of Python's datetime, 0001-01-01 to 9999-12-31, which Spark can also display.
TIMESTAMP_US_MIN = -62_135_596_800_000_000
TIMESTAMP_US_MAX = 253_402_300_799_999_999
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_SHOWN_CHARACTERS_MAX = 60


def shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else text[:_SHOWN_CHARACTERS_MAX] + "…"


def int_in_range(value: int, dtype: pa.DataType) -> int:
    limit = 1 << (dtype.bit_width - 1)
    if not -limit <= value < limit:
        raise Refused(f"{_digits(value)}, which is out of its range of {-limit} to {limit - 1}")
    return value


def float_in_range(value: float, dtype: pa.DataType) -> float:
    """Rounding to the nearest float is accepted; becoming infinite is not."""
    if dtype.bit_width == 32 and abs(value) != float("inf") and np.isinf(_to_float32(value)):
        raise Refused(f"{value!r}, which is out of its range of ±{_FLOAT32_MAX:.7g}")
    return value


def float32_whole(values: list[Any]) -> pa.Array:
    return narrowed(pa.array(values, pa.float64()))


def narrowed(wide: pa.Array) -> pa.Array:
    """Doubles as floats; raises NotAllFit if a finite one would become infinite."""
    numbers = wide.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        narrow = numbers.astype(np.float32)
    if np.isinf(narrow).sum() != np.isinf(numbers).sum():
        raise NotAllFit
    return pa.array(narrow, mask=wide.is_null().to_numpy(zero_copy_only=False) if wide.null_count else None)


def decimal_that_fits(value: Decimal, dtype: pa.DataType) -> Decimal:
    """The same number with exactly the column's decimal places, or Refused: decimals are never rounded."""
    if not value.is_finite():
        raise Refused(f"{value}")
    if not value:
        return Decimal(0).scaleb(-dtype.scale)
    if value.adjusted() >= dtype.precision - dtype.scale:  # compares exponents, so that 1E+999999 is never expanded
        raise Refused(f"{shortened(str(value))}, which has too many digits before the decimal point")
    sign, digits, exponent = value.as_tuple()
    missing = int(exponent) + dtype.scale
    if missing < 0 and any(digits[missing:]):
        raise Refused(f"{shortened(str(value))}, which has more than {dtype.scale} decimal places")
    scaled = digits + (0,) * missing if missing >= 0 else digits[:missing]
    return Decimal((sign, scaled, -dtype.scale))


def text_is_valid(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Refused(f"{shortened(ascii(value))}, which has a lone surrogate and is not valid text") from None
    return value


def timestamps_in_range(array: pa.Array) -> pa.Array:
    ends = pc.min_max(array.view(pa.int64())).as_py()
    if ends["min"] is not None and not TIMESTAMP_US_MIN <= ends["min"] <= ends["max"] <= TIMESTAMP_US_MAX:
        raise NotAllFit
    return array


def _to_float32(value: float) -> np.float32:
    with np.errstate(over="ignore"):
        return np.float32(value)


def _digits(value: int) -> str:
    return str(value) if value.bit_length() <= 200 else f"an integer of {value.bit_length()} bits"
