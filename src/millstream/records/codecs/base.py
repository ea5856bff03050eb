"""A codec treats each value alone: the result for a record never depends on the records around it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.errors import InvalidRecord
from millstream.records.bounds import CHUNK_BYTES, RECORD_BYTES_MAX, too_large
from millstream.records.columns import Columns, Failure, Faults, Rules
from millstream.records.evolution import align
from millstream.records.schema import Schema

Indices = npt.NDArray[np.int64]

# Python objects of this many records stay in the CPU cache; larger chunks were up to twice as slow to parse.
CHUNK_RECORDS = 2_000


@dataclass(frozen=True, slots=True)
class Decoded:
    """Every input value is in exactly one place: a row, a failure, or, if it was null, a tombstone."""

    rows: pa.RecordBatch
    indices: Indices  # the position of each row in the input
    failures: list[Failure]
    tombstones: Indices


@dataclass(frozen=True, slots=True)
class Encoded:
    """One value per row; null for a row that the format cannot hold, which has a failure."""

    values: pa.Array
    failures: list[Failure]


@dataclass(frozen=True)
class Codec(ABC):
    """Turns the bytes of records into rows of `schema` and back."""

    schema: Schema

    name: ClassVar[str]
    bounded: ClassVar[bool] = True  # whether a value can expand in memory, and therefore has a size limit

    def decode(self, values: pa.Array | Sequence[bytes | None], *, size_bytes_max: int = RECORD_BYTES_MAX) -> Decoded:
        """Rows for the values that can be decoded, a reason for each that cannot; null values are tombstones."""
        held, places, tombstones = _present(values)
        batches: list[pa.RecordBatch] = []
        kept: list[Indices] = []
        failures: list[Failure] = []
        for start, end in _chunks(held):
            rows, positions, faults = self._decoded(held[start:end], size_bytes_max)
            batches.append(rows)
            kept.append(positions + start)
            failures += [Failure(int(places[start + index]), faults[index]) for index in sorted(faults)]
        return Decoded(
            rows=pa.concat_batches(batches) if batches else empty_batch(self.schema),
            indices=places[np.concatenate(kept)] if kept else places,
            failures=failures,
            tombstones=tombstones,
        )

    def _decoded(self, chunk: list[bytes], size_bytes_max: int) -> tuple[pa.RecordBatch, Indices, Faults]:
        """The rows of a chunk with their positions, and a reason for each value that is not a row."""
        too_large = self._take_out_too_large(chunk, size_bytes_max)
        faults: Faults = {}
        columns = self._columns(chunk, faults)
        faults |= too_large
        rows, positions = Columns(self.schema.arrow, self._rules(), faults).batch(columns, len(chunk))
        return rows, positions, faults

    def _take_out_too_large(self, chunk: list[bytes], size_bytes_max: int) -> Faults:
        """Empties the values that are too large, and returns the reason for each."""
        faults: Faults = {}
        if self.bounded and sum(map(len, chunk)) > size_bytes_max:
            for index, value in enumerate(chunk):
                if len(value) > size_bytes_max:
                    faults[index], chunk[index] = too_large(len(value), size_bytes_max), b""
        return faults

    def encode(self, rows: pa.RecordBatch) -> pa.Array:
        """One binary value per row; the rows may have any schema that evolves into this one."""
        encoded = self.encode_each(rows)
        if encoded.failures:
            first = encoded.failures[0]
            raise InvalidRecord(f"row {first.index} cannot be written as {self.name}: {first.reason}")
        return encoded.values

    def encode_each(self, rows: pa.RecordBatch) -> Encoded:
        """Like `encode`, with a reason for each row that the format cannot hold."""
        aligned = align(rows, self.schema.arrow)
        chunks: list[pa.Array] = []
        failures: list[Failure] = []
        for start in range(0, aligned.num_rows, CHUNK_RECORDS):
            faults: Faults = {}
            chunks.append(pa.array(self._encoded_each(aligned.slice(start, CHUNK_RECORDS), faults), pa.binary()))
            failures += [Failure(start + index, faults[index]) for index in sorted(faults)]
        return Encoded(pa.concat_arrays(chunks) if chunks else pa.array([], pa.binary()), failures)

    def check_encodes(self) -> None:
        """Raises InvalidSchema if the format has no place for one of the columns."""
        return

    def _encoded_each(self, rows: pa.RecordBatch, faults: Faults) -> Sequence[bytes | None]:
        """One value per row, or a reason in `faults`; default: the format holds every row."""
        return self._encoded(rows)

    def _encoded(self, rows: pa.RecordBatch) -> Sequence[bytes | None]:
        """One value per row, for formats that hold every row."""
        raise NotImplementedError

    @abstractmethod
    def _rules(self) -> Rules:
        """What the parsed values may be."""

    @abstractmethod
    def _columns(self, values: list[bytes], faults: Faults) -> Iterable[list[Any]]:
        """The values of each column; values that cannot be decoded get a reason in `faults`."""


def _chunks(values: list[bytes]) -> Iterator[tuple[int, int]]:
    """Bounds of chunks, limited in records and in bytes; a larger value gets its own chunk."""
    for start in range(0, len(values), CHUNK_RECORDS):
        end = min(start + CHUNK_RECORDS, len(values))
        if sum(map(len, values[start:end])) <= CHUNK_BYTES:
            yield start, end
            continue
        sizes = list(map(len, values[start:end]))
        begin, size_bytes = start, 0
        for index, size in enumerate(sizes, start):
            if size_bytes + size > CHUNK_BYTES and index > begin:
                yield begin, index
                begin, size_bytes = index, 0
            size_bytes += size
        yield begin, end


def empty_batch(schema: Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], column.type) for column in schema.arrow], schema=schema.arrow)


def _present(values: pa.Array | Sequence[bytes | None]) -> tuple[list[bytes], Indices, Indices]:
    """The values that are not null, their positions, and the positions of nulls."""
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        has_nulls, listed = bool(values.null_count), values.cast(pa.binary()).to_pylist()
    else:
        listed = list(values)
        has_nulls = type(None) in set(map(type, listed))
    if not has_nulls:
        return listed, np.arange(len(listed), dtype=np.int64), np.array([], np.int64)
    is_null = np.fromiter((value is None for value in listed), bool, len(listed))
    return [value for value in listed if value is not None], np.flatnonzero(~is_null), np.flatnonzero(is_null)
