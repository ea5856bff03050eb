"""A CSV value is exactly one record, quoted as in RFC 4180, with fields in column order.

An empty field is null, a quoted empty one ("") an empty string. A line break is allowed inside quotes and, once, at the
very end; anywhere else it would start a second record and is rejected. Fields are not trimmed. Simple types are written
as in JSON strings (`timestamp` as ISO 8601, without a zone taken as UTC; `binary` as base64).
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import pyarrow as pa

from millstream.errors import InvalidSchema, InvalidSetting
from millstream.records.codecs.base import Codec
from millstream.records.columns import Faults, Leaf, Refused, Rules
from millstream.records.ddl import format_type
from millstream.records.ranges import shortened
from millstream.records.texts import text_leaf, to_texts

HEADER_NAMES_MAX = 100_000
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class CsvCodec(Codec):
    delimiter: str = ","
    name: ClassVar[str] = "csv"

    def __post_init__(self) -> None:
        if not isinstance(self.delimiter, str) or len(self.delimiter) != 1 or self.delimiter in '"\r\n':
            raise InvalidSetting(
                f"the csv delimiter {self.delimiter!r} cannot be used",
                next_step="give one character that is neither a quote nor a line break",
            )
        for column in self.schema.arrow:
            if pa.types.is_nested(column.type):
                raise InvalidSchema(
                    f"column '{column.name}' is {format_type(column.type)}, which a CSV field cannot represent",
                    next_step="use the codec 'json' or 'avro' for nested columns",
                )

    def _encoded(self, rows: pa.RecordBatch) -> list[bytes]:
        needs_quotes = re.compile(f'[{re.escape(self.delimiter)}"\r\n]')
        columns = [[_quoted(text, needs_quotes) for text in to_texts(column)] for column in rows.columns]
        return [self.delimiter.join(row).encode() for row in zip(*columns, strict=True)]

    def _rules(self) -> Rules:
        return CsvRules()

    def _columns(self, values: list[bytes], faults: Faults) -> Iterable[list[Any]]:
        count = len(self.schema)
        blank: list[str | None] = [None] * count
        records: list[list[str | None]] = []
        for index, value in enumerate(values):
            try:
                fields = _fields(value.decode(), self.delimiter, count)
            except UnicodeDecodeError as bad:
                faults[index] = f"not valid UTF-8 at byte {bad.start}"
                fields = blank
            except Refused as refusal:
                faults[index] = str(refusal)
                fields = blank
            records.append(fields)
        return ([record[position] for record in records] for position in range(count))


def header_names(header: bytes) -> list[str]:
    """The column names in the first line of a file; raises Refused if it is not a header."""
    text = header.removeprefix(_BYTE_ORDER_MARK).decode(errors="replace")
    if text.count(",") >= HEADER_NAMES_MAX:
        raise Refused(f"the header line names more than {HEADER_NAMES_MAX:,} columns")
    try:
        return next(csv.reader([text]), [])
    except csv.Error as error:
        raise Refused(f"the header line cannot be read: {error}") from None


def name_given_twice(names: Iterable[str]) -> str | None:
    return min((name for name, count in Counter(names).items() if count > 1), default=None)


class CsvRules(Rules):
    """Fields are texts, each in the form of its type."""

    def leaf(self, dtype: pa.DataType) -> Leaf:
        return text_leaf(dtype)

    def show(self, value: Any) -> str:
        return f"'{shortened(str(value))}'"


def _fields(text: str, delimiter: str, count: int) -> list[str | None]:
    if text.endswith("\n"):
        text = text[: -2 if text.endswith("\r\n") else -1]
    if '"' not in text:
        if "\n" in text or "\r" in text:
            raise Refused("a line break outside quotes; a value is one record")
        _check_count(text.count(delimiter) + 1, count)  # before creating an object for each
        return [field or None for field in text.split(delimiter)]
    pattern = _field_pattern(delimiter)
    found: list[str | None] = []
    at = 0
    while True:
        match = pattern.match(text, at)
        if match is None:
            raise Refused(f"field {len(found) + 1}: {_why_not_a_field(text, at)}")
        quoted, plain, end = match.groups()
        found.append(plain or None if quoted is None else quoted.replace('""', '"'))
        if not end:
            _check_count(len(found), count)
            return found
        if len(found) > count:
            raise Refused(f"expected {count} fields, found more")
        at = match.end()


def _check_count(found: int, count: int) -> None:
    if found != count:
        raise Refused(f"expected {count} fields, found {found}")


@lru_cache
def _field_pattern(delimiter: str) -> re.Pattern[str]:
    mark = re.escape(delimiter)
    # Possessive, so that a long text with an open quote does not cause backtracking.
    return re.compile(rf'(?:"([^"]*+(?:""[^"]*+)*+)"|([^"{mark}\r\n]*+))({mark}|\Z)')


def _why_not_a_field(text: str, at: int) -> str:
    if text[at : at + 1] == '"':
        closed = re.compile(r'"[^"]*+(?:""[^"]*+)*+"').match(text, at)
        return "text follows the closing quote" if closed else "the quote is never closed"
    rest = re.compile(r'["\r\n]').search(text, at)
    return "a quote inside an unquoted field" if rest and rest[0] == '"' else "a line break outside quotes"


def _quoted(text: str | None, needs_quotes: re.Pattern[str]) -> str:
    if text is None:
        return ""
    if not text or needs_quotes.search(text):
        return '"' + text.replace('"', '""') + '"'
    return text
