"""A message of AMQP 1.0: durable, with properties by which it can be selected, and a body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from millstream.bridges.amqp1.types import BrokenValue, Described, Reader, Symbol, ULong, encoded

HEADER, PROPERTIES, APPLICATION_PROPERTIES = 0x70, 0x73, 0x74
DATA, SEQUENCE, VALUE = 0x75, 0x76, 0x77
BODY_HEADS = {0xA0: 1, 0xB0: 4, 0xA1: 1, 0xB1: 4}
"""How many bytes have the length of a body of bytes or of text, by the code of its type."""
NAMES = (
    "message-id",
    "user-id",
    "to",
    "subject",
    "reply-to",
    "correlation-id",
    "content-type",
    "content-encoding",
    "absolute-expiry-time",
    "creation-time",
    "group-id",
    "group-sequence",
    "reply-to-group-id",
)


@dataclass(frozen=True)
class Amqp1Message:
    body: bytes
    properties: Mapping[str, Any] = field(default_factory=dict)
    """Those that the standard names, such as `message-id`."""
    application: Mapping[str, Any] = field(default_factory=dict)
    """Those of its sender."""

    def encoded(self) -> bytes:
        return b"".join(
            (
                encoded(Described(ULong(HEADER), [True])),
                encoded(Described(ULong(PROPERTIES), [self._property(name) for name in NAMES])),
                encoded(Described(ULong(APPLICATION_PROPERTIES), dict(self.application))),
                encoded(Described(ULong(DATA), self.body)),
            )
        )

    def _property(self, name: str) -> Any:
        value = self.properties.get(name)
        return Symbol(value) if name.startswith("content-") and value is not None else value


def decoded(data: bytes | bytearray, *, is_cut: bool = False) -> Amqp1Message:
    """If it was cut, its body is the beginning of what was sent. Raises BrokenValue."""
    reader, bodies = Reader(data), []
    properties: dict[str, Any] = {}
    application: dict[str, Any] = {}
    try:
        while reader.has_more:
            if is_cut and (rest := _body_at(data, reader.at)) is not None:
                bodies.append(rest)
                break
            section = reader.value()
            if not isinstance(section, Described):
                raise BrokenValue("a section of a message has no type")
            if section.code == PROPERTIES:
                properties = {name: each for name, each in zip(NAMES, section.value, strict=False) if each is not None}
            elif section.code == APPLICATION_PROPERTIES:
                application = {str(name): each for name, each in (section.value or {}).items()}
            elif section.code in (DATA, SEQUENCE, VALUE):
                bodies.append(_as_bytes(section.value))
    except BrokenValue:
        if not is_cut:
            raise
    return Amqp1Message(b"".join(bodies), properties, application)


def _body_at(data: bytes | bytearray, at: int) -> bytes | None:
    """What is there of a body of bytes or of text that begins here."""
    head = bytes(data[at : at + 4])
    if len(head) < 4 or head[:2] != b"\x00\x53" or head[2] not in (DATA, VALUE):
        return None
    width = BODY_HEADS.get(head[3])
    return None if width is None else bytes(data[at + 4 + width :])


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return orjson.dumps(_plain(value), default=str, option=orjson.OPT_NON_STR_KEYS)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, Described):
        return _plain(value.value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, str) else value
