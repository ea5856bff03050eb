"""Goal: a flipped bit below the mark is refused with its place; never is a wrong record returned."""

import random

import pytest

from millstream.errors import DamagedLog, UnsupportedFormat
from millstream.log.storage.reader import PartitionReader, offset_at_time

from .support import flip, frame, layout, opened, read_all, records_of, segments, transactional


def filled(folder):
    """Three segments with plain, committed and aborted records."""
    partition = opened(folder)
    for number in range(9):
        partition.append([frame(b"%d" % number, b"x" * 300, times=[number, None])], sync=False)
        if number in (2, 5):
            partition.append([transactional(b"in transaction", producer=number)], sync=False)
            partition.end_transaction(number, 1, commit=number == 2)
    assert len(segments(folder)) >= 2
    return read_all(partition), read_all(partition, committed=True)


def read_on(folder, *, committed):
    """The records up to the damage, and the error that named it."""
    found = []
    try:
        reader = PartitionReader(opened(folder), 0, committed=committed)
        while some := records_of(reader, max_bytes=1):
            found += some
    except (DamagedLog, UnsupportedFormat) as error:
        return found, error
    return found, None


def check_flips(folder, bits):
    """`bits` chooses the bits of a byte position to flip."""
    everything, committed_only = filled(folder)
    for path in segments(folder):
        frames = layout(path)
        for position in range(path.stat().st_size):
            broken = next((lying for lying in frames if position < lying.position + lying.size), frames[-1])
            first = frames[0].base_offset if position < frames[0].position else broken.base_offset
            for bit in bits(position):
                flip(path, position, bit)
                for expected, committed in ((everything, False), (committed_only, True)):
                    found, error = read_on(folder, committed=committed)
                    assert found == [record for record in expected if record.offset < first], (position, bit)
                    assert error is not None, (position, bit)
                    assert str(path) in error.where
                    if position >= frames[0].position:
                        assert error.where.endswith(f"{path}, byte {broken.position}")
                flip(path, position, bit)
    assert read_on(folder, committed=True) == (committed_only, None)


@pytest.mark.more
def test_a_flipped_bit_at_every_byte_of_every_segment(folder):
    """One bit at each byte: records before the damaged frame are read, then its place is named."""
    dice = random.Random(5)
    check_flips(folder, lambda position: [dice.randrange(8)] if position % 3 == 0 or position < 64 else [])


@pytest.mark.soak
def test_every_flipped_bit_of_every_segment(folder, rounds):
    """All bits there are; in a short run, one bit of each byte."""
    dice = random.Random(6)
    bits = rounds(8, 1)
    check_flips(folder, lambda position: dice.sample(range(8), bits))


def test_all_bits_of_the_first_bytes(folder):
    """Header of the segment and of the first frame, bit by bit, read from the start."""
    filled(folder)
    path = segments(folder)[0]
    for position in [*range(64), *range(layout(path)[0].position, layout(path)[0].position + 128)]:
        for bit in range(8):
            flip(path, position, bit)
            found, error = read_on(folder, committed=False)
            assert found == []
            assert str(path) in error.where
            flip(path, position, bit)


def test_records_behind_the_damage_are_still_read_from_there(folder):
    """Reading that begins behind the damaged frame does not meet it, and never returns anything else."""
    everything, _ = filled(folder)
    path = segments(folder)[0]
    broken = layout(path)[1]
    flip(path, broken.position + 100, 3)
    partition = opened(folder)
    following = layout(segments(folder)[1])[0].base_offset
    assert read_all(partition, following) == [record for record in everything if record.offset >= following]
    assert partition.append([frame(b"new")], sync=True)


def test_a_time_is_not_looked_up_wrongly_over_damage(folder):
    filled(folder)
    path = segments(folder)[0]
    expected = {time: offset_at_time(opened(folder), time) for time in range(10)}
    for lying in layout(path):
        flip(path, lying.position + 20, 1)
        places = set()
        for time, offset in expected.items():
            try:
                assert offset_at_time(opened(folder), time) == offset
            except DamagedLog as error:
                places.add(error.where)
        assert places <= {f"{path}, byte {lying.position}"}
        flip(path, lying.position + 20, 1)


def test_damage_with_no_index_still_gives_what_is_before_it(folder):
    """Making up for a missing index must not refuse the records in front of the damage."""
    everything, _ = filled(folder)
    for index in folder.glob("*.idx"):
        index.unlink()
    path = segments(folder)[0]
    broken = layout(path)[3]
    flip(path, broken.position + 90, 2)
    found, error = read_on(folder, committed=False)
    assert found == [record for record in everything if record.offset < broken.base_offset]
    assert error.where.endswith(f"{path}, byte {broken.position}")
