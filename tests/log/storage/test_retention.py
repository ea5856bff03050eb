"""Goal: whole old segments go, by age and by size, the oldest first; what is needed stays."""

from datetime import timedelta

import pytest

from millstream.errors import OffsetLost
from millstream.log.storage.retention import delete_old
from millstream.log.storage.upkeep import clean_partition
from millstream.log.topics import TopicSettings

from .support import frame, opened, read_all, rebooted, segments, transactional, values_of


def filled(folder, count=12, times=None):
    """Segments of about two records each."""
    partition = opened(folder)
    for number in range(count):
        time = number if times is None else times[number]
        partition.append([frame(b"%d" % number * 900, times=[time])], sync=False)
    assert len(segments(folder)) >= 4
    return partition


def held(folder):
    """Where each segment begins."""
    return [int(path.stem) for path in segments(folder)]


@pytest.mark.parametrize("before", range(14))
def test_by_age_goes_every_segment_that_is_wholly_old(folder, before):
    """At each moment: records at or after it all stay, and no closed segment of only older ones does."""
    partition = filled(folder)
    bases = [*held(folder), 12]
    delete_old(partition, before_us=before, bytes_max=None)
    expected = max(base for base in bases if base <= min(before, 12))
    assert partition.start_offset() == expected
    assert values_of(partition, expected) == [b"%d" % number * 900 for number in range(expected, 12)]
    assert partition.append([frame(b"new")], sync=False) == [12]
    assert values_of(opened(folder), expected)[-1] == b"new"


def test_an_old_active_segment_is_closed_so_that_it_can_go(folder):
    """A topic without writers is finally empty; its offsets continue."""
    partition = opened(folder)
    partition.append([frame(b"a", times=[5])], sync=False)
    assert [name.base for name in delete_old(partition, before_us=6, bytes_max=None)] == [0]
    assert (partition.start_offset(), partition.end_offset()) == (1, 1)
    assert delete_old(partition, before_us=10**9, bytes_max=None) == []
    assert partition.append([frame(b"b", times=[7])], sync=False) == [1]
    assert read_all(partition, 1)[0].value == b"b"
    with pytest.raises(OffsetLost, match="offset 0 no longer exists: the partition now has 1 to 2"):
        read_all(partition, 0)


def test_one_newer_record_keeps_its_segment_and_those_behind_it(folder):
    """Times out of order: deletion goes from the oldest segment on and stops at the first that is needed."""
    partition = filled(folder, times=[1, 1, 50, 1, 1, 1, 1, 1, 1, 1, 1, 1])
    delete_old(partition, before_us=10, bytes_max=None)
    assert partition.start_offset() <= 2
    assert values_of(partition, partition.start_offset())[-10] == b"2" * 900


@pytest.mark.parametrize("bytes_max", [0, 4000, 8000, 12_000, 10**9])
def test_by_size_the_oldest_go_until_the_rest_fits(folder, bytes_max):
    """The active segment stays whatever its size."""
    partition = filled(folder)
    sizes = [path.stat().st_size for path in segments(folder)]
    delete_old(partition, before_us=None, bytes_max=bytes_max)
    kept = next(number for number in range(len(sizes)) if sum(sizes[number:]) <= bytes_max or number == len(sizes) - 1)
    assert [path.stat().st_size for path in segments(folder)] == sizes[kept:]
    start = partition.start_offset()
    assert values_of(partition, start) == [b"%d" % number * 900 for number in range(start, 12)]


def test_what_an_open_transaction_needs_stays(folder):
    """Neither age nor size takes the segment it began in, nor a later one; when it has ended they go."""
    partition = opened(folder)
    for number in range(12):
        partition.append([frame(b"%d" % number * 900, times=[number])], sync=False)
        if number == 4:
            partition.append([transactional(b"open", producer=1)], sync=False)
    delete_old(partition, before_us=10**6, bytes_max=0)
    start = partition.start_offset()
    assert 3 <= start <= 5
    partition.end_transaction(1, 1, commit=True)
    assert b"open" in values_of(partition, start, committed=True)
    delete_old(partition, before_us=10**6, bytes_max=None)
    assert partition.start_offset() == partition.end_offset() == 13


def test_segments_without_any_time(folder):
    """Records without timestamps are older than any time once their segment is closed; the active one stays."""
    partition = opened(folder)
    for number in range(6):
        partition.append([frame(b"%d" % number * 1500, times=[None])], sync=False)
    delete_old(partition, before_us=5, bytes_max=None)
    assert len(segments(folder)) == 1
    assert partition.end_offset() == 6


def test_indexes_go_with_their_segments(folder):
    partition = filled(folder)
    delete_old(partition, before_us=9, bytes_max=None)
    assert {path.stem for path in folder.glob("*.idx")} == {path.stem for path in segments(folder)}


def test_upkeep_applies_the_settings_of_a_topic(folder):
    """Retention in time and bytes, at a time that is passed in."""
    partition = filled(folder)
    clean_partition(partition, TopicSettings(), now=100.0)
    assert partition.start_offset() == 0
    clean_partition(partition, TopicSettings(retention=timedelta(seconds=1)), now=1.000006)
    assert 0 < partition.start_offset() <= 6
    before = partition.start_offset()
    clean_partition(partition, TopicSettings(retention_bytes=4096), now=1.0)
    assert partition.start_offset() > before
    assert partition.size_bytes() <= 4096


def test_everything_deleted_then_a_reboot(folder):
    """The place recovery begins at must not be one of the deleted segments, synced or not."""
    partition = filled(folder)
    delete_old(partition, before_us=10**6, bytes_max=None)
    rebooted(folder)
    partition = opened(folder)
    assert (partition.start_offset(), partition.end_offset()) == (12, 12)
    assert partition.append([frame(b"new")], sync=False) == [12]
    assert values_of(partition, 12) == [b"new"]
