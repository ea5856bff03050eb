"""An entry in the table of functions: its arguments, and its translation to DuckDB."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from millstream.expressions.lowered import (
    Lowered,
    Refusal,
    cast,
)
from millstream.expressions.spark_types import duckdb_name

INT, LONG, DOUBLE, STRING, BOOLEAN, DATE = pa.int32(), pa.int64(), pa.float64(), pa.string(), pa.bool_(), pa.date32()
LONG_SQL = 60
Lower = Callable[[Sequence[Lowered]], Lowered]
WORDS = {
    "string": "a string",
    "whole": "a whole number",
    "number": "a number",
    "double": "a number",
    "moment": "a timestamp",
    "day": "a date",
    "boolean": "a boolean",
    "array": "an array",
    "map": "a map",
    "any": "anything",
}


@dataclass(frozen=True)
class Function:
    """`takes` are the kinds of its arguments; the last `optional` of them may be omitted, the last one may repeat."""

    takes: tuple[str, ...]
    lower: Lower
    optional: int = 0
    repeats: bool = False
    note: str = ""

    @property
    def arguments(self) -> str:
        """For messages and documentation."""
        needed = len(self.takes) - self.optional
        words = [WORDS[kind] if at < needed else f"[{WORDS[kind]}]" for at, kind in enumerate(self.takes)]
        return ", ".join(words) + (", …" if self.repeats else "")


def literal_of(part: Lowered, name: str, what: str) -> str:
    if not part.is_literal or not isinstance(part.literal, str):
        raise Refusal(f"the {what} of {name} must be a string literal", "write it as '…'")
    return part.literal


def made(
    kind: pa.DataType, template: str, *takes: str, optional: int = 0, fails: bool = False, note: str = ""
) -> Function:
    """A function with a DuckDB template, with {0}, {1} … for the arguments, and a fixed result type."""

    def lower(parts: Sequence[Lowered]) -> Lowered:
        body = template.format(*(part.sql for part in parts))
        return Lowered(f"CAST({body} AS {duckdb_name(kind)})", kind, fails)

    return Function(takes, lower, optional, note=note)


def same(template: str, *takes: str, fails: bool = False, note: str = "") -> Function:
    """A function whose result has the type of the first argument."""

    def lower(parts: Sequence[Lowered]) -> Lowered:
        body = template.format(*(part.sql for part in parts))
        return Lowered(f"CAST({body} AS {duckdb_name(parts[0].type)})", parts[0].type, fails)

    return Function(takes, lower, note=note)


def let(parts: Sequence[Lowered], body: Callable[..., str]) -> str:
    """A body that uses its parts several times: a long one gets a name, or the text would double with each nesting."""
    whole = " ".join(part.sql for part in parts)
    number = max((int(found) for found in re.findall(r'"let([0-9]+)"', whole)), default=0)
    names, long = [], []
    for part in parts:
        number += 1
        is_long = len(part.sql) > LONG_SQL
        names.append(f'"let{number}"' if is_long else part.sql)
        if is_long:
            long.append((names[-1], part.sql))
    made = body(*names)
    for name, sql in reversed(long):
        made = f"list_extract(list_transform(list_value({sql}), lambda {name}: {made}), 1)"
    return made


def cast_to(kind: pa.DataType) -> Function:
    return Function(("any",), lambda parts: cast(parts[0], kind))
