"""Plain Python values as bytes and back: equal, of the same types, and readable by any later version of the code.

Plain are None, bool, int, float, str, bytes, datetime, date, time, timedelta and Decimal, and lists, tuples, sets and
dicts of them. Others are refused, because an edit of their class could make the bytes unreadable.
"""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

PLAIN = "None, bool, int, float, str, bytes, datetime, date, time, timedelta, Decimal, list, tuple, set and dict"
DEPTH_MAX = 100
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

ATOMS = frozenset({type(None), bool, int, float, str, bytes})
_ARE_ATOMS = ATOMS.issuperset
_BY_PICKLE = frozenset({datetime, date, time, timedelta, Decimal})
# A tuple in the bytes is a code and what it stands for. The classes of datetime take pickle microseconds each, so the
# most common, an instant in UTC, is a number.
_TUPLE, _INSTANT, _PICKLED = 0, 1, 2


class NotPlain(TypeError):
    """A value that is not plain."""


def encoded(values: list[Any]) -> bytes:
    return pickle.dumps([_packed(value, 0) for value in values], 5)


def decoded(held: bytes) -> list[Any]:
    return [_unpacked(value) for value in pickle.loads(held)]


def _packed(value: Any, depth: int) -> Any:
    kind = value.__class__
    if kind in ATOMS:
        return value
    depth += 1
    if depth > DEPTH_MAX:
        raise NotPlain(f"values more than {DEPTH_MAX} deep in one another")
    if kind is dict:
        if not value:
            return value
        if _ARE_ATOMS(map(type, value)):
            if _ARE_ATOMS(map(type, value.values())):
                return value
            return {key: _packed(part, depth) for key, part in value.items()}
        return {_packed(key, depth): _packed(part, depth) for key, part in value.items()}
    if kind is list:
        return value if _ARE_ATOMS(map(type, value)) else [_packed(part, depth) for part in value]
    if kind is set:
        return value if _ARE_ATOMS(map(type, value)) else {_packed(part, depth) for part in value}
    if kind is tuple:
        return _TUPLE, tuple(_packed(part, depth) for part in value)
    if kind is datetime and value.tzinfo is UTC:
        return _INSTANT, (value - EPOCH) // MICROSECOND
    if kind in _BY_PICKLE:
        return _PICKLED, pickle.dumps(value, 5)
    raise NotPlain(f"a {kind.__module__}.{kind.__qualname__}".replace(" builtins.", " "))


def _unpacked(held: Any) -> Any:
    kind = held.__class__
    if kind in ATOMS:
        return held
    if kind is dict:
        if not held:
            return held
        if _ARE_ATOMS(map(type, held)):
            if _ARE_ATOMS(map(type, held.values())):
                return held
            return {key: _unpacked(part) for key, part in held.items()}
        return {_unpacked(key): _unpacked(part) for key, part in held.items()}
    if kind is tuple:
        code, part = held
        if code == _INSTANT:
            return EPOCH + timedelta(0, 0, part)
        return pickle.loads(part) if code == _PICKLED else tuple(_unpacked(one) for one in part)
    if _ARE_ATOMS(map(type, held)):
        return held
    return [_unpacked(part) for part in held] if kind is list else {_unpacked(part) for part in held}
