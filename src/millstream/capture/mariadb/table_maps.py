"""The table map before row events: which table they change, and its columns, by name (`binlog_row_metadata=FULL`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from millstream.capture.mariadb.values import (
    BINARY,
    BIT,
    BLOB,
    DATETIME2,
    DECIMAL,
    DOUBLE,
    ENUM,
    FLOAT,
    GEOMETRY,
    SET,
    STRING,
    TIME2,
    TIMESTAMP2,
    VAR_STRING,
    VARCHAR,
    WHOLE_BYTES,
    YEAR,
    BinlogColumn,
    Read,
    UnknownColumn,
    reader,
)

SIGNEDNESS, DEFAULT_CHARSET, COLUMN_CHARSET, COLUMN_NAME, SET_LABELS, ENUM_LABELS = 1, 2, 3, 4, 5, 6
PRIMARY_KEY, PRIMARY_KEY_WITH_PREFIX = 8, 9
LABEL_DEFAULT_CHARSET, LABEL_COLUMN_CHARSET = 10, 11
ONE_BYTE = (FLOAT, DOUBLE, BLOB, GEOMETRY, TIMESTAMP2, DATETIME2, TIME2)
TWO_BYTES = (VARCHAR, VAR_STRING, STRING, DECIMAL, BIT)
NUMBERS = (*WHOLE_BYTES, YEAR, FLOAT, DOUBLE, DECIMAL)
TEXTS = (VARCHAR, VAR_STRING, STRING, BLOB)
Charsets = Mapping[int, str]
"""The character set of each collation, by the number that the server gives it."""


@dataclass(frozen=True)
class TableMap:
    schema: str
    table: str
    columns: tuple[BinlogColumn, ...]
    key: tuple[str, ...] = ()
    """The columns of the primary key."""

    @cached_property
    def readers(self) -> tuple[Read, ...]:
        return tuple(map(reader, self.columns))


def names_of(data: bytes) -> tuple[str, str]:
    """The database and the table of a map, without its columns."""
    end = 9 + data[8]
    start = end + 2
    return data[9:end].decode(), data[start : start + data[end + 1]].decode()


def table_map(data: bytes, charsets: Charsets) -> TableMap:
    """From the event's data, after its header."""
    schema, table = names_of(data)
    at = 8 + 1 + data[8] + 1
    at += 1 + data[at] + 1
    count, at = packed(data, at)
    kinds = data[at : at + count]
    size, at = packed(data, at + count)
    columns = list(_columns(kinds, data[at : at + size]))
    at += size + (count + 7) // 8
    metadata = _metadata(data, at)
    described = _described(columns, metadata, charsets)
    return TableMap(schema, table, tuple(described), tuple(described[place].name for place in _key(metadata)))


def packed(data: bytes, at: int) -> tuple[int, int]:
    """A length-encoded integer, and the place after it."""
    first = data[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


def _columns(kinds: bytes, details: bytes) -> Iterator[BinlogColumn]:
    at = 0
    for kind in kinds:
        size = 1 if kind in ONE_BYTE else 2 if kind in TWO_BYTES else 0
        yield _column(kind, details[at : at + size])
        at += size


def _column(kind: int, detail: bytes) -> BinlogColumn:
    if kind == STRING:
        return _string(*detail)
    if kind in (VARCHAR, VAR_STRING):
        return BinlogColumn("", kind, 1 if int.from_bytes(detail, "little") < 256 else 2)
    if kind == DECIMAL:
        return BinlogColumn("", kind, detail[1], precision=detail[0])
    if kind == BIT:
        return BinlogColumn("", kind, detail[1] + bool(detail[0]))
    return BinlogColumn("", kind, detail[0] if detail else 0)


def _string(first: int, second: int) -> BinlogColumn:
    """CHAR, BINARY, ENUM and SET; two bits of a long CHAR's length are in the byte of the type."""
    if first & 0x30 != 0x30:
        first, second = first | 0x30, second | ((first & 0x30) ^ 0x30) << 4
    if first in (ENUM, SET):
        return BinlogColumn("", first, second)
    return BinlogColumn("", STRING, 1 if second < 256 else 2, width=second)


# ---------------------------------------------------------------- optional metadata


def _metadata(data: bytes, at: int) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    while at < len(data):
        kind = data[at]
        size, at = packed(data, at + 1)
        found[kind] = data[at : at + size]
        at += size
    return found


def _key(found: Mapping[int, bytes]) -> list[int]:
    """The places of the columns of the primary key."""
    if PRIMARY_KEY_WITH_PREFIX in found:
        return list(_numbers(found[PRIMARY_KEY_WITH_PREFIX]))[::2]
    return list(_numbers(found.get(PRIMARY_KEY, b"")))


def _described(columns: list[BinlogColumn], found: Mapping[int, bytes], charsets: Charsets) -> list[BinlogColumn]:
    names = list(_texts(found.get(COLUMN_NAME, b"")))
    if len(names) != len(columns):
        raise UnknownColumn("the binary log does not have the names of the columns (binlog_row_metadata=FULL)")
    columns = [replace(column, name=name.decode()) for column, name in zip(columns, names, strict=True)]
    _signed(columns, found.get(SIGNEDNESS, b""))
    _charsets(columns, TEXTS, found.get(DEFAULT_CHARSET), found.get(COLUMN_CHARSET), charsets)
    _charsets(columns, (ENUM, SET), found.get(LABEL_DEFAULT_CHARSET), found.get(LABEL_COLUMN_CHARSET), charsets)
    for kind, metadata in ((SET, SET_LABELS), (ENUM, ENUM_LABELS)):
        _labels(columns, kind, found.get(metadata, b""))
    return [_trimmed(column) for column in columns]


def _texts(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size, at = packed(data, at)
        yield data[at : at + size]
        at += size


def _places(columns: list[BinlogColumn], kinds: tuple[int, ...]) -> list[int]:
    return [place for place, column in enumerate(columns) if column.kind in kinds]


def _signed(columns: list[BinlogColumn], bits: bytes) -> None:
    for number, place in enumerate(_places(columns, NUMBERS)):
        is_unsigned = bool(bits[number // 8] & 0x80 >> number % 8) if number // 8 < len(bits) else False
        columns[place] = replace(columns[place], is_unsigned=is_unsigned)


def _charsets(
    columns: list[BinlogColumn],
    kinds: tuple[int, ...],
    common: bytes | None,
    each: bytes | None,
    charsets: Charsets,
) -> None:
    """Either one collation and those of columns that differ, or one for each column."""
    places = _places(columns, kinds)
    numbers = list(_numbers(each if each is not None else common or b""))
    if each is None and numbers:
        differing = dict(zip(numbers[1::2], numbers[2::2], strict=True))
        numbers = [differing.get(number, numbers[0]) for number in range(len(places))]
    for place, number in zip(places, numbers, strict=True):
        if number not in charsets:
            raise UnknownColumn(f"column '{columns[place].name}' has the unknown collation {number}")
        columns[place] = replace(columns[place], charset=charsets[number])


def _numbers(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        number, at = packed(data, at)
        yield number


def _labels(columns: list[BinlogColumn], kind: int, data: bytes) -> None:
    at = 0
    for place in _places(columns, (kind,)):
        count, at = packed(data, at)
        read = reader(replace(columns[place], kind=VARCHAR, size=1))
        labels = []
        for _ in range(count):
            size, at = packed(data, at)
            labels.append(str(read(bytes([size]) + data[at : at + size], 0)[0]))
            at += size
        columns[place] = replace(columns[place], labels=tuple(labels))


def _trimmed(column: BinlogColumn) -> BinlogColumn:
    """Only BINARY has a width that its values are filled up to."""
    return column if column.kind == STRING and column.charset == BINARY else replace(column, width=0)
