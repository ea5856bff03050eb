"""Goal: an index only makes searching quicker; whatever happens to it, the same records are found."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import DiskFull
from millstream.log.storage.index import ENTRY, DamagedIndex, Entry, Index, pack
from millstream.log.storage.reader import PartitionReader, offset_at_time
from millstream.log.storage.retention import _newest_active
from millstream.log.storage.segment import Segment, SegmentName, rebuild_index

from .support import FailingDisk, flip, frame, opened, records_of, segments, values_of

FRAMES = 60


def test_entries_are_searched_by_offset_time_and_position():
    index = Index(b"".join(pack(Entry(10 * i, 100 * i, 7 * i)) for i in range(1, 6)))
    assert len(index) == 5
    assert index.at_or_before(9, 10_000) is None
    assert index.at_or_before(10, 10_000) == Entry(10, 100, 7)
    assert index.at_or_before(49, 10_000) == Entry(40, 400, 28)
    assert index.at_or_before(49, 400) == Entry(30, 300, 21)
    assert index.before_time(7, 10_000) is None
    assert index.before_time(8, 10_000) == Entry(10, 100, 7)
    assert index.before_time(99, 10_000) == Entry(50, 500, 35)
    assert [index.count_before(limit) for limit in (0, 100, 101, 501)] == [0, 0, 1, 5]


@given(st.binary(max_size=200))
def test_garbage_is_not_an_entry(content):
    index = Index(content)
    for number in range(len(index)):
        with pytest.raises(DamagedIndex):
            index.entry(number)


def filled(folder, count=FRAMES):
    """One segment with frames of about a kilobyte and times that go up and down."""
    partition = opened(folder, 1 << 30)
    for number in range(count):
        time = number * 10 - (200 if number % 7 == 0 else 0)
        partition.append([frame(b"%d" % number, b"x" * 700, times=[time, None])], sync=False)
    return partition


def everything_found(folder):
    """What a new process reads from every offset, finds at every time, and thinks is the newest."""
    partition = opened(folder, 1 << 20)
    end = partition.end_offset()
    readers = [PartitionReader(partition, offset, committed=False) for offset in range(0, end + 1, 3)]
    from_each = [[record.offset for record in records_of(reader, max_bytes=1)] for reader in readers]
    at_each = [offset_at_time(partition, time) for time in range(-250, FRAMES * 10 + 20, 30)]
    newest = _newest_active(partition)
    return from_each, at_each, newest


def index_of(folder):
    (path,) = folder.glob("*.idx")
    return path


def test_the_index_is_what_a_rebuilt_one_would_be(folder):
    """Written by appends of several processes, it has the same entries as one made from the frames."""
    first, second = opened(folder, 1 << 20), opened(folder, 1 << 20)
    for number in range(FRAMES):
        (first, second)[number * 7 % 3 % 2].append([frame(b"x" * (number * 37 % 1500), times=[number])], sync=False)
    segment = Segment(SegmentName(0, None, folder))
    content = index_of(folder).read_bytes()
    assert content == rebuild_index(segment, segment.size_bytes())
    assert len(content) > 8 * ENTRY.size


def damages(content):
    """Names and contents of indexes that are not as they should be."""
    yield "empty", b""
    for cut in (1, ENTRY.size - 1, ENTRY.size, ENTRY.size + 5, len(content) - ENTRY.size, len(content) - 1):
        yield f"cut at {cut}", content[:cut]
    yield "garbage at the end", content + bytes(range(100))
    yield "garbage alone", bytes(range(200))
    yield "zeros", bytes(len(content))
    yield "entries of another segment", b"".join(pack(Entry(i * 3, i * 640 + 64, i)) for i in range(20))
    yield "one entry amid a frame", content[: ENTRY.size] + pack(Entry(4, 2112, 10)) + content[ENTRY.size * 2 :]
    last = Index(content).entry(len(content) // ENTRY.size - 1)
    yield "beyond the end", content + pack(Entry(last.offset + 1000, last.position + 100_000, 10**9))
    for number in range(len(content) // ENTRY.size):
        at = number * ENTRY.size + number % ENTRY.size
        yield f"a bit of entry {number}", content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]


def test_a_damaged_index_finds_what_a_good_one_finds(folder):
    """Whatever is in the file: the same records, times and the newest; and the next append repairs it."""
    filled(folder)
    path = index_of(folder)
    good, expected = path.read_bytes(), everything_found(folder)
    for what, content in damages(good):
        path.write_bytes(content)
        assert everything_found(folder) == expected, what
    path.unlink()
    assert everything_found(folder) == expected
    for what, content in damages(good):
        path.write_bytes(content)
        partition = opened(folder, 1 << 20)
        partition.append([frame(b"more", times=[10**6])], sync=False)
        assert values_of(partition)[-1] == b"more", what
        segment = Segment(SegmentName(0, None, folder))
        end = segment.size_bytes()
        assert offset_at_time(partition, 10**6) >= FRAMES * 2, what
        assert segment.max_timestamp(end) == 10**6, what


@pytest.mark.more
def test_every_flipped_bit_of_an_index_is_harmless(folder):
    filled(folder, 20)
    path = index_of(folder)
    expected = everything_found(folder)
    for position in range(path.stat().st_size):
        flip(path, position, position % 8)
        assert everything_found(folder) == expected, position
        flip(path, position, position % 8)


def test_index_entries_of_failed_appends_do_not_mislead_another_process(folder):
    """One process fails after it indexed many frames, another with the same idea of the index goes on over them.

    What the first has left in the index lies in the middle of the other's frames: a third process, and one that looks
    for times, must not stumble over it.
    """
    disk = FailingDisk()
    failing, other = opened(folder, 1 << 20, disk=disk), opened(folder, 1 << 20)
    other.append([frame(b"start")], sync=False)
    disk.fails_at = 20  # the mark, behind all the frames
    with pytest.raises(DiskFull):
        failing.append([frame(b"x" * 5000, times=[10**9]) for _ in range(20)], sync=False)
    for number in range(30):
        other.append([frame(b"y" * 3000, times=[number])], sync=False)
        third = opened(folder, 1 << 20)
        assert len(values_of(third)) == number + 2
        assert offset_at_time(third, number) == (number + 1 if number else 0)
        assert _newest_active(third) == number
    opened(folder, 1 << 20).append([frame(b"end", times=[50])], sync=False)
    assert offset_at_time(other, 40) == 31


def test_opening_appending_and_reading_the_end_read_nothing_in_between(folder):
    """So the time to open does not grow with the size.

    Method: everything between the first and the last kilobytes of a large segment is destroyed; a new process that
    looked at any of it would refuse.
    """
    filled(folder, 2000)
    (path,) = segments(folder)
    size = path.stat().st_size
    content = path.read_bytes()
    path.write_bytes(content[:4096] + bytes(size - 4096 - 8192) + content[-8192:])
    partition = opened(folder, 1 << 30)
    assert partition.append([frame(b"new")], sync=True) == [4000]
    assert values_of(partition, 3999) == [b"x" * 700, b"new"]
    assert values_of(partition, 3990)[-1] == b"new"
