"""Rows as a table or a CSV file holds them: structs are taken apart into columns of their own."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from millstream.errors import InvalidPlan
from millstream.records import Schema
from millstream.user_lines import users_line


@dataclass(frozen=True)
class FlatColumn:
    """A column of a table or of a CSV file: a column of the rows, or a part of a struct in them."""

    name: str
    path: tuple[str, ...]
    type: pa.DataType


def flat_columns(schema: Schema) -> tuple[FlatColumn, ...]:
    """Structs are taken apart (`window` becomes `window_start` and `window_end`), also inside one another."""
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
                f"'{'.'.join(other.path)}' and '{'.'.join(path)}' would both be the column '{column.name}' of a table",
                where=users_line(),
                next_step="rename one of them before it is written",
            )

    for member in schema.arrow:
        visit((member.name,), member.type)
    return tuple(found.values())
