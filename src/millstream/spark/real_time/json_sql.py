"""JSON in pure Spark SQL: reads and writes values as the codec of `records` does, where no Python can run.

A value that is not exactly of a column's type is refused here too, so types that Spark would convert (text from a
number, a timestamp from a year) are first read as variants, and checked. The two differ in two ways: a number for a
decimal must not have an exponent, and doubles are written in Java's format (1.0E10).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from millstream.errors import InvalidInput
from millstream.expressions.spark_types import backquoted
from millstream.records import Schema
from millstream.records.texts import SPECIAL_FLOATS

_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:[.][0-9]{1,9})?"
_ZONE = "(?:Z|[+-](?:[01][0-9]|2[0-3])(?::?[0-5][0-9])?)"
_BASE64 = "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
_DECIMAL = "-?[0-9]+(?:[.][0-9]+)?"
_OPTIONS = "map('allowSingleQuotes', 'false', 'allowNonNumericNumbers', 'false', 'columnNameOfCorruptRecord', '__bad')"
FLOAT_MAX, DOUBLE_MAX = "3.4028234663852886E38", "1.7976931348623157E308"
VALUES, BAD, END = "v", "__bad", "end"


def text_of(text: str) -> str:
    """A string literal in Spark SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def type_of(dtype: pa.DataType) -> str:
    """A type as Spark SQL writes it."""
    return str(Schema.from_arrow(pa.schema([("x", dtype)]))).partition(" ")[2]


def check_type(dtype: pa.DataType, column: str, where: str | None) -> None:
    """Refuses types that Spark's JSON cannot represent as ours does."""
    if pa.types.is_duration(dtype) or (pa.types.is_map(dtype) and dtype.key_type != pa.string()):
        kind = "an interval" if pa.types.is_duration(dtype) else "a map whose keys are not strings"
        raise InvalidInput(
            f"the column '{column}' is {kind}, which real-time mode cannot read or write",
            where=where,
            next_step="leave the column out, or run without mode='real time'",
        )
    for number in range(dtype.num_fields):
        check_type(dtype.field(number).type, column, where)


# ---------------------------------------------------------------- reading


def parsed(text: str, fields: Sequence[pa.Field]) -> str:
    """The JSON object in a text, not checked yet: `field_of` gives its columns, `is_read` whether it is valid.

    The text is wrapped in brackets, since Spark would ignore what follows an object.
    """
    inner = ", ".join(f"{backquoted(field.name)}: {_wire_type(field.type)}" for field in fields)
    shape = f"{VALUES} array<struct<{inner}>>, {END} boolean, {BAD} string"
    whole = f"""concat('{{"{VALUES}":[', {text}, '],"{END}":true}}')"""
    return f"from_json({whole}, {text_of(shape)}, {_OPTIONS})"


def is_read(column: str, fields: Sequence[pa.Field]) -> str:
    """Whether this column, a result of `parsed`, is an object whose fields all have their types."""
    one = f"get({column}.{VALUES}, 0)"
    shape = f"{column}.{BAD} is null and {column}.{END} and size({column}.{VALUES}) = 1 and {one} is not null"
    sound = [_is_sound(f"{one}.{backquoted(field.name)}", field.type, 0) for field in fields]
    return f"coalesce(case when {shape} then {' and '.join(['true', *filter(None, sound)])} end, false)"


def field_of(column: str, field: pa.Field) -> str:
    """A field of a result of `parsed`; null if it is missing."""
    return _read(f"get({column}.{VALUES}, 0).{backquoted(field.name)}", field.type, 0)


def _wire_type(dtype: pa.DataType) -> str:
    kind = pa.types
    if kind.is_struct(dtype):
        return f"struct<{', '.join(f'{backquoted(each.name)}: {_wire_type(each.type)}' for each in dtype)}>"
    if kind.is_list(dtype):
        return f"array<{_wire_type(dtype.value_type)}>"
    if kind.is_map(dtype):
        return f"map<string, {_wire_type(dtype.item_type)}>"
    return type_of(dtype) if _is_strict(dtype) else "variant"


def _is_strict(dtype: pa.DataType) -> bool:
    """Whether Spark itself refuses values of other types."""
    return dtype in (pa.bool_(), pa.int32(), pa.int64())


def _read(sql: str, dtype: pa.DataType, depth: int) -> str:
    if _is_strict(dtype):
        return sql
    if pa.types.is_integer(dtype):
        return f"try_variant_get({sql}, '$', '{type_of(dtype)}')"
    if pa.types.is_floating(dtype):
        return _float(sql, dtype)
    return _rebuilt(sql, dtype, depth, _read) or _LEAVES[_leaf(dtype)](f"try_variant_get({sql}, '$', 'string')", dtype)


def _is_sound(sql: str, dtype: pa.DataType, depth: int) -> str | None:
    """Whether a value can be read; None if Spark has already checked it."""
    kind = pa.types
    if _is_strict(dtype):
        return None
    if kind.is_struct(dtype):
        parts = [_is_sound(f"{sql}.{backquoted(each.name)}", each.type, depth) for each in dtype]
        found = " and ".join(filter(None, parts))
        return f"({sql} is null or ({found}))" if found else None
    inner = f"x{depth}"
    if kind.is_list(dtype) or kind.is_map(dtype):
        values, of = (sql, dtype.value_type) if kind.is_list(dtype) else (f"map_values({sql})", dtype.item_type)
        part = _is_sound(inner, of, depth + 1)
        return f"({sql} is null or forall({values}, {inner} -> {part}))" if part else None
    shape = f"schema_of_variant({sql})"
    right = f"{shape} = 'STRING'"
    if kind.is_integer(dtype):
        right = f"{shape} = 'BIGINT'"
    elif kind.is_floating(dtype) or kind.is_decimal(dtype):
        right = f"({right} or {shape} in ('BIGINT', 'DOUBLE') or {shape} like 'DECIMAL%')"
    read = f"{_read(sql, dtype, depth)} is not null"
    return f"({sql} is null or is_variant_null({sql}) or ({right} and {read}))"


def _matching(pattern: str, then: str) -> Callable[[str, pa.DataType], str]:
    def read(text: str, dtype: pa.DataType) -> str:
        return f"case when {text} rlike r'^{pattern}\\z' then {then.format(text=text, type=type_of(dtype))} end"

    return read


def _decimal(text: str, dtype: pa.DataType) -> str:
    """Excess digits are refused, not rounded."""
    fits = f"length(rtrim('0', split_part({text}, '.', 2))) <= {dtype.scale}"
    return f"case when {text} rlike r'^{_DECIMAL}\\z' and {fits} then try_cast({text} as {type_of(dtype)}) end"


def _float(sql: str, dtype: pa.DataType) -> str:
    """A number in the range of its type, or the name of a special value such as NaN."""
    limit = FLOAT_MAX if pa.types.is_float32(dtype) else DOUBLE_MAX
    number, text = f"try_variant_get({sql}, '$', 'double')", f"try_variant_get({sql}, '$', 'string')"
    named = f"case when {text} in ({', '.join(map(text_of, SPECIAL_FLOATS))}) then try_cast({text} as double) end"
    inside = f"case when abs({number}) <= {limit} then {number} end"
    return f"cast(case when schema_of_variant({sql}) = 'STRING' then {named} else {inside} end as {type_of(dtype)})"


def _leaf(dtype: pa.DataType) -> str:
    kind = pa.types
    if kind.is_timestamp(dtype):
        return "timestamp" if dtype.tz else "timestamp_ntz"
    return "decimal" if kind.is_decimal(dtype) else type_of(dtype)


_CAST = "try_cast({text} as {type})"
_LEAVES: dict[str, Callable[[str, pa.DataType], str]] = {
    "string": lambda text, _: text,
    "timestamp": _matching(f"{_DAY}[T ]{_CLOCK}{_ZONE}?", _CAST),
    "timestamp_ntz": _matching(f"{_DAY}[T ]{_CLOCK}", _CAST),
    "date": _matching(_DAY, _CAST),
    "binary": _matching(_BASE64, "unbase64({text})"),
    "decimal": _decimal,
}


# ---------------------------------------------------------------- writing


def written(columns: Sequence[tuple[str, str, pa.DataType]]) -> str:
    """A JSON object of columns, each with its name, the SQL of its value, and its type."""
    parts = ", ".join(f"{text_of(name)}, {_written(sql, dtype, 0)}" for name, sql, dtype in columns)
    return f"to_json(named_struct({parts}), map('ignoreNullFields', 'false'))"


def _written(sql: str, dtype: pa.DataType, depth: int) -> str:
    kind = pa.types
    if kind.is_float32(dtype):
        return f"cast({sql} as double)"
    if kind.is_timestamp(dtype):
        pattern = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS" + ("'Z'" if dtype.tz else "")
        return f"date_format({sql}, {text_of(pattern)})"
    if kind.is_date(dtype):
        return f"cast({sql} as string)"
    if kind.is_binary(dtype):
        return f"base64({sql})"
    return _rebuilt(sql, dtype, depth, _written) or sql


def _rebuilt(sql: str, dtype: pa.DataType, depth: int, each: Callable[[str, pa.DataType, int], str]) -> str | None:
    """A nested value with `each` applied to its parts; None for a simple one."""
    kind = pa.types
    inner = f"x{depth}"
    if kind.is_struct(dtype):
        parts = ", ".join(
            f"{text_of(field.name)}, {each(f'{sql}.{backquoted(field.name)}', field.type, depth)}" for field in dtype
        )
        return f"case when {sql} is not null then named_struct({parts}) end"
    if kind.is_list(dtype):
        return f"transform({sql}, {inner} -> {each(inner, dtype.value_type, depth + 1)})"
    if kind.is_map(dtype):
        return f"transform_values({sql}, (k{depth}, {inner}) -> {each(inner, dtype.item_type, depth + 1)})"
    return None
