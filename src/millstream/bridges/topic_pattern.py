"""The topic of a message, with columns of its row in braces: `devices/{device}/command`."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millstream.connectors import arguments
from millstream.errors import InvalidPlan
from millstream.records import Schema
from millstream.user_lines import users_line, what_exists

TOPIC_BYTES_MAX = 65_535


@dataclass(frozen=True)
class TopicPattern:
    text: str
    example: str
    unusable: str
    """Characters that may not be in a value: those that separate the levels of a topic, and wildcards."""
    separators: str = ""
    """Which of these the pattern itself may have."""
    bytes_max: int = TOPIC_BYTES_MAX

    def __post_init__(self) -> None:
        try:
            parts = list(string.Formatter().parse(self.text))
        except ValueError as error:
            raise self._refused(str(error)) from None
        for literal, column, format, conversion in parts:
            if set(literal) & set(self.unusable) - set(self.separators) or format or conversion or column == "":
                raise self._refused("it has wildcards, or braces without a column's name")

    def _refused(self, why: str) -> Exception:
        return arguments.refused(f"'{self.text}' is not a topic to send to: {why}", f"for example {self.example}")

    @property
    def columns(self) -> list[str]:
        return [column for _, column, _, _ in string.Formatter().parse(self.text) if column is not None]

    def check(self, schema: Schema, sink: str) -> None:
        """Raises InvalidPlan, at the user's line, if a column is missing."""
        for column in self.columns:
            check_column(schema, column, sink)

    def of(self, rows: pa.Table, refused: dict[int, str]) -> list[str]:
        """The topic of every row. Adds to `refused` the rows without a usable one."""
        columns = {name: rows.column(name).to_pylist() for name in self.columns}
        made = []
        for row in range(rows.num_rows):
            levels = {name: as_text(values[row]) for name, values in columns.items()}
            unusable = [name for name, text in levels.items() if not text or set(self.unusable) & set(text)]
            if unusable:
                refused.setdefault(row, f"column '{unusable[0]}' cannot be part of a topic")
            made.append(self.text.format(**levels))
            if len(made[-1].encode(errors="replace")) > self.bytes_max:
                refused.setdefault(row, f"its topic is longer than {self.bytes_max:,} bytes")
        return made


def check_column(schema: Schema, column: str, sink: str) -> None:
    if column not in schema.names:
        raise InvalidPlan(
            f"there is no column '{column}' for {sink}",
            where=users_line(),
            next_step=what_exists(column, schema.names, kind="columns"),
        )


def as_text(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
