"""Rows as a database table or a CSV file holds them: structs are flattened into columns."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from millstream.errors import InvalidPlan
from millstream.records import Schema
from millstream.user_lines import users_line


@dataclass(frozen=True)
class FlatColumn:
    """A column of a table or CSV file: a column of the rows, or a field of a struct."""

    name: str
    path: tuple[str, ...]
    type: pa.DataType


def flat_columns(schema: Schema) -> tuple[FlatColumn, ...]:
    """Flattens structs, also nested ones: `window` becomes `window_start` and `window_end`."""
    found: dict[str, FlatColumn] = {}

    def visit(path: tuple[str, ...], kind: pa.DataType) -> None:
        if pa.types.is_struct(kind):
            for part in kind:
                visit((*path, part.name), part.type)
            return
        column = FlatColumn("_".join(path), path, kind)
        other = found.setdefault(column.name.lower(), column)
        if other is not column:
            raise InvalidPlan(
                f"'{'.'.join(other.path)}' and '{'.'.join(path)}' would both become the column '{column.name}'",
                where=users_line(),
                next_step="rename one of them before writing",
            )

    for member in schema.arrow:
        visit((member.name,), member.type)
    return tuple(found.values())
