"""Goal: what a dead process left above the mark is kept if it is whole and cut if it is not; nothing below it moves."""

import random
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from folders import MEMORY
from millstream.errors import DamagedLog, TransactionAborted
from millstream.log.storage.mark import OPEN_TRANSACTIONS_MAX
from millstream.log.storage.reader import PartitionReader
from properties import examples

from .support import (
    DyingDisk,
    DyingPartition,
    Killed,
    copied,
    frame,
    header_size,
    killed_while_appending,
    layout,
    opened,
    read_mark,
    records_of,
    segments,
    transactional,
    values_of,
)

STORED = [b"one", b"two" * 50, b"three"]
UNFINISHED = [b"four", b"five" * 30, b""]


def stored(folder):
    partition = opened(folder, 1 << 20)
    for value in STORED:
        partition.append([frame(value)], sync=False)


def unfinished(folder):
    """Whole frames above the mark, as of a process that died just before it moved the mark."""
    disk = DyingDisk()
    partition = DyingPartition("topic", 0, folder, opened(folder).schema, 1 << 20, disk)
    drafts = [frame(value) for value in UNFINISHED]
    disk.left_bytes = sum(draft.size_bytes for draft in drafts)
    with pytest.raises(Killed):
        partition.append(drafts, sync=False)


def check_recovery(folder, kept):
    """After a reader and an appender opened it: what was stored, `kept` of the unfinished, and the new; each once."""
    reader = opened(folder, 1 << 20)
    assert values_of(reader) == STORED, "what was never acknowledged must not be read"
    appender = opened(folder, 1 << 20)
    appender.append([frame(b"new")], sync=False)
    expected = STORED + UNFINISHED[:kept] + [b"new"]
    assert values_of(appender) == expected
    assert values_of(reader) == expected
    opened(folder, 1 << 20).append([frame(b"newer")], sync=True)
    assert values_of(opened(folder, 1 << 20)) == [*expected, b"newer"]


@pytest.mark.more
def test_a_tail_cut_at_every_byte(folder):
    """The file ends at every byte above the mark in turn: whole frames there are kept, the rest is cut."""
    stored(folder)
    mark = read_mark(folder).end.position
    unfinished(folder)
    (path,) = segments(folder)
    frames = layout(path)
    assert [lying.base_offset for lying in frames] == list(range(6))
    for size in range(mark, path.stat().st_size + 1):
        copy = copied(folder, "copy")
        (torn,) = segments(copy)
        torn.write_bytes(path.read_bytes()[:size])
        whole = sum(mark < lying.position + lying.size <= size for lying in frames)
        check_recovery(copy, kept=whole)


@pytest.mark.more
def test_a_tail_damaged_at_every_byte(folder):
    """A byte above the mark is wrong: the frames before its own are kept, that one and what follows is cut."""
    stored(folder)
    mark = read_mark(folder).end.position
    unfinished(folder)
    (path,) = segments(folder)
    frames = [lying for lying in layout(path) if lying.position >= mark]
    content = path.read_bytes()
    for position in range(mark, len(content)):
        copy = copied(folder, "copy")
        (torn,) = segments(copy)
        torn.write_bytes(content[:position] + bytes([content[position] ^ 0x40]) + content[position + 1 :])
        check_recovery(copy, kept=sum(lying.position + lying.size <= position for lying in frames))


@examples(60)
@given(st.integers(0, 3), st.sampled_from(["random", "zeros", "a frame again", "a frame from elsewhere"]), st.data())
def test_garbage_above_the_mark_is_cut(kept, kind, data):
    """Behind any number of whole frames: bytes that are no frame, or a whole one with an offset that is not due."""
    home = Path(tempfile.mkdtemp(dir=MEMORY))
    folder = home / "0"
    stored(folder)
    mark = read_mark(folder).end.position
    unfinished(folder)
    (path,) = segments(folder)
    content, frames = path.read_bytes(), [lying for lying in layout(path) if lying.position >= mark]
    whole = content[: frames[kept - 1].position + frames[kept - 1].size if kept else mark]
    garbage = {
        "random": random.Random(data.draw(st.integers(0, 10**6))).randbytes(data.draw(st.integers(1, 5000))),
        "zeros": bytes(data.draw(st.integers(1, 9000))),
        "a frame again": content[frames[0].position :][: frames[0].size],
        "a frame from elsewhere": b"".join(frame(b"stranger").at(700)),
    }[kind]
    if kind == "a frame again" and kept == 0:
        garbage = b"\1"
    path.write_bytes(whole + garbage)
    check_recovery(folder, kept)
    shutil.rmtree(home)


def test_an_append_killed_after_every_byte(folder):
    """An append of four frames over three segments dies after writing any number of bytes, mark included.

    A later one finds none, some or all of its frames, in order, and everything before them.
    """
    partition = opened(folder)
    partition.append([frame(b"a" * 3000)], sync=False)
    drafts = [frame(b"b" * 500), frame(b"c" * 3500), frame(b"d" * 40), frame(b"e" * 3000)]
    values = [b"b" * 500, b"c" * 3500, b"d" * 40, b"e" * 3000]
    step, after, seen = 61, 0, set()
    while True:
        copy = copied(folder, "copy")
        lived = killed_while_appending(copy, drafts, after)
        reader = opened(copy)
        assert values_of(reader) in ([b"a" * 3000], [b"a" * 3000, *values])
        found = opened(copy)
        found.append([frame(b"new")], sync=False)
        kept = len(values_of(found)) - 2
        assert values_of(found) == [b"a" * 3000, *values[:kept], b"new"]
        assert values_of(reader) == values_of(found)
        seen.add(kept)
        if lived:
            break
        after += step
    assert seen == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("size", [0, 1, 22, 63, 64, 200, "all but a byte of the header", "header", "whole"])
def test_a_next_segment_that_was_only_started(folder, size):
    """A process died while it made the next segment: part of a header, a header alone, or a whole frame in it."""
    partition = opened(folder)
    partition.append([frame(b"a" * 3000)], sync=False)
    mark = read_mark(folder)
    other = opened(copied(folder, "other"))
    other.append([frame(b"b" * 3000)], sync=False)
    begun = segments(other.folder)[1]
    content = begun.read_bytes()
    header = header_size(content)
    size = {"all but a byte of the header": header - 1, "header": header, "whole": len(content)}.get(size, size)
    (folder / begun.name).write_bytes(content[:size])
    assert read_mark(folder) == mark
    assert values_of(opened(folder)) == [b"a" * 3000]
    partition.append([frame(b"new")], sync=False)
    kept = [b"b" * 3000] if size == len(content) else []
    assert values_of(opened(folder)) == [b"a" * 3000, *kept, b"new"]
    partition.append([frame(b"newer" * 700)], sync=False)
    assert values_of(opened(folder)) == [b"a" * 3000, *kept, b"new", b"newer" * 700]


@pytest.mark.more
def test_a_segment_cut_below_the_mark_is_refused_with_the_byte(folder):
    """At every byte: no process may append; a reader gets what is complete, and an error with the position after it."""
    stored(folder)
    (path,) = segments(folder)
    content, frames = path.read_bytes(), layout(path)
    for size in range(len(content)):
        copy = copied(folder, "copy")
        (cut,) = segments(copy)
        cut.write_bytes(content[:size])
        with pytest.raises(DamagedLog) as refused:
            opened(copy).append([frame(b"new")], sync=False)
        assert str(cut) in refused.value.where
        whole = sum(lying.position + lying.size <= size for lying in frames)
        if size >= frames[0].position:
            assert refused.value.where == f"{cut}, byte {size}"
        with pytest.raises(DamagedLog):
            values_of(opened(copy))
        assert len(values_before_damage(copy)) == whole
        assert cut.read_bytes() == content[:size], "a refused log is left as it is"


def values_before_damage(folder):
    found = []
    reader = PartitionReader(opened(folder), 0, committed=False)
    with suppress(DamagedLog):
        while some := records_of(reader, max_bytes=1):
            found += some
    return found


def test_a_closed_segment_cut_anywhere_is_refused_when_it_is_read(folder):
    """One that is cut between two frames has no damaged frame: what is missing is noticed by the offsets."""
    partition = opened(folder)
    for number in range(12):
        partition.append([frame(b"%d" % number * 700)], sync=False)
    path = segments(folder)[1]
    content, frames = path.read_bytes(), layout(path)
    assert len(segments(folder)) > 3
    assert len(frames) > 1
    for lying in frames:
        for size in (lying.position, lying.position + 1, lying.position + 64, lying.position + lying.size - 1):
            copy = copied(folder, "copy")
            (copy / path.name).write_bytes(content[:size])
            with pytest.raises(DamagedLog) as refused:
                values_of(opened(copy))
            assert path.name in refused.value.where
            assert len(values_before_damage(copy)) == lying.base_offset


def test_a_missing_segment_is_refused(folder):
    """First, middle or active: gone from the folder, it is not passed over in silence."""
    partition = opened(folder)
    for number in range(12):
        partition.append([frame(b"%d" % number * 700)], sync=False)
    paths = segments(folder)
    for path in paths[1:]:
        copy = copied(folder, "copy")
        (copy / path.name).unlink()
        with pytest.raises(DamagedLog) as refused:
            values_of(opened(copy))
        assert str(copy) in refused.value.where
        assert len(values_before_damage(copy)) == int(path.stem)
    copy = copied(folder, "copy")
    (copy / paths[-1].name).unlink()
    with pytest.raises(DamagedLog) as refused:
        opened(copy).append([frame(b"new")], sync=False)
    assert paths[-1].name in refused.value.where


def test_a_damaged_header_below_the_mark_is_refused_not_cut(folder):
    """With garbage above the mark recovery looks at the active segment; the damage in it is below the mark."""
    partition = opened(folder)
    for number in range(5):
        partition.append([frame(b"%d" % number * 1500)], sync=False)
    path = segments(folder)[-1]
    content = path.read_bytes()
    path.write_bytes(content[:30] + bytes([content[30] ^ 1]) + content[31:] + b"garbage")
    with pytest.raises(DamagedLog) as refused:
        opened(folder).append([frame(b"new")], sync=False)
    assert str(path) in refused.value.where
    assert path.exists()


def test_one_transaction_too_many_in_a_process_that_died_does_not_block_the_partition(folder):
    """A frame that was refused must not be there for recovery to find, else every later append is refused too."""
    partition = opened(folder, 1 << 20)
    for number in range(OPEN_TRANSACTIONS_MAX):
        partition.append([transactional(b"x", producer=number)], sync=False)
    dying = DyingPartition("topic", 0, folder, partition.schema, 1 << 20, DyingDisk())
    with pytest.raises(TransactionAborted):
        dying.append([transactional(b"too many", producer=9999)], sync=False)
    partition.append([frame(b"plain")], sync=False)
    partition.end_transaction(0, 1, commit=True)
    assert values_of(partition) == [b"x"] * OPEN_TRANSACTIONS_MAX + [b"plain"]
