"""Plain Python values as bytes and back: equal, of the same types, and readable by any later version of the code.

Plain are None, bool, int, float, str, bytes, datetime, date, time, timedelta and Decimal, and lists, tuples, sets and
dicts of them. Others are rejected, because an edit of their class could make the bytes unreadable. The bytes are
MessagePack: anyone who can change them can change values, but cannot execute code.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

PLAIN = "None, bool, int, float, str, bytes, datetime, date, time, timedelta, Decimal, list, tuple, set and dict"
DEPTH_MAX = 100

ATOMS = frozenset({type(None), bool, int, float, str, bytes})
_ARE_ATOMS = ATOMS.issuperset
# The codes of MessagePack's extension types: part of the format, never renumber them.
_TUPLE, _SET, _DICT, _INT, _STR, _DATETIME, _DATE, _TIME, _TIMEDELTA, _DECIMAL = range(1, 11)


class NotPlain(TypeError):
    """A value that is not plain."""


class UnreadableValues(ValueError):
    """Bytes that `encoded` did not produce."""


def encoded(values: list[Any]) -> bytes:
    try:
        return _encode([_packed(value, 0) for value in values])
    except (OverflowError, UnicodeEncodeError):  # integers beyond 64 bits, or text with lone surrogates
        return _encode([_packed(value, 0, is_wide=True) for value in values])


def decoded(held: bytes) -> list[Any]:
    try:
        values = _DECODER.decode(held)
    except (msgspec.MsgspecError, ValueError, TypeError, ArithmeticError, LookupError, RecursionError) as why:
        raise UnreadableValues(f"not values in the format of this version: {why}") from why
    if values.__class__ is not list:
        raise UnreadableValues("not values in the format of this version: not a list")
    found: list[Any] = values
    return found


# ---------------------------------------------------------------- to MessagePack


def _packed(value: Any, depth: int, *, is_wide: bool = False) -> Any:
    """The value in types that msgspec writes unchanged. Only the wide path checks every atom."""
    kind = value.__class__
    if kind in ATOMS:
        return _packed_atom(value) if is_wide else value
    depth += 1
    if depth > DEPTH_MAX:
        raise NotPlain(f"values nested more than {DEPTH_MAX} levels deep")
    if kind is dict:
        if not is_wide and _ARE_ATOMS(map(type, value)):
            if _ARE_ATOMS(map(type, value.values())):
                return value
            return {key: _packed(part, depth) for key, part in value.items()}
        pairs = [part for pair in value.items() for part in pair]
        return _extension(_DICT, [_packed(part, depth, is_wide=is_wide) for part in pairs])
    if kind is list:
        if not is_wide and _ARE_ATOMS(map(type, value)):
            return value
        return [_packed(part, depth, is_wide=is_wide) for part in value]
    if kind is tuple or kind is set:
        code = _TUPLE if kind is tuple else _SET
        return _extension(code, [_packed(part, depth, is_wide=is_wide) for part in value])
    if kind is datetime:
        # UTC instants are by far the most common, and have their own MessagePack type.
        return value if value.tzinfo is UTC else _extension(_DATETIME, [*_as_naive(value), *_zone(value.tzinfo)])
    if kind in _PACKING:
        code, parts = _PACKING[kind]
        return _extension(code, parts(value))
    raise NotPlain(f"a {kind.__module__}.{kind.__qualname__}".replace(" builtins.", " "))


def _packed_atom(value: Any) -> Any:
    kind = value.__class__
    if kind is int and not -(1 << 63) <= value < 1 << 64:
        return msgspec.msgpack.Ext(_INT, value.to_bytes(value.bit_length() // 8 + 1, signed=True))
    if kind is str and not value.isascii():
        return msgspec.msgpack.Ext(_STR, value.encode("utf-8", "surrogatepass"))
    return value


def _extension(code: int, parts: list[Any]) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, _encode(parts))


def _as_naive(value: datetime | time) -> tuple[str, int]:
    return value.replace(tzinfo=None, fold=0).isoformat(), value.fold


def _zone(zone: tzinfo | None) -> list[Any]:
    """None, a fixed offset in microseconds and its name, or the key of a zone."""
    if zone is None:
        return []
    if zone.__class__ is timezone:
        offset = zone.utcoffset(None) // timedelta(microseconds=1)
        return [offset, zone.tzname(None)]
    if isinstance(zone, ZoneInfo) and zone.key is not None:
        return [zone.key]
    raise NotPlain(f"a time zone that is a {zone.__class__.__module__}.{zone.__class__.__qualname__}")


_PACKING: dict[type, tuple[int, Callable[[Any], list[Any]]]] = {
    date: (_DATE, lambda value: [value.toordinal()]),
    time: (_TIME, lambda value: [*_as_naive(value), *_zone(value.tzinfo)]),
    timedelta: (_TIMEDELTA, lambda value: [value.days, value.seconds, value.microseconds]),
    Decimal: (_DECIMAL, lambda value: [str(value)]),
}

_encode = msgspec.msgpack.Encoder().encode


# ---------------------------------------------------------------- from MessagePack


def _read_extension(code: int, held: memoryview) -> Any:
    if code == _INT:
        return int.from_bytes(held, signed=True)
    if code == _STR:
        return bytes(held).decode("utf-8", "surrogatepass")
    parts = _DECODER.decode(held)
    if parts.__class__ is not list or code not in _READING:
        raise ValueError(f"an unknown kind of value, {code}")
    return _READING[code](parts) if code in _CONTAINERS else _READING[code](*parts)


def _read_zone(parts: tuple[Any, ...]) -> tzinfo | None:
    if not parts:
        return None
    if len(parts) == 1:
        return ZoneInfo(parts[0])
    offset = timedelta(microseconds=parts[0])
    return timezone(offset) if timezone(offset).tzname(None) == parts[1] else timezone(offset, parts[1])


_CONTAINERS = (_TUPLE, _SET, _DICT)
_READING: dict[int, Callable[..., Any]] = {
    _TUPLE: tuple,
    _SET: set,
    _DICT: lambda parts: dict(zip(parts[::2], parts[1::2], strict=True)),
    _DATETIME: lambda text, fold, *zone: datetime.fromisoformat(text).replace(tzinfo=_read_zone(zone), fold=fold),
    _DATE: date.fromordinal,
    _TIME: lambda text, fold, *zone: time.fromisoformat(text).replace(tzinfo=_read_zone(zone), fold=fold),
    _TIMEDELTA: timedelta,
    _DECIMAL: Decimal,
}

_DECODER = msgspec.msgpack.Decoder(ext_hook=_read_extension)
