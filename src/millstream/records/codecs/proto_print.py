"""Descriptors as .proto text, the form in which a schema registry stores them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

from millstream.errors import InvalidSetting
from millstream.records.codecs.proto_text import SIMPLE_TYPES

_NAMES = {number: name for name, number in SIMPLE_TYPES.items()}
_TEXTS = (FieldDescriptorProto.TYPE_STRING, FieldDescriptorProto.TYPE_BYTES)
_REPEATED = FieldDescriptorProto.LABEL_REPEATED


def proto_text(file: FileDescriptorProto) -> str:
    """The text of a file; parsed again, it has the same messages."""
    if file.syntax not in ("", "proto2", "proto3"):
        raise InvalidSetting(f"{file.name} is written for an edition of Protobuf, which cannot be written as text")
    lines = [f'syntax = "{file.syntax or "proto2"}";']
    if file.package:
        lines.append(f"package {file.package};")
    lines += [
        f'import {"public " if index in file.public_dependency else ""}"{name}";'
        for index, name in enumerate(file.dependency)
    ]
    for enum in file.enum_type:
        lines += _enum(enum)
    for message in file.message_type:
        lines += _message(message, is_proto3=file.syntax == "proto3")
    return "\n".join(lines) + "\n"


def _enum(enum: EnumDescriptorProto) -> Iterator[str]:
    yield f"enum {enum.name} {{"
    if enum.options.allow_alias:
        yield "  option allow_alias = true;"
    yield from (f"  {value.name} = {value.number};" for value in enum.value)
    yield "}"


def _message(message: DescriptorProto, *, is_proto3: bool) -> Iterator[str]:
    yield f"message {message.name} {{"
    entries = {each.name: each for each in message.nested_type if each.options.map_entry}
    written: set[int] = set()
    for field in message.field:
        if not field.HasField("oneof_index") or field.proto3_optional:
            yield f"  {_field(field, entries, is_proto3=is_proto3)}"
        elif field.oneof_index not in written:
            written.add(field.oneof_index)
            members = [each for each in message.field if each.HasField("oneof_index")]
            yield f"  oneof {message.oneof_decl[field.oneof_index].name} {{"
            for each in members:
                if each.oneof_index == field.oneof_index:
                    yield f"    {_field(each, entries, is_proto3=is_proto3, in_oneof=True)}"
            yield "  }"
    for enum in message.enum_type:
        yield from _indented(_enum(enum))
    for nested in message.nested_type:
        if not nested.options.map_entry:
            yield from _indented(_message(nested, is_proto3=is_proto3))
    yield "}"


def _indented(lines: Iterator[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _field(
    field: FieldDescriptorProto, entries: dict[str, DescriptorProto], *, is_proto3: bool, in_oneof: bool = False
) -> str:
    if field.type == FieldDescriptorProto.TYPE_GROUP:
        raise InvalidSetting(f"field '{field.name}' is a group, which cannot be written as text")
    entry = entries.get(field.type_name.rpartition(".")[2]) if field.label == _REPEATED else None
    if entry is not None:
        key, value = entry.field
        return f"map<{type_of(key)}, {type_of(value)}> {field.name} = {field.number};"
    label = ""
    if field.label == _REPEATED:
        label = "repeated "
    elif field.label == FieldDescriptorProto.LABEL_REQUIRED:
        label = "required "
    elif not in_oneof and (field.proto3_optional or not is_proto3):
        label = "optional "
    options = []
    if field.options.HasField("packed"):
        options.append(f"packed = {str(field.options.packed).lower()}")
    if field.HasField("default_value"):
        value_text = json.dumps(field.default_value) if field.type in _TEXTS else field.default_value
        options.append(f"default = {value_text}")
    return f"{label}{type_of(field)} {field.name} = {field.number}{_bracketed(options)};"


def _bracketed(options: Sequence[str]) -> str:
    return f" [{', '.join(options)}]" if options else ""


def type_of(field: FieldDescriptorProto) -> str:
    return field.type_name or _NAMES[field.type]  # whether a name is a message or an enum may not be known yet
