"""Statements of the binary log that change a table as a whole, which have no row events."""

from __future__ import annotations

import re
from collections.abc import Iterator

_COMMENT = re.compile(r"/\*(?![!M]).*?\*/|--[ \t][^\n]*|#[^\n]*", re.DOTALL)
_NAME = r"(?:`(?:[^`]|``)+`|[\w$]+)"
_CONDITIONAL = re.compile(r"/\*M?!\d*|\*/")
"""What is around text that MariaDB runs and others take for a comment."""
_TABLE = rf"(?:{_NAME}\s*\.\s*)?{_NAME}"
_FLAGS = re.IGNORECASE | re.DOTALL
_SETTINGS = re.compile(r"\s*SET\s+STATEMENT\s.*?\sFOR\s", _FLAGS)
_TRUNCATE = re.compile(rf"\s*TRUNCATE\s+(?:TABLE\s+)?({_TABLE})", _FLAGS)
_DROP = re.compile(r"\s*DROP\s+TABLES?\s+(?:IF\s+EXISTS\s+)?(.*)", _FLAGS)
_DATABASE = re.compile(
    rf"\s*(?:DROP|CREATE\s+OR\s+REPLACE)\s+(?:DATABASE|SCHEMA)\s+(?:IF\s+EXISTS\s+)?({_NAME})", _FLAGS
)
_RENAME = re.compile(r"\s*RENAME\s+TABLES?\s+(?:IF\s+EXISTS\s+)?(.*)", _FLAGS)
_CREATE = re.compile(rf"\s*CREATE\s+OR\s+REPLACE\s+TABLE\s+({_TABLE})", _FLAGS)
_ALTER = re.compile(rf"\s*ALTER\s+(?:ONLINE\s+)?(?:IGNORE\s+)?TABLE\s+(?:IF\s+EXISTS\s+)?({_TABLE})(.*)", _FLAGS)
_DROPS_ROWS = re.compile(r"\bRENAME\s+(?!COLUMN\b|INDEX\b|KEY\b)|\b(?:TRUNCATE|DROP|EXCHANGE)\s+PARTITION\b", _FLAGS)
_WRITE = re.compile(r"\s*(?:INSERT|UPDATE|DELETE|REPLACE|LOAD|WITH)\b", _FLAGS)
Table = tuple[str, str]
"""A database, and a table of it."""


def truncated(sql: str, schema: str) -> Table | None:
    """The table that a statement empties."""
    found = _TRUNCATE.match(_plain(sql))
    return None if found is None else _parsed(found[1], schema)


def replaced(sql: str, schema: str) -> list[Table]:
    """The tables that are not the same after a statement: dropped, renamed, or without some of their rows."""
    text = _plain(sql)
    if found := _DROP.match(text):
        return list(_listed(found[1], schema))
    if found := _RENAME.match(text):
        return list(_listed(found[1], schema))
    if found := _CREATE.match(text):
        return [_parsed(found[1], schema)]
    found = _ALTER.match(text)
    return [_parsed(found[1], schema)] if found and _DROPS_ROWS.search(found[2]) else []


def altered(sql: str, schema: str) -> Table | None:
    """The table that a statement alters."""
    found = _ALTER.match(_plain(sql))
    return None if found is None else _parsed(found[1], schema)


def dropped_database(sql: str) -> str | None:
    """The database that a statement drops, with all of its tables."""
    found = _DATABASE.match(_plain(sql))
    return None if found is None else _unquoted(found[1])


def writes_to(sql: str, table: str) -> bool:
    """Whether a statement that changes rows may change those of a table: it was logged as text."""
    return bool(_WRITE.match(_plain(sql))) and re.search(rf"(?<![\w$]){re.escape(table)}(?![\w$])", sql) is not None


def _plain(sql: str) -> str:
    """Without comments, and without settings for this statement only."""
    text = _CONDITIONAL.sub(" ", _COMMENT.sub(" ", sql))
    settings = _SETTINGS.match(text)
    return text if settings is None else text[settings.end() :]


def _listed(text: str, schema: str) -> Iterator[Table]:
    for found in re.finditer(_TABLE, text):
        yield _parsed(found[0], schema)


def _parsed(text: str, schema: str) -> Table:
    names = [_unquoted(name) for name in re.findall(_NAME, text)]
    return (schema, names[0]) if len(names) == 1 else (names[0], names[1])


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name
