"""The unpacked size of the messages of an Arrow IPC file, computed from their metadata before Arrow reads them.

Arrow allocates as much memory as a message asks for: a compressed buffer of a few bytes may unpack to gigabytes, a
column of type null has two billion rows in no bytes, and the tables of a schema may share each other, so that a
kilobyte describes a million columns. Every message is therefore parsed and checked here first, and Arrow gets only
those within the bounds of Parquet files. Arrow then validates the bytes: offsets, texts and dictionary indices.

Arrow has a stream format and a file format, whose footer contains the schema and the offsets of the messages. Arrow
gets a stream in both cases: the messages that the footer lists, each checked in place.
"""

from __future__ import annotations

import io
import struct
from collections import deque
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from millstream.connectors.files import parquet_pages
from millstream.connectors.files.bounds import FileBounds, Unreadable
from millstream.connectors.source import SLAB_ROWS
from millstream.records.bounds import size_text

METADATA_BYTES_MAX = 16 << 20
FIELDS_MAX = 100_000  # columns and their children
DEPTH_MAX = 64  # Arrow's own limit
RECORD_BYTES_MIN = 8  # of a record without content: its timestamp in the log
MAGIC = b"ARROW1"
_CONTINUES = b"\xff\xff\xff\xff"
_CHUNK_BYTES = 16 << 20

_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_TIMESTAMP = 10
_NESTED = {12: "lists", 13: "structs", 16: "lists", 17: "maps", 21: "lists"}
_REFUSED = {14: "a union", 22: "encoded by runs", 25: "a list of views", 26: "a list of views"}


def arrow_batches(messages: CheckedMessages) -> Iterator[pa.RecordBatch]:
    """The rows of an Arrow file or stream, in batches that take little memory, without dictionaries and views."""
    with pa.ipc.open_stream(pa.PythonFile(messages, "r")) as reader:
        plain = pa.schema([field.with_type(_plain_type(field.type)) for field in reader.schema])
        for batch in reader:
            _check_values(batch, messages.bounds)
            for begin in range(0, batch.num_rows, SLAB_ROWS):
                for piece in parquet_pages.unpacked(batch.slice(begin, SLAB_ROWS), plain):
                    if plain != reader.schema:
                        messages.bounds.unpack(piece.nbytes)
                    yield piece


def arrow_schema(source: BinaryIO) -> pa.Schema:
    with pa.ipc.open_stream(pa.PythonFile(CheckedMessages(source, FileBounds(0, 0, None)), "r")) as reader:
        return reader.schema


def _check_values(batch: pa.RecordBatch, bounds: FileBounds) -> None:
    """Checks that values are within the bytes of their column, and that texts are UTF-8."""
    batch.validate()  # cheap: only checks the lengths of buffers
    views = [view for column in batch.columns for view in _views(column)]
    bounds.unpack(sum(int(parquet_pages.lengths(view).sum()) for view in views))  # each is checked, often repeatedly
    batch.validate(full=True)
    for view in views:
        if view.null_count:  # Arrow does not check the views of nulls, but its cast reads them
            pa.Array.from_buffers(pa.binary_view(), len(view), [None, *view.buffers()[1:]]).validate(full=True)


def _views(array: pa.Array) -> Iterator[pa.Array]:
    """The texts stored as views, in this column and its children; offsets are not used, as they are not yet checked."""
    kind, types = array.type, pa.types
    if types.is_string_view(kind) or types.is_binary_view(kind):
        yield array
    elif types.is_dictionary(kind):
        yield from _views(array.dictionary)
    elif types.is_struct(kind):
        for number in range(kind.num_fields):
            yield from _views(array.field(number))
    elif types.is_map(kind):
        yield from _views(array.keys)
        yield from _views(array.items)
    elif types.is_nested(kind):
        yield from _views(array.values)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if types.is_string_view(kind):
        return pa.string()
    if types.is_binary_view(kind):
        return pa.binary()
    if types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind):
        items = kind.value_field.with_type(_plain_type(kind.value_type))
        return pa.list_(items) if types.is_list(kind) else pa.large_list(items)
    if types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_plain_type(kind.value_type)), kind.list_size)
    return kind


class CheckedMessages:
    """A file for Arrow that contains the checked messages of another one."""

    def __init__(self, source: BinaryIO, bounds: FileBounds) -> None:
        self._source = source
        self.bounds = bounds
        self.read_bytes = 0
        self._parts: deque[bytes] = deque()
        self._dictionary_bytes: dict[int, int] = {}
        self._offsets: deque[int] | None = None  # of the remaining messages, in a file
        self._has_ended = False
        self.closed = False

    def read(self, size: int) -> bytes:
        """Arrow reads a message in the same parts as they are buffered here, so that none is copied."""
        if not self._parts and not self._has_ended:
            self._next()
        found = b""
        while self._parts and len(found) < size:
            part = self._parts.popleft()
            missing = size - len(found)
            if len(part) > missing:
                self._parts.appendleft(part[missing:])
                part = part[:missing]
            found = found + part if found else part
        return found

    def close(self) -> None:
        self.closed = True

    def _take(self, size: int) -> bytes:
        """The requested number of bytes, fewer at the end of the file. Memory is only allocated for existing bytes."""
        chunks = []
        while size > 0 and (chunk := self._source.read(min(size, _CHUNK_BYTES))):
            chunks.append(chunk)
            size -= len(chunk)
            self.read_bytes += len(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _whole(self, size: int) -> bytes:
        found = self._take(size)
        if len(found) < size:
            raise Unreadable("the file ends in the middle of a message")
        return found

    def _next(self) -> None:
        is_first = not self.read_bytes
        if self._offsets:
            self._source.seek(self._offsets.popleft())
        elif self._offsets is not None:
            self._has_ended = True
            return
        prefix = self._take(4)
        if is_first and prefix == MAGIC[:4]:
            self._open_file()
            return
        length_bytes = self._take(4) if prefix == _CONTINUES else prefix
        length = int.from_bytes(length_bytes, "little")
        if prefix and len(length_bytes) < 4:
            raise Unreadable("the file ends in the middle of a message")
        if not length:
            self._has_ended = True
            return
        _check_metadata_bytes(length)
        self._hand_over(prefix if prefix == _CONTINUES else b"", self._whole(length))

    def _hand_over(self, prefix: bytes, metadata: bytes) -> None:
        body = self._checked(metadata)
        if self._offsets is None:
            self.bounds.file_bytes = max(self.bounds.file_bytes, self.read_bytes)
        self._parts += [part for part in (prefix, _LENGTH.pack(len(metadata)), metadata, body) if part]

    def _open_file(self) -> None:
        source = self._source
        if not source.seekable():
            raise Unreadable("Arrow's file format cannot be read from a pipe; name the file, or write a stream")
        size_bytes = source.seek(0, io.SEEK_END)
        self.bounds.file_bytes = size_bytes
        ending = _LENGTH.size + len(MAGIC)
        source.seek(max(0, size_bytes - ending))
        tail = self._take(ending)
        if len(tail) < ending or tail[_LENGTH.size :] != MAGIC:
            raise Unreadable("the file ends before its footer")
        (length,) = _LENGTH.unpack_from(tail)
        _check_metadata_bytes(length)
        if length > size_bytes - ending:
            raise Unreadable("the footer is longer than the file")
        source.seek(size_bytes - ending - length)
        footer = self._whole(length)
        try:
            self._offsets = deque(_Tables(footer).messages())
            schema = _schema_message(footer)
        except struct.error:
            raise Unreadable("the footer cannot be read") from None
        self._hand_over(_CONTINUES, schema)

    def _checked(self, metadata: bytes) -> bytes:
        """The body of the message that has this metadata, if both are within the bounds."""
        tables = _Tables(metadata)
        try:
            return self._checked_body(tables, tables.root())
        except struct.error:
            raise Unreadable("the metadata of a message cannot be read") from None

    def _checked_body(self, tables: _Tables, message: int) -> bytes:
        kind, header, body_bytes = tables.byte(message, 6), tables.table(message, 8), tables.long(message, 10)
        tables.count_texts(message, 12)
        if header is None or kind not in (_SCHEMA, _DICTIONARY, _BATCH):
            raise Unreadable("a message is neither a schema nor rows nor a dictionary")
        if not 0 <= body_bytes <= parquet_pages.PAGES_BYTES_MAX:
            raise Unreadable(f"a message has {size_text(body_bytes)}, more than {_limit()}; write smaller batches")
        if kind == _SCHEMA:
            tables.check_schema(header)
            return self._whole(body_bytes)
        body = self._whole(body_bytes)
        batch = header if kind == _BATCH else tables.table(header, 6)
        if batch is None:
            raise Unreadable("a dictionary has no values")
        unpacked_bytes = _unpacked_bytes(tables, batch, body)
        if unpacked_bytes > parquet_pages.PAGES_BYTES_MAX:
            raise Unreadable(
                f"a batch unpacks to {size_text(unpacked_bytes)} at once, more than {_limit()}; write smaller batches"
            )
        rows = tables.long(batch, 4)
        self.bounds.unpack(max(unpacked_bytes, RECORD_BYTES_MIN * rows + tables.values(batch)))
        if kind == _DICTIONARY:
            self._keep(tables.long(header, 4), unpacked_bytes, adds=bool(tables.byte(header, 8)))
        return body

    def _keep(self, number: int, size_bytes: int, *, adds: bool) -> None:
        """Dictionaries stay in memory until they are replaced."""
        self._dictionary_bytes[number] = size_bytes + (self._dictionary_bytes.get(number, 0) if adds else 0)
        total = sum(self._dictionary_bytes.values())
        if total > parquet_pages.PAGES_BYTES_MAX:
            raise Unreadable(f"the dictionaries unpack to {size_text(total)}, more than {_limit()}")


def _check_metadata_bytes(length: int) -> None:
    if not 0 <= length <= METADATA_BYTES_MAX:
        raise Unreadable(
            f"the metadata of a message has {size_text(length)}, more than {size_text(METADATA_BYTES_MAX)}: it is "
            f"damaged, or not an Arrow file"
        )


def _schema_message(footer: bytes) -> bytes:
    """The schema in a footer as a message: a table before the footer that refers to the schema in it."""
    tables = _Tables(footer)
    root = tables.root()
    schema = tables.table(root, 6)
    if schema is None:
        raise Unreadable("the footer has no schema")
    at = _MESSAGE.size - 8  # where the message refers to its header
    return _MESSAGE.pack(16, 10, 12, 4, 6, 8, 12, tables.short(root, 4), _SCHEMA, _MESSAGE.size - at + schema) + footer


def _limit() -> str:
    return size_text(parquet_pages.PAGES_BYTES_MAX)


def _unpacked_bytes(tables: _Tables, batch: int, body: bytes) -> int:
    """The memory of a batch's buffers, which start with their size if they are compressed."""
    buffers = tables.pairs(batch, 8)
    begins, sizes = buffers[:, 0], buffers[:, 1]
    if ((begins < 0) | (sizes < 0) | (sizes > len(body)) | (begins > len(body) - sizes)).any():
        raise Unreadable("values are outside the bytes of their batch")
    if tables.views(batch) > len(buffers):
        raise Unreadable("a batch has fewer buffers than it lists")
    if tables.table(batch, 10) is None:
        return len(body)
    total = 0
    for begin, size in buffers.tolist():
        if size:
            (claimed,) = _LONG.unpack_from(body, begin) if size >= _LONG.size else (-2,)
            if claimed < -1:
                raise Unreadable("a compressed buffer does not begin with its size")
            total += size if claimed == -1 else claimed
    return total


_SHORT, _INT, _LENGTH, _LONG = (struct.Struct(f"<{code}") for code in "Hiiq")
_MESSAGE = struct.Struct("<I 5H 2x i HBx I 4x")  # where it is, which fields it has and where, version, kind, header
_BLOCK = struct.Struct("<q i 4x q")  # where a message is in a file, and its sizes


class _Tables:
    """The tables of a flatbuffer: only the needed fields, by their ids in the format."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._texts_bytes = 0

    def root(self) -> int:
        return self._at(_INT, 0)

    def _at(self, kind: struct.Struct, position: int) -> int:
        if position < 0:  # would count from the end
            raise struct.error
        return int(kind.unpack_from(self._content, position)[0])

    def _field(self, table: int, entry: int) -> int | None:
        fields = table - self._at(_INT, table)
        if entry >= self._at(_SHORT, fields):
            return None
        offset = self._at(_SHORT, fields + entry)
        return table + offset if offset else None

    def byte(self, table: int, entry: int) -> int:
        position = self._field(table, entry)
        return 0 if position is None else self._content[position] if position < len(self._content) else 0

    def short(self, table: int, entry: int) -> int:
        position = self._field(table, entry)
        return 0 if position is None else self._at(_SHORT, position)

    def long(self, table: int, entry: int) -> int:
        position = self._field(table, entry)
        return 0 if position is None else self._at(_LONG, position)

    def table(self, table: int, entry: int) -> int | None:
        position = self._field(table, entry)
        return None if position is None else position + self._at(_INT, position)

    def _vector(self, table: int, entry: int, width: int) -> tuple[int, int]:
        """Where the items begin, and how many there are."""
        position = self.table(table, entry)
        if position is None:
            return 0, 0
        count = self._at(_LENGTH, position)
        if count < 0 or position + 4 + count * width > len(self._content):
            raise Unreadable("the metadata of a message cannot be read")
        return position + 4, count

    def tables(self, table: int, entry: int) -> Iterator[int]:
        begin, count = self._vector(table, entry, 4)
        return (position + self._at(_INT, position) for position in range(begin, begin + 4 * count, 4))

    def pairs(self, table: int, entry: int) -> np.ndarray:
        """The items of a vector of two long numbers each."""
        begin, count = self._vector(table, entry, 16)
        return np.frombuffer(self._content, "<i8", 2 * count, begin if count else 0).reshape(count, 2)

    def values(self, batch: int) -> int:
        """The nodes of all columns of a batch and their children."""
        lengths = self.pairs(batch, 6)[:, 0]
        if (lengths < 0).any() or self.long(batch, 4) < 0:
            raise Unreadable("a column has a negative number of rows")
        return sum(lengths.tolist())

    def views(self, batch: int) -> int:
        begin, count = self._vector(batch, 12, 8)
        counts = np.frombuffer(self._content, "<i8", count, begin if count else 0).tolist()
        if any(number < 0 for number in counts):
            raise Unreadable("a batch has fewer buffers than it lists")
        return sum(counts)

    def messages(self) -> Iterator[int]:
        """Where the messages of a file are, of which this is the footer; dictionaries first."""
        for entry in (8, 10):
            begin, count = self._vector(self.root(), entry, _BLOCK.size)
            for position in range(begin, begin + count * _BLOCK.size, _BLOCK.size):
                found = self._at(_LONG, position)
                if found < 0:
                    raise Unreadable("a message is before the start of the file")
                yield found

    def check_schema(self, schema: int) -> None:
        """A table may be part of many others: counted as often as Arrow instantiates it."""
        self.count_texts(schema, 8)
        count = 0
        waiting = deque((field, 1) for field in self._limited(schema, 6))
        while waiting:
            field, depth = waiting.pop()
            count += 1
            if depth > DEPTH_MAX:
                raise Unreadable(f"the columns are nested more than {DEPTH_MAX} deep")
            if count + len(waiting) > FIELDS_MAX:
                raise _too_many_fields()
            self._check_field(field)
            waiting += ((child, depth + 1) for child in self._limited(field, 14))

    def _limited(self, table: int, entry: int) -> Iterator[int]:
        if self._vector(table, entry, 4)[1] > FIELDS_MAX:
            raise _too_many_fields()
        return self.tables(table, entry)

    def _check_field(self, field: int) -> None:
        kind, about = self.byte(field, 8), self.table(field, 10)
        begin, size = self._count_text(field, 4)
        try:
            self._content[begin : begin + size].decode()
        except UnicodeDecodeError:
            raise Unreadable("the name of a column is not UTF-8") from None
        self.count_texts(field, 16)
        if kind == _TIMESTAMP and about is not None:
            self._count_text(about, 6)
        if kind in _REFUSED:
            raise Unreadable(f"a column is {_REFUSED[kind]}, which is not supported; write it as a plain column")
        if kind in _NESTED and self.table(field, 12) is not None:
            raise Unreadable(
                f"a column is a dictionary of {_NESTED[kind]}, which is not supported; write it without one"
            )

    def count_texts(self, table: int, entry: int) -> None:
        for pair in self.tables(table, entry):
            self._count_text(pair, 4)
            self._count_text(pair, 6)

    def _count_text(self, table: int, entry: int) -> tuple[int, int]:
        begin, size = self._vector(table, entry, 1)
        self._texts_bytes += 1 + size
        if self._texts_bytes > METADATA_BYTES_MAX:
            raise Unreadable(f"the names of the columns have more than {size_text(METADATA_BYTES_MAX)}")
        return begin, size


def _too_many_fields() -> Unreadable:
    return Unreadable(f"the file has more than {FIELDS_MAX:,} columns")
