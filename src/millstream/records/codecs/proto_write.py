"""From rows to Protobuf messages: a value that its field cannot hold refuses the row, and is never changed to fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from millstream.errors import InvalidSchema
from millstream.records.codecs.proto_read import fits, unfit
from millstream.records.codecs.proto_shape import DURATION, TIMESTAMP, WRAPPERS, entry_of, is_map, type_text
from millstream.records.columns import Refused
from millstream.records.ranges import shortened
from millstream.records.texts import to_texts

Put = Callable[[Any, Any], None]
"""Puts a row, or one value of it, into a message."""
Fitted = Callable[[Any], Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_F = FieldDescriptor
_RANGES = {
    _F.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    _F.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    _F.CPPTYPE_UINT32: (0, 2**32 - 1),
    _F.CPPTYPE_UINT64: (0, 2**64 - 1),
}
DURATION_SECONDS_MAX = 315_576_000_000


@lru_cache(maxsize=64)
def _compiled(message: Descriptor, columns: tuple[pa.Field, ...]) -> Put:
    return _members(message, columns, "")


def writer_of_message(message: Descriptor, columns: Sequence[pa.Field]) -> Put:
    """Puts rows of these columns into messages; raises InvalidSchema if a column has no field, or an unfit one."""
    return _compiled(message, tuple(columns))


def _members(message: Descriptor, columns: Sequence[pa.Field], prefix: str) -> Put:
    fields = message.fields_by_name
    for column in columns:
        if column.name not in fields:
            raise InvalidSchema(
                f"message '{message.full_name}' has no field for column '{prefix}{column.name}'",
                next_step=f"drop the column, or rename it to one of: {', '.join(fields)}",
            )
    names = {column.name for column in columns}
    for field in message.fields:
        if field.is_required and field.name not in names:
            raise InvalidSchema(
                f"field '{prefix}{field.name}' of message '{message.full_name}' is required, and there is no such "
                "column",
                next_step="add it with with_column(…)",
            )
    puts = [(column.name, _field(fields[column.name], column.type, prefix + column.name)) for column in columns]
    one_of = [
        (oneof.name, own)
        for oneof in message.oneofs
        if len(own := [each.name for each in oneof.fields if each.name in names]) > 1
    ]

    def put(into: Any, row: Any) -> None:
        for name, members in one_of:
            held = [member for member in members if row.get(member) is not None]
            if len(held) > 1:
                both = f"columns '{held[0]}' and '{held[1]}' both have a value"
                raise Refused(f"{both}, and oneof '{name}' holds only one")
        for name, put_field in puts:
            put_field(into, row.get(name))

    return put


def _field(field: FieldDescriptor, dtype: pa.DataType, path: str) -> Put:
    name = field.name
    if is_map(field):
        if not pa.types.is_map(dtype):
            raise unfit(field, dtype, path)
        return _map(field, dtype, path)
    if field.is_repeated:
        if not pa.types.is_list(dtype):
            raise unfit(field, dtype, path)
        return _repeated(field, dtype.value_type, path)
    if field.message_type is not None:
        put = _message(field, dtype, path)

        def put_message(into: Any, value: Any) -> None:
            if value is not None:
                held = getattr(into, name)
                held.SetInParent()
                put(held, value)
            elif field.is_required:
                raise Refused(f"column '{path}' is null, but field '{name}' is required")

        return put_message
    fitted = _value(field, dtype, path)

    def put_value(into: Any, value: Any) -> None:
        if value is not None:
            setattr(into, name, fitted(value))
        elif field.is_required:
            raise Refused(f"column '{path}' is null, but field '{name}' is required")
        elif not field.has_presence:
            raise Refused(f"column '{path}' is null, but field '{name}' is not optional, so that it has no null")

    return put_value


def _repeated(field: FieldDescriptor, dtype: pa.DataType, path: str) -> Put:
    name = field.name
    inside = path + "[]"
    put = _message(field, dtype, inside) if field.message_type is not None else None
    fitted = None if put is not None else _value(field, dtype, inside)

    def put_all(into: Any, values: Any) -> None:
        if values is None:
            raise Refused(f"column '{path}' is null, and a repeated field has no null; use an empty array")
        held = getattr(into, name)
        for value in values:
            if value is None:
                raise Refused(f"column '{inside}' has a null, and a repeated field has no nulls")
            if put is not None:
                put(held.add(), value)
            elif fitted is not None:
                held.append(fitted(value))

    return put_all


def _map(field: FieldDescriptor, dtype: pa.DataType, path: str) -> Put:
    name = field.name
    key_field, value_field = entry_of(field)
    key_fitted = _value(key_field, dtype.key_type, path)
    inside = path + "{}"
    put = _message(value_field, dtype.item_type, inside) if value_field.message_type is not None else None
    fitted = None if put is not None else _value(value_field, dtype.item_type, inside)

    def put_entries(into: Any, entries: Any) -> None:
        if entries is None:
            raise Refused(f"column '{path}' is null, and a map field has no null; use an empty map")
        held = getattr(into, name)
        for key, value in dict(entries).items():
            if value is None:
                raise Refused(f"column '{inside}' has a null, and the values of a map field are never null")
            if put is not None:
                put(held[key_fitted(key)], value)
            elif fitted is not None:
                held[key_fitted(key)] = fitted(value)

    return put_entries


def _message(field: FieldDescriptor, dtype: pa.DataType, path: str) -> Put:
    """Puts a value that is not null into a message of the field."""
    if not fits(field, dtype):
        raise unfit(field, dtype, path)
    message = field.message_type
    if message.full_name == TIMESTAMP:
        return _put_instant
    if message.full_name == DURATION:
        return lambda into, value: _put_interval(into, value, path)
    if message.full_name in WRAPPERS:
        fitted = _value(message.fields_by_name["value"], dtype, path)

        def put_wrapped(into: Any, value: Any) -> None:
            into.value = fitted(value)

        return put_wrapped
    return _members(message, list(dtype), f"{path}.")


def _put_instant(into: Any, value: datetime) -> None:
    us = (value - _EPOCH) // _US
    into.seconds, into.nanos = us // 1_000_000, us % 1_000_000 * 1000


def _put_interval(into: Any, value: timedelta, path: str) -> None:
    us = value // _US
    sign, units = (-1 if us < 0 else 1), abs(us)
    seconds, rest = divmod(units, 1_000_000)
    if seconds > DURATION_SECONDS_MAX:
        raise Refused(f"column '{path}' has {value}, more than a Duration of Protobuf can hold (10,000 years)")
    into.seconds, into.nanos = sign * seconds, sign * rest * 1000


def _value(field: FieldDescriptor, dtype: pa.DataType, path: str) -> Fitted:
    """What a simple field takes for a value of the column."""
    kind = pa.types
    if not fits(field, dtype) or (field.cpp_type == _F.CPPTYPE_FLOAT and kind.is_float64(dtype)):
        raise unfit(field, dtype, path)
    if field.enum_type is not None:
        return _enum(field, path)
    if field.cpp_type in _RANGES:
        least, most = _RANGES[field.cpp_type]

        def integer(value: Any) -> int:
            found = int(value)
            if isinstance(value, Decimal) and value != found:
                raise Refused(f"column '{path}' has {value}, which is not a whole number")
            if not least <= found <= most:
                raise Refused(
                    f"column '{path}' has {found}, which is out of the range of a field of type {type_text(field)}: "
                    f"{least} to {most}"
                )
            return found

        return integer
    if field.type == _F.TYPE_STRING and not kind.is_string(dtype):
        return lambda value: to_texts(pa.array([value], dtype))[0]
    return lambda value: value


def _enum(field: FieldDescriptor, path: str) -> Fitted:
    numbers = {value.name: value.number for value in field.enum_type.values}
    known, is_closed = set(numbers.values()), field.enum_type.is_closed

    def number(value: Any) -> int:
        found = value if isinstance(value, int) else numbers.get(value)
        if found is None and value.lstrip("-").isdecimal() and len(value) < 12:
            found = int(value)
        if found is None or not -(2**31) <= found < 2**31 or (is_closed and found not in known):
            raise Refused(
                f"column '{path}' has {shortened(repr(value))}, which enum {field.enum_type.full_name} does not have: "
                + shortened(", ".join(numbers))
            )
        return found

    return number
