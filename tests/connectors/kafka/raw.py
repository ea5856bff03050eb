"""Writes to Kafka in its wire format, by hand: what a hostile client can send, and Kafka's own does not."""

from __future__ import annotations

import gzip
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import crc32c

PRODUCE, VERSION = 0, 3
GZIP = 1
CONTROL = 1 << 5
NO_LEADER_YET = 6
ANSWER_S = 60


@dataclass(frozen=True)
class Record:
    """A header without a value has None; names are bytes, of which Kafka promises nothing."""

    value: bytes | None
    key: bytes | None = None
    time_ms: int = 0
    headers: Sequence[tuple[bytes, bytes | None]] = ()


def put(bootstrap: str, topic: str, *records: Record, attributes: int = 0, partition: int = 0) -> int:
    """Sends one batch; the code of the broker's answer, 0 if it took it."""
    batch = _batch(records, attributes)
    body = _text(None) + struct.pack(">hii", -1, ANSWER_S * 1000, 1) + _text(topic)
    body += struct.pack(">iii", 1, partition, len(batch)) + batch
    request = struct.pack(">hhi", PRODUCE, VERSION, 1) + _text("raw") + body
    host, _, port = bootstrap.partition(":")
    with socket.create_connection((host, int(port)), ANSWER_S) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (length,) = struct.unpack(">i", _received(connection, 4))
        answer = _received(connection, length)
    place = 4 + 4 + 2 + len(topic.encode()) + 4 + 4
    (code,) = struct.unpack_from(">h", answer, place)
    return int(code)


def _received(connection: socket.socket, length: int) -> bytes:
    content = b""
    while len(content) < length:
        more = connection.recv(length - len(content))
        assert more, "the broker hung up"
        content += more
    return content


def _text(value: str | None) -> bytes:
    return struct.pack(">h", -1) if value is None else struct.pack(">h", len(value.encode())) + value.encode()


def _batch(records: Sequence[Record], attributes: int) -> bytes:
    base = records[0].time_ms
    content = b"".join(_record(each, number, base) for number, each in enumerate(records))
    if attributes & 7 == GZIP:
        content = gzip.compress(content)
    newest = max(each.time_ms for each in records)
    tail = struct.pack(">hiqqqhii", attributes, len(records) - 1, base, newest, -1, -1, -1, len(records)) + content
    checked = struct.pack(">ibI", 0, 2, crc32c.crc32c(tail)) + tail
    return struct.pack(">qi", 0, len(checked)) + checked


def _record(record: Record, number: int, base: int) -> bytes:
    body = b"\0" + _varint(record.time_ms - base) + _varint(number) + _bytes(record.key) + _bytes(record.value)
    body += _varint(len(record.headers))
    for name, value in record.headers:
        body += _bytes(name) + _bytes(value)
    return _varint(len(body)) + body


def _bytes(value: bytes | None) -> bytes:
    return _varint(-1) if value is None else _varint(len(value)) + value


def _varint(number: int) -> bytes:
    left = (number << 1) ^ (number >> 63)
    found = bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    found.append(left)
    return bytes(found)
