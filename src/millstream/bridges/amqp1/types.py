"""Values of AMQP 1.0 as bytes and back: what frames and messages are made of.

Wider types are read than are written: a number is written as the type that the protocol asks for there.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DEPTH_MAX = 32
ITEMS_MAX = 1 << 16
"""In one list, map or array, so that a few bytes cannot ask for much memory."""


class BrokenValue(Exception):
    """Bytes that are no value of AMQP."""


class Symbol(str):
    """A name of the protocol: ASCII, and another type than a string."""


class UInt(int):
    """32 bits."""


class ULong(int):
    """64 bits."""


class UShort(int):
    """16 bits."""


class UByte(int):
    """8 bits."""


class Described(NamedTuple):
    """A value with its meaning."""

    code: Any
    value: Any


# ---------------------------------------------------------------- writing


def encoded(value: Any) -> bytes:
    if value is None:
        return b"\x40"
    for kind, write in WRITERS:
        if isinstance(value, kind):
            return write(value)
    raise TypeError(f"{type(value).__name__} is not a type that is sent")


def _ulong(value: int) -> bytes:
    return struct.pack(">BB", 0x53, value) if value < 256 else struct.pack(">BQ", 0x80, value)


def _uint(value: int) -> bytes:
    return struct.pack(">BB", 0x52, value) if value < 256 else struct.pack(">BI", 0x70, value)


def _variable(data: bytes, short: int) -> bytes:
    if len(data) < 256:
        return struct.pack(">BB", short, len(data)) + data
    return struct.pack(">BI", short | 0x10, len(data)) + data


def _compound(items: Sequence[Any], code: int) -> bytes:
    content = b"".join(encoded(item) for item in items)
    return struct.pack(">BII", code, len(content) + 4, len(items)) + content


def _map(given: Mapping[Any, Any]) -> bytes:
    return _compound([each for pair in given.items() for each in pair], 0xD1)


WRITERS: tuple[tuple[type, Callable[[Any], bytes]], ...] = (
    (Described, lambda each: b"\x00" + encoded(each.code) + encoded(each.value)),
    (Symbol, lambda each: _variable(each.encode("ascii"), 0xA3)),
    (str, lambda each: _variable(each.encode(errors="replace"), 0xA1)),
    (bytes, lambda each: _variable(each, 0xA0)),
    (bool, lambda each: b"\x41" if each else b"\x42"),
    (UInt, _uint),
    (ULong, _ulong),
    (UShort, lambda each: struct.pack(">BH", 0x60, each)),
    (UByte, lambda each: struct.pack(">BB", 0x50, each)),
    (int, lambda each: struct.pack(">Bq", 0x81, each)),
    (Mapping, _map),
    (list, lambda each: _compound(each, 0xD0)),
)


# ---------------------------------------------------------------- reading


def _time(milliseconds: int) -> datetime | int:
    try:
        return EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return milliseconds


FIXED: dict[int, tuple[str, Callable[[Any], Any]]] = {
    0x50: (">B", int),
    0x51: (">b", int),
    0x52: (">B", int),
    0x53: (">B", int),
    0x54: (">b", int),
    0x55: (">b", int),
    0x56: (">B", bool),
    0x60: (">H", int),
    0x61: (">h", int),
    0x70: (">I", int),
    0x71: (">i", int),
    0x72: (">f", float),
    0x73: (">4s", lambda each: each.decode("utf-32-be", "replace")),
    0x74: (">4s", bytes),
    0x80: (">Q", int),
    0x81: (">q", int),
    0x82: (">d", float),
    0x83: (">q", _time),
    0x84: (">8s", bytes),
    0x94: (">16s", bytes),
    0x98: (">16s", lambda each: uuid.UUID(bytes=each)),
}
CONSTANTS: dict[int, Any] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0}
TEXTS: dict[int, Callable[[bytes], Any]] = {
    0x0: bytes,
    0x1: lambda each: each.decode(errors="replace"),
    0x3: lambda each: Symbol(each.decode("ascii", "replace")),
}


class Reader:
    """Reads values from the beginning of some bytes."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._data = memoryview(data)
        self.at = 0

    @property
    def has_more(self) -> bool:
        return self.at < len(self._data)

    def value(self, depth: int = 0) -> Any:
        if depth > DEPTH_MAX:
            raise BrokenValue("values are nested too deep")
        code = self._number(1)
        if code == 0:
            return Described(self.value(depth + 1), self.value(depth + 1))
        return self._of(code, depth)

    def _of(self, code: int, depth: int) -> Any:
        if code in CONSTANTS:
            return CONSTANTS[code]
        if code in FIXED:
            form, made = FIXED[code]
            return made(struct.unpack(form, self._take(struct.calcsize(form)))[0])
        width = 4 if code & 0x10 else 1
        kind = code & 0xF
        if code >> 4 in (0xA, 0xB) and kind in TEXTS:
            return TEXTS[kind](bytes(self._take(self._number(width))))
        if code == 0x45:
            return []
        if code >> 4 in (0xC, 0xD) and kind in (0, 1):
            self._number(width)
            items = [self.value(depth + 1) for _ in range(self._count(width))]
            return items if kind == 0 else dict(zip(map(_hashable, items[::2]), items[1::2], strict=False))
        if code in (0xE0, 0xF0):
            self._number(width)
            return self._array(self._count(width), depth)
        raise BrokenValue(f"there is no type {code:#04x}")

    def _array(self, count: int, depth: int) -> list[Any]:
        code = self._number(1)
        if code:
            return [self._of(code, depth + 1) for _ in range(count)]
        meaning, code = self.value(depth + 1), self._number(1)
        return [Described(meaning, self._of(code, depth + 1)) for _ in range(count)]

    def _count(self, width: int) -> int:
        count = self._number(width)
        if count > ITEMS_MAX:
            raise BrokenValue(f"a list has {count:,} items")
        return count

    def _number(self, width: int) -> int:
        return int.from_bytes(self._take(width), "big")

    def _take(self, size: int) -> memoryview:
        end = self.at + size
        if end > len(self._data):
            raise BrokenValue("it ends too early")
        taken, self.at = self._data[self.at : end], end
        return taken


def _hashable(key: Any) -> Any:
    return str(key) if isinstance(key, list | dict) else key
