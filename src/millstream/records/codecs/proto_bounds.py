"""Counts the messages in a large Protobuf value before it is parsed: an empty one takes two bytes, and 100 in memory.

Values below MEASURED_FROM_BYTES cannot have too many. How deep messages may be nested, Protobuf limits itself.
"""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from millstream.records.bounds import CONTAINERS_MAX, too_many_containers

MEASURED_FROM_BYTES = 2 * CONTAINERS_MAX
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def check_messages(value: bytes, message: Descriptor) -> None:
    """Raises Refused for a value with too many messages; one that is not valid is left to the parser."""
    if len(value) < MEASURED_FROM_BYTES:
        return
    count = 0
    pending: list[tuple[int, int, Descriptor]] = [(0, len(value), message)]
    while pending:
        at, end, inside = pending.pop()
        fields = inside.fields_by_number
        while at < end:
            tag, at = _varint(value, at, end)
            wire = tag & 7
            if wire == _VARINT:
                _, at = _varint(value, at, end)
            elif wire == _BYTES:
                size, at = _varint(value, at, end)
                field: FieldDescriptor | None = fields.get(tag >> 3)
                if field is not None and field.message_type is not None and at + size <= end:
                    count += 1
                    if count > CONTAINERS_MAX:
                        raise too_many_containers()
                    if size:
                        pending.append((at, at + size, field.message_type))
                at += size
            elif wire in (_FIXED64, _FIXED32):
                at += 8 if wire == _FIXED64 else 4
            else:  # a group, whose fields follow, and its end
                count += 1
                if count > CONTAINERS_MAX:
                    raise too_many_containers()


def _varint(value: bytes, at: int, end: int) -> tuple[int, int]:
    found = shift = 0
    while at < end and shift < 70:
        byte = value[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found, at
        shift += 7
    return 0, end + 1  # not valid: ends the walk
