"""Avro files: the schema and the blocks are untrusted, and checked against limits first.

fastavro unpacks blocks of any size and accepts any schema, so it only gets records that were unpacked and measured
here.
"""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa

from millstream.connectors.files.bounds import FileBounds, Unreadable
from millstream.records.bounds import CHUNK_BYTES, size_text, too_large, valid_text
from millstream.records.codecs.avro import why_unreadable
from millstream.records.codecs.avro_shape import FREE_VALUES_MAX, UnusableSchema, writer_of
from millstream.records.columns import Refused

MAGIC = b"Obj\x01"
SYNC_BYTES = 16
HEADER_BYTES_MAX = 4 << 20
HEADER_ENTRIES_MAX = 10_000
BLOCK_BYTES_MAX = 64 << 20  # packed or not


class Block(NamedTuple):
    """Consecutive records, and why the one after them cannot be used, if it cannot."""

    records: list[dict[str, Any]]
    size_bytes: int
    fault: str | None = None
    lost: int = 0  # how many records the fault affects


class AvroFile:
    def __init__(self, file: BinaryIO, bounds: FileBounds) -> None:
        """Raises Unreadable if it is not an Avro file with a usable schema."""
        self._file = file
        self._bounds = bounds
        if file.read(len(MAGIC)) != MAGIC:
            raise Unreadable("it does not start like one")
        about = self._header()
        self._sync = self._exactly(SYNC_BYTES)
        codec = valid_text(about.get("avro.codec", b"null").decode(errors="replace")[:40])
        if codec not in _UNPACK:
            raise Unreadable(f"its codec is '{codec}'; supported codecs: {', '.join(_UNPACK)}")
        self._unpack = _UNPACK[codec]
        try:
            self._writer = writer_of(about.get("avro.schema", b"").decode())
        except (UnusableSchema, UnicodeDecodeError) as refusal:
            raise Unreadable(f"its schema cannot be used: {refusal}") from None
        parsed = self._writer.parsed
        if not isinstance(parsed, dict) or parsed.get("type") != "record":
            raise Unreadable("its schema is not that of a record")
        self.names = {field["name"] for field in parsed["fields"]}

    def blocks(self) -> Iterator[Block]:
        """All records in order, until Unreadable is raised; those before it are good."""
        while (count := self._varint(may_end=True)) is not None:
            size = self._varint() or 0
            if count < 0 or not 0 <= size <= BLOCK_BYTES_MAX:
                raise Unreadable(f"a block of {count} records and {size} bytes; at most {size_text(BLOCK_BYTES_MAX)}")
            data = self._unpacked(self._exactly(size))
            shape = self._writer.shape
            if count > (FREE_VALUES_MAX if shape.takes_no_bytes else len(data)):
                raise Unreadable(f"a block of {len(data)} bytes cannot hold {count} records")
            yield from self._decoded(count, data)
            if self._exactly(SYNC_BYTES) != self._sync:
                raise Unreadable("a block does not end with the sync marker")

    def _decoded(self, count: int, data: bytes) -> Iterator[Block]:
        """A large block is split, so that few records are in memory at once."""
        import fastavro

        read, parsed, check = fastavro.schemaless_reader, self._writer.parsed, self._writer.shape.check
        size_max = self._bounds.record_bytes_max
        must_check = self._writer.shape.measures(len(data))
        is_large = len(data) > CHUNK_BYTES
        source = io.BytesIO(data)
        begin = before = 0
        records: list[Any] = []
        for left in range(count, 0, -1):
            try:
                if must_check:
                    check(data, source.tell())
                records.append(read(source, parsed, None))
            except Refused as refusal:  # the start of the next one is unknown
                yield Block(records, source.tell() - begin, _with_rest(str(refusal), left - 1), left)
                return
            except Exception as error:  # untrusted bytes: a parser may raise anything
                yield Block(records, source.tell() - begin)
                raise Unreadable(why_unreadable(error)) from None
            if is_large or len(data) > size_max:
                at = source.tell()
                if at - before > size_max:
                    yield Block(records[:-1], before - begin, too_large(at - before, size_max), 1)
                    records, begin = [], at
                elif at - begin > CHUNK_BYTES:
                    yield Block(records, at - begin)
                    records, begin = [], at
                before = at
        yield Block(records, len(data) - begin)

    # ------------------------------------------------------------ bytes

    def _header(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        left, entries = HEADER_BYTES_MAX, 0
        while count := self._varint():
            if count < 0:
                count, _ = -count, self._varint()
            entries += count
            if entries > HEADER_ENTRIES_MAX:
                raise Unreadable(f"its header has more than {HEADER_ENTRIES_MAX} entries")
            for _ in range(count):
                pair = []
                for _ in range(2):
                    size = self._varint() or 0
                    if not 0 <= size <= left:
                        raise Unreadable(f"its header has more than {size_text(HEADER_BYTES_MAX)}")
                    left -= size
                    pair.append(self._exactly(size))
                found[pair[0].decode(errors="replace")] = pair[1]
        return found

    def _unpacked(self, packed: bytes) -> bytes:
        try:
            data = self._unpack(packed, BLOCK_BYTES_MAX + 1)
        except (zlib.error, lzma.LZMAError, pa.ArrowException, OSError, ValueError, EOFError) as error:
            raise Unreadable(f"a block cannot be unpacked: {str(error).partition(chr(10))[0]}") from None
        if len(data) > BLOCK_BYTES_MAX:
            raise Unreadable(f"a block unpacks to more than {size_text(BLOCK_BYTES_MAX)}")
        self._bounds.unpack(len(data))
        return data

    def _exactly(self, size: int) -> bytes:
        content = self._file.read(size)
        if len(content) < size:
            raise Unreadable("the file ends in the middle of a block")
        return content

    def _varint(self, *, may_end: bool = False) -> int | None:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._file.read(1)
            if not byte:
                if may_end and not shift:
                    return None
                raise Unreadable("the file ends in the middle of a block")
            value |= (byte[0] & 0x7F) << shift
            if byte[0] < 0x80:
                return (value >> 1) ^ -(value & 1)
        raise Unreadable("a number has too many bytes")


def _with_rest(fault: str, count: int) -> str:
    return f"{fault}; the {count} records after it in its block are lost as well" if count else fault


# ---------------------------------------------------------------- codecs


def _zstd(packed: bytes, size_max: int) -> bytes:
    with pa.CompressedInputStream(pa.py_buffer(packed), "zstd") as stream:
        content: bytes = stream.read(size_max)
        return content


def _snappy(packed: bytes, size_max: int) -> bytes:
    """Starts with the size and ends with a checksum."""
    size = shift = 0
    for byte in packed[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size >= size_max:
        raise ValueError(f"it claims to have {size_text(size)}")
    content = pa.Codec("snappy").decompress(packed[:-4], decompressed_size=size, asbytes=True)
    if zlib.crc32(content) != int.from_bytes(packed[-4:], "big"):
        raise ValueError("its checksum is wrong")
    return bytes(content)


_UNPACK: dict[str, Callable[[bytes, int], bytes]] = {
    "null": lambda packed, _: packed,
    "deflate": lambda packed, size_max: zlib.decompressobj(-15).decompress(packed, size_max),
    "bzip2": lambda packed, size_max: bz2.BZ2Decompressor().decompress(packed, size_max),
    "xz": lambda packed, size_max: lzma.LZMADecompressor(memlimit=128 << 20).decompress(packed, size_max),
    "zstandard": _zstd,
    "snappy": _snappy,
}
