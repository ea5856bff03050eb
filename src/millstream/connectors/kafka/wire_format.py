"""The header of a value in Confluent's wire format: a zero, the schema's id, and in Protobuf the place of the message.

The place is a list of numbers: the message in its file, then the nested one in that, and so on. The list is a count
and the numbers, as zigzag varints; the first message of a file is a single zero.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.records.columns import Refused

MAGIC = 0
HEADER_BYTES = 5
INDEXES_MAX = 50


def header(number: int, indexes: Sequence[int] | None = None) -> bytes:
    """`indexes` are the place of a Protobuf message, None for other formats."""
    begin = bytes([MAGIC]) + number.to_bytes(4, "big")
    if indexes is None:
        return begin
    if list(indexes) == [0]:
        return begin + b"\0"
    return begin + b"".join(_zigzag(each) for each in (len(indexes), *indexes))


def message_indexes(value: bytes) -> tuple[tuple[int, ...], int]:
    """The place of a message, and where the message itself begins; raises Refused."""
    count, at = _read(value, HEADER_BYTES)
    if not count:
        return (0,), at
    if not 0 < count <= INDEXES_MAX:
        raise Refused("the place of the message in its schema cannot be read")
    found = []
    for _ in range(count):
        index, at = _read(value, at)
        found.append(index)
    if min(found) < 0:
        raise Refused("the place of the message in its schema cannot be read")
    return tuple(found), at


def _zigzag(number: int) -> bytes:
    rest = number << 1  # never negative
    found = bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*found, rest])


def _read(value: bytes, at: int) -> tuple[int, int]:
    found = 0
    for shift in range(0, 35, 7):
        if at >= len(value):
            break
        byte = value[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), at
    raise Refused("the place of the message in its schema cannot be read")
