"""Goal: what does not fit is refused by `send` or by its receipt; other records are stored."""

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal

import polars as pl
import pyarrow as pa
import pytest

from millstream.errors import ClosedError, InvalidInput, InvalidRecord, MillstreamError, UnknownPartition, UnknownTopic

MOMENT = datetime(2024, 5, 1, 12, tzinfo=UTC)


@pytest.fixture
def topics(log):
    log.create_topic("plain")
    log.create_topic("typed", schema="n int NOT NULL, s string, at timestamp", codec="json")
    log.create_topic("compacted", compaction=True)
    return log


@pytest.mark.parametrize(
    ("topic", "value", "more"),
    [
        ("plain", {"a": 1}, {}),
        ("plain", 5, {}),
        ("plain", ["x"], {}),
        ("plain", "\ud800", {}),
        ("plain", b"x", {"key": 5}),
        ("plain", b"x", {"key": "\ud800"}),
        ("plain", b"x", {"timestamp": datetime(2024, 5, 1)}),
        ("plain", b"x", {"timestamp": 1714564800}),
        ("plain", b"x", {"timestamp": "2024-05-01"}),
        ("plain", b"x", {"headers": {"a": 1}}),
        ("plain", b"x", {"headers": {1: b"a"}}),
        ("plain", b"x", {"headers": {"a": None}}),
        ("plain", b"x", {"headers": ["a"]}),
        ("plain", b"x", {"headers": "text"}),
        ("plain", b"x", {"headers": [("a", b"b", "c")]}),
        ("plain", b"x", {"headers": {"\ud800": b"a"}}),
        ("plain", b"x", {"headers": {"a": "\ud800"}}),
        ("plain", object(), {}),
        ("typed", {"n": 1, "colour": "red"}, {}),
        ("typed", "text", {}),
        ("typed", [1], {}),
        ("typed", 5, {}),
        ("compacted", b"no key", {}),
        ("compacted", None, {}),
    ],
)
def test_refused_where_it_is_sent(topics, read, topic, value, more):
    with topics.producer() as producer:
        with pytest.raises(InvalidRecord):
            producer.send(topic, value, **more)
        good = {"n": 1} if topic == "typed" else b"good"
        assert producer.send(topic, good, key="k").offset == 0
    assert len(read(topics, topic)) == 1


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"n": None},
        {"n": "1"},
        {"n": 1.5},
        {"n": True},
        {"n": 2**31},
        {"n": 1, "s": 5},
        {"n": 1, "s": "\ud800"},
        {"n": 1, "at": datetime(2024, 5, 1)},
        {"n": 1, "at": "2024-05-01"},
        {"n": Decimal("1.5")},
        b"\xff\xfe",
        b"",
        b"{",
        b'{"n": "x"}',
        b'{"n": null}',
        b"[1]",
    ],
)
def test_a_receipt_raises_while_other_records_are_stored(topics, read, value):
    producer = topics.producer(linger="1 second")
    before, bad, after = (producer.send("typed", row) for row in ({"n": 1}, value, b'{"n": 2}'))
    with pytest.raises(InvalidRecord):
        bad.wait()
    assert (before.offset, after.offset) == (0, 1)
    with pytest.raises(InvalidRecord):
        producer.close()
    assert [row["n"] for row in read(topics, "typed")] == [1, 2]


def test_several_failures_are_counted(topics):
    producer = topics.producer(linger="1 second")
    for _ in range(3):
        producer.send("typed", {"n": "x"})
    with pytest.raises(InvalidRecord, match="2 more"):
        producer.flush()
    producer.flush()
    producer.close()


@pytest.mark.parametrize(
    ("topic", "batch", "more"),
    [
        ("plain", {"v": [b"x"]}, {}),
        ("plain", {"value": [b"x"]}, {"key": "k"}),
        ("plain", {"value": [b"x"]}, {"timestamp": "at"}),
        ("plain", {"value": [[1]]}, {}),
        ("plain", {"value": [b"x"], "key": [[1]]}, {}),
        ("plain", {"value": [b"x"], "timestamp": [datetime(2024, 5, 1)]}, {}),
        ("plain", {"value": [b"x"], "timestamp": [b"x"]}, {}),
        ("plain", {"value": [b"x"], "headers": [5]}, {}),
        ("typed", {"n": [1], "colour": ["red"]}, {}),
        ("typed", {"s": ["x"]}, {}),
        ("typed", {"n": [1, None]}, {}),
        ("typed", {"n": [2**31]}, {}),
        ("typed", {"n": ["x"]}, {}),
        ("typed", {"n": [1], "at": [datetime(2024, 5, 1)]}, {}),
        ("typed", {"n": [1]}, {"key": "missing"}),
        ("compacted", {"value": [b"x"]}, {}),
        ("compacted", {"value": [b"x", b"y"], "key": [b"k", None]}, {}),
    ],
)
@pytest.mark.parametrize("kind", ["table", "batch", "frame"])
def test_batches_that_do_not_fit(topics, read, topic, batch, more, kind):
    table = pa.table(batch)
    made = {"table": table, "batch": table.to_batches()[0], "frame": pl.from_arrow(table)}[kind]
    with topics.producer() as producer, pytest.raises(InvalidRecord):
        producer.send_batch(topic, made, **more)
    assert read(topics, topic) == []


@pytest.mark.parametrize("batch", [{"value": [b"x"]}, [b"x"], None, b"x", 5])
def test_bytes_that_are_not_a_batch(topics, batch):
    with topics.producer() as producer, pytest.raises(InvalidInput):
        producer.send_batch("plain", batch)


def test_two_columns_of_one_name(topics):
    twice = pa.Table.from_arrays([pa.array([b"x"]), pa.array([b"y"])], names=["value", "value"])
    with topics.producer() as producer, pytest.raises(InvalidRecord, match="two columns"):
        producer.send_batch("plain", twice)


def test_batches_of_every_encoding(topics, read):
    values = ["a", "b", None, "d"]
    kinds = [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.binary()),
    ]
    with topics.producer() as producer:
        for kind in kinds:
            if pa.types.is_dictionary(kind):
                column = pa.array(values, kind.value_type).dictionary_encode().cast(kind)
            else:
                column = pa.array([v.encode() if v and "binary" in str(kind) else v for v in values], kind)
            producer.send_batch("plain", pa.table({"value": column, "key": column}))
        producer.send_batch("plain", pa.table({"value": pa.array([b"\xff\xfe"], pa.binary(2))}))
        producer.send_batch("plain", pa.table({"value": pa.array([b"\xff\xfe"]).dictionary_encode()}))
    assert read(topics, "plain") == [b"a", b"b", None, b"d"] * len(kinds) + [b"\xff\xfe"] * 2


def test_several_chunks_slices_and_nothing_at_all(topics, read):
    chunked = pa.chunked_array([["0", "1"], [], ["2"]])
    whole = pa.table({"value": [str(number) for number in range(100)]})
    nothing = pa.table({"value": pa.array([], pa.string())})
    with topics.producer() as producer:
        producer.send_batch("plain", pa.table({"value": chunked}))
        producer.send_batch("plain", whole.slice(50, 3))
        producer.send_batch("plain", whole.to_batches()[0].slice(98))
        for empty in (nothing, nothing.to_batches(), pl.DataFrame({"value": pl.Series([], dtype=pl.String)})):
            for batch in empty if isinstance(empty, list) else [empty]:
                receipt = producer.send_batch("plain", batch).wait()
                assert receipt.offsets.tolist() == []
        with pytest.raises(InvalidRecord):
            producer.send_batch("plain", pa.table({"other": pa.array([], pa.string())}))
    assert read(topics, "plain") == [b"0", b"1", b"2", b"50", b"51", b"52", b"98", b"99"]


def test_a_typed_slice_keeps_its_nulls(topics, read):
    whole = pa.table({"n": pa.array(range(10), pa.int32()), "s": [None if n % 2 else str(n) for n in range(10)]})
    with topics.producer() as producer:
        producer.send_batch("typed", whole.slice(3, 4))
        producer.send_batch("typed", pl.from_arrow(whole).slice(8).with_columns(pl.col("s").cast(pl.Categorical)))
    assert [(row["n"], row["s"]) for row in read(topics, "typed")] == [
        (3, None), (4, "4"), (5, None), (6, "6"), (8, "8"), (9, None),
    ]  # fmt: skip


def test_times_that_are_missing_in_a_batch_are_now(topics):
    times = pa.array([MOMENT, None], pa.timestamp("us", "Europe/Berlin"))
    with topics.producer() as producer:
        producer.send_batch("plain", pa.table({"value": ["a", "b"], "timestamp": times}))
    with topics.consumer("plain") as consumer:
        first, second = consumer.poll(1)
    assert first.timestamp == MOMENT
    assert abs((second.timestamp - datetime.now(UTC)).total_seconds()) < 60


def test_headers_of_a_batch(topics):
    headers = pa.array([[("a", b"1")], None, []], pa.map_(pa.string(), pa.binary()))
    with topics.producer() as producer:
        producer.send_batch("plain", pa.table({"value": ["x", "y", "z"], "headers": headers}))
    with topics.consumer("plain") as consumer:
        assert [record.headers for record in consumer.poll(1)] == [(("a", b"1"),), (), ()]


def test_values_that_are_odd_but_fit(topics, read):
    topics.create_topic("floats", schema="x double")
    with topics.producer() as producer:
        producer.send("floats", {"x": float("inf")})
        producer.send("floats", {"x": float("nan")})
        producer.send("floats", {})
        producer.send("plain", memoryview(b"view"), key=bytearray(b"key"))
        producer.send("compacted", None, key="")
    infinite, not_a_number, missing = (row["x"] for row in read(topics, "floats"))
    assert infinite == float("inf")
    assert not_a_number != not_a_number
    assert missing is None
    assert read(topics, "plain") == [b"view"]
    assert read(topics, "compacted") == [None]


def test_huge_records(topics, read):
    huge = bytes(40 << 20)
    with topics.producer() as producer:
        producer.send("plain", b"small")
        producer.send("plain", huge)
        producer.send("plain", b"small")
    assert [len(value) for value in read(topics, "plain")] == [5, 40 << 20, 5]


def test_misuse_of_a_producer_is_refused(topics):
    producer = topics.producer()
    with pytest.raises(UnknownTopic, match="plain"):
        producer.send("nothing", b"x")
    with pytest.raises(UnknownPartition, match="choose 0 to 0"):
        producer.send("plain", b"x", partition=1)
    producer.close()
    producer.close()
    producer.flush()
    for use in (
        lambda: producer.send("plain", b"x"),
        lambda: producer.send_batch("plain", pa.table({"value": ["x"]})),
    ):
        with pytest.raises(ClosedError):
            use()


def test_a_send_that_is_overtaken_by_a_close_does_not_hang(topics):
    producer = topics.producer()
    producer.send("typed", {"n": 1}).wait()

    class Slow(Mapping):
        """Closes the producer while its value is looked at, as another thread might."""

        def __getitem__(self, name):
            return 2

        def __iter__(self):
            producer.close()
            return iter(["n"])

        def __len__(self):
            return 1

    with pytest.raises(MillstreamError):
        producer.send("typed", Slow()).wait(5)
    producer.flush(5)
