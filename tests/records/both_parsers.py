"""Decodes JSON with the typed parser and with orjson alone, and compares rows, reasons and places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from millstream.records.bounds import RECORD_BYTES_MAX
from millstream.records.codecs import Codec, Decoded, JsonCodec
from millstream.records.codecs import json as json_codec

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
    return fast


def same(left: pa.RecordBatch, right: pa.RecordBatch) -> bool:
    """By bytes: 0.0 and -0.0 differ, and so do two kinds of NaN."""
    return bytes(left.serialize()) == bytes(right.serialize()) and not _has_slices(left)


def _has_slices(batch: Any) -> bool:
    return any(column.offset for column in batch.columns)
