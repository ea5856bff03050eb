"""The state of an aggregate as a snapshot keeps it: read back, it is the same, or it is refused when it is kept.

JSON, in which a value of another type, such as a set or a time, is a mapping with one name: its type.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import orjson

SAME = (str, bool, type(None))
WHOLE_MAX = 1 << 63

KINDS: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    datetime: ("$datetime", lambda value: [value.isoformat(), value.fold], lambda kept: _moment(*kept)),
    date: ("$date", date.isoformat, date.fromisoformat),
    time: ("$time", lambda value: [value.isoformat(), value.fold], lambda kept: _time(*kept)),
    timedelta: (
        "$timedelta",
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda kept: timedelta(*kept),
    ),
    Decimal: ("$decimal", str, Decimal),
    UUID: ("$uuid", str, UUID),
    bytes: ("$bytes", lambda value: base64.b64encode(value).decode(), base64.b64decode),
    float: ("$float", repr, float),  # those that JSON does not have
    int: ("$int", str, int),  # likewise
}
GROUPS: dict[type, str] = {tuple: "$tuple", set: "$set", frozenset: "$frozenset"}
MAPPING = "$mapping"
_readers = {name: read for name, _, read in KINDS.values()}
_groups = {name: kind for kind, name in GROUPS.items()}
NAMES = frozenset((*_readers, *_groups, MAPPING))


def _moment(text: str, fold: int) -> datetime:
    return datetime.fromisoformat(text).replace(fold=fold)


def _time(text: str, fold: int) -> time:
    return time.fromisoformat(text).replace(fold=fold)


def kept_state(state: Any) -> bytes:
    """A state as a snapshot keeps it; raises TypeError where `restored_state` would not return the same."""
    return orjson.dumps(_kept(state, "state"))


def restored_state(kept: bytes) -> Any:
    return _restored(orjson.loads(kept))


def _kept(value: Any, place: str) -> Any:
    kind = type(value)
    if kind in SAME or (kind is int and -WHOLE_MAX <= value < WHOLE_MAX) or (kind is float and value - value == 0):
        return value
    if kind is list:
        return [_kept(each, f"{place}[{number}]") for number, each in enumerate(value)]
    if kind is dict:
        return _kept_mapping(value, place)
    if kind in GROUPS:
        return {GROUPS[kind]: [_kept(each, f"{place}[{number}]") for number, each in enumerate(value)]}
    if kind in KINDS and not (kind in (datetime, time) and _has_named_zone(value)):
        name, keep, _ = KINDS[kind]
        return {name: keep(value)}
    raise TypeError(f"{place} is of type {kind.__module__}.{kind.__qualname__}")


def _has_named_zone(value: datetime | time) -> bool:
    """A zone such as Europe/Berlin is not in the text of a time."""
    return value.tzinfo is not None and type(value.tzinfo) is not timezone


def _kept_mapping(value: dict[Any, Any], place: str) -> Any:
    if all(type(name) is str for name in value) and not (len(value) == 1 and NAMES & value.keys()):
        return {name: _kept(each, f"{place}.{name}") for name, each in value.items()}
    pairs = [
        [_kept(name, f"{place} has a key that"), _kept(each, f"{place}[{name!r}]")] for name, each in value.items()
    ]
    return {MAPPING: pairs}


def _restored(kept: Any) -> Any:
    if isinstance(kept, list):
        return [_restored(each) for each in kept]
    if not isinstance(kept, dict):
        return kept
    if len(kept) == 1:
        ((name, value),) = kept.items()
        if name in _readers:
            return _readers[name](value)
        if name in _groups:
            return _groups[name](_restored(each) for each in value)
        if name == MAPPING:
            return {_restored(key): _restored(each) for key, each in value}
    return {name: _restored(each) for name, each in kept.items()}
