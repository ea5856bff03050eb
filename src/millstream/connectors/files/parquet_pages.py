"""The unpacked size of the pages of a Parquet file, computed from their headers before Arrow unpacks them.

Arrow allocates as much memory as a file asks for: a page of a few bytes may unpack to 2 GB, and one long text in a
dictionary may be repeated in a billion rows. This module computes how many rows may be read at once, and rejects files
for which no number is small enough.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millstream.connectors.files.bounds import Unreadable
from millstream.connectors.source import SLAB_ROWS
from millstream.log.storage.validity import is_ascii
from millstream.records.bounds import size_text

BATCH_BYTES = 128 << 20  # of rows read at once
PAGES_BYTES_MAX = 1 << 30  # per row group: the dictionaries and the largest pages of all columns read
ROW_BYTES_MAX = 1 << 30
REPEATED_EXPANSION_MAX = 50  # of arrays and maps, whose size does not depend on the number of rows
PAGES_MAX = 100_000
_LENGTH = struct.Struct("<I")
SEARCHED_BYTES_MAX = 4 << 20  # of a dictionary; writers end it at 1 MiB
HEADER_BYTES, HEADER_BYTES_MAX = 1 << 10, 16 << 20
ROWS_MAX = 1 << 40

_CODECS = {"UNCOMPRESSED": "", "SNAPPY": "snappy", "GZIP": "gzip", "BROTLI": "brotli", "ZSTD": "zstd"}
_DICTIONARY_PAGE, _INDEX_PAGE = 2, 1
_DELTA_BYTE_ARRAY = 7
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_WIDTH_MIN = 16  # the widest number in Arrow: a decimal


@dataclass(frozen=True)
class _Reading:
    """How to read a row group: the number of rows at once, and the columns to leave dictionary-encoded."""

    batch_rows: int
    packed: tuple[str, ...]


def parquet_file(source: Path | BinaryIO, packed: Sequence[str] = ()) -> pq.ParquetFile:
    # Not mapped: if a mapped file is truncated, the process dies instead of reporting it.
    return pq.ParquetFile(source, pre_buffer=False, read_dictionary=list(packed))


def group_batches(
    source: Path | BinaryIO, stored: pq.ParquetFile, group: int, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of a row group, in batches of little memory; `stored` is the opened source."""
    with ExitStack() as opened:
        raw = opened.enter_context(source.open("rb")) if isinstance(source, Path) else source
        how = _reading(raw, stored, group, names)
        file = opened.enter_context(parquet_file(source, how.packed)) if how.packed else stored
        for batch in file.iter_batches(how.batch_rows, row_groups=[group], columns=list(names), use_threads=False):
            yield from unpacked(batch, stored.schema_arrow)


@dataclass
class _Pages:
    """The pages of one column in a row group."""

    dictionary_bytes: int = 0
    dictionary_at: tuple[int, int] = (0, 0)  # start and end, compressed
    largest_bytes: int = 0
    total_bytes: int = 0
    values: int = 0
    shares_prefixes: bool = False


def _reading(file: BinaryIO, stored: pq.ParquetFile, group: int, names: Sequence[str]) -> _Reading:
    """Raises Unreadable for a row group that cannot be read in little memory."""
    about = stored.metadata.row_group(group)
    memory_bytes = row_bytes = 0
    packed = []
    for index in range(about.num_columns):
        column, kind = about.column(index), stored.schema.column(index)
        path = kind.path
        if not any(path == name or path.startswith(f"{name}.") for name in names):
            continue
        pages = _pages(file, column)
        memory_bytes += pages.dictionary_bytes + pages.largest_bytes
        width = max(_WIDTH_MIN, kind.length if kind.length > 0 else _WIDTHS.get(kind.physical_type, 0))
        if kind.physical_type == "BYTE_ARRAY":
            at_once = pages.values if kind.max_repetition_level else min(SLAB_ROWS, about.num_rows)
            if pages.dictionary_bytes * at_once > BATCH_BYTES and not _are_shorter(
                BATCH_BYTES // at_once, file, pages, column.compression
            ):
                packed.append(path)
            if pages.shares_prefixes:
                width += pages.largest_bytes
        if kind.max_repetition_level:
            _check_repeated(path, pages, width)
        row_bytes += width
    if memory_bytes > PAGES_BYTES_MAX:
        raise Unreadable(
            f"the pages of row group {group} unpack to {size_text(memory_bytes)} at once, more than "
            f"{size_text(PAGES_BYTES_MAX)}; write smaller pages"
        )
    return _Reading(max(1, min(SLAB_ROWS, BATCH_BYTES // max(1, row_bytes))), tuple(packed))


def _check_repeated(path: str, pages: _Pages, width: int) -> None:
    unpacked_bytes = pages.values * width
    if unpacked_bytes > max(PAGES_BYTES_MAX, REPEATED_EXPANSION_MAX * pages.total_bytes):
        raise Unreadable(
            f"the {pages.values} values of column '{path}' in one row group unpack to more than "
            f"{REPEATED_EXPANSION_MAX} times the size of their pages"
        )


# ---------------------------------------------------------------- rows


def unpacked(batch: pa.RecordBatch, plain: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batch with the file's own types, in small pieces."""
    names = batch.schema.names
    size_bytes = sum(map(_unpacked_bytes, batch.columns))
    if size_bytes > BATCH_BYTES and batch.num_rows > 1:
        half = batch.num_rows // 2
        yield from unpacked(batch.slice(0, half), plain)
        yield from unpacked(batch.slice(half), plain)
        return
    _check_row_bytes(size_bytes)
    if any(column.type != plain.field(name).type for name, column in zip(names, batch.columns, strict=True)):
        columns = [_plain(batch.column(name), plain.field(name).type) for name in names]
        batch = pa.RecordBatch.from_arrays(columns, names=names)
    yield batch  # unchanged if nothing is encoded: a batch without columns also has rows


def _plain(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    if pa.types.is_nested(kind):  # casting a slice of lists casts the items of all of them
        column = pa.concat_arrays([column])
    if pa.types.is_dictionary(column.type) and _is_view(column.type.value_type):  # which Arrow cannot cast
        _check_row_bytes(int(lengths(column.dictionary).sum()))
        column = pa.DictionaryArray.from_arrays(column.indices, column.dictionary.cast(kind))
    return column.cast(kind)


def _check_row_bytes(size_bytes: int) -> None:
    if size_bytes > ROW_BYTES_MAX:
        raise Unreadable(f"a row unpacks to {size_text(size_bytes)}, more than {size_text(ROW_BYTES_MAX)}")


def invalid_rows(batch: pa.RecordBatch, first: int = 0) -> list[int]:
    """The rows with invalid UTF-8: Arrow does not check texts when it reads them, and later uses fail."""
    if all(map(is_ascii, batch.columns)):
        return []
    try:
        batch.validate(full=True)
        return []
    except pa.ArrowInvalid:
        if batch.num_rows <= 1:
            return [first] * batch.num_rows
    half = batch.num_rows // 2
    # Not slices: for those, the whole underlying array would be checked.
    begin, end = (batch.take(pa.array(range(*ends), pa.int64())) for ends in ((0, half), (half, batch.num_rows)))
    return invalid_rows(begin, first) + invalid_rows(end, first + half)


def _unpacked_bytes(array: pa.Array) -> int:
    """The lengths of texts that rows may share: dictionaries and views. Other texts have their own bytes."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        if not _is_text(kind.value_type):
            return 0
        return pc.sum(pa.array(lengths(array.dictionary)).take(array.indices)).as_py() or 0
    if _is_view(kind):
        return int(lengths(array).sum())
    if pa.types.is_struct(kind):
        return sum(map(_unpacked_bytes, array.flatten()))
    if pa.types.is_map(kind):
        # Not .keys and .items: they ignore that this may be a slice.
        return _unpacked_bytes(pa.ListArray.from_arrays(array.offsets, _entries(array)).flatten())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _unpacked_bytes(array.flatten())
    return 0


def lengths(texts: pa.Array) -> np.ndarray:
    if not len(texts):
        return np.empty(0, np.int64)
    if _is_view(texts.type):  # 16 bytes each, the first four are the length
        views = np.frombuffer(texts.buffers()[1], np.int32, 4 * len(texts), 16 * texts.offset)
        return np.maximum(views[::4], 0, dtype=np.int64)
    found: np.ndarray = pc.fill_null(pc.binary_length(texts).cast(pa.int64()), 0).to_numpy()
    return found


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    is_binary = types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    return is_binary or types.is_string(kind) or types.is_large_string(kind) or _is_view(kind)


def _entries(array: pa.MapArray) -> pa.StructArray:
    return pa.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])


# ---------------------------------------------------------------- headers


def _pages(file: BinaryIO, column: pq.ColumnChunkMetaData) -> _Pages:
    found = _Pages()
    at = column.data_page_offset
    if column.has_dictionary_page and 0 < (column.dictionary_page_offset or 0) < at:
        at = column.dictionary_page_offset
    end = at + column.total_compressed_size
    if at < 0:
        raise Unreadable("a column starts before the file")
    for _ in range(PAGES_MAX):
        if at >= end or found.values >= column.num_values:
            return found
        header, at = _page_header(file, at)
        kind, size, packed_size = (_number(header, field) for field in (1, 2, 3))
        at += packed_size
        found.total_bytes += size
        if kind == _DICTIONARY_PAGE:
            if found.dictionary_bytes:
                raise Unreadable("a column has two dictionaries in one row group")
            found.dictionary_bytes, found.dictionary_at = size, (at - packed_size, at)
        elif kind != _INDEX_PAGE:
            found.largest_bytes = max(found.largest_bytes, size)
            is_first_version = 5 in header
            about = header.get(5 if is_first_version else 8)
            found.values += _number(about, 1)
            found.shares_prefixes |= _number(about, 2 if is_first_version else 4) == _DELTA_BYTE_ARRAY
    raise Unreadable(f"a column has more than {PAGES_MAX} pages in one row group")


def _number(header: Any, field: int) -> int:
    found = header.get(field) if isinstance(header, dict) else None
    if type(found) is not int or found < 0:
        raise Unreadable("the header of a page is not complete")
    return found


def _are_shorter(limit: int, file: BinaryIO, pages: _Pages, compression: str) -> bool:
    """Whether no text in a dictionary is longer; False if that cannot be determined cheaply."""
    if pages.dictionary_bytes > SEARCHED_BYTES_MAX or compression not in _CODECS:
        return False
    begin, end = pages.dictionary_at
    file.seek(begin)
    content = file.read(end - begin)
    try:
        if compression != "UNCOMPRESSED":
            unpack = pa.Codec(_CODECS[compression])
            content = unpack.decompress(content, decompressed_size=pages.dictionary_bytes, asbytes=True)
    except (pa.ArrowException, OSError):
        return False
    at, last = 0, len(content) - _LENGTH.size
    length_at = _LENGTH.unpack_from
    while at <= last:
        (length,) = length_at(content, at)
        if length > limit:
            return False
        at += 4 + length
    return True


def _page_header(file: BinaryIO, at: int) -> tuple[dict[int, Any], int]:
    """The header at this offset, and its end. Statistics in it can be large, but rarely are."""
    size = HEADER_BYTES
    while True:
        file.seek(at)
        content = file.read(size)
        reader = _Thrift(content)
        try:
            return reader.struct(), at + reader.at
        except Unreadable:
            if len(content) < size or size >= HEADER_BYTES_MAX:
                raise
            size *= 16


class _Thrift:
    """Thrift's compact protocol: structs as dicts by field number, with only integers and structs."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.at = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        return {number: self._value(kind, depth) for number, kind in self._fields()}

    def _fields(self) -> Iterator[tuple[int, int]]:
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            yield number, head & 0x0F

    def _value(self, kind: int, depth: int) -> Any:
        if depth > 16:
            raise Unreadable("a header is nested too deeply")
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind in (7, 8):
            self._skip(8 if kind == 7 else self._varint())
            return None
        if kind in (9, 10):
            count, item = self._list_header()
            for _ in range(count):
                self._byte() if item in (1, 2) else self._value(item, depth + 1)
            return None
        if kind == 12:
            return self.struct(depth + 1)
        raise Unreadable("a header cannot be read")

    def _list_header(self) -> tuple[int, int]:
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._varint()
        if count > len(self._content) - self.at:
            raise Unreadable("a header ends in the middle")
        return count, head & 0x0F

    def _skip(self, size: int) -> None:
        if size > len(self._content) - self.at:
            raise Unreadable("a header ends in the middle")
        self.at += size

    def _byte(self) -> int:
        self._skip(1)
        return self._content[self.at - 1]

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise Unreadable("a header cannot be read")
