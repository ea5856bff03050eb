"""Random schemas, rows that fit them, and values that do not, for the property tests of records."""

from __future__ import annotations

import struct
from datetime import UTC, date, timedelta
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from millstream.records import Schema, batch_to_rows

_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_instants = st.datetimes().map(lambda moment: moment.replace(fold=0))

_LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.string(), _texts),
    (pa.binary(), st.binary(max_size=8)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", "UTC"), _instants.map(lambda moment: moment.replace(tzinfo=UTC))),
    (pa.timestamp("us"), _instants),
]
_INTERVAL = (pa.duration("us"), st.timedeltas(timedelta(days=-100_000), timedelta(days=100_000)))


def _decimals(dtype: pa.DataType) -> st.SearchStrategy[Decimal]:
    limit = 10**dtype.precision - 1
    return st.integers(-limit, limit).map(lambda units: Decimal(units).scaleb(-dtype.scale, _WIDE))


_WIDE = Context(prec=60)
_decimal_types = st.integers(1, 38).flatmap(
    lambda precision: st.integers(0, precision).map(lambda scale: pa.decimal128(precision, scale))
)


def _names(plain: bool) -> st.SearchStrategy[str]:
    words = st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True)
    return (
        words if plain else st.one_of(words, st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5))
    )


def _fields(types: st.SearchStrategy[pa.DataType], *, plain: bool) -> st.SearchStrategy[list[pa.Field]]:
    column = st.tuples(_names(plain), types, st.booleans())
    return st.lists(column, min_size=1, max_size=4, unique_by=lambda found: found[0].lower()).map(
        lambda found: [pa.field(name, dtype, nullable=nullable) for name, dtype, nullable in found]
    )


def schemas(*, nested: bool = True, avro: bool = False) -> st.SearchStrategy[Schema]:
    leaves = [dtype for dtype, _ in _LEAVES] + ([] if avro else [_INTERVAL[0]])
    leaf = st.one_of(st.sampled_from(leaves), _decimal_types)
    types = leaf
    if nested:
        keys = st.just(pa.string()) if avro else leaf
        for _ in range(2):
            inner = types
            types = st.one_of(
                leaf,
                inner.map(pa.list_),
                st.tuples(keys, inner).map(lambda pair: pa.map_(*pair)),
                _fields(inner, plain=avro).map(pa.struct),
            )
    return _fields(types, plain=avro).map(lambda fields: Schema.of(pa.schema(fields)))


def protobuf_schemas() -> st.SearchStrategy[Schema]:
    """Schemas for which there is a message: no array in an array, and only simple keys of maps."""
    leaf = st.one_of(st.sampled_from([dtype for dtype, _ in [*_LEAVES, _INTERVAL]]), _decimal_types)
    keys = st.sampled_from([pa.string(), pa.int32(), pa.int64(), pa.bool_()])
    types = leaf
    for _ in range(2):
        one = leaf | _fields(types, plain=True).map(pa.struct)
        types = st.one_of(one, one.map(pa.list_), st.tuples(keys, one).map(lambda pair: pa.map_(*pair)))
    found = _fields(types, plain=True).map(lambda fields: Schema.of(pa.schema(fields)))
    return found.filter(lambda schema: not _has_names_alike(list(schema.arrow)))


def _has_names_alike(fields: list[pa.Field]) -> bool:
    """Whether two names differ only by underscores and case: Protobuf cannot have both, in JSON or as maps."""
    names = [field.name.replace("_", "").lower() for field in fields]
    inner = [field.type.value_type if pa.types.is_list(field.type) else field.type for field in fields]
    inner = [dtype.item_type if pa.types.is_map(dtype) else dtype for dtype in inner]
    return len(set(names)) < len(names) or any(
        _has_names_alike(list(dtype)) for dtype in inner if pa.types.is_struct(dtype)
    )


def values_of(dtype: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_decimal(dtype):
        return _decimals(dtype)
    if pa.types.is_list(dtype):
        return st.lists(st.none() | values_of(dtype.value_type), max_size=3)
    if pa.types.is_map(dtype):
        return st.dictionaries(values_of(dtype.key_type), st.none() | values_of(dtype.item_type), max_size=3)
    if pa.types.is_struct(dtype):
        return rows_of(list(dtype))
    return dict([*_LEAVES, _INTERVAL])[dtype]


def rows_of(fields: list[pa.Field]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            field.name: (st.none() | values_of(field.type)) if field.nullable else values_of(field.type)
            for field in fields
        }
    )


def schema_and_rows(schema: st.SearchStrategy[Schema]) -> st.SearchStrategy[tuple[Schema, list[dict[str, Any]]]]:
    return schema.flatmap(lambda own: st.tuples(st.just(own), st.lists(rows_of(list(own.arrow)), max_size=5)))


# Python values of every kind, most of which fit no given column.
oddities = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from(
        [2**31, 2**63, 10**400, -(2**31) - 1, 1.0, 1e300, Decimal("1.5"), Decimal("NaN"), Decimal("1E+900")]
    ),
    st.floats(),
    st.text(max_size=4),
    st.sampled_from(["\ud800", b"x", bytearray(b"y"), object, 1j]),
    _instants,
    _instants.map(lambda moment: moment.replace(tzinfo=UTC)),
    st.dates(date(1, 1, 1)),
    st.timedeltas(),
    st.lists(st.integers() | st.text(max_size=2), max_size=2),
    st.dictionaries(st.text(max_size=2) | st.integers(), st.integers(), max_size=2),
)


def _rounded(value: Any) -> Any:
    """NaNs with their bits dropped, so that texts of equal rows are equal."""
    if isinstance(value, float):
        return "NaN" if value != value else struct.pack("<d", value)
    if isinstance(value, dict):
        return sorted(((repr(_rounded(key)), _rounded(item)) for key, item in value.items()), key=lambda pair: pair[0])
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value


def row_text(row: Any) -> str:
    return repr(_rounded(row))


def seen(batch: pa.RecordBatch) -> list[str]:
    """Each row as a text by which two rows can be compared, NaN and all."""
    batch.validate(full=True)
    return [row_text(row) for row in batch_to_rows(batch)]
