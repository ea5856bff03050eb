"""Goal: a reader sees every acknowledged record once and in order, whatever others do to the partition meanwhile."""

import shutil
import threading

import pytest

from millstream.errors import OffsetLost, StorageError, UnknownTopic
from millstream.log.storage.compaction import compact
from millstream.log.storage.disk import Disk
from millstream.log.storage.frame import parts
from millstream.log.storage.layout import stored_schema
from millstream.log.storage.partition import Partition
from millstream.log.storage.reader import PartitionReader, offset_at_time
from millstream.log.storage.retention import delete_old
from millstream.records import Schema

from .support import (
    SCHEMA,
    Rec,
    batch,
    drain,
    frame,
    keyed,
    killed_while_appending,
    made,
    opened,
    read_all,
    records_of,
    segments,
    transactional,
    values_of,
)


def test_from_every_offset(folder):
    """Frames of several records in several segments: reading begins at exactly the record asked for."""
    partition = opened(folder)
    for number in range(20):
        partition.append([frame(*[b"%d" % number * 40] * (number % 5 + 1))], sync=False)
    everything = read_all(partition)
    assert [record.offset for record in everything] == list(range(60))
    for offset in range(61):
        assert read_all(partition, offset) == everything[offset:]
        assert read_all(partition, offset, max_bytes=1) == everything[offset:]


def test_one_frame_at_least_and_not_much_more(folder):
    partition = opened(folder, 1 << 20)
    for number in range(10):
        partition.append([frame(b"%d" % number * 100)], sync=False)
    reader = PartitionReader(partition, 0, committed=False)
    assert len(records_of(reader, max_bytes=1)) == 1
    assert len(records_of(reader, max_bytes=1)) == 1
    assert reader.lag() == 8
    assert len(records_of(reader)) == 8
    assert records_of(reader) == []
    assert reader.lag() == 0


@pytest.mark.parametrize("offset", [-1, 6, 100])
def test_an_offset_that_is_not_there(folder, offset):
    partition = opened(folder)
    partition.append([frame(*[b"x"] * 5)], sync=False)
    with pytest.raises(OffsetLost, match=f"offset {offset} no longer exists: the partition now has 0 to 5"):
        read_all(partition, offset)


def test_both_kinds_of_readers_over_open_and_ended_transactions(folder):
    """Committed readers wait at the first open one; aborted records are passed over; the others see everything."""
    partition = opened(folder)
    partition.append([frame(b"0"), transactional(b"1", producer=1), transactional(b"2", producer=2)], sync=False)
    committed = PartitionReader(partition, 0, committed=True)
    partition.append([frame(b"3"), transactional(b"4", producer=1)], sync=False)
    assert [record.value for record in drain(committed)] == [b"0"]
    assert values_of(partition) == [b"0", b"1", b"2", b"3", b"4"]
    partition.end_transaction(2, 1, commit=False)
    assert drain(committed) == []
    assert partition.stable_offset() == 1
    partition.end_transaction(1, 1, commit=True)
    assert [record.value for record in drain(committed)] == [b"1", b"3", b"4"]
    partition.end_transaction(1, 1, commit=False)  # ended before: nothing is left to decide
    assert values_of(partition, committed=True) == [b"0", b"1", b"3", b"4"]


def test_a_transaction_has_its_own_verdict_by_its_epoch(folder):
    partition = opened(folder)
    for epoch in range(1, 7):
        partition.append([transactional(b"%d" % epoch, producer=5, epoch=epoch)], sync=False)
        partition.end_transaction(5, epoch, commit=epoch % 2 == 0)
    assert values_of(partition, committed=True) == [b"2", b"4", b"6"]


def test_times_out_of_order(folder):
    """The first record at or after a time, by offset; nulls have no time; beyond the newest it is the end."""
    partition = opened(folder)
    times = [50, 10, None, 70, 20, None, 60, 5, 90, None, None, 80]
    for number, time in enumerate(times):
        partition.append([frame(b"%d" % number * 500, times=[time])], sync=False)
    partition.append([frame(b"a", b"b", b"c", times=[None, 95, None])], sync=False)
    partition.append([frame(b"d", b"e", times=[None, None])], sync=False)
    assert len(segments(folder)) > 2
    everything = read_all(partition)
    for time in range(101):
        expected = next((rec.offset for rec in everything if rec.time is not None and rec.time >= time), 17)
        assert offset_at_time(partition, time) == expected


def test_a_time_is_not_looked_for_in_what_was_never_acknowledged(folder):
    """A dead process left whole and torn frames, in the segment and in one it had just begun."""
    partition = opened(folder)
    partition.append([frame(b"a" * 2000, times=[10])], sync=False)
    reader = opened(folder)
    for after in range(0, 9000, 333):
        killed_while_appending(folder, [frame(b"b" * 1000, times=[50]), frame(b"c" * 3000, times=[60])], after)
        end = reader.end_offset()
        known = next((rec.offset for rec in read_all(reader) if rec.time >= 40), end)
        assert offset_at_time(reader, 40) == known <= end
    partition.append([frame(b"new", times=[70])], sync=False)
    assert offset_at_time(reader, 65) == partition.end_offset() - 1


def test_a_reader_sees_every_record_while_others_append_and_roll(folder):
    """Readers in threads of their own, from the start, while two handles write into segments of a few frames."""
    writers = [opened(folder), opened(folder)]
    done = threading.Event()
    seen = {}

    def follow(name, committed):
        reader = PartitionReader(opened(folder), 0, committed=committed)
        found = []
        while True:
            ended = done.is_set()
            found += drain(reader)
            offset_at_time(reader.partition, 5)
            if ended:
                break
        seen[name] = found

    threads = [threading.Thread(target=follow, args=(name, name == 0)) for name in range(2)]
    for thread in threads:
        thread.start()
    for number in range(300):
        writers[number % 2].append([frame(b"%d" % number * (number % 9 * 60), times=[number])], sync=False)
    done.set()
    for thread in threads:
        thread.join()
    expected = [Rec(number, None, b"%d" % number * (number % 9 * 60), number) for number in range(300)]
    assert seen == {0: expected, 1: expected}


def test_a_handle_whose_segment_was_closed_by_another_continues_in_the_new_one(folder):
    first, second = opened(folder), opened(folder)
    first.append([frame(b"a")], sync=False)
    second.append([frame(b"b")], sync=False)
    second.roll()
    first.append([frame(b"c")], sync=False)
    second.roll()
    second.append([frame(b"d" * 5000)], sync=False)
    first.append([frame(b"e")], sync=False)
    assert values_of(first) == [b"a", b"b", b"c", b"d" * 5000, b"e"]
    assert [int(path.stem) for path in segments(folder)] == [0, 2, 3, 4]


def test_rolling_an_empty_segment_does_nothing(folder):
    partition = opened(folder)
    partition.roll()
    partition.append([frame(b"a")], sync=False)
    partition.roll()
    partition.roll()
    assert [int(path.stem) for path in segments(folder)] == [0, 1]


def test_a_segment_of_markers_alone_can_be_closed(folder):
    """It ends at the offset it begins with: the next one needs a name of its own."""
    partition = opened(folder)
    partition.append([transactional(b"a", producer=1)], sync=False)
    partition.roll()
    partition.end_transaction(1, 1, commit=True)
    partition.roll()
    partition.append([frame(b"b")], sync=False)
    assert values_of(opened(folder), committed=True) == [b"a", b"b"]
    assert len(segments(folder)) == 3


def test_a_stream_started_before_a_roll_and_a_compaction(folder):
    """The mark it goes by names a segment that has become another file under the same offset meanwhile."""
    partition = opened(folder, 1 << 20)
    for number in range(40):
        partition.append([keyed([(b"%d" % (number % 4), b"%d" % number * 50)])], sync=False)
    for begun in (0, 1):
        reader = PartitionReader(opened(folder, 1 << 20), 0, committed=False)
        stream = reader.stream()
        found = [next(stream) for _ in range(begun)]
        other = opened(folder, 1 << 20)
        other.roll()
        other.append([keyed([(b"0", b"newest")])], sync=False)
        compact(other, tombstones_before_us=0, dirty_share_min=0)
        found += list(stream)
        offsets = [int(offset) for fetch in found for offset in fetch.offsets]
        assert offsets == sorted(set(offsets))
        assert {36, 37, 38, 39} <= set(offsets)


def test_records_of_another_schema_are_brought_to_the_schema_of_now(folder):
    """A column added and one widened, in the middle of reading."""
    old, new = (stored_schema(Schema.of(ddl)) for ddl in ("n int", "n bigint, text string"))
    partition = opened(folder, 4096, old)
    for number in range(30):
        partition.append([made(batch([{"n": number}], schema=old))], sync=False)
    reader = PartitionReader(partition, 0, committed=False)
    assert [record.value for record in records_of(reader, max_bytes=1)] == [{"n": 0}]
    partition.schema = new
    partition.append([made(batch([{"n": 2**40, "text": "wide"}], schema=new))], sync=False)
    rest = drain(reader)
    assert [record.value for record in rest] == [{"n": number, "text": None} for number in range(1, 30)] + [
        {"n": 2**40, "text": "wide"}
    ]


def test_a_schema_that_changes_in_the_middle_of_a_stream(folder):
    """Another reader of the process notices the change first: what this one gives stays of one schema to its end."""
    old, new = (stored_schema(Schema.of(ddl)) for ddl in ("n int", "n bigint, text string"))
    partition = opened(folder, 4096, old)
    for number in range(20):
        partition.append([made(batch([{"n": number}], schema=old))], sync=False)
    stream = PartitionReader(partition, 0, committed=False).stream()
    values = next(stream).records.column("value").to_pylist()
    partition.schema = new
    values += [value for fetch in stream for value in fetch.records.column("value").to_pylist()]
    assert values == [{"n": number} for number in range(20)]


def test_a_reader_that_fell_behind_learns_what_is_left(folder):
    """In the middle of a deleted segment it reads that to the end; then it learns the range that is there."""
    partition = opened(folder)
    for number in range(12):
        partition.append([frame(b"%d" % number * 700, times=[number])], sync=False)
    reader = PartitionReader(partition, 0, committed=False)
    records_of(reader, max_bytes=1)
    delete_old(partition, before_us=9, bytes_max=None)
    start = partition.start_offset()
    found = []
    with pytest.raises(OffsetLost, match=f"the partition now has {start} to 12") as lost:
        found.extend(record for some in iter(lambda: records_of(reader, max_bytes=1), []) for record in some)
    assert [record.offset for record in found] == list(range(1, reader.offset))
    assert "topic 'topic', partition 0" in lost.value.where
    reader.seek(start)
    assert [record.offset for record in drain(reader)] == list(range(start, 12))


def test_a_partition_that_was_deleted(folder):
    """Appending, reading and opening say that the topic is gone; nothing is made in its place."""
    partition = opened(folder)
    partition.append([frame(b"a")], sync=False)
    reader = PartitionReader(partition, 0, committed=False)
    shutil.rmtree(folder)
    with pytest.raises(UnknownTopic):
        partition.append([frame(b"b")], sync=False)
    with pytest.raises((UnknownTopic, StorageError)):
        reader.read()
    with pytest.raises(UnknownTopic):
        Partition("topic", 0, folder, partition.schema, 4096, Disk())
    assert not folder.exists()


def test_records_of_all_shapes_come_back(folder):
    """Empty and missing keys and values, times that are missing, a frame of many megabytes cut into several."""
    partition = opened(folder, 4096)
    records = [(b"", b""), (None, None), (b"k", None), (None, b"v"), (b"\0" * 3000, b"\xff" * 3000)]
    partition.append([keyed(records, times=[None, 0, -5, 2**60, None])], sync=False)
    assert [(record.key, record.value) for record in read_all(partition)] == records
    assert [record.time for record in read_all(partition)] == [None, 0, -5, 2**60, None]
    large = batch([b"%d" % number * 4000 for number in range(1000)], schema=SCHEMA)
    offsets = partition.append([made(piece) for piece in parts(large)], sync=False)
    assert len(offsets) > 2
    assert values_of(opened(folder), 5) == large.column("value").to_pylist()
    assert values_of(opened(folder), 700) == large.column("value").to_pylist()[695:]
