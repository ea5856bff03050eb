"""The order of a table's keys, as the database has it. Texts are compared by the server, since collations decide."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from millstream.capture.mariadb import values
from millstream.capture.mariadb.connections import rows
from millstream.capture.mariadb.tables import MariadbTable, quoted
from millstream.capture.mariadb.values import BINARY, BinlogColumn, Value

_COLLATIONS = """
SELECT column_name, collation_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s
"""
NUMBERS = (*values.WHOLE_BYTES, values.YEAR, values.DOUBLE)
TIMES = (values.DATE, values.NEWDATE, values.DATETIME2, values.TIMESTAMP2)
TEXTS = (values.STRING, values.VARCHAR, values.VAR_STRING)
ORDERED = (*NUMBERS, values.DECIMAL, *TIMES, *TEXTS)
"""The others, such as ENUM, are sorted otherwise than they are written."""
SECOND_CHARS, MICROSECOND_CHARS = 19, 26
COMPARED_TEXTS = 500
Key = list[Any]
"""A value for each column, as JSON has it: bytes are hexadecimal."""


class KeyOrder:
    """Of one table, in one transaction."""

    def __init__(self, db: Any, table: MariadbTable) -> None:
        self._db = db
        by_name = {column.name: column for column in table.columns}
        self._columns = [by_name[name] for name in table.key]
        self._collations: dict[str, str] = dict(rows(db, _COLLATIONS, *table.id))

    @classmethod
    def of(cls, db: Any, table: MariadbTable) -> KeyOrder | None:
        """None if the rows of the table cannot be read in the order of a key."""
        kinds = {column.name: column.kind for column in table.columns}
        is_ordered = bool(table.key) and all(kinds[name] in ORDERED for name in table.key)
        return cls(db, table) if is_ordered else None

    @property
    def kinds(self) -> list[str]:
        """What the order depends on: as long as these stay the same, it does, too."""
        return [
            "number" if column.kind in NUMBERS else f"{column.kind} {self._collations.get(column.name)}"
            for column in self._columns
        ]

    @property
    def names(self) -> str:
        return ", ".join(quoted(column.name) for column in self._columns)

    def key(self, image: Sequence[Value], names: Sequence[str]) -> Key:
        """Of an image whose columns have these names."""
        found = [image[names.index(column.name)] for column in self._columns]
        return [value.hex() if isinstance(value, bytes) else value for value in found]

    def after(self, start: Key) -> tuple[str, list[object]]:
        """A condition for the rows after a key, and its values.

        The first column stands alone, too, since the server does not find the place of several in an index.
        """
        bounds = [_value(column, value) for column, value in zip(self._columns, start, strict=True)]
        names = [quoted(column.name).replace("%", "%%") for column in self._columns]
        terms, given = [], [bounds[0]]
        for place, name in enumerate(names):
            terms.append(" AND ".join([*(f"{each} = %s" for each in names[:place]), f"{name} > %s"]))
            given += bounds[: place + 1]
        return f"{names[0]} >= %s AND ({' OR '.join(f'({term})' for term in terms)})", given

    def reach(self, keys: Sequence[Key], limit: Key) -> list[bool]:
        """Which keys come after a limit."""
        signs = [self._compared(place, [key[place] for key in keys], limit[place]) for place in range(len(limit))]
        return [next((sign > 0 for sign in each if sign), False) for each in zip(*signs, strict=True)]

    def _compared(self, place: int, found: Sequence[Any], limit: Any) -> list[int]:
        """-1, 0 or 1 for each value of a column: before, at or after the limit."""
        column = self._columns[place]
        if column.kind in TEXTS and column.charset != BINARY:
            return self._compared_texts(column, found, limit)
        bound = _comparable(column, limit)
        return [(value > bound) - (value < bound) for value in (_comparable(column, each) for each in found)]

    def _compared_texts(self, column: BinlogColumn, found: Sequence[str], limit: str) -> list[int]:
        text = f"CONVERT(%s USING {column.charset}) COLLATE {self._collations[column.name]}"
        signs: list[int] = []
        for start in range(0, len(found), COMPARED_TEXTS):
            part = found[start : start + COMPARED_TEXTS]
            select = ", ".join([f"STRCMP({text}, {text})"] * len(part))
            given = [each for value in part for each in (value, limit)]
            signs += rows(self._db, f"SELECT {select}", *given)[0]
        return signs


def _value(column: BinlogColumn, value: Any) -> object:
    """For a statement: as a text, a decimal would be compared as a float."""
    if column.kind == values.DECIMAL:
        return Decimal(str(value))
    if column.kind in TEXTS and column.charset == BINARY:
        return bytes.fromhex(value)
    return value


def _comparable(column: BinlogColumn, value: Any) -> Any:
    made = _value(column, value)
    if isinstance(made, str) and column.kind in TIMES and len(made) >= SECOND_CHARS:
        return made.ljust(SECOND_CHARS + 1, ".").ljust(MICROSECOND_CHARS, "0")
    return made
