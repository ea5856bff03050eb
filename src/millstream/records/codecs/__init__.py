"""Codecs by name: `codec("json", schema)` decodes bytes into rows and encodes rows as bytes."""

from __future__ import annotations

import dataclasses
from typing import Any

from millstream.errors import InvalidSchema, InvalidSetting
from millstream.records.codecs.avro import AvroCodec
from millstream.records.codecs.base import Codec, Decoded, Encoded
from millstream.records.codecs.csv import CsvCodec
from millstream.records.codecs.json import JsonCodec
from millstream.records.codecs.raw import BytesCodec, StringCodec
from millstream.records.schema import Schema, SchemaLike

_CODECS: dict[str, type[Codec]] = {
    kind.name: kind for kind in (JsonCodec, AvroCodec, CsvCodec, StringCodec, BytesCodec)
}
PROTOBUF = "protobuf"

__all__ = [
    "AvroCodec",
    "BytesCodec",
    "Codec",
    "CsvCodec",
    "Decoded",
    "Encoded",
    "JsonCodec",
    "StringCodec",
    "codec",
    "codec_names",
]


def codec(name: str, schema: SchemaLike | None = None, **options: Any) -> Codec:
    """The codec of that name for these columns; `string` and `bytes` need no schema.

    Options: `delimiter` for csv, `avro_schema` (the writer's schema, JSON text or dict) for avro. For protobuf,
    `message` (a generated class, or the name of a message) and `descriptors` (a descriptor set or a .proto file); then
    it needs no schema.
    """
    kind = _kind(name)
    if kind is None:
        raise InvalidSetting(f"there is no codec '{name}'", next_step=f"those that exist: {', '.join(codec_names())}")
    known = [each.name for each in dataclasses.fields(kind) if each.init and each.name != "schema"]
    for option in options:
        if option not in known:
            raise InvalidSetting(
                f"the codec '{name}' has no option '{option}'",
                next_step=f"its options: {', '.join(known)}" if known else "it has none",
            )
    if schema is None and name == PROTOBUF and options:
        schema = _columns_of_message(options)
    if schema is not None:
        return kind(Schema.of(schema), **options)
    if kind not in (StringCodec, BytesCodec):
        raise InvalidSchema(f"the codec '{name}' needs a schema", next_step='give one: "user string, score int"')
    return kind(**options)


def codec_names() -> list[str]:
    return [*_CODECS, PROTOBUF]


def _kind(name: str) -> type[Codec] | None:
    if name != PROTOBUF:
        return _CODECS.get(name)
    from millstream.records.codecs.protobuf import ProtobufCodec  # Google's library, which few flows need

    return ProtobufCodec


def _columns_of_message(options: dict[str, Any]) -> Schema:
    from millstream.records.codecs.proto_files import message_type
    from millstream.records.codecs.proto_shape import schema_of_message

    return schema_of_message(message_type(options.get("message"), options.get("descriptors")).descriptor)
