"""Records that are made without columns are those that the columns give, in whatever parts they are taken."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millstream.log.agreement.groups import TopicPartition
from millstream.log.batches import Batch
from millstream.log.kafka.decoding import ParsedBatch, to_batch
from millstream.log.kafka.received import Received
from millstream.records import Schema
from millstream.records.codecs import plain_json

SCHEMA = Schema.of("user string, n int, share double, ok boolean")
GOOD = [
    b'{"user":"ann","n":1,"share":0.5,"ok":true}',
    b'{"n":-2147483648,"user":"\\u00e9","share":3}',
    b"{}",
    b'{"ok":null,"user":null}',
]


@pytest.fixture(autouse=True)
def forgotten() -> None:
    plain_json._parser.cache_clear()  # a refused batch pauses it


def received(values: list[bytes | None], times: list[int] | None = None) -> Received:
    count = len(values)
    headers: list[Any] = [[("a", b"1"), ("a", None)] if place % 2 else None for place in range(count)]
    keys = pa.array([None if place % 3 else b"k%d" % place for place in range(count)], pa.binary())
    times_ms = np.array(times or range(1_700_000_000_000, 1_700_000_000_000 + count), np.int64)
    offsets = np.arange(10, 10 + 2 * count, 2)
    return Received(TopicPartition("t", 3), offsets, pa.array(values, pa.binary()), keys, times_ms, headers)


def batch_of(values: list[bytes | None], schema: Schema = SCHEMA, times: list[int] | None = None) -> Batch:
    batch, unreadable = to_batch(received(values, times), schema)
    assert unreadable is None
    assert batch is not None
    return batch


def through_columns(batch: Batch) -> Batch:
    return Batch(batch.topic, batch.partition, batch.offsets, batch.columns)


def test_records_are_those_of_the_columns() -> None:
    batch = batch_of(list(GOOD))
    assert isinstance(batch, ParsedBatch)
    records = batch.records()
    assert [record.value for record in records] == [
        {"user": "ann", "n": 1, "share": 0.5, "ok": True},
        {"user": "é", "n": -(2**31), "share": 3.0, "ok": None},
        {"user": None, "n": None, "share": None, "ok": None},
        {"user": None, "n": None, "share": None, "ok": None},
    ]
    assert list(records[1].value) == list(SCHEMA.names)
    assert records == through_columns(batch).records()


def test_parts_and_copies() -> None:
    batch = batch_of(GOOD * 5)
    first, second = batch.split(7)
    assert (len(first), len(second)) == (7, 13)
    assert first.records() + second.records() == batch.records()
    assert through_columns(second).records() == second.records()
    assert second.to_polars().rows() == batch.to_polars().rows()[7:]
    assert pickle.loads(pickle.dumps(first)).records() == first.records()


def test_times_out_of_range() -> None:
    batch = batch_of(list(GOOD), times=[-1, 0, 2**50, 1_700_000_000_000])
    assert isinstance(batch, ParsedBatch)
    assert batch.records() == through_columns(batch).records()


@pytest.mark.parametrize(
    "odd",
    [None, b'{"n":1,"other":2}', b'{"share":"NaN"}', b' {"n" : 1 } ', b'{"n":1,"n":2}', b'{"user":"\\ud83d\\ude00"}'],
)
def test_odd_values_beside_good_ones(odd: bytes | None) -> None:
    batch = batch_of([*GOOD, odd, *GOOD])
    assert repr(batch.records()) == repr(through_columns(batch).records())  # NaN differs from itself
    assert len(batch) == 2 * len(GOOD) + 1


@pytest.mark.parametrize("bad", [b"", b"[]", b'{"n":1.5}', b'{"n":2147483648}', b'{"user":"\\ud800"}', b'{"n":1}x'])
def test_records_before_a_bad_one_are_returned(bad: bytes) -> None:
    batch, unreadable = to_batch(received([*GOOD, bad, *GOOD]), SCHEMA)
    assert batch is not None
    assert batch.records() == batch_of(list(GOOD)).records()
    assert unreadable is not None
    assert unreadable.offset == 10 + 2 * len(GOOD)


@pytest.mark.parametrize(
    "ddl", ["at timestamp", "x float", "d decimal(5,2)", "a array<int>", "`odd name` int", "`class` int"]
)
def test_columns_that_differ_in_python_take_the_other_way(ddl: str) -> None:
    assert not isinstance(batch_of([b"{}"], Schema.of(ddl)), ParsedBatch)
