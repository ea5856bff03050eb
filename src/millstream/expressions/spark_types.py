"""The result types of Spark 4 when two types are combined, and their names in DuckDB."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

INSTANT = pa.timestamp("us", tz="UTC")
INTERVAL = pa.month_day_nano_interval()
"""The type of an interval literal, which exists only inside an expression."""
NUMBER_ORDER = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()]
WHOLE_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}
DIGITS_MAX = 38
DUCKDB_NAMES = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.date32(): "DATE",
    INSTANT: "TIMESTAMP",
}


class NoCommonType(Exception):
    """Two types that Spark would not combine, or only by parsing text."""


def family(kind: pa.DataType) -> str:
    """The word for a type in messages."""
    is_ = pa.types
    if is_.is_integer(kind) or is_.is_floating(kind) or is_.is_decimal(kind):
        return "number"
    if is_.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    for name, holds in (
        ("string", is_.is_string),
        ("boolean", is_.is_boolean),
        ("date", is_.is_date),
        ("binary", is_.is_binary),
        ("array", is_.is_list),
        ("map", is_.is_map),
        ("struct", is_.is_struct),
        ("null", is_.is_null),
    ):
        if holds(kind):
            return name
    return "interval"


def duckdb_name(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if pa.types.is_list(kind):
        return f"{duckdb_name(kind.value_type)}[]"
    if pa.types.is_map(kind):
        return f"MAP({duckdb_name(kind.key_type)}, {duckdb_name(kind.item_type)})"
    if pa.types.is_struct(kind):
        return f"STRUCT({', '.join(f'{quoted(field.name)} {duckdb_name(field.type)}' for field in kind)})"
    return DUCKDB_NAMES[kind]


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def backquoted(name: str) -> str:
    """A column in Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def common_type(kinds: Sequence[pa.DataType]) -> pa.DataType:
    """The least common type by the rules of Spark's ANSI mode; text is not converted."""
    known = [kind for kind in kinds if not pa.types.is_null(kind)]
    if not known:
        return pa.null()
    found = known[0]
    for kind in known[1:]:
        found = _pair(found, kind)
    return found


def _pair(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if one == other:
        return one
    families = {family(one), family(other)}
    if families == {"date", "timestamp"}:
        return INSTANT
    if families != {"number"}:
        raise NoCommonType
    if pa.types.is_decimal(one) or pa.types.is_decimal(other):
        if pa.types.is_floating(one) or pa.types.is_floating(other):
            return pa.float64()
        first, second = as_decimal(one), as_decimal(other)
        scale = max(first.scale, second.scale)
        return decimal(max(first.precision - first.scale, second.precision - second.scale) + scale, scale)
    wider = max(one, other, key=NUMBER_ORDER.index)
    return pa.float64() if wider == pa.float32() else wider


def as_decimal(kind: pa.DataType) -> pa.DataType:
    """The decimal with every value of an integer type."""
    return kind if pa.types.is_decimal(kind) else pa.decimal128(WHOLE_DIGITS[kind], 0)


def decimal(precision: int, scale: int) -> pa.DataType:
    """Spark drops decimal places if a result needs more digits than there are; that is not supported here."""
    if precision > DIGITS_MAX:
        raise NoCommonType
    return pa.decimal128(precision, scale)


def arithmetic_type(sign: str, one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The result type of `+`, `-`, `*` and `%` between numbers."""
    wide = common_type([one, other])
    if not pa.types.is_decimal(wide):
        return wide
    first, second = as_decimal(one), as_decimal(other)
    scale = max(first.scale, second.scale)
    digits = (first.precision - first.scale, second.precision - second.scale)
    if sign == "*":
        return decimal(first.precision + second.precision + 1, first.scale + second.scale)
    if sign == "%":
        return decimal(min(digits) + scale, scale)
    return decimal(max(digits) + scale + 1, scale)


def instead_of(kind: str, column: str = "…") -> str:
    """What to do with a value of a type that a column of a stream cannot have, given the type in Spark's words."""
    if "variant" in kind:
        return (
            f"take what you need out of it: variant_get({column}, '$.path', 'type'); or carry it as text: "
            f"to_json({column}), of which parse_json(…) makes a variant again where it is used"
        )
    return f"convert it, for example with cast({column} as string)"
