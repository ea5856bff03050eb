"""A topic as a source gives the committed records of a range: each once, in order, with the columns asked for."""

import multiprocessing
import os
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.reading import dead, offsets, rows, slabs
from millstream.connectors.source import SLAB_ROWS, Slice, cut, fair_shares
from millstream.errors import InvalidInput, OffsetLost, UnknownTopic
from millstream.log import EmbeddedLog
from millstream.records import Schema

SCORES = "user string, score int"


def send(log, topic, values, **settings):
    with log.producer() as producer:
        for value in values:
            producer.send(topic, value, **settings)


def scores(count, first=0):
    return [{"user": f"u{i}", "score": i} for i in range(first, first + count)]


# ---------------------------------------------------------------- columns


def test_a_typed_topic_gives_its_columns_by_name(log, open_):
    log.create_topic("scores", schema=SCORES)
    send(log, "scores", scores(3))
    assert rows(open_("scores", "score int, user string")) == [{"score": i, "user": f"u{i}"} for i in range(3)]


def test_types_are_widened_and_a_missing_nullable_column_is_null(log, open_):
    log.create_topic("scores", schema=SCORES)
    send(log, "scores", scores(2))
    found = rows(open_("scores", "score double, team string"))
    assert found == [{"score": 0.0, "team": None}, {"score": 1.0, "team": None}]


def test_a_required_column_that_is_missing_is_refused_with_the_columns_there_are(log, open_):
    log.create_topic("scores", schema=SCORES)
    with pytest.raises(InvalidInput, match=r"no column 'team'(?s:.*)user string, score int"):
        open_("scores", "team string not null")


def test_a_type_that_would_lose_values_is_refused(log, open_):
    log.create_topic("scores", schema="user string, score long")
    with pytest.raises(InvalidInput, match="'score' is bigint in the topic and cannot be read as int"):
        open_("scores", "score int")


def test_what_a_record_knows_of_itself_can_be_a_column(log, open_):
    log.create_topic("scores", schema=SCORES)
    at = datetime(2026, 1, 2, tzinfo=UTC)
    send(log, "scores", scores(1), key="k", timestamp=at, headers=[("a", b"1")])
    schema = "score int, key string, topic string, partition int, offset long, timestamp timestamp, "
    found = rows(open_("scores", schema + "headers map<string,binary>"))
    known = {"key": "k", "topic": "scores", "partition": 0, "offset": 0, "timestamp": at, "headers": {"a": b"1"}}
    assert found == [{"score": 0, **known}]


def test_a_column_of_the_topic_goes_before_what_the_record_knows(log, open_):
    log.create_topic("scores", schema="key string, partition long")
    send(log, "scores", [{"key": "own", "partition": 77}], key="other")
    assert rows(open_("scores", "key string, partition long")) == [{"key": "own", "partition": 77}]


def test_metadata_of_another_type_is_refused(log, open_):
    log.create_topic("scores", schema=SCORES)
    with pytest.raises(InvalidInput, match="the offset of a record is bigint, not string"):
        open_("scores", "offset string")


def test_a_null_in_a_not_null_column_is_a_dead_letter(log, open_):
    log.create_topic("scores", schema=SCORES)
    send(log, "scores", [{"user": "a", "score": 1}, {"user": None, "score": 2}, {"user": "c", "score": 3}])
    source = open_("scores", "user string not null, score int")
    assert [row["user"] for row in rows(source)] == ["a", "c"]
    assert offsets(source) == [0, 2]
    (letter,) = dead(source)
    assert (letter["offset"], letter["topic"], letter["partition"]) == (1, "scores", 0)
    assert "'user' is NOT NULL" in letter["reason"]
    assert letter["value"] == b'{"user":null,"score":2}'


def test_a_tombstone_is_a_row_only_where_the_key_is_asked_for(log, open_):
    log.create_topic("scores", schema=SCORES)
    with log.producer() as producer:
        producer.send("scores", {"user": "a", "score": 1}, "a")
        producer.send("scores", None, "a")
    assert rows(open_("scores", SCORES)) == [{"user": "a", "score": 1}]
    deleted = rows(open_("scores", "key string, score int"))
    assert deleted == [{"key": "a", "score": 1}, {"key": "a", "score": None}]


def test_columns_that_a_topic_gains_while_it_is_read_do_not_shift_the_others(log, open_):
    log.create_topic("scores", schema=SCORES)
    source = open_("scores", SCORES)
    send(log, "scores", scores(1))
    assert rows(source) == scores(1)
    log.change_topic("scores", schema="team string, score int, user string")
    send(log, "scores", [{"team": "t", "user": "u1", "score": 1}])
    assert rows(source) == scores(2)


# ---------------------------------------------------------------- topics without a schema


def test_json_values_are_decoded_and_bad_ones_are_dead_letters(log, open_):
    log.create_topic("raw")
    send(log, "raw", [b'{"user":"a","score":1}', b"{", b'{"user":"b","score":"x"}', b'{"user":"c","score":3}'])
    source = open_("raw", SCORES)
    assert rows(source) == [{"user": "a", "score": 1}, {"user": "c", "score": 3}]
    assert offsets(source) == [0, 3]
    letters = dead(source)
    assert [(letter["topic"], letter["partition"], letter["offset"]) for letter in letters] == [
        ("raw", 0, 1),
        ("raw", 0, 2),
    ]
    assert [letter["value"] for letter in letters] == [b"{", b'{"user":"b","score":"x"}']
    assert "not valid JSON" in letters[0]["reason"]
    assert "score" in letters[1]["reason"]


def test_a_field_of_a_json_value_goes_before_what_the_record_knows(log, open_):
    log.create_topic("raw")
    at = datetime(2026, 1, 2, tzinfo=UTC)
    send(log, "raw", [b'{"timestamp":"2020-01-01T00:00:00Z"}', b"{}"], timestamp=at)
    found = rows(open_("raw", "timestamp timestamp, offset long"))
    assert found == [{"timestamp": datetime(2020, 1, 1, tzinfo=UTC), "offset": 0}, {"timestamp": at, "offset": 1}]


def test_tombstones_of_a_topic_without_schema_keep_their_place(log, open_):
    log.create_topic("raw")
    with log.producer() as producer:
        for value in (b'{"score":1}', None, b'{"score":2}', None):
            producer.send("raw", value, "k")
    source = open_("raw", "key binary, score int")
    assert rows(source) == [{"key": b"k", "score": score} for score in (1, None, 2, None)]
    assert offsets(source) == [0, 1, 2, 3]
    assert offsets(open_("raw", "score int")) == [0, 2]


def test_values_can_be_taken_as_they_are(log, open_):
    log.create_topic("raw")
    send(log, "raw", [b"\xff", b"{"], key="k")
    found = rows(open_("raw", "key binary, value binary", format="bytes"))
    assert found == [{"key": b"k", "value": b"\xff"}, {"key": b"k", "value": b"{"}]


@pytest.mark.parametrize("schema", [SCORES, None])
def test_a_key_that_is_not_text_is_a_dead_letter_where_text_is_required(log, open_, schema):
    log.create_topic("scores", schema=schema)
    with log.producer() as producer:
        for key in (b"\xff", b"ok", None):
            producer.send("scores", {"score": 7} if schema else b'{"score":7}', key)
    source = open_("scores", "key string, score int")
    assert rows(source) == [{"key": "ok", "score": 7}, {"key": None, "score": 7}]
    assert offsets(source) == [1, 2]
    (letter,) = dead(source)
    assert (letter["offset"], letter["reason"]) == (0, "the key is not valid UTF-8")
    assert [row["key"] for row in rows(open_("scores", "key binary"))] == [b"\xff", b"ok", None]


def test_a_key_inside_the_value_makes_that_of_the_record_irrelevant(log, open_):
    log.create_topic("raw")
    send(log, "raw", [b'{"key":"inside"}'], key=b"\xff")
    assert rows(open_("raw", "key string")) == [{"key": "inside"}]


# ---------------------------------------------------------------- what is there


def test_open_and_aborted_transactions_are_not_seen(log, open_):
    log.create_topic("scores", schema=SCORES)
    source = open_("scores", SCORES)
    with log.producer(name="teller") as producer:
        with suppress(RuntimeError), producer.transaction():
            producer.send("scores", {"user": "gone", "score": 0})
            producer.flush()
            raise RuntimeError
        with producer.transaction():
            producer.send("scores", {"user": "here", "score": 1})
            producer.flush()
            assert rows(source) == []
    assert rows(source) == [{"user": "here", "score": 1}]


def test_a_missing_topic_is_refused_with_those_that_exist_and_how_to_make_one(log, open_):
    log.create_topic("scores")
    with pytest.raises(UnknownTopic, match=r"topics that exist: scores(?s:.*)millstream topics create score$"):
        open_("score", SCORES)


def test_offsets_that_retention_deleted_raise_and_are_never_skipped(log, open_):
    log.create_topic("scores", schema=SCORES, segment_bytes=4096, retention_bytes=4096)
    for first in range(0, 1000, 100):
        send(log, "scores", scores(100, first))
    source = open_("scores", SCORES)
    end = source.latest()
    log.clean("scores")
    first = source.earliest()["0"]
    assert first > 0
    for use in (
        lambda: source.limited({"0": 0}, 10),
        lambda: source.slices({"0": 0}, end, 2),
        lambda: list(source.read(Slice("0", 0, 10))),
    ):
        with pytest.raises(OffsetLost, match=rf"offsets 0 to {first - 1} were deleted by retention"):
            use()


def test_a_range_beyond_the_end_raises(log, open_):
    log.create_topic("scores", schema=SCORES)
    send(log, "scores", scores(3))
    source = open_("scores", SCORES)
    with pytest.raises(OffsetLost, match="now ends at 3"):
        list(source.read(Slice("0", 0, 5)))


def test_a_recreated_topic_is_another_topic(log, open_):
    log.create_topic("scores", schema=SCORES)
    send(log, "scores", scores(3))
    source = open_("scores", SCORES)
    assert len(rows(source)) == 3
    log.delete_topic("scores")
    log.create_topic("scores", schema=SCORES)
    with pytest.raises(UnknownTopic, match="deleted"):
        source.latest()


def test_offsets_at_a_time(log, open_):
    log.create_topic("scores", schema=SCORES)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for minute in range(5):
        send(log, "scores", scores(1, minute), timestamp=start + timedelta(minutes=minute))
    source = open_("scores", SCORES)
    assert source.at(start + timedelta(minutes=2)) == {"0": 2}
    assert source.at(start + timedelta(minutes=9)) == {"0": 5}


def test_a_partition_added_later_starts_at_its_beginning(log, open_):
    log.create_topic("scores", schema=SCORES)
    source = open_("scores", SCORES)
    send(log, "scores", scores(2), partition=0)
    start = source.latest()
    log.change_topic("scores", partitions=2)
    send(log, "scores", scores(3), partition=1)
    assert source.partitions == ["0", "1"]
    assert source.limited(start, None) == {"0": 2, "1": 3}
    assert len(rows(source, start, source.latest())) == 3


def test_a_partition_that_no_longer_exists_raises(log, open_):
    log.create_topic("scores", schema=SCORES)
    with pytest.raises(OffsetLost, match="the topic no longer has it"):
        open_("scores", SCORES).limited({"0": 0, "1": 5}, None)


def die_in_a_transaction(path):
    log = EmbeddedLog(path, upkeep=False)
    producer = log.producer(name="teller")
    with producer.transaction():
        producer.send("scores", {"user": "gone", "score": 0})
        producer.flush()
        os._exit(0)


@pytest.mark.parametrize("look", ["latest", "wait"])
def test_the_transaction_of_a_dead_producer_blocks_no_reader(log, open_, look):
    log.create_topic("scores", schema=SCORES)
    source = open_("scores", SCORES)
    process = multiprocessing.get_context("spawn").Process(target=die_in_a_transaction, args=[log.path])
    process.start()
    process.join()
    send(log, "scores", scores(1, 5))
    if look == "latest":
        source.latest()
    else:
        assert source.wait({"0": 0}, 60.0)
    assert rows(source) == scores(1, 5)


def test_waiting_ends_when_a_record_comes(log, open_):
    log.create_topic("scores", schema=SCORES)
    source = open_("scores", SCORES)
    start = source.latest()
    assert not source.wait(start, 0.0)
    timer = threading.Timer(0.05, send, [log, "scores", scores(1)])
    timer.start()
    assert source.wait(start, 60.0)
    timer.join()
    assert source.latest() == {"0": 1}


# ---------------------------------------------------------------- ranges


def test_slices_together_give_every_row_once_and_in_order(log, open_):
    log.create_topic("scores", schema=SCORES, partitions=3)
    batch = pa.RecordBatch.from_pylist(scores(5000), schema=Schema.of(SCORES).arrow)
    with log.producer() as producer:
        for number, count in ((0, 5000), (1, 1200), (2, 1)):
            for start in range(0, count, 700):
                producer.send_batch("scores", batch.slice(start, min(700, count - start)), partition=number)
                producer.flush()
    source = open_("scores", SCORES)
    tasks = source.slices(source.earliest(), source.latest(), 4)
    assert len(tasks) == 4
    sizes = [sum(map(len, task)) for task in tasks]
    assert max(sizes) <= 1.25 * min(sizes)
    for task in tasks:
        assert task == sorted(task, key=lambda slice: (int(slice.partition), slice.start))
    by_partition = {"0": [], "1": [], "2": []}
    for slab in slabs(source, tasks=4):
        by_partition[slab.partition] += slab.rows.column("score").to_pylist()
        assert slab.rows.column("score").to_pylist() == slab.offsets.tolist()
    assert by_partition == {"0": list(range(5000)), "1": list(range(1200)), "2": [0]}


def test_compacted_records_keep_their_offsets_in_any_slice(log, open_):
    log.create_topic("scores", schema=SCORES, compaction=True, segment_bytes=4096)
    with log.producer() as producer:
        for round_ in range(10):
            for i in range(50):
                producer.send("scores", {"user": str(i), "score": round_ * 50 + i}, str(i))
            producer.flush()
    log.clean("scores")
    source = open_("scores", SCORES)
    whole = offsets(source)
    assert len(whole) < 500
    assert whole == [row["score"] for row in rows(source)]
    middle = (whole[0] + whole[-1]) // 2
    halves = offsets(source, end={"0": middle}) + offsets(source, start={"0": middle})
    assert halves == whole


def test_slabs_are_of_moderate_size(log, open_):
    log.create_topic("flags", schema="flag boolean")
    batch = pa.RecordBatch.from_arrays([pa.array([True] * 600_000)], schema=Schema.of("flag boolean").arrow)
    with log.producer() as producer:
        producer.send_batch("flags", batch)
    sizes = [len(slab.offsets) for slab in slabs(open_("flags", "flag boolean"))]
    assert sum(sizes) == 600_000
    assert max(sizes) <= 2 * SLAB_ROWS


def test_a_limit_is_shared_by_the_partitions_that_lag(log, open_):
    log.create_topic("scores", schema=SCORES, partitions=3)
    for number, count in ((0, 100), (1, 5), (2, 60)):
        send(log, "scores", scores(count), partition=number)
    source = open_("scores", SCORES)
    assert source.limited(source.earliest(), 45) == {"0": 20, "1": 5, "2": 20}
    assert source.limited({"0": 100, "1": 5, "2": 50}, 45) == {"0": 100, "1": 5, "2": 60}
    assert source.limited(source.earliest(), 1) == {"0": 1, "1": 1, "2": 1}
    assert source.limited(source.earliest(), None) == source.latest()


@given(lags=st.dictionaries(st.text(max_size=3), st.integers(1, 1000), max_size=8), limit=st.integers(1, 3000))
def test_shares_respect_the_limit_use_it_up_and_starve_no_partition(lags, limit):
    shares = fair_shares(lags, limit)
    assert shares.keys() == lags.keys()
    assert all(1 <= shares[name] <= lags[name] for name in lags)
    assert sum(shares.values()) <= max(limit, len(lags))
    assert sum(shares.values()) >= min(limit, sum(lags.values()))


@given(lengths=st.lists(st.integers(0, 200_000), max_size=6), tasks=st.integers(1, 9))
def test_pieces_cover_the_ranges_and_are_even(lengths, tasks):
    ranges = [Slice(str(number), 7, 7 + length) for number, length in enumerate(lengths)]
    pieces = cut(ranges, tasks)
    assert len(pieces) <= tasks
    covered = {}
    for piece in pieces:
        for slice in piece:
            assert slice.start == covered.get(slice.partition, 7)
            assert slice.end > slice.start
            covered[slice.partition] = slice.end
    assert covered == {str(number): 7 + length for number, length in enumerate(lengths) if length}
    if sum(lengths) >= tasks * 10_000:
        sizes = [sum(map(len, piece)) for piece in pieces]
        assert len(pieces) == tasks
        assert max(sizes) <= 1.25 * sum(lengths) / tasks + 1
