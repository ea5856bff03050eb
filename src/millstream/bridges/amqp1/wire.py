"""Frames of AMQP 1.0 as bytes and back: a performative, and what a transfer carries."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from millstream.bridges.amqp1.types import BrokenValue, Described, Reader, ULong, encoded

HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"
HEAD = struct.Struct(">IBBH")
BEAT = HEAD.pack(8, 2, 0, 0)
FRAME_BYTES_MAX = 1 << 18
AMQP, SASL = 0, 1

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
ERROR = 0x1D
SOURCE, TARGET = 0x28, 0x29
ACCEPTED, REJECTED, RELEASED, MODIFIED = range(0x24, 0x28)
COORDINATOR, DECLARE, DISCHARGE, DECLARED, TRANSACTIONAL = range(0x30, 0x35)
MECHANISMS, INIT, _CHALLENGE, _RESPONSE, OUTCOME = range(0x40, 0x45)
SELECTOR = 0x468C00000004
"""The code of a filter by an SQL-like condition."""


class Performative(NamedTuple):
    code: int
    fields: Sequence[Any]
    payload: bytes = b""

    def field(self, index: int, default: Any = None) -> Any:
        """Fields at the end may be left out."""
        found = self.fields[index] if index < len(self.fields) else None
        return default if found is None else found


def described(code: int, fields: Sequence[Any]) -> Described:
    return Described(ULong(code), list(fields))


def frame(code: int, fields: Sequence[Any], payload: bytes = b"", kind: int = AMQP) -> bytes:
    body = encoded(described(code, fields)) + payload
    return HEAD.pack(HEAD.size + len(body), 2, kind, 0) + body


class Decoder:
    def __init__(self) -> None:
        self._buffer = bytearray()
        self._headers_expected = 2
        """Of SASL, and of AMQP after it."""

    def feed(self, data: bytes) -> list[Performative]:
        """The frames that are complete now, without heartbeats."""
        self._buffer += data
        made = []
        while (found := self._next()) is not None:
            if found:
                made.append(_performative(found))
        return made

    def _next(self) -> bytes | None:
        """The content of a frame, which may be empty."""
        if self._buffer[:4] == b"AMQP" and self._headers_expected and len(self._buffer) >= len(HEADER):
            if bytes(self._buffer[:8]) not in (HEADER, SASL_HEADER):
                raise BrokenValue("the broker speaks another version of AMQP")
            self._headers_expected -= 1
            del self._buffer[:8]
        if len(self._buffer) < HEAD.size or self._buffer[:4] == b"AMQP":
            return None
        size, offset, _, _ = HEAD.unpack_from(self._buffer)
        if not HEAD.size <= 4 * offset <= size or size > FRAME_BYTES_MAX:
            raise BrokenValue(f"a frame has {size:,} bytes")
        if len(self._buffer) < size:
            return None
        content = bytes(self._buffer[4 * offset : size])
        del self._buffer[:size]
        return content


def _performative(content: bytes) -> Performative:
    reader = Reader(content)
    value = reader.value()
    if not isinstance(value, Described) or not isinstance(value.code, int) or not isinstance(value.value, list):
        raise BrokenValue("a frame has no performative")
    return Performative(value.code, value.value, content[reader.at :])
