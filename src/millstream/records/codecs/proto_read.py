"""From the fields of Protobuf messages to Python values, as the columns' rules accept them.

Which column can hold which field is checked once, when the readers are made; ranges are checked value by value later.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor

from millstream.errors import InvalidSchema
from millstream.records.codecs.proto_shape import DURATION, TIMESTAMP, WRAPPERS, entry_of, is_map, type_text
from millstream.records.ddl import format_type

Read = Callable[[Any], Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_F = FieldDescriptor
_INTEGERS = (*(_F.CPPTYPE_INT32, _F.CPPTYPE_INT64, _F.CPPTYPE_UINT32, _F.CPPTYPE_UINT64),)


def reader_of(field: FieldDescriptor, dtype: pa.DataType, path: str) -> Read:
    """Reads a field of a message as a value for a column of this type; a field that is not set is None."""
    name = field.name
    held: Read = attrgetter(name)
    if is_map(field):
        if not pa.types.is_map(dtype):
            raise unfit(field, dtype, path)
        key, value = entry_of(field)
        read_key, read_value = _one(key, dtype.key_type, path), _one(value, dtype.item_type, path + "{}")
        return lambda message: {read_key(each): read_value(item) for each, item in held(message).items()}
    if field.is_repeated:
        if not pa.types.is_list(dtype):
            raise unfit(field, dtype, path)
        read = _one(field, dtype.value_type, path + "[]")
        return lambda message: [read(each) for each in held(message)]
    read = _one(field, dtype, path)
    if field.has_presence:
        return lambda message: read(held(message)) if message.HasField(name) else None
    return held if read is _same else lambda message: read(held(message))


def _one(field: FieldDescriptor, dtype: pa.DataType, path: str) -> Read:
    """Reads one value of a field."""
    if not fits(field, dtype):
        raise unfit(field, dtype, path)
    message = field.message_type
    if message is None:
        if field.enum_type is not None and pa.types.is_string(dtype):
            names = {value.number: value.name for value in reversed(field.enum_type.values)}
            return lambda number: names.get(number) or str(number)
        return _same
    if message.full_name == TIMESTAMP:
        return _instant
    if message.full_name == DURATION:
        return _interval
    if message.full_name in WRAPPERS:
        return attrgetter("value")
    own = message.fields_by_name
    members = [
        (member.name, reader_of(own[member.name], member.type, f"{path}.{member.name}"))
        for member in dtype
        if member.name in own
    ]
    return lambda held: {name: read(held) for name, read in members}


def fits(field: FieldDescriptor, dtype: pa.DataType) -> bool:
    """Whether one value of a field may be a value of a column of this type."""
    kind = pa.types
    message = field.message_type
    if message is not None:
        if message.full_name == TIMESTAMP:
            return bool(kind.is_timestamp(dtype) and dtype.tz)
        if message.full_name == DURATION:
            return bool(kind.is_duration(dtype))
        if message.full_name in WRAPPERS:
            return fits(message.fields_by_name["value"], dtype)
        return bool(kind.is_struct(dtype))
    if field.enum_type is not None:
        return bool(kind.is_string(dtype) or kind.is_integer(dtype))
    if field.cpp_type in _INTEGERS:
        return bool(kind.is_integer(dtype) or kind.is_decimal(dtype))
    if field.cpp_type in (_F.CPPTYPE_FLOAT, _F.CPPTYPE_DOUBLE):
        return bool(kind.is_floating(dtype))
    if field.cpp_type == _F.CPPTYPE_BOOL:
        return bool(kind.is_boolean(dtype))
    if field.type == _F.TYPE_BYTES:
        return bool(kind.is_binary(dtype))
    return bool(kind.is_string(dtype) or kind.is_decimal(dtype) or kind.is_date(dtype) or kind.is_timestamp(dtype))


def unfit(field: FieldDescriptor, dtype: pa.DataType, path: str) -> InvalidSchema:
    return InvalidSchema(
        f"column '{path}' is {format_type(dtype)}, but field '{field.name}' of message "
        f"'{field.containing_type.full_name}' is {type_text(field)}",
        next_step="give the column a type that fits, or leave the schema out to get the columns of the message",
    )


def _same(value: Any) -> Any:
    return value


def _instant(held: Any) -> Any:
    """One out of the range of years is returned as it is, for the column to refuse."""
    try:
        return _EPOCH + timedelta(seconds=held.seconds, microseconds=held.nanos // 1000)
    except OverflowError:
        return held.seconds


def _interval(held: Any) -> Any:
    try:
        return timedelta(seconds=held.seconds, microseconds=int(held.nanos / 1000))
    except OverflowError:
        return held.seconds
