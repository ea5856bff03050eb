"""Decodes JSON with the typed parser and with orjson alone, and compares rows, reasons and places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from millstream.records.bounds import RECORD_BYTES_MAX
from millstream.records.codecs import Codec, Decoded, JsonCodec, plain_json
from millstream.records.codecs import json as json_codec
from millstream.records.values import column_to_values, values_or_raw

from .arbitrary import seen


@pytest.fixture(autouse=True)
def both_parsers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For a conftest.py: whatever its tests decode in this process is decoded twice."""
    monkeypatch.setattr(JsonCodec, "decode", decoded_twice)
    yield
    json_codec._typed.cache_clear()  # it has learned the fields of strange values


class UntypedJson(JsonCodec):
    """Every value the slow way."""

    _decoded = Codec._decoded


def decoded_twice(
    self: JsonCodec, values: pa.Array | Sequence[bytes | None], *, size_bytes_max: int = RECORD_BYTES_MAX
) -> Decoded:
    slow = Codec.decode(UntypedJson(self.schema), values, size_bytes_max=size_bytes_max)
    typed = json_codec._typed(self.schema.ddl)
    if typed is not None:
        typed._paused = 0  # or single values that are refused would spare the next ones the comparison
    fast = Codec.decode(self, values, size_bytes_max=size_bytes_max)
    assert fast.failures == slow.failures
    assert fast.indices.tolist() == slow.indices.tolist()
    assert fast.tombstones.tolist() == slow.tombstones.tolist()
    assert fast.rows.schema.equals(slow.rows.schema, check_metadata=True)
    if not same(fast.rows, slow.rows):
        assert seen(fast.rows) == seen(slow.rows)
    check_plain_rows(self, values, slow, size_bytes_max)
    return fast


def check_plain_rows(
    of: JsonCodec, values: pa.Array | Sequence[bytes | None], slow: Decoded, size_bytes_max: int
) -> None:
    """If plain_json.py accepts all values, its rows are those of the codec, as columns and as dicts."""
    if (parser := plain_json._parser(of.schema.ddl)) is not None:
        parser._paused = 0
    listed = values if isinstance(values, pa.Array) else pa.array(values, pa.binary())
    plain = plain_json.plain_rows(of.schema, listed) if size_bytes_max == RECORD_BYTES_MAX and len(listed) else None
    if plain is not None:
        assert (slow.failures, len(slow.tombstones)) == ([], 0)
        made = pa.RecordBatch.from_arrays(plain.columns(), schema=slow.rows.schema)
        assert same(made, slow.rows) or seen(made) == seen(slow.rows)
        columns = [column_to_values(column, values_or_raw, values_or_raw) for column in slow.rows.columns]
        rows = [list(zip(slow.rows.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]
        assert repr([list(row.items()) for row in plain.dicts()]) == repr(rows)


def same(left: pa.RecordBatch, right: pa.RecordBatch) -> bool:
    """By bytes: 0.0 and -0.0 differ, and so do two kinds of NaN."""
    return bytes(left.serialize()) == bytes(right.serialize()) and not _has_slices(left)


def _has_slices(batch: Any) -> bool:
    return any(column.offset for column in batch.columns)
