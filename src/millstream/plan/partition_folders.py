"""Folders that are named by what the rows in them have in common, `dt=2024-03-01/hour=7`, as Hive began and others do.

In both, the name of the column and the value, special characters are written as `%3A`; null has a name of its own.
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
    """The folder of the rows that have this value. Empty text is null: a folder has no other name for it."""
    name = _escaped(column)
    if name.startswith("."):  # else it would be hidden
        name = f"%2E{name[1:]}"
    if not text:
        return f"{name}={NULL}"
    return f"{name}={f'%5F{text[1:]}' if text == NULL else _escaped(text)}"


def is_folder_name(name: str) -> bool:
    """Whether a folder is named by a column and a value. A name that begins with a dot is hidden, as everywhere."""
    return "=" in name[1:] and not name.startswith(".")


def folder_values(path_below: str) -> dict[str, str | None]:
    """What the folders of a file say, given its path below the folder they begin in; the innermost goes first."""
    found: dict[str, str | None] = {}
    for part in Path(path_below).parent.parts:
        if is_folder_name(part):
            column, _, text = part.partition("=")
            found[_unescaped(column)] = None if text == NULL else _unescaped(text)
    return found


def folder_value(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """What a folder says, as a value of a column; raises Refused with the reason if it is none."""
    if text is None:
        return pa.scalar(None, kind)
    if not is_plain(kind):
        raise Refused(f"{format_type(kind)} cannot be read from the name of a folder")
    leaf = text_leaf(kind)
    try:
        return pa.scalar(leaf.one(text), kind)
    except Refused as refusal:
        found = refusal.args[0] or repr(shortened(text))
        raise Refused(f"expected {leaf.expected}, found {found} in the name of its folder") from None


def is_plain(kind: pa.DataType) -> bool:
    """Whether equal values have equal texts that can be the name of a folder."""
    types = pa.types
    tests = (types.is_string, types.is_integer, types.is_boolean, types.is_date, types.is_timestamp, types.is_decimal)
    return any(test(kind) for test in tests)


def partition_names(partition_by: object) -> tuple[str, ...]:
    """Columns as a user names them: one, several or none."""
    names = (partition_by,) if isinstance(partition_by, str) else () if partition_by is None else partition_by
    if not isinstance(names, Sequence) or not all(isinstance(name, str) and name.strip() for name in names):
        raise InvalidInput(
            f"partition_by takes the names of columns, not {partition_by!r}",
            where=users_line(),
            next_step="for example partition_by=['dt', 'hour']",
        )
    if len(set(names)) < len(names):
        raise InvalidInput(
            f"a column stands twice in partition_by: {', '.join(names)}",
            where=users_line(),
            next_step="name each once",
        )
    return tuple(names)


def check_partitions(columns: Sequence[str], schema: Schema, place: object) -> None:
    """Refuses columns by which rows cannot be put into folders, where the user wrote it."""
    for column in columns:
        if column not in schema:
            raise InvalidPlan(
                f"partition_by names '{column}', and the rows for {place} have no such column",
                where=users_line(),
                next_step=what_exists(column, schema.names),
            )
        kind = schema.field(column).type
        if not is_plain(kind):
            raise InvalidPlan(
                f"'{column}' is {format_type(kind)}, which cannot be the name of a folder",
                where=users_line(),
                next_step="make text, a whole number or a date of it with with_column(…), and partition by that",
            )
    if len(columns) == len(schema.names):
        raise InvalidPlan(
            "partition_by names all columns, and no column would be left for the files",
            where=users_line(),
            next_step="leave out one of them at least",
        )


def _escaped(text: str) -> str:
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _unescaped(text: str) -> str:
    return unquote(text, errors="surrogateescape")
