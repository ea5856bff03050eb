"""A StructType of PySpark as schema text. It is read as data, so this needs neither PySpark nor a JVM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class SparkStruct(Protocol):
    """What a StructType offers: `{"type": "struct", "fields": […]}`."""

    def jsonValue(self) -> dict[str, Any]: ...  # noqa: N802


def fields_text(struct: Mapping[str, Any]) -> str:
    """The columns of a struct as DDL."""
    return ", ".join(_field(each, " ") for each in struct["fields"])


def _field(field: Mapping[str, Any], between: str) -> str:
    name = str(field["name"]).replace("`", "``")
    return f"`{name}`{between}{_type(field['type'])}{'' if field['nullable'] else ' NOT NULL'}"


def _type(kind: Any) -> str:
    if not isinstance(kind, Mapping):
        return str(kind)
    if kind["type"] == "array":
        return f"array<{_type(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_type(kind['keyType'])}, {_type(kind['valueType'])}>"
    if kind["type"] == "struct":
        return f"struct<{', '.join(_field(each, ': ') for each in kind['fields'])}>"
    return str(kind["type"])  # a type of a library, which is refused by name
