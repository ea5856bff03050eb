"""Types of MariaDB, as its catalog and its binary log name them. What has no equal is text, or refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from millstream.capture.mariadb import values
from millstream.capture.mariadb.values import BINARY, BinlogColumn, UnknownColumn, Value
from millstream.capture.stream_steps import column_of

DIGITS_MAX = 38
WHOLE = {
    values.TINY: (pa.int8(), pa.int16()),
    values.SHORT: (pa.int16(), pa.int32()),
    values.INT24: (pa.int32(), pa.int32()),
    values.LONG: (pa.int32(), pa.int64()),
    values.LONGLONG: (pa.int64(), pa.decimal128(20, 0)),
}
"""Of signed and of unsigned columns."""
PLAIN = {
    values.FLOAT: pa.float32(),
    values.DOUBLE: pa.float64(),
    values.DATE: pa.date32(),
    values.NEWDATE: pa.date32(),
    values.DATETIME2: pa.timestamp("us"),
    values.TIMESTAMP2: pa.timestamp("us", "UTC"),
    values.TIME2: pa.string(),
    values.YEAR: pa.int16(),
    values.ENUM: pa.string(),
    values.SET: pa.string(),
    values.BIT: pa.binary(),
    values.GEOMETRY: pa.binary(),
}
KINDS = {
    "tinyint": values.TINY,
    "smallint": values.SHORT,
    "mediumint": values.INT24,
    "int": values.LONG,
    "bigint": values.LONGLONG,
    "float": values.FLOAT,
    "double": values.DOUBLE,
    "decimal": values.DECIMAL,
    "date": values.DATE,
    "datetime": values.DATETIME2,
    "timestamp": values.TIMESTAMP2,
    "time": values.TIME2,
    "year": values.YEAR,
    "enum": values.ENUM,
    "set": values.SET,
    "bit": values.BIT,
    **dict.fromkeys(("char", "binary"), values.STRING),
    **dict.fromkeys(("varchar", "varbinary"), values.VARCHAR),
    **dict.fromkeys(("tinytext", "text", "mediumtext", "longtext"), values.BLOB),
    **dict.fromkeys(("tinyblob", "blob", "mediumblob", "longblob"), values.BLOB),
    **dict.fromkeys(("point", "linestring", "polygon", "geometry", "geometrycollection"), values.GEOMETRY),
    **dict.fromkeys(("multipoint", "multilinestring", "multipolygon"), values.GEOMETRY),
}
"""The types of the catalog, by the names that it gives them."""


def catalog_column(
    name: str, kind: str, declared: str, precision: int | None, scale: int | None, charset: str | None
) -> BinlogColumn:
    """A column of the catalog, as a table map would describe its type."""
    if kind not in KINDS or "COMPRESSED" in declared:
        raise UnknownColumn(f"column '{name}' has the type {declared}, which cannot be captured")
    if charset is not None and charset not in values.ENCODINGS:
        raise UnknownColumn(f"column '{name}' has the character set {charset}, which cannot be captured")
    is_unsigned = "unsigned" in declared
    size = scale or 0 if kind == "decimal" else 1
    return BinlogColumn(name, KINDS[kind], size, is_unsigned, charset or BINARY, precision=precision or 0)


def type_of(column: BinlogColumn) -> pa.DataType:
    if column.kind in WHOLE:
        return WHOLE[column.kind][column.is_unsigned]
    if column.kind == values.DECIMAL:
        fits = column.precision <= DIGITS_MAX
        return pa.decimal128(column.precision, column.size) if fits else pa.string()
    if column.kind in PLAIN:
        return PLAIN[column.kind]
    return pa.binary() if column.charset == BINARY else pa.string()


def to_arrow(table: str, where: str, given: Sequence[Value], field: pa.Field) -> pa.Array:
    """The values of a column."""
    return column_of(table, where, given, field, _column)


def _column(given: Sequence[Value], kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(kind):
        return pa.array(list(map(_text, given)), kind)
    if pa.types.is_decimal(kind):
        return pa.array(list(map(_text, given)), pa.string()).cast(kind)
    if pa.types.is_timestamp(kind):
        times = pc.cast(pa.array(given, pa.string()), pa.timestamp("us"))
        return times if kind.tz is None else pc.assume_timezone(times, "UTC")
    if pa.types.is_date(kind):
        return pc.cast(pa.array(given, pa.string()), kind)
    return pa.array(given, kind)


def _text(value: Value) -> str | None:
    return value.decode() if isinstance(value, bytes) else None if value is None else str(value)


def converter(table: str, where: str) -> partial[pa.Array]:
    return partial(to_arrow, table, where)
