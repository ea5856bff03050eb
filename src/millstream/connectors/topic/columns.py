"""Maps records to rows: a column is the topic's column of that name, or else the record metadata of that name.

A topic with a schema returns its stored columns. The values of one without are decoded individually; those that
cannot be decoded become dead letters, so that no record is lost silently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream.connectors.dead_letters import Origin, dead_letter_table, nullable, without_missing
from millstream.connectors.source import Slab
from millstream.errors import InvalidInput
from millstream.log.storage.layout import HEADERS, TIMESTAMP, no_values
from millstream.log.storage.reader import Fetch
from millstream.records import Codec, Schema, align, can_evolve, codec
from millstream.records.codecs import BytesCodec

METADATA: dict[str, tuple[pa.DataType, ...]] = {
    "key": (pa.binary(), pa.string()),
    "topic": (pa.string(),),
    "partition": (pa.int32(), pa.int64()),
    "offset": (pa.int64(),),
    "timestamp": (TIMESTAMP,),
    "headers": (HEADERS,),
}
SMALL_FRAME_ROWS = 2048  # smaller frames are joined: many tiny chunks cost more than one copy
RAW = ("bytes", "string")


def is_metadata(field: pa.Field) -> bool:
    return field.type in METADATA.get(field.name, ())


@dataclass(frozen=True)
class Chunk:
    """Consecutive records of one partition, as stored."""

    topic: str
    partition: int
    fetches: Sequence[Fetch]

    @property
    def origin(self) -> Origin:
        return Origin(self.topic, self.partition)

    @property
    def rows(self) -> int:
        return sum(fetch.stored.num_rows for fetch in self.fetches)

    def offsets(self) -> npt.NDArray[np.int64]:
        parts = [fetch.offsets for fetch in self.fetches]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def stored(self, name: str) -> list[pa.Array]:
        """One array per frame, or a joined one if the frames are small."""
        parts = []
        for fetch in self.fetches:
            index = fetch.stored.schema.get_field_index(name)
            if index >= 0:
                parts.append(fetch.stored.column(index))
            else:
                parts.append(no_values(fetch.schema.field(name).type, fetch.stored.num_rows))
        if len(parts) > 1 and self.rows < SMALL_FRAME_ROWS * len(parts):
            return [pa.concat_arrays(parts)]
        return parts

    def refused(self) -> dict[int, str]:
        """Why records cannot be decoded, by position."""
        found: dict[int, str] = {}
        begin = 0
        for fetch in self.fetches:
            found |= {begin + index: reason for index, reason in fetch.refused.items()}
            begin += fetch.stored.num_rows
        return found

    def keys_not_text(self) -> npt.NDArray[np.int64]:
        """The positions of keys that are not valid text."""
        keys = pa.chunked_array(self.stored("key"))
        return np.flatnonzero(pc.xor(keys.is_null(), texts(keys).is_null()).to_numpy())

    def metadata(self, field: pa.Field, offsets: npt.NDArray[np.int64]) -> pa.ChunkedArray:
        """The record metadata of this name; read as text, a key that is not valid text is null."""
        if field.name == "topic":
            return pa.chunked_array([pa.repeat(self.topic, len(offsets))])
        if field.name == "partition":
            return pa.chunked_array([pa.repeat(pa.scalar(self.partition, field.type), len(offsets))])
        if field.name == "offset":
            return pa.chunked_array([pa.array(offsets)])
        found = pa.chunked_array(self.stored(field.name))
        return texts(found) if field.type == pa.string() else found


def texts(keys: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.chunked_array([pa.array([_text(key) for key in keys.to_pylist()], pa.string())])


def _text(key: bytes | None) -> str | None:
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        return None


class Columns(Protocol):
    """How the records of a topic become rows of a schema."""

    @property
    def decodes(self) -> bool:
        """Whether values are parsed, and may be malformed."""
        ...

    def slab(self, partition: str, chunk: Chunk) -> Slab: ...


def columns_of(
    topic: str,
    stored: Schema | None,
    wanted: Schema,
    format: str,
    columns: Schema | None = None,
    options: Mapping[str, Any] | None = None,
) -> Columns:
    """`columns` are those that are used: of columnar data no others are read. `options` are those of the codec."""
    if stored is None:
        return DecodedColumns(wanted, format, lambda inside: codec(format, inside, **(options or {})))
    return StoredColumns(topic, stored, wanted, columns or wanted)


# ---------------------------------------------------------------- topics with a schema


class StoredColumns:
    """Straight from the mapped file; only columns whose type was widened are copied."""

    decodes: ClassVar[bool] = False

    def __init__(self, topic: str, stored: Schema, wanted: Schema, columns: Schema) -> None:
        self._schema = columns.arrow
        self._whole = wanted.arrow
        self._own = frozenset(stored.names) & frozenset(wanted.names)
        self._key = wanted.field("key") if "key" in wanted and "key" not in stored else None
        for field in wanted.arrow:
            _check_column(topic, stored, field)

    def slab(self, partition: str, chunk: Chunk) -> Slab:
        offsets = chunk.offsets()
        values = chunk.stored("value")
        whole = not any(value.null_count for value in values)
        parts = [value.flatten() for value in values]  # a column is null where the whole value is: a tombstone
        bad = _bad_keys(chunk, self._key, None)
        schema = self._whole if bad else self._schema  # a dead letter contains the whole row
        columns = [self._column(field, values[0].type, parts, chunk, offsets) for field in schema]
        rows = pa.Table.from_arrays(columns, schema=nullable(schema))
        if not whole and self._key is None:  # a tombstone is meaningless without the key
            present = pa.chunked_array([value.is_valid() for value in values])
            rows, offsets = rows.filter(present), offsets[present.to_numpy()]
        return without_missing(partition, chunk.origin, rows, offsets, schema, reasons=bad)

    def _column(
        self,
        field: pa.Field,
        stored: pa.StructType,
        parts: list[list[pa.Array]],
        chunk: Chunk,
        offsets: npt.NDArray[np.int64],
    ) -> pa.ChunkedArray:
        if field.name in self._own:
            index = stored.get_field_index(field.name)  # looked up each time: the topic may gain columns
            column = pa.chunked_array([part[index] for part in parts])
            return column if column.type.equals(field.type) else _widened(column, field)
        if is_metadata(field):
            return chunk.metadata(field, offsets)
        return pa.chunked_array([pa.nulls(len(offsets), field.type)])


def _widened(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    target = pa.schema([field.with_nullable(True)])
    batches = pa.Table.from_arrays([column], names=[field.name]).to_batches()
    return pa.chunked_array([align(batch, target).column(0) for batch in batches], field.type)


def _check_column(topic: str, stored: Schema, field: pa.Field) -> None:
    where = f"topic '{topic}'"
    if field.name in stored:
        own = stored.field(field.name)
        reasons = can_evolve(pa.schema([own]), pa.schema([field.with_nullable(True)]))
        if reasons:
            raise InvalidInput(
                f"column '{field.name}' is {Schema.of(pa.schema([own])).ddl.partition(' ')[2]} in the topic "
                f"and cannot be read as {Schema.of(pa.schema([field])).ddl.partition(' ')[2]}",
                where=where,
                next_step=f"read it as it is stored, and cast it in the flow; the topic's columns: {stored.ddl}",
            )
    elif field.name in METADATA:
        _check_metadata(topic, field)
    elif not field.nullable:
        raise InvalidInput(
            f"the topic has no column '{field.name}', which the schema declares NOT NULL",
            where=where,
            next_step=f"the topic's columns: {stored.ddl}; besides them a record has {', '.join(METADATA)}",
        )


def _check_metadata(topic: str, field: pa.Field) -> None:
    if not is_metadata(field):
        kinds = " or ".join(str(Schema.of(pa.schema([("x", kind)])).ddl[2:]) for kind in METADATA[field.name])
        raise InvalidInput(
            f"the {field.name} of a record is {kinds}, not {Schema.of(pa.schema([field])).ddl.partition(' ')[2]}",
            where=f"topic '{topic}'",
            next_step=f"write: {field.name} {kinds.partition(' or ')[0]}",
        )


# ---------------------------------------------------------------- topics without


class DecodedColumns:
    """Decodes the values; a field of a JSON object takes precedence over metadata of the same name.

    `make` creates the codec for the columns of values, if it is not simply that of the format.
    """

    def __init__(self, wanted: Schema, format: str, make: Callable[[Schema], Codec] | None = None) -> None:
        self._schema = wanted.arrow
        self._nullable = nullable(wanted.arrow)
        by_name = format == "json"
        metadata = [field for field in wanted.arrow if is_metadata(field)]
        self._metadata = {field.name for field in metadata}
        inside = [field for field in wanted.arrow if by_name or field.name not in self._metadata]
        # Whether a column that may come from either is missing is only known after both were tried.
        inside = [field.with_nullable(field.nullable or field.name in self._metadata) for field in inside]
        self._codec: Codec | None = None
        if inside:
            columns = Schema.of(pa.schema(inside))
            self._codec = codec(format, columns) if make is None else make(columns)
        self._key = wanted.field("key") if "key" in self._metadata else None

    @property
    def decodes(self) -> bool:
        return self._codec is not None and not isinstance(self._codec, BytesCodec)

    def slab(self, partition: str, chunk: Chunk) -> Slab:
        offsets = chunk.offsets()
        values = pa.chunked_array(chunk.stored("value")).combine_chunks()
        if self._codec is None:
            columns = {field.name: chunk.metadata(field, offsets) for field in self._schema}
            return self._slab(partition, chunk, columns, offsets, None, None)
        decoded = self._codec.decode(values)
        kept, rows = decoded.indices, decoded.rows
        if self._key is not None and len(decoded.tombstones):
            kept, rows = _with_tombstones(rows, decoded.indices, decoded.tombstones)
        columns = {}
        for field in self._schema:
            own = rows.column(field.name) if field.name in rows.schema.names else None
            if field.name in self._metadata:
                known = chunk.metadata(field, offsets).take(pa.array(kept))
                own = known if own is None else pc.coalesce(pa.chunked_array([own]), known)
            columns[field.name] = own if isinstance(own, pa.ChunkedArray) else pa.chunked_array([own])
        dead = None
        if decoded.failures:
            dead = dead_letter_table(values, offsets, decoded.failures, chunk.origin)
        return self._slab(partition, chunk, columns, offsets[kept], dead, kept)

    def _slab(
        self,
        partition: str,
        chunk: Chunk,
        columns: dict[str, pa.ChunkedArray],
        offsets: npt.NDArray[np.int64],
        dead: pa.Table | None,
        kept: npt.NDArray[np.int64] | None,
    ) -> Slab:
        rows = pa.Table.from_arrays([columns[name] for name in self._schema.names], schema=self._nullable)
        bad = _bad_keys(chunk, self._key, kept)
        if bad:  # where the value has its own key, that of the record does not count
            missing = set(np.flatnonzero(columns["key"].is_null().to_numpy()).tolist())
            bad = {row: reason for row, reason in bad.items() if row in missing}
        if refused := chunk.refused():
            places = range(len(offsets)) if kept is None else kept.tolist()
            bad |= {row: refused[place] for row, place in enumerate(places) if place in refused}
        return without_missing(partition, chunk.origin, rows, offsets, self._schema, dead, reasons=bad)


def _bad_keys(chunk: Chunk, key: pa.Field | None, kept: npt.NDArray[np.int64] | None) -> dict[int, str]:
    """Of the rows made from the records at `kept` (None: all), those whose key is not valid text."""
    if key is None or key.type != pa.string():
        return {}
    bad = chunk.keys_not_text()
    rows = bad if kept is None else np.flatnonzero(np.isin(kept, bad))
    return dict.fromkeys(rows.tolist(), "the key is not valid UTF-8")


def _with_tombstones(
    rows: pa.RecordBatch, indices: npt.NDArray[np.int64], tombstones: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], pa.RecordBatch]:
    """Inserts rows of nulls at their positions."""
    all_indices = np.concatenate([indices, tombstones])
    order = np.argsort(all_indices, kind="stable")
    places = pa.array(np.where(order < len(indices), order, -1), pa.int64())
    taken = pc.if_else(pc.less(places, 0), None, places)
    columns = [column.take(taken) for column in rows.columns]
    return all_indices[order], pa.RecordBatch.from_arrays(columns, schema=nullable(rows.schema))
