"""Values of columns in row events of the binary log, as a client reads them: numbers, texts and bytes.

Dates and times are texts in the server's own format, and so are decimals: what has no equal, such as '0000-00-00', is
not lost.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

TINY, SHORT, LONG, FLOAT, DOUBLE, LONGLONG, INT24 = 1, 2, 3, 4, 5, 8, 9
DATE, YEAR, NEWDATE, VARCHAR, BIT, TIMESTAMP2, DATETIME2, TIME2 = 10, 13, 14, 15, 16, 17, 18, 19
DECIMAL, ENUM, SET, BLOB, VAR_STRING, STRING, GEOMETRY = 246, 247, 248, 252, 253, 254, 255
WHOLE_BYTES: Final = {TINY: 1, SHORT: 2, INT24: 3, LONG: 4, LONGLONG: 8}
BINARY = "binary"
DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
"""The bytes of a group of decimal digits, by how many it has."""
Value = int | float | str | bytes | None
Read = Callable[[bytes, int], tuple[Value, int]]
"""The value at a place of a row, and the place after it."""
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
ENCODINGS = {
    "ascii": "ascii",
    "utf8mb3": "utf-8",
    "utf8": "utf-8",
    "utf8mb4": "utf-8",
    "latin1": "cp1252",
    "latin2": "iso8859-2",
    "latin5": "iso8859-9",
    "latin7": "iso8859-13",
    "greek": "iso8859-7",
    "hebrew": "iso8859-8",
    "ucs2": "utf-16-be",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp1256": "cp1256",
    "cp1257": "cp1257",
    "koi8r": "koi8-r",
    "koi8u": "koi8-u",
    "sjis": "shift_jis",
    "cp932": "cp932",
    "ujis": "euc_jp",
    "eucjpms": "euc_jp",
    "euckr": "euc_kr",
    "gb2312": "gb2312",
    "gbk": "gbk",
    "big5": "big5",
}
"""Python's names of the server's character sets."""


@dataclass(frozen=True)
class BinlogColumn:
    """A column as a table map describes it."""

    name: str
    kind: int
    size: int
    """Of texts, the bytes of their length; of BINARY its width; of times, the digits of the fraction; else bytes."""
    is_unsigned: bool = False
    charset: str | None = None
    labels: tuple[str, ...] = ()
    """Of ENUM and SET."""
    precision: int = 0
    """Of DECIMAL; its scale is the size."""
    width: int = 0
    """Of BINARY: shorter values had trailing zero bytes, which the binary log does not have."""


class UnknownColumn(ValueError):
    """A column that cannot be decoded."""


def _latin1(error: UnicodeError) -> tuple[str, int]:
    """The five bytes that cp1252 does not define are control characters for the server."""
    assert isinstance(error, UnicodeDecodeError)
    return error.object[error.start : error.end].decode("latin-1"), error.end


codecs.register_error("millstream_latin1", _latin1)


def reader(column: BinlogColumn) -> Read:
    """The function that reads values of a column."""
    if column.kind in WHOLE_BYTES:
        return _whole(WHOLE_BYTES[column.kind], signed=not column.is_unsigned)
    if column.kind in (VARCHAR, VAR_STRING, STRING, BLOB, GEOMETRY):
        return _text(column)
    made = _READERS.get(column.kind)
    if made is None:
        raise UnknownColumn(f"column '{column.name}' has the unknown type {column.kind}")
    return made(column)


def _whole(size: int, *, signed: bool) -> Read:
    def read(data: bytes, at: int) -> tuple[Value, int]:
        end = at + size
        return int.from_bytes(data[at:end], "little", signed=signed), end

    return read


def _float(_: BinlogColumn) -> Read:
    return lambda data, at: (_FLOAT.unpack_from(data, at)[0], at + 4)


def _double(_: BinlogColumn) -> Read:
    return lambda data, at: (_DOUBLE.unpack_from(data, at)[0], at + 8)


def _text(column: BinlogColumn) -> Read:
    size, encoding, width = column.size, None, column.width
    errors = "millstream_latin1" if column.charset == "latin1" else "strict"
    if column.charset not in (None, BINARY):
        encoding = ENCODINGS.get(str(column.charset))
        if encoding is None:
            raise UnknownColumn(f"column '{column.name}' has the character set {column.charset}")

    def read(data: bytes, at: int) -> tuple[Value, int]:
        start = at + size
        end = start + int.from_bytes(data[at:start], "little")
        raw = bytes(data[start:end])
        return raw.ljust(width, b"\0") if encoding is None else raw.decode(encoding, errors), end

    return read


def _bits(column: BinlogColumn) -> Read:
    return lambda data, at: (bytes(data[at : at + column.size]), at + column.size)


def _year(_: BinlogColumn) -> Read:
    return lambda data, at: (data[at] and 1900 + data[at], at + 1)


def _enum(column: BinlogColumn) -> Read:
    labels = ("", *column.labels)  # 0 is the value that was not among the labels

    def read(data: bytes, at: int) -> tuple[Value, int]:
        end = at + column.size
        return labels[int.from_bytes(data[at:end], "little")], end

    return read


def _set(column: BinlogColumn) -> Read:
    def read(data: bytes, at: int) -> tuple[Value, int]:
        end = at + column.size
        mask = int.from_bytes(data[at:end], "little")
        return ",".join(label for place, label in enumerate(column.labels) if mask >> place & 1), end

    return read


# ---------------------------------------------------------------- dates and times


def _date(_: BinlogColumn) -> Read:
    def read(data: bytes, at: int) -> tuple[Value, int]:
        packed = int.from_bytes(data[at : at + 3], "little")
        return f"{packed >> 9:04}-{packed >> 5 & 15:02}-{packed & 31:02}", at + 3

    return read


def _fraction(data: bytes, at: int, digits: int) -> tuple[str, int]:
    """Its text, with the point."""
    if not digits:
        return "", at
    size = (digits + 1) // 2
    packed = int.from_bytes(data[at : at + size], "big")
    return "." + f"{packed:0{size * 2}}"[:digits], at + size


def _datetime(column: BinlogColumn) -> Read:
    def read(data: bytes, at: int) -> tuple[Value, int]:
        packed = int.from_bytes(data[at : at + 5], "big") - (1 << 39)
        years, months = divmod(packed >> 22, 13)
        fraction, end = _fraction(data, at + 5, column.size)
        day = f"{years:04}-{months:02}-{packed >> 17 & 31:02}"
        return f"{day} {packed >> 12 & 31:02}:{packed >> 6 & 63:02}:{packed & 63:02}{fraction}", end

    return read


def _timestamp(column: BinlogColumn) -> Read:
    from datetime import UTC, datetime

    def read(data: bytes, at: int) -> tuple[Value, int]:
        seconds = int.from_bytes(data[at : at + 4], "big")
        fraction, end = _fraction(data, at + 4, column.size)
        if not seconds:
            return f"0000-00-00 00:00:00{fraction}", end
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}{fraction}", end

    return read


def _time(column: BinlogColumn) -> Read:
    size = (column.size + 1) // 2

    def read(data: bytes, at: int) -> tuple[Value, int]:
        end = at + 3 + size
        packed = int.from_bytes(data[at:end], "big") - (1 << (23 + 8 * size))
        sign, packed = ("-", -packed) if packed < 0 else ("", packed)
        whole, rest = packed >> 8 * size, packed & (1 << 8 * size) - 1
        fraction = "." + f"{rest:0{size * 2}}"[: column.size] if size else ""
        return f"{sign}{whole >> 12 & 1023:02}:{whole >> 6 & 63:02}:{whole & 63:02}{fraction}", end

    return read


# ---------------------------------------------------------------- decimals


def _decimal(column: BinlogColumn) -> Read:
    """Groups of nine digits in four bytes, the first and the last group shorter; the highest bit is the sign."""
    whole, scale = column.precision - column.size, column.size
    groups = [whole % 9, *[9] * (whole // 9)], [*[9] * (scale // 9), scale % 9]
    sizes = [[(digits, DIGIT_BYTES[digits]) for digits in side if digits] for side in groups]
    length = sum(size for side in sizes for _, size in side)

    def read(data: bytes, at: int) -> tuple[Value, int]:
        raw = bytearray(data[at : at + length])
        is_negative = not raw[0] & 0x80
        raw[0] ^= 0x80
        if is_negative:
            raw = bytearray(byte ^ 0xFF for byte in raw)
        place, texts = 0, []
        for side in sizes:
            text = ""
            for digits, size in side:
                text += f"{int.from_bytes(raw[place : place + size], 'big'):0{digits}}"
                place += size
            texts.append(text)
        made = (texts[0].lstrip("0") or "0") + (f".{texts[1]}" if texts[1] else "")
        return f"-{made}" if is_negative else made, at + length

    return read


_READERS: Final[dict[int, Callable[[BinlogColumn], Read]]] = {
    FLOAT: _float,
    DOUBLE: _double,
    DATE: _date,
    NEWDATE: _date,
    YEAR: _year,
    BIT: _bits,
    TIMESTAMP2: _timestamp,
    DATETIME2: _datetime,
    TIME2: _time,
    DECIMAL: _decimal,
    ENUM: _enum,
    SET: _set,
}
