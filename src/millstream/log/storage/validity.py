"""Frames are validated before they are used: a checksum detects damage, not intent.

A valid batch can be read without leaving its buffers: every length fits, offsets of strings, lists and maps are
increasing and end within their values, and nothing is compressed. For a frame of 1 MB with two string columns that
takes 16 µs, most of it for 40,000 offsets. UTF-8 is checked by `check_texts` where strings leave Arrow: for every frame
it would take longer than reading.

Files are mapped, not copied, so this holds as long as nobody changes them afterwards: only the permissions of its
folder protect a log from that.
"""

from __future__ import annotations

import struct
import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.errors import InvalidSchema
from millstream.log.storage.layout import HEADERS, TIMESTAMP
from millstream.records import Schema

MESSAGE_HEADER, COLUMNS, BUFFERS, BODY_COMPRESSION = 8, 6, 8, 10
"""Positions of the fields in the flatbuffer's table, from Arrow's format."""
_U16, _I32, _U32 = struct.Struct("<H"), struct.Struct("<i"), struct.Struct("<I")
ASCII_END = 0x80
SCRATCH_ROWS_MAX = 1 << 20
_scratch = threading.local()


class Malformed(Exception):
    """Bytes that are not a batch of records, whatever their checksum; the caller knows their position."""


def check_schema(schema: pa.Schema, offset_column: str) -> None:
    """Raises unless these are the columns of records, with types that topics can have."""
    kinds = dict(zip(schema.names, schema.types, strict=True))
    value = kinds.pop("value", None)
    kinds.pop(offset_column, None)
    known = {"key": pa.binary(), "timestamp": TIMESTAMP, "headers": HEADERS}
    offsets = schema.field(offset_column).type if offset_column in schema.names else pa.int64()
    if len(set(schema.names)) < len(schema) or value is None or kinds != known or offsets != pa.int64():
        raise Malformed("these are not the columns of records")
    if value == pa.binary():
        return
    try:
        fits = pa.types.is_struct(value) and Schema.from_arrow(pa.schema(list(value))).arrow == pa.schema(list(value))
    except InvalidSchema as error:
        raise Malformed(error.what) from error
    if not fits:
        raise Malformed(f"a topic cannot have values of type {str(value)[:200]}")
    _check_names(value)


def _check_names(kind: pa.DataType) -> None:
    """Raises unless the names of nested fields are UTF-8: Arrow does not check them, and polars relies on it."""
    for number in range(kind.num_fields):
        field = kind.field(number)
        try:
            field.name  # noqa: B018 - decoding it is the check
        except UnicodeDecodeError as error:
            raise Malformed(f"the name of a field is not UTF-8: {error}") from error
        _check_names(field.type)


@dataclass(frozen=True, slots=True)
class Spans:
    """A column with values of varying size: where its offsets are, and what they point into.

    Arrow's format lists the columns of a batch with their children and lengths, and then all buffers. The schema alone
    determines which buffers belong to a column.
    """

    column: int
    offsets: int
    extent: int
    """The buffer with the values; for lists and maps, the column of their items."""
    of_items: bool


class BatchReader:
    """Reads frames with the columns of one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        walk = _Walk()
        for kind in schema.types:
            walk.visit(kind)
        self._spans = tuple(walk.spans)
        self._columns, self._buffers = struct.Struct(f"<I{2 * walk.columns}q"), struct.Struct(f"<I{2 * walk.buffers}q")
        self._counts = walk.columns, walk.buffers

    def read(self, body: pa.Buffer, rows: int) -> pa.RecordBatch:
        """The columns of a frame, without a copy."""
        try:
            view = memoryview(body)
            described = _batch_at(view)
            if _field(view, described, BODY_COMPRESSION) is not None:
                # Checked before Arrow reads it: Arrow would allocate as much as the frame claims.
                raise Malformed("its records are compressed, which Millstream never does")
            batch = pa.ipc.read_record_batch(body, self._schema)
            batch.validate()
            if batch.num_rows != rows:
                raise Malformed(f"it has {batch.num_rows} records, but its header says {rows}")
            self._check_spans(view, described)
        except (pa.ArrowException, OSError, EOFError, ValueError, struct.error) as error:
            raise Malformed(f"it is not a batch of records: {error}") from error
        return batch

    def _check_spans(self, body: memoryview, described: int) -> None:
        """Raises unless every value lies within its column; fixed sizes were checked before.

        Positions come from the description of the batch, not from Arrow's arrays: creating those takes longer than
        checking the offsets.
        """
        columns_count, *columns = self._columns.unpack_from(body, _vector(body, described, COLUMNS))
        buffers_count, *buffers = self._buffers.unpack_from(body, _vector(body, described, BUFFERS))
        if (columns_count, buffers_count) != self._counts:
            raise Malformed("these are not the columns of records")
        values_at = 8 + _U32.unpack_from(body, 4)[0]
        for spans in self._spans:
            rows = columns[2 * spans.column]
            if not rows:
                continue
            starts = np.frombuffer(body, np.int32, rows + 1, values_at + buffers[2 * spans.offsets])
            extent = columns[2 * spans.extent] if spans.of_items else buffers[2 * spans.extent + 1]
            if starts[0] < 0 or starts[-1] > extent or _decreases(starts, rows):
                raise Malformed("values lie outside its bytes")


def _batch_at(body: memoryview) -> int:
    """The position of the table that describes the batch."""
    header = _field(body, 8 + _U32.unpack_from(body, 8)[0], MESSAGE_HEADER)
    if header is None:
        raise Malformed("it is not a batch of records")
    return header + int(_U32.unpack_from(body, header)[0])


def _field(body: memoryview, table: int, entry: int) -> int | None:
    """The position of a field in a flatbuffer's table; None if it is absent."""
    fields = table - _I32.unpack_from(body, table)[0]
    if fields < 0 or entry >= _U16.unpack_from(body, fields)[0]:
        return None
    offset = _U16.unpack_from(body, fields + entry)[0]
    return table + offset if offset else None


def _vector(body: memoryview, table: int, entry: int) -> int:
    place = _field(body, table, entry)
    if place is None:
        raise Malformed("it is not a batch of records")
    return place + int(_U32.unpack_from(body, place)[0])


class _Walk:
    """Counts columns and buffers in the order of Arrow's format."""

    def __init__(self) -> None:
        self.columns = self.buffers = 0
        self.spans: list[Spans] = []

    def visit(self, kind: pa.DataType) -> None:
        types = pa.types
        column, buffer = self.columns, self.buffers
        self.columns += 1
        if types.is_binary(kind) or types.is_string(kind):
            self.buffers += 3
            self.spans.append(Spans(column, buffer + 1, buffer + 2, of_items=False))
        elif types.is_map(kind) or types.is_list(kind):
            self.buffers += 2
            self.spans.append(Spans(column, buffer + 1, column + 1, of_items=True))
            self.visit(pa.struct([kind.key_field, kind.item_field]) if types.is_map(kind) else kind.value_type)
        elif types.is_struct(kind):
            self.buffers += 1
            for field in kind:
                self.visit(field.type)
        elif types.is_null(kind):
            pass
        else:
            self.buffers += 2


def _decreases(starts: npt.NDArray[np.int32], rows: int) -> bool:
    """Whether any number is smaller than the previous one; uses a thread-local buffer for speed."""
    marks = getattr(_scratch, "marks", b"")
    if len(marks) < rows:
        marks = bytearray(rows)
        if rows <= SCRATCH_ROWS_MAX:
            _scratch.marks = marks
    np.less(starts[1:], starts[:-1], out=np.frombuffer(marks, np.bool_, rows))
    return marks.find(1, 0, rows) >= 0  # faster than any()


def check_texts(batch: pa.RecordBatch) -> None:
    """Raises unless every string is UTF-8: polars and Python rely on it."""
    for column in batch.columns:
        if not is_ascii(column):
            try:
                column.validate(full=True)
            except pa.ArrowException as error:
                raise Malformed(str(error)) from error


def is_ascii(column: pa.Array) -> bool:
    """True for most columns, and much faster to check than UTF-8; looks at the bytes of strings only."""
    kind = column.type
    if pa.types.is_string(kind):
        data = column.buffers()[2]
        return data is None or not data.size or bool(np.frombuffer(data, np.uint8).max() < ASCII_END)
    if pa.types.is_struct(kind):
        return all(is_ascii(column.field(number)) for number in range(kind.num_fields))
    return not pa.types.is_nested(kind)
