"""Goal: of the two slots of a mark one is always whole, and what it says was true when it was written."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import DamagedLog, TransactionAborted
from millstream.log.storage.disk import Disk
from millstream.log.storage.mark import (
    BOOT,
    OPEN_TRANSACTIONS_MAX,
    SLOT_BYTES,
    FrameBoundary,
    Mark,
    MarkFile,
    OpenTransaction,
)

from .support import flip, frame, opened, transactional, values_of

START = FrameBoundary(0, 0, 64)
numbers = st.integers(0, 2**62)
boundaries = st.builds(FrameBoundary, numbers, numbers, numbers)
transactions = st.builds(OpenTransaction, st.integers(-1, 2**62), st.integers(0, 2**31 - 1), boundaries)


def marked(path, mark):
    MarkFile.create(path, mark, Disk())
    return MarkFile(path, Disk())


@given(boundaries, boundaries, st.lists(transactions, max_size=OPEN_TRANSACTIONS_MAX).map(tuple), numbers, numbers)
def test_a_mark_comes_back_as_it_was(tmp_path_factory, end, synced, open_, aborted_count, sequence):
    path = tmp_path_factory.mktemp("mark") / "mark"
    marks = marked(path, Mark(end, synced, open_, aborted_count, BOOT, sequence))
    assert marks.read() == Mark(end, synced, open_, aborted_count, BOOT, sequence)
    written = marks.write(marks.read(), sync=False)
    assert marks.read() == written == Mark(end, synced, open_, aborted_count, BOOT, sequence + 1)


def filled(path, *, writes):
    """A mark written so often, with so many open transactions that a slot is full."""
    open_ = tuple(OpenTransaction(i, i, FrameBoundary(i, i, i)) for i in range(OPEN_TRANSACTIONS_MAX))
    marks = marked(path, Mark(START, START, open_))
    for number in range(1, writes + 1):
        marks.write(replace(marks.read(), end=FrameBoundary(number, 0, 64)), sync=True)
    return marks


@pytest.mark.parametrize("writes", [*(pytest.param(n, marks=pytest.mark.more) for n in range(3)), 3])
@pytest.mark.parametrize("first_sequence", [pytest.param(0, marks=pytest.mark.more), 1])
def test_a_write_torn_at_any_byte_leaves_the_mark_before_it(tmp_path, writes, first_sequence):
    """The next write is cut short at every byte: the mark read then is the old one, or the new one if all is there."""
    path = tmp_path / "mark"
    open_ = tuple(OpenTransaction(i, i, FrameBoundary(i, i, i)) for i in range(OPEN_TRANSACTIONS_MAX))
    marks = marked(path, Mark(START, START, open_, sequence=first_sequence))
    for number in range(1, writes + 1):
        marks.write(replace(marks.read(), end=FrameBoundary(number, 0, 64)), sync=True)
    before, content = marks.read(), path.read_bytes()
    after = marks.write(replace(before, end=FrameBoundary(99, 99, 99)), sync=True)
    changed = path.read_bytes()
    slot = after.sequence % 2 * SLOT_BYTES
    differing = [position for position in range(len(content)) if content[position] != changed[position]]
    assert slot <= differing[0] <= differing[-1] < slot + SLOT_BYTES
    for cut in range(slot, slot + SLOT_BYTES):
        path.write_bytes(changed[:cut] + content[cut:])
        assert marks.read() == (after if cut > differing[-1] else before), cut


@pytest.mark.parametrize("writes", [*(pytest.param(n, marks=pytest.mark.more) for n in range(2)), 2])
def test_a_flipped_bit_never_makes_up_a_mark(tmp_path, writes):
    """Every byte of the file, one bit each: the mark is the newest or the one before it, or is refused by name."""
    path = tmp_path / "mark"
    marks = filled(path, writes=writes)
    known = [marks.read()]
    if writes:
        known.append(
            replace(known[0], end=FrameBoundary(writes - 1, 0, 64) if writes > 1 else START, sequence=writes - 1)
        )
    refused = set()
    for position in range(2 * SLOT_BYTES):
        flip(path, position, position % 8)
        try:
            assert marks.read() in known
        except DamagedLog as error:
            refused.add((error.where, writes))
        flip(path, position, position % 8)
    assert refused <= {(str(path), 0)}


@pytest.mark.parametrize("size", [0, 1, 100, SLOT_BYTES, 2 * SLOT_BYTES - 1, 2 * SLOT_BYTES + 1])
def test_a_mark_of_another_size_is_refused(folder, size):
    opened(folder)
    content = (folder / "mark").read_bytes()
    (folder / "mark").write_bytes(content.ljust(size, b"\0")[:size])
    with pytest.raises(DamagedLog, match="the mark of what was acknowledged cannot be read") as refused:
        opened(folder)
    assert str(folder / "mark") in refused.value.where


def test_a_missing_mark_is_refused(folder):
    opened(folder)
    (folder / "mark").unlink()
    with pytest.raises(DamagedLog, match="missing") as refused:
        opened(folder)
    assert "repair" in refused.value.next_step


def test_what_is_stable_is_below_every_open_transaction():
    mark = Mark(FrameBoundary(50, 40, 500), START)
    assert mark.stable == mark.end
    mark = (
        mark.with_open(1, 1, FrameBoundary(30, 20, 700))
        .with_open(2, 1, FrameBoundary(10, 0, 100))
        .with_open(1, 1, mark.end)
    )
    assert mark.stable == FrameBoundary(10, 0, 100)
    assert mark.without_open(2, 1).stable == FrameBoundary(30, 20, 700)
    assert mark.without_open(2, 2).stable == FrameBoundary(10, 0, 100)


def test_too_many_open_transactions_are_refused_and_room_comes_back(folder):
    """The refused one leaves nothing behind, not even in a process that dies of it; ending one makes room."""
    partition = opened(folder, 1 << 20)
    for number in range(OPEN_TRANSACTIONS_MAX):
        partition.append([transactional(b"%d" % number, producer=number)], sync=False)
    with pytest.raises(TransactionAborted, match="the maximum"):
        partition.append([frame(b"first"), transactional(b"too many", producer=9999)], sync=False)
    assert len(values_of(partition)) == OPEN_TRANSACTIONS_MAX
    partition.append([frame(b"plain"), transactional(b"more", producer=3)], sync=False)
    partition.end_transaction(0, 1, commit=True)
    partition.append([transactional(b"fits", producer=9999)], sync=False)
    assert values_of(opened(folder))[-3:] == [b"plain", b"more", b"fits"]
    assert len(partition.marks.read().open) == OPEN_TRANSACTIONS_MAX
