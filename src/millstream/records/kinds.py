"""Two types are of the same kind if they are different encodings of the same values."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyarrow import types

# Each row: the given type, and the types it may be stored as; the cast still checks that every value fits.
KINDS: list[tuple[Callable[[pa.DataType], bool], tuple[Callable[[pa.DataType], bool], ...]]] = [
    (types.is_boolean, (types.is_boolean,)),
    (types.is_integer, (types.is_integer, types.is_floating, types.is_decimal)),
    (types.is_floating, (types.is_floating,)),
    (types.is_decimal, (types.is_decimal,)),
    (lambda kind: kind in (pa.string(), pa.large_string(), pa.string_view()), (types.is_string,)),
    (
        lambda kind: kind in (pa.binary(), pa.large_binary(), pa.binary_view()) or types.is_fixed_size_binary(kind),
        (types.is_binary,),
    ),
    (types.is_date, (types.is_date,)),
    (types.is_duration, (types.is_duration,)),
]


def same_kind(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of one type may be stored in a column of the other."""
    if given.equals(wanted) or types.is_null(given):
        return True
    if types.is_dictionary(given):
        return same_kind(given.value_type, wanted)
    if types.is_timestamp(given):
        return bool(types.is_timestamp(wanted)) and (given.tz is None) == (wanted.tz is None)
    if types.is_list(given) or types.is_large_list(given) or types.is_fixed_size_list(given):
        return bool(types.is_list(wanted)) and same_kind(given.value_type, wanted.value_type)
    if types.is_map(given):
        return (
            bool(types.is_map(wanted))
            and same_kind(given.key_type, wanted.key_type)
            and same_kind(given.item_type, wanted.item_type)
        )
    if types.is_struct(given):
        names = {field.name for field in wanted} if types.is_struct(wanted) else set()
        return names == {field.name for field in given} and all(
            same_kind(field.type, wanted.field(field.name).type) for field in given
        )
    return any(is_given(given) and any(fits(wanted) for fits in stored) for is_given, stored in KINDS)
