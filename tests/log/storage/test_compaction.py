"""Goal: the newest of each key stays, with its offset; tombstones delete; nobody who reads is disturbed."""

import random
import shutil
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from folders import MEMORY
from millstream.log.storage.compaction import compact
from millstream.log.storage.layout import stored_schema
from millstream.log.storage.reader import PartitionReader, offset_at_time
from millstream.log.storage.retention import delete_old, delete_replaced
from millstream.log.storage.upkeep import clean_partition
from millstream.log.topics import TopicSettings
from millstream.records import Schema
from properties import examples

from .support import (
    Killed,
    Steps,
    batch,
    copied,
    drain,
    frame,
    keyed,
    made,
    opened,
    read_all,
    read_mark,
    rebooted,
    records_of,
    segments,
    transactional,
)

NEVER = -(2**60)


def filled(folder, count=60, keys=7, segment_bytes=4096):
    """Records of a few keys, some of them tombstones, in segments of a few frames, all closed."""
    partition = opened(folder, segment_bytes)
    for number in range(count):
        key = b"%d" % (number * 5 % keys)
        value = None if number % 11 == 10 else b"%d" % number * 80
        partition.append([keyed([(key, value)], times=[number])], sync=False)
    partition.roll()
    return partition


def newest(records, *, tombstones_before=NEVER, closed_to=None):
    """What compaction leaves of some records: a plain dict by key, then by offset."""
    closed = [record for record in records if closed_to is None or record.offset < closed_to]
    open_ = [record for record in records if closed_to is not None and record.offset >= closed_to]
    by_key = {record.key: record for record in closed if record.key is not None}
    keyless = [record for record in closed if record.key is None]
    kept = [
        record
        for record in [*by_key.values(), *keyless]
        if not (record.value is None and record.time is not None and record.time < tombstones_before)
    ]
    return sorted(kept) + open_


def test_the_newest_of_each_key_stays_with_its_offset(folder):
    partition = filled(folder)
    before = read_all(partition)
    assert compact(partition, tombstones_before_us=NEVER)
    expected = newest(before)
    assert read_all(partition) == expected
    assert read_all(opened(folder), committed=True) == expected
    for offset in range(61):
        assert read_all(partition, offset) == [record for record in expected if record.offset >= offset]
    assert partition.append([frame(b"new")], sync=False) == [60]
    assert (partition.start_offset(), partition.end_offset()) == (0, 61)


def test_tombstones_delete_and_are_removed_when_they_are_old(folder):
    """A tombstone outlives what it deletes by its retention; then nothing tells that the key was there."""
    partition = opened(folder)
    partition.append([keyed([(b"a", b"1"), (b"b", b"2"), (b"c", b"3")], times=[1, 2, 3])], sync=False)
    partition.append([keyed([(b"a", None), (b"c", None), (b"c", b"4")], times=[10, 11, 12])], sync=False)
    partition.roll()
    compact(partition, tombstones_before_us=10)
    assert [(rec.offset, rec.key, rec.value) for rec in read_all(partition)] == [
        (1, b"b", b"2"),
        (3, b"a", None),
        (5, b"c", b"4"),
    ]
    partition.append([keyed([(b"d", b"5")], times=[20])], sync=False)
    partition.roll()
    compact(partition, tombstones_before_us=11, dirty_share_min=0)
    assert [(rec.offset, rec.key) for rec in read_all(partition)] == [(1, b"b"), (5, b"c"), (6, b"d")]


def test_what_is_in_the_active_segment_is_left_alone(folder):
    """A key's newest closed record stays though the active segment has a newer one."""
    partition = filled(folder)
    partition.append([keyed([(b"0", b"newer"), (b"0", b"newest")], times=[99, 100])], sync=False)
    before = read_all(partition)
    compact(partition, tombstones_before_us=NEVER)
    assert read_all(partition) == newest(before, closed_to=60)


def test_transactions_inside(folder):
    """Aborted records are neither kept nor count as the newest; what is undecided is not touched."""
    partition = opened(folder)
    partition.append([keyed([(b"a", b"1"), (b"b", b"1")])], sync=False)
    for number, (key, commit) in enumerate([(b"a", False), (b"b", True), (b"a", False)]):
        draft = keyed([(key, b"in transaction %d" % number)], producer_id=number, epoch=1, flags=1)
        partition.append([draft], sync=False)
        partition.end_transaction(number, 1, commit=commit)
    partition.roll()
    partition.append([keyed([(b"b", b"open")], producer_id=9, epoch=1, flags=1)], sync=False)
    partition.roll()
    partition.append([keyed([(b"a", b"behind")])], sync=False)
    partition.roll()
    compact(partition, tombstones_before_us=NEVER)
    assert [rec.value for rec in read_all(partition, committed=True)] == [b"1", b"in transaction 1"]
    partition.end_transaction(9, 1, commit=False)
    assert [rec.value for rec in read_all(partition, committed=True)] == [b"1", b"in transaction 1", b"behind"]
    partition.roll()
    compact(partition, tombstones_before_us=NEVER, dirty_share_min=0)
    assert [rec.value for rec in read_all(partition)] == [b"in transaction 1", b"behind"]


def test_readers_in_the_middle_are_not_disturbed(folder):
    """Readers stand at every frame when compaction runs: none sees a record twice, or misses the newest of a key."""
    partition = filled(folder)
    before = read_all(partition)
    readers = []
    for frames in range(60):
        reader = PartitionReader(partition, 0, committed=frames % 2 == 0)
        seen = [record for _ in range(frames) for record in records_of(reader, max_bytes=1)]
        readers.append((reader, seen))
    compact(partition, tombstones_before_us=NEVER)
    partition.append([keyed([(b"0", b"later")], times=[100])], sync=False)
    after = read_all(partition)
    for reader, seen in readers:
        found = seen + drain(reader)
        assert [record.offset for record in found] == sorted({record.offset for record in found})
        assert set(after) <= set(found) <= {*before, *after}


def test_again_and_again(folder):
    """Compacted segments are compacted with new ones; small neighbours become one file; offsets never move."""
    partition = opened(folder, 16 << 10)
    everything = []
    dice = random.Random(1)
    for turn in range(8):
        for _ in range(25):
            number = len(everything)
            value = None if dice.random() < 0.1 else b"%d" % number * dice.randrange(100)
            partition.append([keyed([(b"%d" % dice.randrange(12), value)], times=[number])], sync=False)
            everything.append(number)
        before = read_all(partition)
        partition.roll()
        assert compact(partition, tombstones_before_us=NEVER, dirty_share_min=0)
        assert read_all(opened(folder)) == newest(before)
        assert len(segments(folder)) <= turn + 2
    assert not compact(partition, tombstones_before_us=NEVER, dirty_share_min=0)
    assert len(segments(folder)) <= 3
    assert {path.stem for path in folder.glob("*.idx")} <= {path.stem for path in segments(folder)}


def test_only_when_enough_is_new(folder):
    partition = filled(folder, 200)
    assert compact(partition, tombstones_before_us=NEVER)
    before = [path.name for path in segments(folder)]
    partition.append([keyed([(b"0", b"x")])], sync=False)
    partition.roll()
    assert not compact(partition, tombstones_before_us=NEVER, dirty_share_min=0.9)
    assert [path.name for path in segments(folder)][: len(before)] == before


def test_nothing_closed(folder):
    partition = opened(folder)
    assert not compact(partition, tombstones_before_us=NEVER, dirty_share_min=0)
    partition.append([keyed([(b"a", b"1"), (b"a", b"2")])], sync=False)
    assert not compact(partition, tombstones_before_us=NEVER, dirty_share_min=0)
    assert len(read_all(partition)) == 2


def test_a_partition_of_old_tombstones_alone_becomes_empty(folder):
    """Readers skip the empty range; offsets continue after it."""
    partition = opened(folder)
    for number in range(30):
        partition.append([keyed([(b"%d" % (number % 3), None)], times=[number])], sync=False)
    partition.roll()
    compact(partition, tombstones_before_us=100)
    assert read_all(partition) == []
    assert (partition.start_offset(), partition.end_offset()) == (0, 30)
    assert partition.append([keyed([(b"a", b"new")])], sync=False) == [30]
    assert [record.offset for record in read_all(partition)] == [30]
    assert offset_at_time(partition, 0) == 30


def test_keys_and_times_that_are_missing_or_empty(folder):
    """An empty key is a key; records without one are not each other's newer version; no time is never too old."""
    partition = opened(folder)
    pairs = [(b"", b"1"), (None, b"2"), (b"", b"3"), (None, b"4"), (b"a", None), (b"b", None), (b"b", b"5")]
    partition.append([keyed(pairs, times=[None, 1, None, None, None, 2, None])], sync=False)
    partition.append([keyed([(b"c", None), (b"d", b"6")], times=[None, None])], sync=False)
    partition.roll()
    before = read_all(partition)
    compact(partition, tombstones_before_us=100)
    assert read_all(partition) == newest(before, tombstones_before=100)
    assert [rec.offset for rec in read_all(partition)] == [1, 2, 3, 4, 6, 7, 8]


def test_a_schema_that_grew(folder):
    """Old records are kept in the schema of now, whichever segments they come from."""
    old, new = (stored_schema(Schema.of(ddl)) for ddl in ("n int", "n bigint, text string"))
    partition = opened(folder, 4096, old)
    for number in range(30):
        partition.append([made(batch([{"n": number}], [b"%d" % (number % 20)], schema=old))], sync=False)
    partition.schema = new
    for number in range(30, 50):
        value = {"n": number, "text": "t" * 50}
        partition.append([made(batch([value], [b"%d" % (number % 25)], schema=new))], sync=False)
    before = read_all(partition)
    partition.roll()
    compact(partition, tombstones_before_us=NEVER)
    assert read_all(partition) == newest(before)
    assert read_all(opened(folder, schema=new)) == newest(before)


def test_a_process_that_knows_only_the_old_schema_loses_no_column(folder):
    """It looks up the current schema before it rewrites anything."""
    old, new = (stored_schema(Schema.of(ddl)) for ddl in ("n int", "n int, text string"))
    partition = opened(folder, 4096, old)
    stale = opened(folder, 4096, old)
    stale.refresh = lambda: setattr(stale, "schema", new)
    partition.schema = new
    partition.append([made(batch([{"n": 1, "text": "kept"}], [b"a"], schema=new))], sync=False)
    partition.roll()
    compact(stale, tombstones_before_us=NEVER)
    assert [record.value for record in read_all(partition)] == [{"n": 1, "text": "kept"}]


def test_frames_of_many_megabytes(folder):
    """More than a frame is left over: several are written, each found by offset."""
    partition = opened(folder, 64 << 20)
    values = [b"%d" % number * 20_000 for number in range(150)]
    partition.append([made(batch(values, [b"%d" % (number % 100) for number in range(150)]))], sync=False)
    before = read_all(partition)
    partition.roll()
    compact(partition, tombstones_before_us=NEVER)
    expected = newest(before)
    assert read_all(partition) == expected
    for offset in (0, 50, 51, 99, 100, 149, 150):
        assert read_all(partition, offset) == [record for record in expected if record.offset >= offset]


def test_a_crash_at_every_step(folder):
    """The process dies before each file it writes, renames or deletes: the same records; the next one clears up."""
    partition = filled(folder, 40)
    before = read_all(partition)
    expected = newest(before)
    after_steps = 0
    while True:
        copy = copied(folder, "copy")
        compacting = opened(copy)
        try:
            with Steps(after_steps):
                compact(compacting, tombstones_before_us=NEVER)
            died = False
        except Killed:
            died = True
        found = read_all(opened(copy))
        assert set(expected) <= set(found) <= set(before)
        assert [record.offset for record in found] == sorted({record.offset for record in found})
        if after_steps % 3 == 0:
            rebooted(copy)
            assert read_all(opened(copy)) == found
        again = opened(copy)
        again.append([keyed([(b"0", b"later")], times=[1000])], sync=False)
        again.roll()
        delete_replaced(again)
        assert not list(copy.glob("*.compacting"))
        compact(again, tombstones_before_us=NEVER, dirty_share_min=0)
        assert read_all(again) == newest([*before, *read_all(again, 40)])
        after_steps += 1
        if not died:
            break
    assert after_steps > 20


def test_old_files_beside_the_new_one_change_nothing(folder):
    """Deleted files that came back with the last boot of the machine: they are passed over, then cleared away."""
    partition = filled(folder)
    old = copied(folder, "old")
    before = read_all(partition)
    compact(partition, tombstones_before_us=NEVER)
    after = [path.name for path in segments(folder)]
    for path in old.iterdir():
        if path.suffix in (".seg", ".idx") and not (folder / path.name).exists():
            shutil.copy(path, folder)
    (folder / "x.compacting").write_bytes(b"half")
    assert len(segments(folder)) > len(after)
    assert read_all(opened(folder)) == newest(before)
    clean_partition(opened(folder), TopicSettings(), now=0.0)
    assert [path.name for path in segments(folder)] == after
    assert not (folder / "x.compacting").exists()
    assert read_all(opened(folder)) == newest(before)


def test_compacted_segments_grow_old_too(folder):
    """Retention deletes them by the newest time in them, as any other."""
    partition = filled(folder)
    compact(partition, tombstones_before_us=NEVER)
    partition.append([keyed([(b"0", b"young")], times=[1000])], sync=False)
    delete_old(partition, before_us=500, bytes_max=None)
    assert partition.start_offset() == 60
    assert [record.value for record in read_all(partition, 60)] == [b"young"]


rows = st.lists(
    st.tuples(
        st.sampled_from([b"", b"a", b"b", b"c", None]), st.none() | st.integers(0, 900), st.none() | st.integers(0, 50)
    ),
    min_size=1,
    max_size=6,
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), rows, st.none() | st.integers(0, 3)),
        st.tuples(st.just("end"), st.integers(0, 3), st.booleans()),
        st.tuples(st.just("roll")),
        st.tuples(st.just("compact"), st.integers(0, 60)),
    ),
    max_size=40,
)


@examples(150)
@given(steps)
def test_against_a_plain_dict(steps):
    """Random appends, transactions and compactions; a list and a dict by key say what must be left."""
    home = Path(tempfile.mkdtemp(dir=MEMORY))
    partition = opened(home / "0")
    stored, epochs, open_, aborted = [], dict.fromkeys(range(4), 1), {}, set()
    for what, *details in steps:
        if what == "append":
            pairs = [(key, None if size is None else b"x" * size) for key, size, _ in details[0]]
            producer = details[1]
            identity = {} if producer is None else {"producer_id": producer, "epoch": epochs[producer], "flags": 1}
            (base,) = partition.append([keyed(pairs, [time for *_, time in details[0]], **identity)], sync=False)
            owner = None if producer is None else (producer, epochs[producer])
            stored += [(record, owner) for record in read_all(partition, base)]
            if owner:
                open_.setdefault(owner, base)
        elif what == "end":
            producer, commit = details
            owner = (producer, epochs[producer])
            partition.end_transaction(*owner, commit=commit)
            if owner in open_:
                del open_[owner]
                aborted |= set() if commit else {owner}
                epochs[producer] += 1
        elif what == "roll":
            partition.roll()
        else:
            mark = read_mark(partition.folder)
            closed_to = min(mark.end.segment, mark.stable.segment)
            if compact(partition, tombstones_before_us=details[0], dirty_share_min=0):
                decided = [record for record, owner in stored if owner not in aborted or record.offset >= closed_to]
                left = set(newest(decided, tombstones_before=details[0], closed_to=closed_to))
                stored = [(record, owner) for record, owner in stored if record in left]
        assert read_all(partition) == [record for record, _ in stored]
        stable = min(open_.values(), default=10**9)
        committed = [record for record, owner in stored if owner not in aborted and record.offset < stable]
        assert read_all(opened(partition.folder), committed=True) == committed
    shutil.rmtree(home)


def test_a_transaction_of_plain_records_beside(folder):
    """Records without keys are in no one's way, in a transaction or not."""
    partition = opened(folder)
    partition.append([frame(b"1"), transactional(b"2", producer=1), frame(b"3")], sync=False)
    partition.end_transaction(1, 1, commit=True)
    partition.roll()
    compact(partition, tombstones_before_us=NEVER)
    assert [record.value for record in read_all(partition)] == [b"1", b"2", b"3"]
