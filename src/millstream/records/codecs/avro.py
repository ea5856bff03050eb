"""An Avro value is one record in Avro's binary encoding without a header, written with one known schema.

Without `avro_schema` the writer's schema is derived from the columns. With it, records are read with the writer's
schema and then fitted to the columns by name: missing fields are null, others are ignored, numbers widen.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar
from uuid import UUID

import pyarrow as pa

from millstream.errors import InvalidSchema, InvalidSetting
from millstream.records.bounds import valid_text
from millstream.records.codecs.avro_shape import SCHEMA_BYTES_MAX, UnusableSchema, Writer, writer_of
from millstream.records.codecs.avro_write import RowCheck, row_check
from millstream.records.codecs.base import Codec
from millstream.records.columns import Faults, Leaf, Refused, Rules
from millstream.records.ddl import format_type
from millstream.records.rows import PythonRules, batch_to_rows
from millstream.records.schema import Schema

_SIMPLE: dict[pa.DataType, Any] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.timestamp("us", "UTC"): {"type": "long", "logicalType": "timestamp-micros"},
    pa.timestamp("us"): {"type": "long", "logicalType": "local-timestamp-micros"},
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class AvroCodec(Codec):
    avro_schema: str | Mapping[str, Any] | None = None
    name: ClassVar[str] = "avro"
    _writer: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        derived = avro_schema_of(self.schema)
        given = self.avro_schema
        text = _as_text(derived if given is None else given)
        _writer_of_record(text)
        object.__setattr__(self, "avro_schema", None if given is None else text)  # text can be compared and hashed
        object.__setattr__(self, "_writer", text)

    def check_encodes(self) -> None:
        self._checks()

    def _checks(self) -> RowCheck | None:
        """What rows must satisfy; None if the schema is derived from the columns."""
        if self.avro_schema is None:
            return None
        return row_check(_writer_of_record(self._writer).parsed, list(self.schema.arrow))

    def _encoded_each(self, rows: pa.RecordBatch, faults: Faults) -> list[bytes | None]:
        import fastavro

        writer, check = _writer_of_record(self._writer).parsed, self._checks()
        encoded: list[bytes | None] = []
        for index, row in enumerate(batch_to_rows(rows)):
            target = io.BytesIO()
            try:
                fastavro.schemaless_writer(target, writer, row if check is None else check(row))
                encoded.append(target.getvalue())
            except Refused as refusal:
                faults[index] = str(refusal)
                encoded.append(None)
            except Exception as refusal:  # only a user's schema can reject our rows, in many ways
                faults[index] = f"a row does not fit avro_schema: {valid_text(str(refusal)[:200])}"
                encoded.append(None)
        return encoded

    def _rules(self) -> Rules:
        return AvroRules()

    def _columns(self, values: list[bytes], faults: Faults) -> Iterable[list[Any]]:
        import fastavro

        writer = _writer_of_record(self._writer)
        read, parsed, shape = fastavro.schemaless_reader, writer.parsed, writer.shape
        names = self.schema.names
        is_wide = len(parsed["fields"]) > len(names) + 16  # then fields without a column are skipped
        records: list[dict[str, Any]] = []
        for index, value in enumerate(values):
            source = io.BytesIO(value)
            try:
                if shape.measured_from_bytes is not None and shape.measures(len(value)):
                    shape.check(value)
                record: Any = read(source, parsed, None)
                extra = len(value) - source.tell()
                if extra:
                    faults[index] = f"{extra} bytes follow the Avro record"
            except Exception as refusal:  # the bytes are untrusted, and parsers raise anything
                faults[index] = why_unreadable(refusal)
                record = {}
            records.append({name: record.get(name) for name in names} if is_wide else record)
        return ([record.get(name) for record in records] for name in names)


class AvroRules(PythonRules):
    refuses_unknown_fields = False

    def leaf(self, dtype: pa.DataType) -> Leaf:
        plain = super().leaf(dtype)
        if not pa.types.is_string(dtype):
            return plain
        return replace(plain, one=lambda value: str(value) if isinstance(value, UUID) else plain.one(value))


def avro_schema_of(schema: Schema, *, name: str = "Record") -> dict[str, Any]:
    """The Avro schema for rows of `schema`; nested records are named by their path, so that names are unique."""
    return _record(list(schema.arrow), name, "")


def _record(fields: list[pa.Field], name: str, prefix: str) -> dict[str, Any]:
    members = []
    for member in fields:
        path = prefix + member.name
        if not _NAME.fullmatch(member.name):
            raise InvalidSchema(
                f"column '{path}' has a name that Avro does not allow", next_step="use letters, digits and _ only"
            )
        dtype = _avro_type(member.type, f"{name}_{member.name}", path)
        own: dict[str, Any] = {"name": member.name, "type": dtype}
        if member.nullable:  # with a default, a column can be added later
            own |= {"type": ["null", dtype], "default": None}
        members.append(own)
    return {"type": "record", "name": name, "fields": members}


def _avro_type(dtype: pa.DataType, name: str, path: str) -> Any:
    kind = pa.types
    if dtype in _SIMPLE:
        return _SIMPLE[dtype]
    if kind.is_decimal(dtype):
        return {"type": "bytes", "logicalType": "decimal", "precision": dtype.precision, "scale": dtype.scale}
    if kind.is_struct(dtype):
        return _record(list(dtype), name, f"{path}.")
    if kind.is_list(dtype):
        return {"type": "array", "items": ["null", _avro_type(dtype.value_type, f"{name}_item", path + "[]")]}
    if kind.is_map(dtype) and kind.is_string(dtype.key_type):
        return {"type": "map", "values": ["null", _avro_type(dtype.item_type, f"{name}_value", path + "{}")]}
    raise InvalidSchema(
        f"column '{path}' is {format_type(dtype)}, which Avro cannot represent",
        next_step="use the codec 'json', or string keys and a bigint of microseconds",
    )


def _writer_of_record(text: str) -> Writer:
    try:
        writer = writer_of(text)
    except UnusableSchema as refusal:
        raise InvalidSetting(f"avro_schema cannot be used: {refusal}") from None
    if not isinstance(writer.parsed, dict) or writer.parsed.get("type") != "record":
        raise InvalidSetting("avro_schema is not the schema of a record", next_step='give {"type": "record", …}')
    return writer


def _as_text(given: Any) -> str:
    if isinstance(given, str) and len(given) > SCHEMA_BYTES_MAX:
        return given  # rejected for its size before it is parsed
    try:
        # What fastavro adds to a parsed schema is not part of it.
        found = _without_notes(given) if isinstance(given, Mapping) else json.loads(given)
        return json.dumps(found)
    except RecursionError:
        raise InvalidSetting("avro_schema is nested too deeply") from None
    except (TypeError, ValueError) as refusal:
        raise InvalidSetting(
            f"avro_schema is not JSON: {refusal}", next_step="give the text of an .avsc file, or a dict"
        ) from None


def _without_notes(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if not name.startswith("__")}


def why_unreadable(refusal: Exception) -> str:
    if isinstance(refusal, Refused):
        return str(refusal)
    if isinstance(refusal, EOFError):
        return "the bytes end in the middle of the Avro record"
    if isinstance(refusal, UnicodeDecodeError):
        return "a string in the Avro record is not valid UTF-8"
    return "not an Avro record of the writer's schema"
