"""The type of a VARIANT column, which exists only between expressions that Spark evaluates.

No row of such a column leaves Spark: nothing here reads or writes its values.
"""

from __future__ import annotations

import pyarrow as pa

NAME = "millstream.variant"


class VariantType(pa.ExtensionType):  # type: ignore[misc]
    """Spark's VARIANT."""

    def __init__(self) -> None:
        super().__init__(pa.struct([("value", pa.binary()), ("metadata", pa.binary())]), NAME)

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> VariantType:
        return cls()

    def __hash__(self) -> int:
        return hash(NAME)


VARIANT = VariantType()
pa.register_extension_type(VARIANT)  # a schema that is sent to a worker arrives as it was


def variant_columns(schema: pa.Schema) -> list[str]:
    return [field.name for field in schema if field.type == VARIANT]
