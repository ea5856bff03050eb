"""Goal: a segment's name and header say what is in it, and what does not fit is refused with the place named."""

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import DamagedLog, UnsupportedFormat
from millstream.log.storage import segment
from millstream.log.storage.disk import Disk
from millstream.log.storage.layout import stored_schema
from millstream.log.storage.segment import Segment, SegmentName, segment_names
from millstream.records import Schema

from .support import SCHEMA, batch, flip, frame, header_size, layout, made, opened, segments, values_of

SCHEMAS = [SCHEMA, stored_schema(Schema.of("n int, place struct<x double, tags array<string>>"))]


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("base", [0, 1, 10**18])
def test_the_header_comes_back(tmp_path, schema, base):
    name = SegmentName(base, None, tmp_path)
    position = segment.create(name, schema, Disk())
    found = Segment(name)
    assert found.schema.equals(schema)
    assert found.first_position == position == name.path.stat().st_size
    assert position % 64 == 0


def test_every_flipped_bit_of_the_header_is_noticed(tmp_path):
    name = SegmentName(5, None, tmp_path)
    size = segment.create(name, SCHEMA, Disk())
    for position in range(size):
        for bit in range(8):
            flip(name.path, position, bit)
            with pytest.raises((DamagedLog, UnsupportedFormat)) as refused:
                Segment(name)
            assert str(name.path) in refused.value.where
            flip(name.path, position, bit)
    Segment(name)


def test_a_header_cut_anywhere_is_noticed(tmp_path):
    name = SegmentName(5, None, tmp_path)
    segment.create(name, SCHEMA, Disk())
    content = name.path.read_bytes()
    for size in range(len(content)):
        name.path.write_bytes(content[:size])
        with pytest.raises(DamagedLog):
            Segment(name)


def test_a_file_under_another_name_is_noticed(tmp_path):
    """Its base offset is in the header too: a file copied over another is not taken for it."""
    segment.create(SegmentName(5, None, tmp_path), SCHEMA, Disk())
    SegmentName(5, None, tmp_path).path.rename(SegmentName(6, None, tmp_path).path)
    with pytest.raises(DamagedLog):
        Segment(SegmentName(6, None, tmp_path))


def test_a_segment_of_a_later_format_is_refused_as_such(tmp_path):
    name = SegmentName(0, None, tmp_path)
    segment.create(name, SCHEMA, Disk())
    flip(name.path, 5, 1)
    with pytest.raises(UnsupportedFormat, match="format 3"):
        Segment(name)


@st.composite
def compacted_folders(draw):
    """What a series of compactions can leave: bases, covering files, and old files not yet deleted."""
    bases = sorted(draw(st.sets(st.integers(1, 200), max_size=12)) | {0})
    live = [(base, None) for base in bases]
    files = set(live)
    for _ in range(draw(st.integers(0, 4))):
        closed = live[:-1]
        if not closed:
            break
        first = draw(st.integers(0, len(closed) - 1))
        last = draw(st.integers(first, len(closed) - 1))
        covering = (live[first][0], live[last + 1][0])
        replaced = live[first : last + 1]
        files |= {covering}
        files -= {old for old in replaced if old != covering and draw(st.booleans())}
        live[first : last + 1] = [covering]
    return files, live


@given(compacted_folders())
def test_a_covering_segment_takes_the_place_of_those_within(tmp_path_factory, made):
    """Whichever of the old files are still there: the same segments are live, and they meet end to end."""
    files, expected = made
    folder = tmp_path_factory.mktemp("names")
    for base, end in files:
        SegmentName(base, end, folder).path.touch()
    for stranger in ("lock", "mark", "1.seg", f"{7:020}.seg.damaged", f"{7:020}-{9:020}.compacting", f"{3:020}.idx"):
        (folder / stranger).touch()
    live, replaced = segment_names(folder)
    assert [(name.base, name.end) for name in live] == expected
    assert {(name.base, name.end) for name in replaced} == files - set(expected)
    assert all(name.end in (None, following.base) for name, following in pairwise(live))


def test_frames_are_aligned_and_follow_each_other(folder):
    partition = opened(folder, 1 << 20)
    for size in (0, 1, 63, 64, 65, 5000):
        partition.append([frame(b"x" * size)], sync=False)
    (path,) = segments(folder)
    frames = layout(path)
    assert frames[0].position == header_size(path.read_bytes())
    assert all(lying.position % 64 == 0 for lying in frames)
    assert [lying.base_offset for lying in frames] == list(range(6))


def test_a_record_larger_than_a_segment_has_one_for_itself(folder):
    partition = opened(folder, 4096)
    values = [b"small", b"x" * 50_000, b"small again", b"y" * 9000]
    for value in values:
        partition.append([frame(value)], sync=False)
    assert [int(path.stem) for path in segments(folder)] == [0, 1, 2, 3]
    assert values_of(partition) == values


def test_frames_without_rows_and_empty_appends_change_nothing(folder):
    """An empty batch may come from a filter; one in a transaction must not end it."""
    partition = opened(folder)
    partition.append([], sync=True)
    partition.append([frame()], sync=False)
    partition.append([frame(b"a", producer_id=1, epoch=1, flags=1)], sync=False)
    partition.append([frame(producer_id=1, epoch=1, flags=1)], sync=False)
    partition.append([frame(b"b")], sync=False)
    assert values_of(partition) == [b"a", b"b"]
    assert values_of(partition, committed=True) == []
    partition.end_transaction(1, 1, commit=True)
    assert values_of(opened(folder), committed=True) == [b"a", b"b"]


def test_a_new_schema_starts_a_new_segment(folder):
    """Old records are read with the columns of now; an empty segment gives up one offset for its name."""
    old, new = (stored_schema(Schema.of(ddl)) for ddl in ("n int", "n bigint, text string"))
    partition = opened(folder, 1 << 20, old)
    partition.schema = new
    first = partition.append([made(batch([{"n": 1, "text": "a"}], schema=new))], sync=False)
    partition.append([made(batch([{"n": 2}], schema=old))], sync=False)
    partition.append([made(batch([None, {"n": 2**40, "text": None}], schema=new))], sync=False)
    assert first == [1]
    assert [int(path.stem) for path in segments(folder)] == [0, 1, 2, 3]
    assert values_of(partition) == [{"n": 1, "text": "a"}, {"n": 2, "text": None}, None, {"n": 2**40, "text": None}]
    assert pa.types.is_int64(partition.schema.field("value").type.field("n").type)
