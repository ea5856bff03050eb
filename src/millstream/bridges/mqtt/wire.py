"""Packets of MQTT 5 and 3.1.1 as bytes, for a client that subscribes: many are read, and acknowledged, at a time.

The client library reads a message in three calls of the operating system and acknowledges it in two more, which takes
longer than storing it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

CONNECT, CONNACK, PUBLISH, RELEASE, SUBSCRIBE, SUBACK = 0x10, 0x20, 0x30, 0x60, 0x82, 0x90
PING = b"\xc0\x00"
PING_ANSWER, GOODBYE = 0xD0, 0xE0
DISCONNECT = b"\xe0\x00"
STORED, RECEIVED, COMPLETE = b"\x40\x02", b"\x50\x02", b"\x70\x02"
"""The beginnings of PUBACK, PUBREC and PUBCOMP, before a number."""
FAILURE = 0x80
SESSION_EXPIRY, SERVER_KEEP_ALIVE, RECEIVE_MAXIMUM, USER_PROPERTY = 0x11, 0x13, 0x21, 0x26
SUBSCRIPTION_MID = 1

_FIXED = {0x01: 1, 0x02: 4, 0x11: 4, 0x13: 2, 0x17: 1, 0x18: 4, 0x19: 1, 0x21: 2, 0x22: 2, 0x23: 2, 0x24: 1, 0x25: 1}
_FIXED |= {0x27: 4, 0x28: 1, 0x29: 1, 0x2A: 1}
_PREFIXED = frozenset({0x03, 0x08, 0x09, 0x12, 0x15, 0x16, 0x1A, 0x1C, 0x1F})
_SUBSCRIPTION_ID = 0x0B

REASONS = {
    0x80: "unspecified error",
    0x81: "malformed packet",
    0x82: "protocol error",
    0x84: "unsupported protocol version",
    0x85: "client identifier not valid",
    0x86: "bad user name or password",
    0x87: "not authorized",
    0x88: "server unavailable",
    0x89: "server busy",
    0x8A: "banned",
    0x8B: "server shutting down",
    0x8C: "bad authentication method",
    0x8D: "keep alive timeout",
    0x8E: "session taken over",
    0x95: "packet too large",
    0x97: "quota exceeded",
    0x98: "administrative action",
    0x9C: "use another server",
    0x9D: "server moved",
}
REASONS_3 = {
    1: "unsupported protocol version",
    2: "client identifier not valid",
    3: "server unavailable",
    4: "bad user name or password",
    5: "not authorized",
}
FINAL = frozenset({0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C})
FINAL_3 = frozenset({1, 2, 4, 5})


class BrokenPacket(Exception):
    """The other side does not speak MQTT, or not the agreed version."""


class Published(NamedTuple):
    """A message that the broker delivers."""

    topic: bytes
    payload: bytes
    mid: bytes | None
    """Its number, as it is sent back. None: quality of service 0, which is not acknowledged."""
    is_released: bool
    """Quality of service 2: the number is free again when the broker has released it."""
    is_retained: bool
    properties: tuple[tuple[str, str], ...]
    """Those of its sender, in version 5."""


class Control(NamedTuple):
    """Any other packet."""

    kind: int
    body: bytes


class Decoder:
    """Cuts a stream of bytes into packets."""

    def __init__(self, version: int) -> None:
        self._version = version
        self._left = bytearray()
        self._needed = 2

    def feed(self, data: bytes) -> tuple[list[Published], list[Control]]:
        """The packets that are complete now: messages, and the others, each in order."""
        left = self._left
        left += data
        if len(left) < self._needed:  # a large message is looked at when all of it is here
            return [], []
        data = bytes(left)
        messages: list[Published] = []
        others: list[Control] = []
        at, end = 0, len(data)
        has_properties = self._version == 5
        self._needed = 2
        try:
            while end - at >= 2:
                first, length, body = data[at], data[at + 1], at + 2
                if length >= 0x80:
                    if end - at < 5 and data[-1] >= 0x80:
                        break  # not all bytes of the length are here
                    length, body = _number(data, at + 1)
                stop = body + length
                if stop > end:
                    self._needed = stop - at
                    break
                if first & 0xF0 != PUBLISH:
                    others.append(Control(first & 0xF0, data[body:stop]))
                    at = stop
                    continue
                start = body + 2
                body = start + (data[body] << 8 | data[body + 1])
                topic = data[start:body]
                mid = None
                if first & 0x06:
                    mid = data[body : body + 2]
                    body += 2
                properties: tuple[tuple[str, str], ...] = ()
                if has_properties:
                    size = data[body]
                    body += 1
                    if size:
                        properties, body = _user_properties(data, body - 1)
                if body > stop:
                    raise BrokenPacket("a message ends before its payload")
                messages.append(
                    Published(topic, data[body:stop], mid, first & 0x04 == 4, first & 0x01 == 1, properties)
                )
                at = stop
        except (IndexError, UnicodeDecodeError) as error:
            raise BrokenPacket(f"a packet cannot be read: {error}") from error
        del left[:at]
        return messages, others


def connect_packet(
    version: int,
    client_id: str,
    keep_alive_seconds: int,
    session_seconds: int,
    receive_max: int,
    user: str | None = None,
    password: str | None = None,
    will: tuple[str, str, int, bool] | None = None,
) -> bytes:
    """For a session that the broker keeps. The will is a topic, a payload, a quality of service and `retain`."""
    flags, content = 0, _text(client_id)
    if will is not None:
        topic, payload, qos, retain = will
        flags |= 0x04 | qos << 3 | retain << 5
        content += (b"\x00" if version == 5 else b"") + _text(topic) + _text(payload)
    if user is not None:
        flags |= 0x80
        content += _text(user)
    if password is not None:
        flags |= 0x40
        content += _text(password)
    head = _text("MQTT") + bytes([version if version == 5 else 4, flags]) + keep_alive_seconds.to_bytes(2, "big")
    if version == 5:
        properties = bytes([SESSION_EXPIRY]) + session_seconds.to_bytes(4, "big")
        properties += bytes([RECEIVE_MAXIMUM]) + receive_max.to_bytes(2, "big")
        head += _length(len(properties)) + properties
    return _packet(CONNECT, head + content)


def subscribe_packet(version: int, filters: Sequence[str], qos: int) -> bytes:
    head = SUBSCRIPTION_MID.to_bytes(2, "big") + (b"\x00" if version == 5 else b"")
    return _packet(SUBSCRIBE, head + b"".join(_text(each) + bytes([qos]) for each in filters))


def acknowledgements(messages: Sequence[Published]) -> bytes:
    """In the order of the messages, as the protocol wants it."""
    return b"".join(
        [(RECEIVED if message.is_released else STORED) + message.mid for message in messages if message.mid is not None]
    )


class Accepted(NamedTuple):
    """The answer to a connection."""

    reason: int
    """0 is success."""
    has_session: bool
    keep_alive_seconds: int | None
    """What the broker wants instead of what the client has named."""


def connect_answer(version: int, body: bytes) -> Accepted:
    if len(body) < 2:
        raise BrokenPacket("the answer to the connection is too short")
    keep_alive = None
    if version == 5 and len(body) > 2:
        keep_alive = _properties(body, 2)[0].get(SERVER_KEEP_ALIVE)
    return Accepted(body[1], body[0] & 1 == 1, keep_alive)


def subscribe_answer(version: int, body: bytes) -> bytes:
    """A code for each filter."""
    if len(body) < 3:
        raise BrokenPacket("the answer to the subscription is too short")
    return body[_properties(body, 2)[1] if version == 5 else 2 :]


def goodbye_reason(body: bytes) -> str:
    """Why the broker ends the connection."""
    code = body[0] if body else 0
    return REASONS.get(code, f"reason {code:#04x}")


def connect_reason(version: int, code: int) -> tuple[str, bool]:
    """The text of a reason, and whether a broker that rejects a connection for it would reject it again."""
    texts, final = (REASONS, FINAL) if version == 5 else (REASONS_3, FINAL_3)
    return texts.get(code, f"reason {code:#04x}"), code in final


def _user_properties(data: bytes, at: int) -> tuple[tuple[tuple[str, str], ...], int]:
    _, end, found = _all_properties(data, at)
    return tuple(found), end


def _properties(data: bytes, at: int) -> tuple[dict[int, int], int]:
    """The numbers among the properties, and where they end."""
    numbers, end, _ = _all_properties(data, at)
    return numbers, end


def _all_properties(data: bytes, at: int) -> tuple[dict[int, int], int, list[tuple[str, str]]]:
    length, at = _number(data, at)
    end = at + length
    numbers: dict[int, int] = {}
    users: list[tuple[str, str]] = []
    while at < end:
        name = data[at]
        at += 1
        if name == USER_PROPERTY:
            key, at = _prefixed(data, at)
            value, at = _prefixed(data, at)
            users.append((key.decode(), value.decode()))
        elif name in _PREFIXED:
            _, at = _prefixed(data, at)
        elif name == _SUBSCRIPTION_ID:
            _, at = _number(data, at)
        elif name in _FIXED:
            numbers[name] = int.from_bytes(data[at : at + _FIXED[name]], "big")
            at += _FIXED[name]
        else:
            raise BrokenPacket(f"there is no property {name:#04x}")
    if at != end:
        raise BrokenPacket("the properties of a packet have another length than it says")
    return numbers, end, users


def _prefixed(data: bytes, at: int) -> tuple[bytes, int]:
    start = at + 2
    end = start + (data[at] << 8 | data[at + 1])
    return data[start:end], end


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of up to four bytes, seven bits in each, and where it ends."""
    value = 0
    for position in range(4):
        byte = data[at + position]
        value |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            return value, at + position + 1
    raise BrokenPacket("a length has more than four bytes")


def _length(value: int) -> bytes:
    made = bytearray()
    while True:
        value, byte = value >> 7, value & 0x7F
        made.append(byte | 0x80 if value else byte)
        if not value:
            return bytes(made)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return len(encoded).to_bytes(2, "big") + encoded


def _packet(kind: int, content: bytes) -> bytes:
    return bytes([kind]) + _length(len(content)) + content
