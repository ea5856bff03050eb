"""A Protobuf value is one message of a known type: of a message that is given, or one derived from the columns.

Fields and columns are matched by name: columns without a field are null, fields without a column are ignored. A field
without presence is never null when read, so a null cannot be written to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import pyarrow as pa

from millstream.records.codecs.base import Codec
from millstream.records.codecs.proto_bounds import check_messages
from millstream.records.codecs.proto_files import MessageType, message_type
from millstream.records.codecs.proto_read import reader_of
from millstream.records.codecs.proto_shape import message_of_schema
from millstream.records.codecs.proto_write import writer_of_message
from millstream.records.columns import Faults, Leaf, Refused, Rules
from millstream.records.rows import PythonRules, batch_to_rows
from millstream.records.schema import Schema
from millstream.records.texts import text_leaf


@dataclass(frozen=True)
class ProtobufCodec(Codec):
    """`message` is a generated class, or the name of a message in `descriptors`.

    `descriptors` is the path of a descriptor set or of a .proto file, or the bytes of a descriptor set.
    """

    message: Any = None
    descriptors: Any = field(default=None, repr=False)
    name: ClassVar[str] = "protobuf"
    type: MessageType = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        is_given = self.message is not None or self.descriptors is not None
        found = message_type(self.message, self.descriptors) if is_given else message_of_schema(self.schema)
        object.__setattr__(self, "type", found)
        if is_given:  # plain values can be compared and pickled
            object.__setattr__(self, "message", found.name)
            object.__setattr__(self, "descriptors", found.files)
        _Columns.of(self.type, self.schema)

    def check_encodes(self) -> None:
        writer_of_message(self.type.descriptor, list(self.schema.arrow))

    def _encoded_each(self, rows: pa.RecordBatch, faults: Faults) -> list[bytes | None]:
        write, new = writer_of_message(self.type.descriptor, list(self.schema.arrow)), self.type.message_class
        encoded: list[bytes | None] = []
        for index, row in enumerate(batch_to_rows(rows)):
            message = new()
            try:
                write(message, row)
                encoded.append(message.SerializeToString(deterministic=True))
            except Refused as refusal:
                faults[index] = str(refusal)
                encoded.append(None)
        return encoded

    def _rules(self) -> Rules:
        return _ProtobufRules()

    def _columns(self, values: list[bytes], faults: Faults) -> Iterable[list[Any]]:
        columns = _Columns.of(self.type, self.schema)
        parse, empty = self.type.message_class.FromString, self.type.message_class()
        messages = []
        for index, value in enumerate(values):
            try:
                check_messages(value, self.type.descriptor)
                message = parse(value)
                if not message.IsInitialized():
                    missing = ", ".join(message.FindInitializationErrors())
                    raise Refused(f"the message '{self.type.name}' lacks required fields: {missing}")
                messages.append(message)
            except Refused as refusal:
                faults[index] = str(refusal)
                messages.append(empty)
            except Exception:  # the bytes are untrusted, and the client raises its own errors
                faults[index] = f"not a Protobuf message '{self.type.name}'"
                messages.append(empty)
        return (
            [None] * len(messages) if read is None else [read(message) for message in messages]
            for read in columns.readers
        )


@dataclass(frozen=True)
class _Columns:
    readers: tuple[Callable[[Any], Any] | None, ...]

    @staticmethod
    @lru_cache(maxsize=64)
    def of(type: MessageType, schema: Schema) -> _Columns:
        fields = type.descriptor.fields_by_name
        return _Columns(
            tuple(
                reader_of(fields[column.name], column.type, column.name) if column.name in fields else None
                for column in schema.arrow
            )
        )


class _ProtobufRules(PythonRules):
    refuses_unknown_fields = False

    def leaf(self, dtype: pa.DataType) -> Leaf:
        plain = super().leaf(dtype)
        if not (pa.types.is_decimal(dtype) or pa.types.is_date(dtype) or pa.types.is_timestamp(dtype)):
            return plain
        text = text_leaf(dtype)
        return Leaf(
            plain.expected,
            plain.types,
            plain.whole,
            lambda value: text.one(value) if isinstance(value, str) else plain.one(value),
        )
