"""What changed between two versions of a .proto file, field by field, for messages about incompatible schemas."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto

from millstream.records.codecs.proto_print import type_of
from millstream.records.codecs.proto_text import parsed_proto


def differences(old: str, new: str) -> list[str]:
    """Fields that are gone or have another type or name, and new required ones; raises BadProto."""
    before, after = (parsed_proto(text, "schema.proto") for text in (old, new))
    named = {each.name: each for each in after.message_type}
    found: list[str] = []
    for message in before.message_type:
        if message.name not in named:
            found.append(f"message {message.name} is gone")
        else:
            found += _of_message(message, named[message.name], message.name)
    return found


def _of_message(old: DescriptorProto, new: DescriptorProto, path: str) -> Iterator[str]:
    held = {each.number: each for each in new.field}
    for field in old.field:
        shown = f"field '{field.name}' ({field.number}) of {path}"
        now = held.pop(field.number, None)
        if now is None:
            yield f"{shown} is gone"
        elif _type(field) != _type(now):
            yield f"{shown} was {_type(field)} and is {_type(now)}"
        elif field.name != now.name:
            yield f"{shown} is now called '{now.name}'"
    for field in held.values():
        if field.label == FieldDescriptorProto.LABEL_REQUIRED:
            yield f"field '{field.name}' ({field.number}) of {path} is new and required"
    nested = {each.name: each for each in new.nested_type}
    for inner in old.nested_type:
        if inner.name in nested:
            yield from _of_message(inner, nested[inner.name], f"{path}.{inner.name}")


def _type(field: FieldDescriptorProto) -> str:
    is_repeated = field.label == FieldDescriptorProto.LABEL_REPEATED
    return f"repeated {type_of(field)}" if is_repeated else type_of(field).lstrip(".")
