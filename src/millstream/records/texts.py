"""Each simple type has one text form, the same in JSON strings, CSV fields and keys of JSON maps.

It round-trips: `text_leaf` parses what `to_texts` writes. Times are ISO 8601 (a timestamp without a zone is taken as
UTC, digits beyond microseconds are cut off), binary is base64, intervals are as Spark writes them.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.records.columns import Leaf, NotAllFit, Refused
from millstream.records.ddl import format_type
from millstream.records.ranges import (
    decimal_that_fits,
    float_in_range,
    int_in_range,
    narrowed,
    shortened,
    text_is_valid,
    timestamps_in_range,
)

SPECIAL_FLOATS = {
    "NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf"),
    "+Infinity": float("inf"), "INF": float("inf"), "+INF": float("inf"), "-INF": float("-inf"),
}  # fmt: skip

_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
_ZONE = "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_ANY_ZONE = "(?:Z|[+-](?:[01][0-9]|2[0-3])(?::?[0-5][0-9])?)"
_MOMENT = re.compile(rf"({_DAY})[T ]({_CLOCK})(?:\.([0-9]{{1,9}}))?({_ANY_ZONE})?")
_COMMON_INSTANT = rf"^{_DAY}[T ]{_CLOCK}(?:\.[0-9]{{1,6}})?{_ZONE}$"
_COMMON_WALL_CLOCK = rf"^{_DAY}[T ]{_CLOCK}(?:\.[0-9]{{1,6}})?$"
_INT = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?")
_NUMBER_CHARACTERS_MAX = 400
_INTERVAL = re.compile(
    r"INTERVAL '([+-]?)([0-9]{1,9}) ([0-9]{2}):([0-5][0-9]):([0-5][0-9])(?:\.([0-9]{1,6}))?' DAY TO SECOND"
)
_US = timedelta(microseconds=1)


def _extremes(digits: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The lowest and the highest character at each place of an instant with so many digits after the second."""
    low, high = "0000-00-00T00:00:00", "9999-99-99T29:59:59"
    tails = [f".{digit * digits}Z" if digits else "Z" for digit in "09"]
    bounds = [np.frombuffer(f"{text}{tail}".encode(), np.uint8) for text, tail in zip((low, high), tails, strict=True)]
    return bounds[0], bounds[1]


_INSTANTS = {len(low): (low, high) for low, high in (_extremes(0), _extremes(3), _extremes(6))}
"""By length."""


# ---------------------------------------------------------------- reading


def text_leaf(dtype: pa.DataType) -> Leaf:
    """How a str becomes a value of this type."""
    kind = pa.types
    if kind.is_boolean(dtype):
        return _leaf(dtype, _boolean)
    if kind.is_integer(dtype):
        return _leaf(dtype, lambda text: int_in_range(_int(text), dtype), _ints_whole(dtype))
    if kind.is_floating(dtype):
        return _leaf(dtype, lambda text: read_float(text, dtype), _floats_whole(dtype))
    if kind.is_decimal(dtype):
        return _leaf(dtype, lambda text: read_decimal(text, dtype))
    if kind.is_string(dtype):
        return _leaf(dtype, text_is_valid, lambda texts: pa.array(texts, dtype))
    if kind.is_binary(dtype):
        return _leaf(dtype, _base64, expected="binary (base64 text)")
    if kind.is_date(dtype):
        return _leaf(dtype, _date, _matching(f"^{_DAY}$", dtype), expected="date (YYYY-MM-DD)")
    if kind.is_timestamp(dtype):
        expected = f"{format_type(dtype)} (ISO 8601 text)"
        if dtype.tz:
            return _leaf(dtype, _instant, _matching(_COMMON_INSTANT, dtype), expected=expected)
        return _leaf(dtype, _wall_clock, _matching(_COMMON_WALL_CLOCK, dtype), expected=expected)
    return _leaf(dtype, _interval, expected="interval day to second (INTERVAL '1 02:03:04.5' DAY TO SECOND)")


def read_float(text: str, dtype: pa.DataType) -> float:
    if text in SPECIAL_FLOATS:
        return SPECIAL_FLOATS[text]
    if len(text) > _NUMBER_CHARACTERS_MAX or not _NUMBER.fullmatch(text):
        raise Refused("")
    value = float(text)
    if np.isinf(value):
        raise Refused(f"{shortened(text)}, which is out of its range")
    return float_in_range(value, dtype)


def read_decimal(text: str, dtype: pa.DataType) -> Decimal:
    if len(text) > _NUMBER_CHARACTERS_MAX or not _NUMBER.fullmatch(text):
        raise Refused("")
    return decimal_that_fits(Decimal(text), dtype)


def _leaf(
    dtype: pa.DataType,
    read: Callable[[str], Any],
    whole: Callable[[list[Any]], pa.Array] | None = None,
    *,
    expected: str | None = None,
) -> Leaf:
    def one(value: Any) -> Any:
        if type(value) is not str:
            raise Refused("")
        return read(value)

    def each(values: list[Any]) -> pa.Array:
        return pa.array([None if value is None else read(value) for value in values], dtype)

    return Leaf(expected or format_type(dtype), frozenset({str}), whole or each, one)


def _matching(pattern: str, dtype: pa.DataType) -> Callable[[list[Any]], pa.Array]:
    """Arrow's own conversion, for columns in which every text has the common form that both paths parse alike."""
    is_instant = pattern == _COMMON_INSTANT

    def whole(values: list[Any]) -> pa.Array:
        texts = pa.array(values, pa.string())
        is_common = is_instant and _are_alike(texts)
        if not is_common and not pc.all(pc.match_substring_regex(texts, pattern), min_count=0).as_py():
            raise NotAllFit
        array = texts.cast(dtype)
        timestamps_in_range(array.cast(pa.timestamp("us")) if pa.types.is_date(dtype) else array)
        return array

    return whole


def _are_alike(texts: pa.Array) -> bool:
    """Whether all are instants in UTC of one length, as one program writes them: a tenth of the time of the pattern."""
    if texts.null_count or not len(texts) or texts.offset:
        return False
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[: len(texts) + 1]
    length = int(offsets[1])
    if length not in _INSTANTS or not (np.diff(offsets) == length).all():
        return False
    characters = np.frombuffer(texts.buffers()[2], np.uint8)[: offsets[-1]].reshape(len(texts), length)
    by_place = np.ascontiguousarray(characters.T)
    low, high = _INSTANTS[length]
    if (by_place.min(axis=1) < low).any() or (by_place.max(axis=1) > high).any():
        return False
    return not ((by_place[11] == ord("2")) & (by_place[12] > ord("3"))).any()  # hours


def _ints_whole(dtype: pa.DataType) -> Callable[[list[Any]], pa.Array]:
    def whole(values: list[Any]) -> pa.Array:
        texts = pa.array(values, pa.string())
        if not pc.all(pc.match_substring_regex(texts, "^-?[0-9]{1,19}$"), min_count=0).as_py():
            raise NotAllFit
        return texts.cast(dtype)

    return whole


def _floats_whole(dtype: pa.DataType) -> Callable[[list[Any]], pa.Array]:
    def whole(values: list[Any]) -> pa.Array:
        texts = pa.array(values, pa.string())
        if not pc.all(pc.match_substring_regex(texts, r"^-?[0-9]{1,30}(\.[0-9]{1,30})?$"), min_count=0).as_py():
            raise NotAllFit
        numbers = texts.cast(pa.float64())
        return narrowed(numbers) if pa.types.is_float32(dtype) else numbers

    return whole


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise Refused("")
    return text.lower() == "true"


def _int(text: str) -> int:
    if not _INT.fullmatch(text):
        raise Refused("")
    return int(text)


def _base64(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except ValueError:
        raise Refused("") from None


def _date(text: str) -> date:
    try:
        if not re.fullmatch(_DAY, text):
            raise Refused("")
        return date.fromisoformat(text)
    except ValueError:
        raise Refused(f"{text!r}, a day that does not exist") from None


def _instant(text: str) -> datetime:
    moment, zone = _moment(text)
    try:
        return datetime.fromisoformat(moment + ("+00:00" if zone is None or zone == "Z" else zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise Refused(f"{text!r}, a time that does not exist") from None


def _wall_clock(text: str) -> datetime:
    moment, zone = _moment(text)
    if zone is not None:
        raise Refused(f"{text!r} with a time zone")
    try:
        return datetime.fromisoformat(moment)
    except ValueError:
        raise Refused(f"{text!r}, a time that does not exist") from None


def _moment(text: str) -> tuple[str, str | None]:
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise Refused("")
    day, clock, fraction, zone = match.groups()
    return f"{day}T{clock}.{(fraction or '')[:6]:0<6}", zone


def _interval(text: str) -> timedelta:
    match = _INTERVAL.fullmatch(text)
    if match is None:
        raise Refused("")
    sign, days, hours, minutes, seconds, fraction = match.groups()
    whole = ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
    total_us = (whole * 1_000_000 + int(f"{fraction or '':0<6}")) * (-1 if sign == "-" else 1)
    if not -(2**63) <= total_us < 2**63:
        raise Refused("")
    return total_us * _US


# ---------------------------------------------------------------- writing


def to_texts(array: pa.Array) -> list[str | None]:
    """The values of a simple column in the text form that `text_leaf` parses."""
    kind = pa.types
    dtype = array.type
    texts: list[str | None]
    if kind.is_floating(dtype):
        return [None if value is None else float_text(value) for value in array.to_pylist()]
    if kind.is_binary(dtype):
        return [None if value is None else base64.b64encode(value).decode("ascii") for value in array.to_pylist()]
    if kind.is_duration(dtype):
        return [None if us is None else _interval_text(us) for us in array.view(pa.int64()).to_pylist()]
    if kind.is_timestamp(dtype):
        naive = array.view(pa.timestamp("us")).cast(pa.string())  # the instant in UTC, without a zone database
        with_t = pc.replace_substring(naive, " ", "T")
        texts = (pc.binary_join_element_wise(with_t, "Z", "") if dtype.tz else with_t).to_pylist()
        return texts
    if kind.is_decimal(dtype):
        return [None if value is None else f"{value:f}" for value in array.to_pylist()]
    texts = array.cast(pa.string()).to_pylist()
    return texts


def float_text(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value)


def _interval_text(us: int) -> str:
    seconds, fraction = divmod(abs(us), 1_000_000)
    hours, minutes = divmod(seconds // 60, 60)
    days, hours = divmod(hours, 24)
    clock = f"{hours:02}:{minutes:02}:{seconds % 60:02}.{fraction:06}"
    return f"INTERVAL '{'-' if us < 0 else ''}{days} {clock}' DAY TO SECOND"
