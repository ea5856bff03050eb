"""How the fields of a Protobuf message and the columns of a schema correspond, in both directions.

| field | column |
|---|---|
| bool, string, bytes, float, double | boolean, string, binary, float, double |
| int32, sint32, sfixed32 | int |
| int64, sint64, sfixed64, uint32, fixed32 | bigint |
| uint64, fixed64 | decimal(20,0) |
| an enum | string, or a number |
| Timestamp, Duration, wrappers | timestamp, interval day to second, the wrapped type |
| another message, a repeated field, a map | struct, array, map |

Types that Protobuf does not have (decimal, date, timestamp_ntz) are text in a string field, as in JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from millstream.errors import InvalidSchema
from millstream.records.codecs.proto_files import WELL_KNOWN, MessageType, built, well_known
from millstream.records.codecs.proto_text import camel, mark_optional
from millstream.records.ddl import format_type
from millstream.records.schema import Schema

INSTANT, INTERVAL = pa.timestamp("us", "UTC"), pa.duration("us")
TIMESTAMP, DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"
WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_F = FieldDescriptor
_COLUMNS: dict[int, pa.DataType] = {
    _F.TYPE_BOOL: pa.bool_(),
    _F.TYPE_STRING: pa.string(),
    _F.TYPE_BYTES: pa.binary(),
    _F.TYPE_FLOAT: pa.float32(),
    _F.TYPE_DOUBLE: pa.float64(),
    **dict.fromkeys((_F.TYPE_INT32, _F.TYPE_SINT32, _F.TYPE_SFIXED32), pa.int32()),
    **dict.fromkeys((_F.TYPE_INT64, _F.TYPE_SINT64, _F.TYPE_SFIXED64, _F.TYPE_UINT32, _F.TYPE_FIXED32), pa.int64()),
    **dict.fromkeys((_F.TYPE_UINT64, _F.TYPE_FIXED64), pa.decimal128(20, 0)),
    _F.TYPE_ENUM: pa.string(),
}
_FIELDS: dict[pa.DataType, int] = {
    pa.bool_(): FieldDescriptorProto.TYPE_BOOL,
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32()), FieldDescriptorProto.TYPE_INT32),
    pa.int64(): FieldDescriptorProto.TYPE_INT64,
    pa.float32(): FieldDescriptorProto.TYPE_FLOAT,
    pa.float64(): FieldDescriptorProto.TYPE_DOUBLE,
    pa.string(): FieldDescriptorProto.TYPE_STRING,
    pa.binary(): FieldDescriptorProto.TYPE_BYTES,
}
_KEYS = (pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.string())
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
DERIVED_FILE = "record.proto"


# ---------------------------------------------------------------- from a message to columns


def schema_of_message(message: Descriptor) -> Schema:
    """A column for each field. Raises InvalidSchema for fields that cannot be columns."""
    fields = list(_columns_of(message, (), ""))
    if not fields:
        raise InvalidSchema(f"message '{message.full_name}' has no fields", next_step="give a schema")
    return Schema.from_arrow(pa.schema(fields))


def _columns_of(message: Descriptor, inside: tuple[str, ...], prefix: str) -> Iterator[pa.Field]:
    if message.full_name in inside:
        raise InvalidSchema(
            f"field '{prefix.rstrip('.')}' contains its own message '{message.full_name}', which no column can hold",
            next_step="give a schema with the columns that you need, without this one",
        )
    for field in message.fields:
        yield pa.field(field.name, _column_of(field, (*inside, message.full_name), prefix + field.name))


def _column_of(field: FieldDescriptor, inside: tuple[str, ...], path: str) -> pa.DataType:
    if is_map(field):
        key, value = entry_of(field)
        return pa.map_(_one(key, inside, path), _one(value, inside, path + "{}"))
    one = _one(field, inside, path)
    return pa.list_(one) if field.is_repeated else one


def _one(field: FieldDescriptor, inside: tuple[str, ...], path: str) -> pa.DataType:
    message = field.message_type
    if message is None:
        return _COLUMNS[field.type]
    if message.full_name == TIMESTAMP:
        return INSTANT
    if message.full_name == DURATION:
        return INTERVAL
    if message.full_name in WRAPPERS:
        return _COLUMNS[message.fields_by_name["value"].type]
    members = list(_columns_of(message, inside, f"{path}."))
    if not members:
        raise InvalidSchema(
            f"field '{path}' is the empty message '{message.full_name}', which no column can hold",
            next_step="give a schema with the columns that you need, without this one",
        )
    return pa.struct(members)


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def entry_of(field: FieldDescriptor) -> tuple[FieldDescriptor, FieldDescriptor]:
    """The key and the value of a map."""
    by_name = field.message_type.fields_by_name
    return by_name["key"], by_name["value"]


def type_text(field: FieldDescriptor) -> str:
    """The type of a field as a .proto file has it."""
    if is_map(field):
        key, value = entry_of(field)
        return f"map<{type_text(key)}, {type_text(value)}>"
    if field.message_type is not None:
        one = field.message_type.full_name
    elif field.enum_type is not None:
        one = f"enum {field.enum_type.full_name}"
    else:
        one = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    return f"repeated {one}" if field.is_repeated else one


# ---------------------------------------------------------------- from columns to a message


def message_of_schema(schema: Schema, *, name: str = "Record") -> MessageType:
    """The message for rows of `schema`: proto3, numbered in the order of the columns."""
    package, _, own = name.rpartition(".")
    file = FileDescriptorProto(name=DERIVED_FILE, syntax="proto3", package=package)
    imports: set[str] = set()
    _add_members(file.message_type.add(name=own), list(schema.arrow), "", imports)
    file.dependency.extend(sorted(imports))
    files = [each for path in file.dependency for each in well_known(path)]
    return MessageType(built([*files, file]), name)


def _add_members(message: DescriptorProto, columns: Sequence[pa.Field], prefix: str, imports: set[str]) -> None:
    optionals = []
    names = {column.name for column in columns}
    for number, column in enumerate(columns, 1):
        path = prefix + column.name
        if not _NAME.fullmatch(column.name):
            raise InvalidSchema(
                f"column '{path}' has a name that Protobuf does not allow", next_step="use letters, digits and _ only"
            )
        # Field numbers from 19000 to 19999 belong to Protobuf itself.
        field = message.field.add(name=column.name, number=number if number < 19_000 else number + 1000)
        field.label = FieldDescriptorProto.LABEL_OPTIONAL
        kind = column.type
        if pa.types.is_list(kind):
            field.label = FieldDescriptorProto.LABEL_REPEATED
            _set_type(message, field, kind.value_type, path, imports, names)
        elif pa.types.is_map(kind):
            if kind.key_type not in _KEYS:
                raise _unfit(path, kind, "a key must be a string, an integer or a boolean")
            field.label = FieldDescriptorProto.LABEL_REPEATED
            if any(each.name == camel(column.name) + "Entry" for each in message.nested_type):
                raise _unfit(path, kind, "another map has the same name but for underscores")
            entry = message.nested_type.add(name=camel(column.name) + "Entry")
            entry.options.map_entry = True
            for at, (part, inner) in enumerate((("key", kind.key_type), ("value", kind.item_type)), 1):
                member = entry.field.add(name=part, number=at, label=FieldDescriptorProto.LABEL_OPTIONAL)
                _set_type(message, member, inner, path, imports, names, own=f"{camel(column.name)}Value")
            field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, entry.name
        else:
            _set_type(message, field, kind, path, imports, names)
            if column.nullable and field.type != FieldDescriptorProto.TYPE_MESSAGE:
                field.proto3_optional = True
                optionals.append(field)
    mark_optional(message, optionals)


def _set_type(
    message: DescriptorProto,
    field: FieldDescriptorProto,
    kind: pa.DataType,
    path: str,
    imports: set[str],
    names: set[str],
    own: str | None = None,
) -> None:
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        raise _unfit(path, kind, "a repeated field cannot contain another one")
    if kind in (INSTANT, INTERVAL):
        stem = "timestamp" if kind == INSTANT else "duration"
        imports.add(f"{WELL_KNOWN}{stem}.proto")
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".google.protobuf.{camel(stem)}"
    elif pa.types.is_struct(kind):
        nested = message.nested_type.add(name=_free_name(message, names, own or camel(field.name)))
        _add_members(nested, list(kind), f"{path}.", imports)
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, nested.name
    else:
        field.type = _FIELDS.get(kind, FieldDescriptorProto.TYPE_STRING)


def _free_name(message: DescriptorProto, names: set[str], wanted: str) -> str:
    taken = {each.name for each in message.nested_type} | names
    while wanted in taken or wanted == message.name:
        wanted += "_"
    return wanted


def _unfit(path: str, kind: Any, why: str) -> InvalidSchema:
    return InvalidSchema(
        f"column '{path}' is {format_type(kind)}, which Protobuf cannot represent: {why}",
        next_step="put it into a struct, or use the codec 'json' or 'avro'",
    )
