"""Data written with an old schema can be read with an evolved one without losing or inventing values."""

from __future__ import annotations

import pyarrow as pa

from millstream.errors import InvalidSchema
from millstream.records.ddl import format_type
from millstream.records.schema import Schema, SchemaLike, plain_type

_INT_BITS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
_EXACT_FLOAT_BITS = {pa.float32(): 16, pa.float64(): 32}  # the widest int type that each represents exactly
_INT_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}


def can_evolve(old: SchemaLike, new: SchemaLike) -> list[str]:
    """Why data of `old` cannot be read as `new`, column by column; empty if it can.

    Allowed: new nullable columns anywhere, wider numbers (int → long, float → double, int → double, more digits), and
    NOT NULL columns that become nullable; the same inside structs, arrays and map values.
    """
    return _members_reasons(list(Schema.of(old).arrow), list(Schema.of(new).arrow), "")


def align(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly these columns: equal ones unchanged (no copy), missing ones null, others widened.

    Columns that `schema` does not have are dropped. Raises InvalidSchema if a column cannot be cast to its type.
    """
    if batch.schema.equals(schema):
        return batch
    columns = [_aligned_member(_member(batch, field.name), field, batch.num_rows, field.name) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


# ---------------------------------------------------------------- allowed changes


def _members_reasons(old: list[pa.Field], new: list[pa.Field], prefix: str) -> list[str]:
    before = {field.name: field for field in old}
    after = {field.name: field for field in new}
    lower_before = {name.lower(): name for name in before}
    lower_after = {name.lower() for name in after}
    reasons = [f"column '{prefix}{name}' was removed" for name in before if name.lower() not in lower_after]
    for name, field in after.items():
        path = prefix + name
        if name not in before:
            renamed = lower_before.get(name.lower())
            if renamed is not None:
                reasons.append(f"column '{prefix}{renamed}' is now spelled '{path}'")
            elif not field.nullable:
                reasons.append(f"column '{path}' is new and NOT NULL, but older records have no value for it")
            continue
        if before[name].nullable and not field.nullable:
            reasons.append(f"column '{path}' became NOT NULL, but older records may have nulls")
        reasons += _type_reasons(before[name].type, field.type, path)
    return reasons


def _type_reasons(old: pa.DataType, new: pa.DataType, path: str) -> list[str]:
    kind = pa.types
    if old == new or _is_wider(old, new):
        return []
    if kind.is_struct(old) and kind.is_struct(new):
        return _members_reasons(list(old), list(new), path + ".")
    if kind.is_list(old) and kind.is_list(new):
        return _type_reasons(old.value_type, new.value_type, path + "[]")
    if kind.is_map(old) and kind.is_map(new) and old.key_type == new.key_type:
        return _type_reasons(old.item_type, new.item_type, path + "{}")
    return [f"column '{path}' changed from {format_type(old)} to {format_type(new)}, which can lose values"]


def _is_wider(old: pa.DataType, new: pa.DataType) -> bool:
    if old in _INT_BITS:
        if new in _INT_BITS:
            return _INT_BITS[new] >= _INT_BITS[old]
        if new in _EXACT_FLOAT_BITS:
            return _EXACT_FLOAT_BITS[new] >= _INT_BITS[old]
        return bool(pa.types.is_decimal(new) and new.precision - new.scale >= _INT_DIGITS[_INT_BITS[old]])
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        return bool(new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale)
    return bool(old == pa.float32() and new == pa.float64())


# ---------------------------------------------------------------- applying a schema


def _member(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    index = batch.schema.get_field_index(name)
    return batch.column(index) if index >= 0 else None


def _aligned_member(array: pa.Array | None, field: pa.Field, rows_count: int, path: str) -> pa.Array:
    if array is not None:
        if array.null_count and not field.nullable:
            raise InvalidSchema(f"column '{path}' is NOT NULL, but the records have nulls in it")
        return _aligned(array, field.type, path)
    if not field.nullable and rows_count:
        raise InvalidSchema(f"column '{path}' is NOT NULL, but the records have no such column")
    return pa.nulls(rows_count, field.type)


def _aligned(array: pa.Array, dtype: pa.DataType, path: str) -> pa.Array:
    if array.type.equals(dtype):
        return array
    reasons = _type_reasons(plain_type(array.type, path), dtype, path)
    if not reasons:
        try:
            return array.cast(dtype)  # Arrow's cast also adds and reorders the fields of nested structs
        except pa.ArrowException as refusal:
            reasons = [f"column '{path}' has values that do not fit {dtype}: {str(refusal).splitlines()[0]}"]
    raise InvalidSchema(reasons[0], next_step="can_evolve(old, new) lists every change that is not allowed")
