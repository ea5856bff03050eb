"""Hive-style partition folders, named by column values: `dt=2024-03-01/hour=7`.

Special characters in column names and values are escaped as `%3A`; null has a name of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa

from millstream.errors import InvalidInput, InvalidPlan
from millstream.records import Schema
from millstream.records.columns import Refused
from millstream.records.ddl import format_type
from millstream.records.ranges import shortened
from millstream.records.texts import text_leaf
from millstream.user_lines import users_line, what_exists

NULL = "__HIVE_DEFAULT_PARTITION__"
NAME_BYTES_MAX = 255  # of a folder, on the usual file systems
_SPECIAL = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]""")


def folder_name(column: str, text: str | None) -> str:
    """The folder of the rows with this value. Empty text is null: a folder name cannot express it otherwise."""
    name = _escaped(column)
    if name.startswith("."):  # or it would be hidden
        name = f"%2E{name[1:]}"
    if not text:
        return f"{name}={NULL}"
    return f"{name}={f'%5F{text[1:]}' if text == NULL else _escaped(text)}"


def is_folder_name(name: str) -> bool:
    """Whether a folder is named by a column and a value. A name that starts with a dot is hidden."""
    return "=" in name[1:] and not name.startswith(".")


def folder_values(path_below: str) -> dict[str, str | None]:
    """The values in the folder names of a file, given its path below the root folder; the innermost wins."""
    found: dict[str, str | None] = {}
    for part in Path(path_below).parent.parts:
        if is_folder_name(part):
            column, _, text = part.partition("=")
            found[_unescaped(column)] = None if text == NULL else _unescaped(text)
    return found


def folder_value(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """The text of a folder name as a column value; raises Refused with the reason if it cannot be parsed."""
    if text is None:
        return pa.scalar(None, kind)
    if not is_plain(kind):
        raise Refused(f"{format_type(kind)} cannot be read from a folder name")
    leaf = text_leaf(kind)
    try:
        return pa.scalar(leaf.one(text), kind)
    except Refused as refusal:
        found = refusal.args[0] or repr(shortened(text))
        raise Refused(f"expected {leaf.expected}, found {found} in the folder name") from None


def is_plain(kind: pa.DataType) -> bool:
    """Whether equal values have equal texts that are valid folder names."""
    types = pa.types
    tests = (types.is_string, types.is_integer, types.is_boolean, types.is_date, types.is_timestamp, types.is_decimal)
    return any(test(kind) for test in tests)


def partition_names(partition_by: object) -> tuple[str, ...]:
    """Column names from the user's argument: one, several or none."""
    names = (partition_by,) if isinstance(partition_by, str) else () if partition_by is None else partition_by
    if not isinstance(names, Sequence) or not all(isinstance(name, str) and name.strip() for name in names):
        raise InvalidInput(
            f"partition_by takes column names, not {partition_by!r}",
            where=users_line(),
            next_step="for example partition_by=['dt', 'hour']",
        )
    if len(set(names)) < len(names):
        raise InvalidInput(
            f"duplicate column in partition_by: {', '.join(names)}",
            where=users_line(),
            next_step="name each once",
        )
    return tuple(names)


def check_partitions(columns: Sequence[str], schema: Schema, endpoint: object) -> None:
    """Raises an error at the user's line for columns that cannot partition rows into folders."""
    for column in columns:
        if column not in schema:
            raise InvalidPlan(
                f"partition_by names '{column}', but the rows for {endpoint} have no such column",
                where=users_line(),
                next_step=what_exists(column, schema.names),
            )
        kind = schema.field(column).type
        if not is_plain(kind):
            raise InvalidPlan(
                f"'{column}' is {format_type(kind)}, which cannot be a folder name",
                where=users_line(),
                next_step="convert it to a string, an integer or a date with with_column(…), and partition by that",
            )
    if len(columns) == len(schema.names):
        raise InvalidPlan(
            "partition_by names all columns, so no column would be left for the files",
            where=users_line(),
            next_step="remove at least one of them",
        )


def _escaped(text: str) -> str:
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _unescaped(text: str) -> str:
    return unquote(text, errors="surrogateescape")
