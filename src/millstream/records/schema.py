"""A Schema is a frozen list of named, typed columns that Spark DDL can express; equivalent schemas are equal."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from millstream.errors import InvalidSchema
from millstream.records.ddl import format_fields, format_type, parse_fields, refuse_clashing_names
from millstream.records.spark_struct import SparkStruct, fields_text

SchemaLike: TypeAlias = "Schema | str | pa.Schema | SparkStruct"


@dataclass(frozen=True, slots=True)
class Schema:
    """Built by `Schema.of("user string, score int")`; `.arrow` is the same as a pyarrow schema.

    `timestamp` is an instant (microseconds, UTC), `timestamp_ntz` a wall-clock time without a zone, `varchar(n)` and
    `char(n)` are strings. Comments are parsed and dropped.
    """

    arrow: pa.Schema

    @classmethod
    def of(cls, schema: SchemaLike) -> Schema:
        """A schema from its DDL text, from a schema of pyarrow, from a StructType of PySpark, or itself."""
        if isinstance(schema, Schema):
            return schema
        if isinstance(schema, pa.Schema):
            return cls.from_arrow(schema)
        if isinstance(schema, str):
            return cls(pa.schema(parse_fields(schema)))
        if isinstance(schema, SparkStruct) and "fields" in (struct := schema.jsonValue()):
            return cls(pa.schema(parse_fields(fields_text(struct))))
        raise InvalidSchema(
            f"a schema must be text, a Schema, a pyarrow.Schema or a StructType, not {type(schema).__name__}",
            next_step='write for example "user string, score int, at timestamp"',
        )

    @classmethod
    def parse(cls, schema: SchemaLike) -> Schema:
        return cls.of(schema)

    @classmethod
    def from_arrow(cls, schema: pa.Schema) -> Schema:
        """The schema of Arrow data; encodings of the same values (large_string, dictionary, …) become the plain type.

        The data itself may still have the other encoding: `align` casts it to `.arrow`.
        """
        fields = [_plain_field(field, field.name) for field in schema]
        if not fields:
            raise InvalidSchema("the schema has no columns", next_step="name at least one column")
        refuse_clashing_names(fields, inside=None)
        return cls(pa.schema(fields))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.arrow.names)

    @property
    def ddl(self) -> str:
        """The canonical text; `Schema.of(s.ddl) == s`."""
        return format_fields(list(self.arrow))

    def field(self, name: str) -> pa.Field:
        """The column of that exact name."""
        index = self.arrow.get_field_index(name)
        if index >= 0:
            return self.arrow.field(index)
        close = next((own for own in self.names if own.lower() == name.lower()), None) or next(
            iter(difflib.get_close_matches(name, self.names, n=1)), None
        )
        hint = f"did you mean '{close}'? " if close else ""
        raise InvalidSchema(
            f"there is no column '{name}'", next_step=f"{hint}the columns that exist: {', '.join(self.names)}"
        )

    def __len__(self) -> int:
        return len(self.arrow)

    def __contains__(self, name: object) -> bool:
        return name in self.arrow.names

    def __str__(self) -> str:
        return self.ddl

    def __repr__(self) -> str:
        return f"Schema({self.ddl!r})"


def _plain_field(field: pa.Field, path: str) -> pa.Field:
    return pa.field(field.name, plain_type(field.type, path), nullable=field.nullable)


def plain_type(dtype: pa.DataType, path: str) -> pa.DataType:
    """The canonical type for the values of `dtype`; raises InvalidSchema, naming the column, if there is none."""
    kind = pa.types
    if kind.is_dictionary(dtype):
        return plain_type(dtype.value_type, path)
    if kind.is_struct(dtype):
        if not dtype.num_fields:
            raise InvalidSchema(f"column '{path}': a struct needs at least one field")
        fields = [_plain_field(field, f"{path}.{field.name}") for field in dtype]
        refuse_clashing_names(fields, inside=path)
        return pa.struct(fields)
    if kind.is_map(dtype):
        return pa.map_(plain_type(dtype.key_type, f"{path}.key"), plain_type(dtype.item_type, f"{path}.value"))
    if kind.is_list(dtype) or kind.is_large_list(dtype) or kind.is_fixed_size_list(dtype):
        return pa.list_(plain_type(dtype.value_type, f"{path}[]"))
    plain = _plain_leaf(dtype)
    try:
        format_type(plain)
    except InvalidSchema as refusal:
        raise InvalidSchema(f"column '{path}': {refusal.what}", next_step=refusal.next_step) from None
    return plain


def _plain_leaf(dtype: pa.DataType) -> pa.DataType:
    kind = pa.types
    if kind.is_large_string(dtype) or kind.is_string_view(dtype):
        return pa.string()
    if kind.is_large_binary(dtype) or kind.is_binary_view(dtype) or kind.is_fixed_size_binary(dtype):
        return pa.binary()
    if kind.is_date64(dtype):
        return pa.date32()
    if kind.is_timestamp(dtype):  # a zone affects how an instant is displayed, not which instant it is
        return pa.timestamp("us", "UTC" if dtype.tz else None)
    if kind.is_duration(dtype):
        return pa.duration("us")
    if kind.is_decimal32(dtype) or kind.is_decimal64(dtype):
        return pa.decimal128(dtype.precision, dtype.scale)
    return dtype
