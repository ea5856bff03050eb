"""What is read from a frame is checked before it is used: a checksum shows damage, not intent.

A batch that passes can be read without leaving its buffers: every length fits the bytes that are there, offsets of
texts, lists and maps rise and end within their values, and nothing is decompressed. That costs a fifth
to a quarter of the time that reading takes. Whether texts are UTF-8 is checked where they leave Arrow, by
`check_texts`: for every frame, text by text, it would double that time.

Files are mapped, not copied, so this holds as long as nobody changes them afterwards: what protects a log from those
who would is that they may not write to its folder.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.errors import InvalidSchema
from millstream.log.layout import HEADERS, TIMESTAMP
from millstream.records import Schema

BODY_COMPRESSION = 10  # where the table of a flatbuffer notes the field, as Arrow's format lays it down
MESSAGE_HEADER = 8
_U16, _I32, _U32 = struct.Struct("<H"), struct.Struct("<i"), struct.Struct("<I")
ASCII_END = 0x80
SCRATCH_ROWS_MAX = 1 << 20
Place = tuple[int, ...]
"""The number of a column, then of the child in it, and so on."""

_scratch = threading.local()


class Malformed(Exception):
    """Bytes that are no batch of records, whatever their checksum says; the caller knows where they lie."""


def check_schema(schema: pa.Schema, offset_column: str) -> None:
    """Raises unless these are the columns of records, of types that topics can have."""
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
        raise Malformed(f"no topic has values of type {str(value)[:200]}")


class BatchReader:
    """Reads the bodies of frames that hold the columns of one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._spans = tuple(_varying(schema.types))

    def read(self, body: pa.Buffer, rows: int) -> pa.RecordBatch:
        """The columns of a frame, without a copy."""
        try:
            if _is_compressed(memoryview(body)):
                raise Malformed("its records are compressed, which Millstream never does")
            batch = pa.ipc.read_record_batch(body, self._schema)
            batch.validate()
        except (pa.ArrowException, OSError, EOFError, ValueError, struct.error) as error:
            raise Malformed(f"it holds no batch of records: {error}") from error
        if batch.num_rows != rows:
            raise Malformed(f"it holds {batch.num_rows} records, and its header says {rows}")
        for place in self._spans:
            _check_spans(batch, place)
        return batch


def _is_compressed(body: memoryview) -> bool:
    """Asked before Arrow is: it would allocate as much as the frame claims to hold."""
    message = 8 + _U32.unpack_from(body, 8)[0]
    header = _field(body, message, MESSAGE_HEADER)
    if header is None:
        return False  # of no use, and refused by Arrow
    batch = header + _U32.unpack_from(body, header)[0]
    return _field(body, batch, BODY_COMPRESSION) is not None


def _field(body: memoryview, table: int, entry: int) -> int | None:
    """Where a table of a flatbuffer has a field; None if it has none."""
    fields = table - _I32.unpack_from(body, table)[0]
    if fields < 0 or entry >= _U16.unpack_from(body, fields)[0]:
        return None
    offset = _U16.unpack_from(body, fields + entry)[0]
    return table + offset if offset else None


def _varying(kinds: Iterable[pa.DataType]) -> Iterator[Place]:
    """Where the columns are whose values differ in size; a list is told apart by its children, which are its own."""
    for number, kind in enumerate(kinds):
        if pa.types.is_binary(kind) or pa.types.is_string(kind):
            yield (number,)
        elif pa.types.is_map(kind):
            yield (number,)
            yield from ((number, *below) for below in _varying([kind.key_type, kind.item_type]))
        elif pa.types.is_list(kind):
            yield (number,)
            yield from ((number, *below) for below in _varying([kind.value_type]))
        elif pa.types.is_struct(kind):
            yield from ((number, *below) for below in _varying([field.type for field in kind]))


def _check_spans(batch: pa.RecordBatch, place: Place) -> None:
    """Raises unless every value lies within the column's own; fixed sizes were checked against the bytes before."""
    column = batch.column(place[0])
    for number in place[1:]:
        column = _child(column, number)
    rows = len(column)
    if not rows:
        return
    if isinstance(column, pa.MapArray):
        offsets, extent = column.buffers()[1], min(len(column.keys), len(column.items))
    elif isinstance(column, pa.ListArray):
        offsets, extent = column.buffers()[1], len(column.values)
    else:
        _, offsets, data = column.buffers()
        extent = 0 if data is None else data.size
    starts = np.frombuffer(offsets, np.int32, rows + 1)
    if starts[0] < 0 or starts[-1] > extent or _falls(starts, rows):
        raise Malformed("values lie outside of its bytes")


def _child(column: pa.Array, number: int) -> pa.Array:
    if isinstance(column, pa.MapArray):
        return column.items if number else column.keys
    return column.values if isinstance(column, pa.ListArray) else column.field(number)


def _falls(starts: npt.NDArray[np.int32], rows: int) -> bool:
    """Whether any number is smaller than the one before; into a place of the thread's own, for speed."""
    falls = getattr(_scratch, "falls", None)
    if falls is None or len(falls) < rows:
        falls = np.empty(rows, np.bool_)
        if rows <= SCRATCH_ROWS_MAX:
            _scratch.falls = falls
    falls = falls[:rows]
    np.less(starts[1:], starts[:-1], out=falls)
    return bool(falls.any())


def check_texts(batch: pa.RecordBatch) -> None:
    """Raises unless every text is UTF-8: polars and Python rely on it."""
    for column in batch.columns:
        if not is_ascii(column):
            try:
                column.validate(full=True)
            except pa.ArrowException as error:
                raise Malformed(str(error)) from error


def is_ascii(column: pa.Array) -> bool:
    """Almost always, and many times quicker than looking at each text; of texts alone, whatever lies around them."""
    kind = column.type
    if pa.types.is_string(kind):
        data = column.buffers()[2]
        return data is None or not data.size or bool(np.frombuffer(data, np.uint8).max() < ASCII_END)
    if pa.types.is_struct(kind):
        return all(is_ascii(column.field(number)) for number in range(kind.num_fields))
    return not pa.types.is_nested(kind)
