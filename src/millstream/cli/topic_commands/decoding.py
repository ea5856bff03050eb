"""Turns lines into records of a topic, one by one: each is either sent or rejected with a reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from millstream.errors import InvalidInput
from millstream.log import Producer, Receipt
from millstream.log.storage.layout import HEADERS, TIMESTAMP
from millstream.log.topics import TopicSettings
from millstream.records import Codec, Failure, Schema, batch_to_rows, codec
from millstream.records.codecs.csv import header_names, name_given_twice
from millstream.records.codecs.json import check_containers
from millstream.records.columns import Refused

if TYPE_CHECKING:
    from millstream.cli.topic_commands.importing import Options

Refusal = Failure
NEEDS_KEY = "a record of a compacted topic needs a key, and this one has none"
Keys = list[bytes | None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Records that can be sent."""

    send: Callable[[Producer, str], list[Receipt]]

    @classmethod
    def of_batch(cls, batch: pa.RecordBatch, key: str | None, timestamp: str | None, partition: int | None) -> Prepared:
        def send(producer: Producer, topic: str) -> list[Receipt]:
            if not batch.num_rows:
                return []
            return [producer.send_batch(topic, batch, key=key, timestamp=timestamp, partition=partition)]

        return cls(send)


class Decoder(Protocol):
    skips_empty_lines: bool

    def decode(self, lines: Sequence[bytes]) -> tuple[Prepared, list[Refusal]]: ...


def line_decoder(settings: TopicSettings, options: Options) -> Decoder:
    if settings.schema is None:
        return UntypedLines(settings, options)
    name = "json" if options.format == "json" else settings.codec or "json"
    return TypedLines(settings, options, codec(name, settings.schema))


def csv_decoder(settings: TopicSettings, options: Options, header: bytes, *, where: str) -> Decoder:
    """The first line names the columns."""
    if settings.schema is None:
        raise InvalidInput(
            "CSV with a header line needs a topic with a schema",
            where=where,
            next_step="give the topic one, or store the lines as they are with --format lines",
        )
    try:
        names = header_names(header)
    except Refused as refusal:
        raise InvalidInput(str(refusal), where=where) from None
    fields = [settings.schema.field(name) for name in names]
    if twice := name_given_twice(names):
        raise InvalidInput(f"the header line names column '{twice}' twice", where=where)
    missing = [field.name for field in settings.schema.arrow if not field.nullable and field.name not in names]
    if missing:
        raise InvalidInput(f"column '{missing[0]}' is NOT NULL, but the header line does not name it", where=where)
    return TypedLines(settings, options, codec("csv", Schema.of(pa.schema(fields))))


# ---------------------------------------------------------------- topics with a schema


def check_columns(schema: Schema, key: str | None, timestamp: str | None) -> None:
    """Checks that these columns exist and have types for a key and a timestamp."""
    if key is not None and pa.types.is_nested(schema.field(key).type):
        raise InvalidInput(f"column '{key}' has arrays, maps or structs and cannot be the key")
    if timestamp is not None and schema.field(timestamp).type != TIMESTAMP:
        raise InvalidInput(
            f"column '{timestamp}' is not a timestamp",
            next_step="name a column of type timestamp, or leave it out for the current time",
        )


class TypedLines:
    def __init__(self, settings: TopicSettings, options: Options, of: Codec) -> None:
        self._codec = of
        self._options = options
        self._compacted = settings.compaction
        self.skips_empty_lines = of.name in ("json", "csv")
        check_columns(of.schema, options.key, options.timestamp)

    def decode(self, lines: Sequence[bytes]) -> tuple[Prepared, list[Refusal]]:
        options = self._options
        refused: dict[int, str] = {}
        keys, values = split_lines(lines, options, refused)
        decoded = self._codec.decode([None if index in refused else value for index, value in enumerate(values)])
        refused |= {failure.index: failure.reason for failure in decoded.failures}
        rows, indices = decoded.rows, decoded.indices
        if options.timestamp is not None:
            _refuse_nulls(rows.column(options.timestamp), indices, "the timestamp", options.timestamp, refused)
        if options.key is not None and self._compacted:
            _refuse_nulls(rows.column(options.key), indices, "the key", options.key, refused)
        tombstones = [int(index) for index in decoded.tombstones if index not in refused]
        if self._compacted and keys is None:
            refused |= dict.fromkeys(tombstones, NEEDS_KEY)
            tombstones = []
        if refused and len(indices):
            kept = ~np.isin(indices, np.fromiter(refused, np.int64))
            if not kept.all():
                rows, indices = rows.filter(pa.array(kept)), indices[kept]
        refusals = [Refusal(index, refused[index]) for index in sorted(refused)]
        if keys is None and not tombstones and not options.headers:
            return Prepared.of_batch(rows, options.key, options.timestamp, options.partition), refusals
        return self._one_by_one(rows, indices.tolist(), tombstones, keys), refusals

    def _one_by_one(
        self, rows: pa.RecordBatch, indices: list[int], tombstones: list[int], keys: Keys | None
    ) -> Prepared:
        """For what a batch of columns cannot express: tombstones, headers, and keys that are not a column."""
        options = self._options
        held: dict[int, Any] = dict(zip(indices, batch_to_rows(rows), strict=True)) | dict.fromkeys(tombstones)
        column_keys = dict(zip(indices, _key_texts(rows, options.key), strict=True)) if options.key else {}

        def send(producer: Producer, topic: str) -> list[Receipt]:
            return [
                producer.send(
                    topic,
                    held[index],
                    column_keys.get(index) if keys is None else keys[index],
                    partition=options.partition,
                    timestamp=held[index][options.timestamp] if options.timestamp and held[index] else None,
                    headers=options.headers or None,
                )
                for index in sorted(held)
            ]

        return Prepared(send)


def _refuse_nulls(column: pa.Array, indices: Any, what: str, name: str, refused: dict[int, str]) -> None:
    if column.null_count:
        for row in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)):
            refused[int(indices[row])] = f"column '{name}' is {what}, but it is missing or null"


def _key_texts(rows: pa.RecordBatch, name: str) -> Keys:
    """The keys, as `send_batch` would take them from the column."""
    column = rows.column(name)
    binary = column if pa.types.is_binary(column.type) else pc.cast(column, pa.string()).cast(pa.binary())
    texts: Keys = binary.to_pylist()
    return texts


# ---------------------------------------------------------------- topics without a schema


class UntypedLines:
    """The value is the line, or its part after the key; JSON is only parsed for key and timestamp."""

    def __init__(self, settings: TopicSettings, options: Options) -> None:
        self._options = options
        self._compacted = settings.compaction
        self.skips_empty_lines = options.key is not None or options.timestamp is not None or options.format == "json"
        at = options.timestamp
        self._times = None if at is None else codec("json", Schema.of(pa.schema([pa.field(at, TIMESTAMP, False)])))

    def decode(self, lines: Sequence[bytes]) -> tuple[Prepared, list[Refusal]]:
        options = self._options
        refused: dict[int, str] = {}
        keys, values = split_lines(lines, options, refused)
        if options.key is not None or options.format == "json":
            keys = _json_keys(values, options.key, refused)
        if self._compacted and keys is not None:
            refused |= {i: NEEDS_KEY for i, key in enumerate(keys) if key is None and i not in refused}
        columns: dict[str, pa.Array] = {"value": pa.array(values, pa.binary())}
        if keys is not None:
            columns["key"] = pa.array(keys, pa.binary())
        if self._times is not None:
            columns["timestamp"] = self._timestamps(self._times, values, refused)
        if options.headers:
            pairs = [(name, value.encode()) for name, value in options.headers]
            columns["headers"] = pa.repeat(pa.scalar(pairs, HEADERS), len(lines))
        batch = pa.RecordBatch.from_pydict(columns)
        if refused:
            batch = batch.take(pa.array(np.delete(np.arange(len(lines)), sorted(refused))))
        refusals = [Refusal(index, refused[index]) for index in sorted(refused)]
        return Prepared.of_batch(batch, None, None, options.partition), refusals

    def _timestamps(self, times: Codec, values: Sequence[bytes | None], refused: dict[int, str]) -> pa.Array:
        """The time in each value; for rejected values and tombstones, the current time."""
        decoded = times.decode([None if index in refused else value for index, value in enumerate(values)])
        refused |= {failure.index: failure.reason for failure in decoded.failures}
        found = np.full(len(values), np.datetime64("now", "us"))
        found[decoded.indices] = decoded.rows.column(0).cast(pa.timestamp("us")).to_numpy(zero_copy_only=False)
        return pa.array(found, pa.timestamp("us")).cast(TIMESTAMP)


def split_lines(
    lines: Sequence[bytes], options: Options, refused: dict[int, str]
) -> tuple[Keys | None, Sequence[bytes | None]]:
    """Keys, if lines have them before a separator, and values; None for a tombstone."""
    keys: Keys | None = None
    values: Sequence[bytes | None] = lines
    if options.key_separator is not None:
        mark = options.key_separator.encode()
        parts = [line.partition(mark) for line in lines]
        refused |= {
            i: f"there is no '{options.key_separator}' in the line" for i, part in enumerate(parts) if not part[1]
        }
        keys, values = [key for key, _, _ in parts], [value for _, _, value in parts]
    if options.null_value is not None:
        null = options.null_value.encode()
        values = [None if value == null else value for value in values]
    return keys, values


def _json_keys(values: Sequence[bytes | None], name: str | None, refused: dict[int, str]) -> Keys | None:
    """The key in each JSON object; without a name, the values are only checked to be JSON."""
    keys: Keys = []
    for index, value in enumerate(values):
        key = None
        if value is not None and index not in refused:
            try:
                check_containers(value)
                document = orjson.loads(value)
                key = None if name is None else _json_key(document, name)
            except Refused as refusal:
                refused[index] = str(refusal)
            except orjson.JSONDecodeError as error:
                refused[index] = f"not valid JSON at character {error.pos}: {error.msg}"
            except ValueError as error:
                refused[index] = str(error)
        keys.append(key)
    return None if name is None else keys


def _json_key(document: Any, name: str) -> bytes | None:
    if not isinstance(document, dict):
        raise ValueError(f"expected a JSON object with the field '{name}' as its key")
    if name not in document:
        raise ValueError(f"the JSON object has no field '{name}' for the key")
    key = document[name]
    if isinstance(key, dict | list):
        raise ValueError(f"the field '{name}' is an object or array, which cannot be a key")
    if key is None:
        return None
    return key.encode() if isinstance(key, str) else orjson.dumps(key)
