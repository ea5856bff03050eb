"""Goal: after the machine died, what was synced is there or refused as damaged; the rest is kept as far as whole.

Method: the mark is given another boot id, and what lies above the synced place is cut, damaged or deleted.
"""

import pytest

from millstream.errors import DamagedLog, OffsetLost
from millstream.log.storage.mark import BOOT
from millstream.log.storage.retention import delete_old

from .support import (
    copied,
    frame,
    killed_while_appending,
    layout,
    marker_left_behind,
    opened,
    read_mark,
    rebooted,
    segments,
    transactional,
    values_of,
)


def half_synced(folder):
    """Five synced records and five that are not, in four segments."""
    partition = opened(folder)
    for number in range(10):
        partition.append([frame(b"%d" % number * 1300)], sync=number == 4)
    assert len(segments(folder)) == 5
    return [b"%d" % number * 1300 for number in range(10)]


def test_nothing_lost(folder):
    """The machine went down in good order: everything is there, and nobody looks it over twice."""
    values = half_synced(folder)
    rebooted(folder)
    assert values_of(opened(folder)) == values
    mark = read_mark(folder)
    assert mark.boot == BOOT
    assert mark.synced == mark.end
    assert opened(folder).append([frame(b"new")], sync=False) == [10]


@pytest.mark.parametrize("how", ["cut", "zeros", "garbage"])
def test_what_was_not_synced_is_lost_from_any_byte_on(folder, how):
    """The first lost byte lies anywhere above the synced place; segments behind it survived or did not."""
    values = half_synced(folder)
    synced = read_mark(folder).synced
    frames = [(path, lying) for path in segments(folder) for lying in layout(path) if lying.base_offset >= 5]
    for path, lying in frames:
        for at in {lying.position, lying.position + 1, lying.position + 64, lying.position + lying.size - 1}:
            for later_gone in (True, False):
                copy = copied(folder, "copy")
                lost = copy / path.name
                content = lost.read_bytes()
                rest = len(content) - at
                left = content[:at] + {"cut": b"", "zeros": bytes(rest), "garbage": b"\x5a" * rest}[how]
                if left[: lying.position + lying.size] == content[: lying.position + lying.size]:
                    continue  # the padding at the end of the frame was zero before
                lost.write_bytes(left)
                for later in segments(copy):
                    if later_gone and later.name > path.name:
                        later.unlink()
                rebooted(copy)
                partition = opened(copy)
                assert values_of(partition) == values[: lying.base_offset]
                assert partition.append([frame(b"new")], sync=False) == [lying.base_offset]
                assert values_of(opened(copy)) == [*values[: lying.base_offset], b"new"]
    assert synced.offset == 5


def test_a_lost_segment_header_above_the_synced_end_is_not_damage(folder):
    """A segment whose creation never reached the disk: empty, cut short, or not there."""
    values = half_synced(folder)
    path = segments(folder)[3]
    for content in (None, b"", path.read_bytes()[:100], bytes(500)):
        copy = copied(folder, "copy")
        (copy / path.name).unlink() if content is None else (copy / path.name).write_bytes(content)
        rebooted(copy)
        assert values_of(opened(copy)) == values[: int(path.stem)]


def test_damage_below_the_synced_place_is_refused(folder):
    """The file that holds the synced place is shorter than it: opening is refused, loudly."""
    half_synced(folder)
    synced = read_mark(folder).synced
    path = folder / f"{synced.segment:020}.seg"
    content = path.read_bytes()
    for size in (0, 10, 300, synced.position - 1):
        path.write_bytes(content[:size])
        rebooted(folder)
        with pytest.raises(DamagedLog) as refused:
            opened(folder)
        assert str(path) in refused.value.where
        assert len(segments(folder)) == 5, "nothing is deleted over damage"


def test_segments_deleted_by_retention_are_not_missed(folder):
    """Never synced, the oldest segments gone by age: what is left must survive the next boot."""
    partition = opened(folder)
    for number in range(10):
        partition.append([frame(b"%d" % number * 1300, times=[number])], sync=False)
    delete_old(partition, before_us=4, bytes_max=None)
    start = partition.start_offset()
    assert start >= 3
    values = values_of(partition, start)
    rebooted(folder)
    partition = opened(folder)
    assert partition.start_offset() == start
    assert values_of(partition, start) == values
    assert partition.append([frame(b"new")], sync=False) == [10]


def test_a_lost_transaction_blocks_no_reader(folder):
    """It began above the synced place and nothing of it survived: committed readers see what comes after."""
    partition = opened(folder, 1 << 20)
    partition.append([frame(b"synced")], sync=True)
    partition.append([transactional(b"lost", producer=1)], sync=False)
    (path,) = segments(folder)
    path.write_bytes(path.read_bytes()[: layout(path)[1].position])
    rebooted(folder)
    partition = opened(folder, 1 << 20)
    assert partition.stable_offset() == partition.end_offset() == 1
    partition.append([frame(b"new")], sync=False)
    assert values_of(partition, committed=True) == [b"synced", b"new"]


def test_a_transaction_that_survived_is_still_open(folder):
    partition = opened(folder, 1 << 20)
    partition.append([transactional(b"before", producer=1)], sync=True)
    partition.append([transactional(b"a", producer=1), transactional(b"b", producer=2), frame(b"c")], sync=False)
    rebooted(folder)
    partition = opened(folder, 1 << 20)
    assert values_of(partition, committed=True) == []
    partition.end_transaction(1, 1, commit=True)
    assert values_of(partition, committed=True) == [b"before", b"a"]
    partition.end_transaction(2, 1, commit=False)
    assert values_of(partition, committed=True) == [b"before", b"a", b"c"]


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_reported_as_ended_is_ended_after_a_reboot(folder, commit):
    """One process died behind the marker, another found it ended and said so: that word must be durable.

    Method: the unsynced marker is lost with the machine, as far as it was not synced.
    """
    partition = opened(folder, 1 << 20)
    partition.append([transactional(b"a", producer=1)], sync=True)
    marker_left_behind(folder, commit=commit)
    opened(folder, 1 << 20).end_transaction(1, 1, commit=commit)
    expected = [b"a"] if commit else []
    assert values_of(opened(folder), committed=True) == expected
    (path,) = segments(folder)
    with path.open("r+b") as file:
        file.truncate(read_mark(folder).synced.position)
    rebooted(folder)
    assert read_mark(folder).open == ()
    assert values_of(opened(folder), committed=True) == expected
    assert opened(folder).stable_offset() == 1


def test_what_a_dead_process_left_is_kept_at_the_next_boot_too(folder):
    partition = opened(folder)
    partition.append([frame(b"a" * 2000)], sync=True)
    killed_while_appending(folder, [frame(b"b" * 1000), frame(b"c" * 3000)], after_bytes=5500)
    rebooted(folder)
    assert values_of(opened(folder)) in ([b"a" * 2000, b"b" * 1000], [b"a" * 2000, b"b" * 1000, b"c" * 3000])


def test_a_reader_ahead_of_what_survived_raises(folder):
    half_synced(folder)
    path = segments(folder)[-1]
    path.write_bytes(path.read_bytes()[: layout(path)[0].position])
    rebooted(folder)
    partition = opened(folder)
    with pytest.raises(OffsetLost, match=f"now has 0 to {partition.end_offset()}"):
        values_of(partition, 10)
