"""Goal: repair keeps every frame that checks out, names exactly what is gone, and leaves a log that works."""

import random

import pytest

from millstream.errors import DamagedLog
from millstream.log.storage.compaction import compact
from millstream.log.storage.disk import Disk
from millstream.log.storage.layout import stored_schema
from millstream.log.storage.mark import SLOT_BYTES
from millstream.log.storage.repair import repair
from millstream.records import Schema

from .support import (
    SCHEMA,
    batch,
    copied,
    flip,
    frame,
    keyed,
    killed_while_appending,
    layout,
    made,
    opened,
    read_all,
    read_mark,
    segments,
    transactional,
    values_of,
)


def filled(folder, count=14):
    """Several segments; three records in each frame."""
    partition = opened(folder)
    for number in range(count):
        partition.append([frame(b"%d" % number, b"x" * 400, b"y" * 200)], sync=False)
    assert len(segments(folder)) >= 4
    return read_all(partition)


def repaired(folder, schema=SCHEMA):
    return repair(folder, 7, schema, Disk())


def works(folder, expected):
    """The records are those; and more can be written, read, repaired again."""
    partition = opened(folder)
    start = partition.start_offset()
    assert read_all(partition, start) == expected
    end = partition.end_offset()
    assert partition.append([frame(b"new"), frame(b"newer" * 900)], sync=True) == [end, end + 1]
    assert [record[:3] for record in read_all(opened(folder), start)] == [record[:3] for record in expected] + [
        (end, None, b"new"),
        (end + 1, None, b"newer" * 900),
    ]
    again = repaired(folder)
    assert (again.lost, again.damaged_files) == ((), ())
    assert values_of(opened(folder), start)[-1] == b"newer" * 900


def test_a_sound_partition_is_left_as_it_is(folder):
    everything = filled(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    found = repaired(folder)
    assert (found.partition, found.kept_records, found.lost, found.damaged_files) == (7, 42, (), ())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    works(folder, everything)


def test_any_one_damaged_frame(folder):
    """Each frame in turn, first, middle and last of each segment, the active one too: only its records are gone."""
    everything = filled(folder)
    dice = random.Random(3)
    for path in segments(folder):
        for lying in layout(path):
            copy = copied(folder, "copy")
            damaged = copy / path.name
            flip(damaged, lying.position + dice.randrange(lying.size), dice.randrange(8))
            content = damaged.read_bytes()
            found = repaired(copy)
            assert found.lost == ((lying.base_offset, lying.base_offset + 3),)
            assert found.kept_records == len(everything) - 3
            assert [file.name for file in found.damaged_files] == [path.name + ".damaged"]
            assert found.damaged_files[0].read_bytes() == content
            works(copy, [rec for rec in everything if not 0 <= rec.offset - lying.base_offset < 3])


def test_several_damaged_frames(folder):
    everything = filled(folder)
    frames = [(path, lying) for path in segments(folder) for lying in layout(path)]
    lost = [frames[number] for number in (0, 1, 5, 8, 13)]
    for path, lying in lost:
        flip(path, lying.position + 77, 1)
    found = repaired(folder)
    gone = [offset for _, lying in lost for offset in range(lying.base_offset, lying.base_offset + 3)]
    assert [offset for first, end in found.lost for offset in range(first, end)] == gone
    works(folder, [record for record in everything if record.offset not in gone])


def test_any_damaged_segment_header(folder):
    """The schema is that of the topic then; no record is gone."""
    everything = filled(folder)
    for path in segments(folder):
        for position in (0, 8, 30, 200):
            copy = copied(folder, "copy")
            flip(copy / path.name, position, 2)
            found = repaired(copy)
            assert found.lost == ()
            assert found.kept_records == len(everything)
            works(copy, everything)


def test_a_damaged_header_of_a_segment_with_an_older_schema(folder):
    """Its frames have to be read with the schema they were written with, which the neighbours still know."""
    old, new = (stored_schema(Schema.of(ddl)) for ddl in ("n int", "n bigint, text string"))
    partition = opened(folder, 4096, old)
    for number in range(40):
        partition.append([made(batch([{"n": number}] * 5, schema=old))], sync=False)
    partition.schema = new
    partition.append([made(batch([{"n": 40, "text": "t"}], schema=new))], sync=False)
    assert len(segments(folder)) >= 4
    for path in segments(folder):
        copy = copied(folder, "copy")
        flip(copy / path.name, 40, 2)
        found = repaired(copy, new)
        values = [{"n": number, "text": None} for number in range(40) for _ in range(5)] + [{"n": 40, "text": "t"}]
        assert found.lost == ()
        assert values_of(opened(copy, schema=new)) == values


def test_a_lost_mark(folder):
    """Missing, empty, or both slots damaged: rebuilt from the frames; nothing acknowledged is gone."""
    everything = filled(folder)
    for damage in ("missing", "empty", "damaged"):
        copy = copied(folder, "copy")
        mark = copy / "mark"
        if damage == "damaged":
            flip(mark, 20, 0)
            flip(mark, SLOT_BYTES + 20, 0)
        else:
            mark.unlink() if damage == "missing" else mark.write_bytes(b"")
        with pytest.raises(DamagedLog):
            opened(copy)
        found = repaired(copy)
        assert (found.lost, found.damaged_files, found.kept_records) == ((), (), 42)
        works(copy, everything)


def test_a_lost_mark_of_an_empty_partition(folder):
    opened(folder)
    (folder / "mark").unlink()
    assert repaired(folder).lost == ()
    works(folder, [])


def test_a_lost_mark_and_transactions(folder):
    """Which are open and which were aborted is worked out again."""
    partition = opened(folder)
    partition.append([frame(b"a"), transactional(b"aborted", producer=1), transactional(b"b", producer=2)], sync=False)
    partition.end_transaction(1, 1, commit=False)
    partition.end_transaction(2, 1, commit=True)
    partition.append([transactional(b"open", producer=3), frame(b"c")], sync=False)
    (folder / "mark").unlink()
    repaired(folder)
    partition = opened(folder)
    assert values_of(partition, committed=True) == [b"a", b"b"]
    assert [(known.producer_id, known.epoch) for known in read_mark(folder).open] == [(3, 1)]
    partition.end_transaction(3, 1, commit=False)
    assert values_of(partition, committed=True) == [b"a", b"b", b"c"]


def test_a_torn_entry_of_the_aborted_and_a_lost_mark(folder):
    """What was being added when the process died is not believed."""
    partition = opened(folder)
    partition.append([frame(b"a"), transactional(b"aborted", producer=1)], sync=False)
    partition.end_transaction(1, 1, commit=False)
    with (folder / "aborted").open("ab") as file:
        file.write(bytes(24))
    (folder / "mark").unlink()
    repaired(folder)
    assert values_of(opened(folder), committed=True) == [b"a"]


def test_a_file_cut_anywhere(folder):
    """Closed or active, in the middle of a frame or between two: what is in front of the cut is kept."""
    everything = filled(folder)
    paths = segments(folder)
    for path, following in zip(paths, [*paths[1:], None], strict=True):
        end = int(following.stem) if following else len(everything)
        for lying in layout(path):
            for size in (lying.position, lying.position + 1, lying.position + 70, lying.position + lying.size - 1):
                copy = copied(folder, "copy")
                (copy / path.name).write_bytes(path.read_bytes()[:size])
                found = repaired(copy)
                assert found.lost == ((lying.base_offset, end),)
                works(copy, [rec for rec in everything if rec.offset < lying.base_offset or rec.offset >= end])


def test_a_missing_segment(folder):
    """First, middle and active: the offsets it held are named; the others are read."""
    everything = filled(folder)
    paths = segments(folder)
    bases = [*(int(path.stem) for path in paths), len(everything)]
    for number, path in enumerate(paths):
        copy = copied(folder, "copy")
        (copy / path.name).unlink()
        found = repaired(copy)
        assert found.lost == ((bases[number], bases[number + 1]),)
        works(copy, [rec for rec in everything if not bases[number] <= rec.offset < bases[number + 1]])


@pytest.mark.parametrize("after", range(0, 9000, 450))
def test_damage_and_what_a_dead_process_left(folder, after):
    """Above the mark lies something unfinished, in this segment or a next one; it does not get in the way."""
    partition = opened(folder)
    for number in range(5):
        partition.append([frame(b"%d" % number * 700)], sync=False)
    everything = read_all(partition)
    unfinished = [b"b" * 1000, b"c" * 3000, b"d" * 3000]
    killed_while_appending(folder, [frame(value) for value in unfinished], after)
    lying = layout(segments(folder)[0])[0]
    flip(segments(folder)[0], lying.position + 70, 3)
    flip(folder / f"{read_mark(folder).end.segment:020}.seg", 40, 3)
    found = repaired(folder)
    assert found.lost[0] == (0, 1)
    partition = opened(folder)
    kept = read_all(partition)
    assert [record for record in kept if record.offset < 5] == everything[1:]
    partition.append([frame(b"new")], sync=True)
    values = values_of(opened(folder))
    assert values[:4] == [record.value for record in everything[1:]]
    assert values[4:] in [[*unfinished[:count], b"new"] for count in range(4)]
    assert repaired(folder).lost == ()


def test_a_compacted_segment(folder):
    """Its records keep their offsets, and the offsets after it are not given out twice."""
    partition = opened(folder)
    for number in range(60):
        partition.append([keyed([(b"%d" % (number % 7), b"%d" % number * 60)])], sync=False)
    partition.roll()
    compact(partition, tombstones_before_us=0)
    everything = read_all(partition)
    path = next(path for path in segments(folder) if "-" in path.name and layout(path))
    for position in (20, layout(path)[0].position + 100):
        for mark in (True, False):
            copy = copied(folder, "copy")
            flip(copy / path.name, position, 1)
            if not mark:
                (copy / "mark").unlink()
            repaired(copy)
            found = opened(copy)
            assert found.end_offset() == 60
            kept = read_all(found)
            assert set(kept) <= set(everything)
            assert len(kept) == len(everything) or position > 20
            assert found.append([frame(b"new")], sync=False) == [60]


def test_a_second_repair_does_not_overwrite_what_the_first_put_aside(folder):
    filled(folder)
    path = segments(folder)[0]
    flip(path, layout(path)[0].position + 70, 1)
    (first,) = repaired(folder).damaged_files
    content = first.read_bytes()
    path = segments(folder)[0]
    flip(path, layout(path)[0].position + 70, 1)
    (second,) = repaired(folder).damaged_files
    assert first.read_bytes() == content
    assert second != first
    assert second.exists()
