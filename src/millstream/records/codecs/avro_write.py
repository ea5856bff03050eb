"""What a given Avro schema can hold: checked when the flow is built for types, and value by value for the rest.

fastavro itself writes an int of 40 bits as `int`, and cuts microseconds off a time in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from millstream.errors import InvalidSchema
from millstream.records.columns import Refused
from millstream.records.ddl import format_type
from millstream.records.ranges import decimal_that_fits, int_in_range, shortened

Check = Callable[[Any], Any]
"""The value as fastavro writes it; raises Refused for one that the type cannot hold."""
RowCheck = Callable[[dict[str, Any]], dict[str, Any]]
Names = dict[str, Any]
_SIMPLE: dict[str, Callable[[pa.DataType], bool]] = {
    "boolean": pa.types.is_boolean,
    "int": pa.types.is_integer,
    "long": pa.types.is_integer,
    "float": pa.types.is_float32,
    "double": pa.types.is_floating,
    "string": pa.types.is_string,
    "bytes": pa.types.is_binary,
    "enum": pa.types.is_string,
    "fixed": pa.types.is_binary,
}
_TIMES = {
    **dict.fromkeys(("timestamp-millis", "timestamp-micros"), "UTC"),
    **dict.fromkeys(("local-timestamp-millis", "local-timestamp-micros"), None),
}


def row_check(parsed: dict[str, Any], columns: Sequence[pa.Field]) -> RowCheck:
    """Checks rows of these columns against a parsed schema; raises InvalidSchema if a column has no place in it."""
    names: Names = {}
    _collect(parsed, names)
    return _record(parsed, columns, "", names)


def _collect(type: Any, names: Names) -> None:
    """All named types, by their full name."""
    if isinstance(type, list):
        for each in type:
            _collect(each, names)
    elif isinstance(type, dict):
        if "name" in type and type.get("type") in ("record", "error", "enum", "fixed"):
            names[type["name"]] = type
        for member in type.get("fields", ()):
            _collect(member["type"], names)
        for part in ("items", "values"):
            _collect(type.get(part), names)
        if isinstance(type.get("type"), (dict, list)):
            _collect(type["type"], names)


def _record(type: dict[str, Any], columns: Sequence[pa.Field], prefix: str, names: Names) -> RowCheck:
    fields = {each["name"]: each for each in type["fields"]}
    own = {column.name for column in columns}
    for column in columns:
        if column.name not in fields:
            raise InvalidSchema(
                f"avro_schema has no field for column '{prefix}{column.name}'",
                next_step=f"drop the column, or rename it to one of: {', '.join(fields)}",
            )
    for name, each in fields.items():
        if name not in own and "default" not in each and not _takes_null(each["type"], names):
            raise InvalidSchema(
                f"field '{prefix}{name}' of avro_schema has no default, and there is no such column",
                next_step="add it with with_column(…)",
            )
    checks = [
        (column.name, _check(fields[column.name]["type"], column.type, prefix + column.name, names))
        for column in columns
    ]

    def check(row: dict[str, Any]) -> dict[str, Any]:
        return {name: check_value(row.get(name)) for name, check_value in checks}

    return check


def _takes_null(type: Any, names: Names) -> bool:
    return type == "null" or (isinstance(type, list) and any(_takes_null(each, names) for each in type))


def _check(type: Any, dtype: pa.DataType, path: str, names: Names) -> Check:
    """The check of values of a column; raises InvalidSchema if no branch of the type can have them."""
    branches = type if isinstance(type, list) else [type]
    takes_null = _takes_null(type, names)
    found = [check for each in branches if (check := _branch(each, dtype, path, names)) is not None]
    if not found:
        raise InvalidSchema(
            f"column '{path}' is {format_type(dtype)}, but its field in avro_schema is {_shown(type)}",
            next_step="cast the column to a type that fits",
        )

    def check_value(value: Any) -> Any:
        if value is None:
            if not takes_null:
                raise Refused(f"column '{path}' is null, but its field in avro_schema is required")
            return None
        refusal: Refused | None = None
        for check in found:
            try:
                return check(value)
            except Refused as error:
                refusal = refusal or error
        assert refusal is not None
        raise refusal

    return check_value


def _branch(type: Any, dtype: pa.DataType, path: str, names: Names) -> Check | None:
    """None if the branch cannot have values of the column."""
    kind = pa.types
    if isinstance(type, str):
        type = names.get(type, {"type": type})
    if isinstance(type.get("type"), (dict, list)):
        type = {**type["type"], **{name: value for name, value in type.items() if name != "type"}}
    name, logical = type["type"], type.get("logicalType")
    if logical in _TIMES and name == "long":
        if not kind.is_timestamp(dtype) or dtype.tz != _TIMES[logical]:
            return None
        return (lambda value: _whole_milliseconds(value, path)) if logical.endswith("millis") else _any
    if logical == "date" and name == "int":
        return _any if kind.is_date(dtype) else None
    if logical == "decimal":
        if not kind.is_decimal(dtype):
            return None
        held = pa.decimal128(type["precision"], type.get("scale", 0))
        return lambda value: _explained(path, lambda: decimal_that_fits(value, held))
    if logical is not None and logical != "uuid":
        return None
    if name == "record":
        return _record(type, list(dtype), f"{path}.", names) if kind.is_struct(dtype) else None
    if name == "array":
        if not kind.is_list(dtype):
            return None
        items = _check(type["items"], dtype.value_type, path + "[]", names)
        return lambda value: [items(each) for each in value]
    if name == "map":
        if not kind.is_map(dtype) or not kind.is_string(dtype.key_type):
            return None
        inside = _check(type["values"], dtype.item_type, path + "{}", names)
        return lambda value: {key: inside(each) for key, each in dict(value).items()}
    if name not in _SIMPLE or not _SIMPLE[name](dtype):
        return None
    if name == "int":
        return lambda value: _explained(path, lambda: int_in_range(value, pa.int32()))
    if name == "enum":
        return lambda value: _one_of(value, type["symbols"], path)
    if name == "fixed":
        return lambda value: _of_size(value, type["size"], path)
    return _any


def _any(value: Any) -> Any:
    return value


def _explained(path: str, check: Callable[[], Any]) -> Any:
    try:
        return check()
    except Refused as refusal:
        raise Refused(f"column '{path}' has {refusal}") from None


def _whole_milliseconds(value: datetime, path: str) -> datetime:
    if value.microsecond % 1000:
        shown = value.astimezone(UTC).isoformat() if value.tzinfo else value.isoformat()
        raise Refused(f"column '{path}' has {shown}, and its field in avro_schema has only milliseconds")
    return value


def _one_of(value: str, symbols: Sequence[str], path: str) -> str:
    if value not in symbols:
        raise Refused(
            f"column '{path}' has {shortened(repr(value))}, which its enum does not have: "
            + shortened(", ".join(symbols))
        )
    return value


def _of_size(value: bytes, size: int, path: str) -> bytes:
    if len(value) != size:
        raise Refused(f"column '{path}' has {len(value)} bytes, and its field in avro_schema has {size}")
    return value


def _shown(type: Any) -> str:
    if isinstance(type, list):
        return " or ".join(_shown(each) for each in type)
    if isinstance(type, dict):
        inner = type.get("type")
        return str(type.get("logicalType") or type.get("name") or (inner if isinstance(inner, str) else _shown(inner)))
    return str(type)
