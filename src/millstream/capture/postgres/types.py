"""Types of Postgres, and their values as texts, which are read by whole columns.

Sessions of a capture have settings of their own, such as `timezone=UTC`, so that texts mean the same everywhere. A
type without an equal becomes text, as Postgres writes it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from millstream.capture.stream_steps import column_of

SETTINGS = {
    "datestyle": "ISO",
    "timezone": "UTC",
    "bytea_output": "hex",
    "intervalstyle": "iso_8601",
    "extra_float_digits": "3",
}
_PLAIN = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "oid": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}
DIGITS_MAX = 38
FIRST_DAY, LAST_DAY = "0001-01-01", "9999-12-31"
_INFINITE = {"infinity": LAST_DAY, "-infinity": FIRST_DAY}
_INFINITE_TIMES = {"infinity": f"{LAST_DAY} 23:59:59.999999", "-infinity": f"{FIRST_DAY} 00:00:00"}
_ELEMENT = re.compile(r'"((?:[^"\\]|\\.)*)"|([^,{}"]+)', re.DOTALL)


def type_of(name: str, modifier: int, element: str | None) -> pa.DataType:
    """The type of a column, by the name of its base type; `element` is that of an array's elements."""
    if element is not None:
        inner = type_of(element, modifier, None)
        return pa.list_(inner)
    if name == "numeric" and modifier >= 4:
        digits, scale = (modifier - 4) >> 16, ((modifier - 4) & 0x7FF ^ 1024) - 1024
        if 0 <= scale <= digits <= DIGITS_MAX:
            return pa.decimal128(digits, scale)
    return _PLAIN.get(name, pa.string())


class Unreadable(ValueError):
    """A text that is not a value of its column's type."""


def to_arrow(table: str, where: str, texts: Sequence[bytes | None], field: pa.Field) -> pa.Array:
    """The values of a column. Infinite times are the first and the last that a timestamp can be."""
    return column_of(table, where, texts, field, _column)


def _column(texts: list[bytes | None], kind: pa.DataType) -> pa.Array:
    return column(pa.array(texts, pa.binary()), kind)


def column(raw: pa.Array, kind: pa.DataType) -> pa.Array:
    """Texts as values of a type; raises if one of them is not."""
    if pa.types.is_binary(kind):
        return pa.array([None if text is None else _bytes(text) for text in raw.to_pylist()], kind)
    texts = raw.cast(pa.string())
    if pa.types.is_string(kind):
        return texts
    if pa.types.is_boolean(kind):
        return pc.equal(texts, "t")
    if pa.types.is_list(kind):
        return _arrays(texts, kind)
    if pa.types.is_date(kind):
        return pc.cast(_replaced(texts, _INFINITE), kind)
    if pa.types.is_timestamp(kind):
        return _times(texts, kind)
    return pc.cast(texts, kind)


def _bytes(text: bytes) -> bytes:
    if not text.startswith(b"\\x"):
        raise Unreadable(text)
    return bytes.fromhex(text[2:].decode())


def _replaced(texts: pa.Array, named: dict[str, str]) -> pa.Array:
    for name, value in named.items():
        texts = pc.if_else(pc.equal(texts, name), value, texts)
    return texts


def _times(texts: pa.Array, kind: pa.TimestampType) -> pa.Array:
    """In UTC, so the zone is always +00."""
    if kind.tz is not None:
        texts = pc.replace_substring_regex(texts, pattern=r"\+00$", replacement="")
    made: pa.Array = pc.cast(_replaced(texts, _INFINITE_TIMES), pa.timestamp("us"))
    return made if kind.tz is None else pc.assume_timezone(made, "UTC")


def _arrays(texts: pa.Array, kind: pa.ListType) -> pa.Array:
    """One dimension only: the type of a column does not say how many its arrays have."""
    lists = [None if text is None else _elements(text) for text in texts.to_pylist()]
    flat = [element for each in lists if each is not None for element in each]
    offsets: list[int | None] = []
    at = 0
    for each in lists:
        offsets.append(None if each is None else at)
        at += len(each or ())
    values = column(pa.array(flat, pa.binary()), kind.value_type)
    return pa.ListArray.from_arrays(pa.array([*offsets, at], pa.int32()), values, type=kind)


def _elements(text: str) -> list[bytes | None]:
    inner = text[1:-1]
    if not text.startswith("{") or "{" in re.sub(r'"(?:[^"\\]|\\.)*"', "", inner):
        raise Unreadable(text)
    found: list[bytes | None] = []
    for quoted, plain in _ELEMENT.findall(inner):
        if plain:
            found.append(None if plain == "NULL" else plain.encode())
        else:
            found.append(re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL).encode())
    return found
