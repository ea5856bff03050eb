"""Goal: records that are missing are named, by repair and to readers; only what retention deleted is not a loss."""

import struct

import pytest

from millstream.errors import DamagedLog, OffsetLost
from millstream.log import EmbeddedLog
from millstream.log.storage.frame import HEADER_BYTES
from millstream.log.storage.mark import SLOT_BYTES, MarkFile

COUNT = 1000


@pytest.fixture
def filled(log):
    log.create_topic("t", segment_bytes=4096)
    with log.producer() as producer:
        for number in range(COUNT):
            producer.send("t", b"%d" % number * 8)
            if number % 8 == 7:
                producer.flush()
    assert len(segments(log)) > 5
    return log


def segments(log, topic="t"):
    return sorted((log.path / "topics" / topic / "0").glob("*.seg"))


def base(path):
    return int(path.stem[:20])


def reopened(log):
    return EmbeddedLog(log.path, upkeep=False)


def offsets_read(log, **settings):
    with log.consumer("t", **settings) as consumer:
        return [record.offset for record in consumer.until_caught_up()]


def test_all_segments_missing(filled):
    filled.close()
    for path in segments(filled):
        path.unlink()
    with reopened(filled) as log:
        info = log.describe_topic("t").partitions[0]
        assert (info.start_offset, info.end_offset, info.segments) == (0, COUNT, 0)
        with log.consumer("t") as consumer, pytest.raises(DamagedLog, match=f"offsets 0 to {COUNT - 1} are in no"):
            consumer.poll()
        [found] = log.repair_topic("t")
        assert (found.kept_records, found.lost) == (0, ((0, COUNT),))
        assert offsets_read(log) == []
        with log.producer() as producer:
            assert producer.send("t", b"new").offset == COUNT
        assert log.repair_topic("t")[0].lost == ()


def test_the_first_segment_missing(filled):
    filled.close()
    first, second, *_ = segments(filled)
    first.unlink()
    with reopened(filled) as log:
        with log.consumer("t") as consumer, pytest.raises(DamagedLog) as raised:
            consumer.poll()
        assert f"offsets 0 to {base(second) - 1} are in no segment" in str(raised.value)
        assert "topic 't', partition 0, offset 0" in str(raised.value)
        assert "millstream topics repair t" in str(raised.value)
        [found] = log.repair_topic("t")
        assert found.lost == ((0, base(second)),)
        assert offsets_read(log) == list(range(base(second), COUNT))
        assert log.repair_topic("t")[0].lost == ()


def test_what_retention_deleted_does_not_count_as_lost(filled):
    filled.change_topic("t", retention_bytes=8192)
    filled.clean("t")
    start = filled.describe_topic("t").partitions[0].start_offset
    assert start == base(segments(filled)[0]) > 0
    assert offsets_read(filled) == list(range(start, COUNT))
    with filled.consumer("t", start=3) as consumer, pytest.raises(OffsetLost):
        consumer.poll()
    assert filled.repair_topic("t")[0].lost == ()
    segments(filled)[0].unlink()
    lost = filled.repair_topic("t")[0].lost
    assert lost == ((start, base(segments(filled)[0])),)


def test_a_log_of_an_earlier_version_gains_a_start(filled):
    """Its marks know no start: where its segments begin is believed, and noted with the next write."""
    filled.close()
    segments(filled)[0].unlink()  # by retention, as far as anybody can tell
    mark = filled.path / "topics" / "t" / "0" / "mark"
    mark.write_bytes(as_before(mark.read_bytes()))
    first = base(segments(filled)[0])
    with reopened(filled) as log:
        assert log.topic("t").partition(0).marks.read().start is None
        assert offsets_read(log) == list(range(first, COUNT))
        assert log.repair_topic("t")[0].lost == ()
        with log.producer() as producer:
            producer.send("t", b"new")
        assert log.topic("t").partition(0).marks.read().start == first
    segments(filled)[0].unlink()
    with reopened(filled) as log, log.consumer("t") as consumer, pytest.raises(DamagedLog):
        consumer.poll()


def as_before(content):
    """A mark as it was packed without a start."""
    from crc32c import crc32c

    from millstream.log.storage.mark import FIXED

    slots = []
    for number in (0, 1):
        slot = bytearray(content[number * SLOT_BYTES : (number + 1) * SLOT_BYTES])
        if slot[:8] == b"MSMARK01":
            slot[FIXED.size - 4 : FIXED.size] = bytes(4)
            slot[8:12] = struct.pack("<I", crc32c(bytes(slot[12 : FIXED.size])))
        slots.append(bytes(slot))
    return b"".join(slots)


def test_records_before_a_damaged_place_are_delivered_first(filled):
    """Then an error that names the place; with a group, what was delivered is done."""
    filled.close()
    third = segments(filled)[2]
    content = bytearray(third.read_bytes())
    content[-HEADER_BYTES // 2] ^= 1
    third.write_bytes(bytes(content))
    with reopened(filled) as log, log.consumer("t", group="g") as consumer:
        got = []
        with pytest.raises(DamagedLog) as raised:
            poll_on(consumer, got)
        assert got == list(range(len(got)))
        assert base(third) <= len(got) < base(segments(log)[3])
        message = str(raised.value)
        for part in ("topic 't', partition 0", f"offset {len(got)}", str(third), "millstream topics repair t"):
            assert part in message
        with pytest.raises(DamagedLog):
            consumer.poll()
        consumer.close()
        assert log.describe_group("g").partitions[0].next_offset == len(got)


def poll_on(consumer, got):
    while True:
        got += [record.offset for record in consumer.poll(max_records=5000)]


def test_a_mark_keeps_its_start(filled):
    partition = filled.topic("t").partition(0)
    partition.begin_at(16)
    assert partition.start_offset() == 16
    assert MarkFile(partition.marks.path, filled._disk).read().start == 16
