"""Goal: files that somebody has crafted, or a disk has damaged, end in records or in an error that names the place.

Method: put in place what a writer would never make, with checksums that match; links, pipes and huge files as well;
and mutate all files of a partition at random, in a process of its own, so that a crash of the interpreter is seen.
"""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c

from folders import MEMORY
from millstream.errors import DamagedLog, MillstreamError
from millstream.log.storage import partition as partitions
from millstream.log.storage.aborted import AbortedTransactions
from millstream.log.storage.disk import Disk, FileLock, sync_folder, write_document
from millstream.log.storage.frame import Draft, draft
from millstream.log.storage.layout import stored_schema
from millstream.log.storage.mark import FrameBoundary, Mark, MarkFile
from millstream.log.storage.partition import Partition
from millstream.log.storage.reader import PartitionReader
from millstream.log.storage.repair import repair
from millstream.log.storage.segment import PREFIX, SegmentName, header_bytes
from millstream.log.storage.validity import BatchReader, Malformed
from millstream.records import Schema

from .support import SCHEMA, TINY, batch, frame

TYPED = stored_schema(Schema.of("text string, items array<int>"))
MUTATIONS = Path(__file__).with_name("mutations.py")
HUGE = 1 << 40


@contextmanager
def within(seconds):
    """A wait for a pipe would last for ever."""

    def give_up(*_):
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def opened(folder, schema=SCHEMA):
    return Partition("t", 0, folder, schema, TINY, Disk())


@pytest.fixture
def partition(folder):
    partitions.create(folder, SCHEMA, Disk())
    made = opened(folder)
    made.append([frame(b"one", b"two")], sync=False)
    return made


def segment_of(folder):
    return next(iter(sorted(folder.glob("*.seg"))))


def read(partition):
    return [fetch.records for fetch in PartitionReader(partition, 0, committed=True).stream()]


def crafted(body, rows, schema=None, **other):
    """A frame with any body, sealed as if it were a sound one."""
    body = bytes(body)
    padding = bytes(-len(body) % 64)
    made = Draft(schema, body, padding, crc32c(body + padding), rows, rows, 0)
    return replace(made, **other)


# ---------------------------------------------------------------- batches


def typed_batch(text):
    value = pa.StructArray.from_arrays(
        [text, pa.array([[1], [2]], pa.list_(pa.int32()))], fields=list(TYPED.field("value").type)
    )
    columns = [
        pa.nulls(2, pa.binary()),
        value,
        pa.array([0, 0], TYPED.field("timestamp").type),
        pa.nulls(2, TYPED.field("headers").type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=TYPED)


def with_offsets(body, offsets):
    """A sound batch of values with the offsets 0, 3, 6 gets others."""
    sound = np.array([0, 3, 6], np.int32).tobytes()
    assert body.count(sound) == 1
    return body.replace(sound, np.array(offsets, np.int32).tobytes())


OUTSIDE = [[0, 1 << 30, 6], [0, -5, 6], [-8, 0, 6], [7, 7, 7], [0, 3, 7], [1 << 30, 1 << 30, 1 << 30], [0, 6, 5]]


@pytest.mark.parametrize("offsets", OUTSIDE)
def test_values_outside_of_their_bytes_are_refused(folder, offsets):
    partitions.create(folder, TYPED, Disk())
    partition = opened(folder, TYPED)
    sound = draft(typed_batch(pa.array(["abc", "def"])), 0)
    partition.append([crafted(with_offsets(bytes(sound.body), offsets), 2, flags=sound.flags)], sync=False)
    with pytest.raises(DamagedLog, match=r"outside its bytes|not a batch of records"):
        read(partition)


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int8()), pa.map_(pa.int8(), pa.int8()), pa.list_(pa.string()), pa.binary()]
)
@pytest.mark.parametrize("offsets", OUTSIDE)
def test_items_outside_of_their_list_are_refused(kind, offsets):
    values = {
        "list<item: int8>": [[1, 2, 3]] * 2,
        "map<int8, int8>": [[(1, 1), (2, 2), (3, 3)]] * 2,
        "list<item: string>": [["a"] * 3] * 2,
        "binary": [b"abc"] * 2,
    }
    found = pa.record_batch({"nested": pa.array([{"x": x} for x in values[str(kind)]], pa.struct([("x", kind)]))})
    body = found.serialize().to_pybytes()
    assert BatchReader(found.schema).read(pa.py_buffer(body), 2) == found
    with pytest.raises(Malformed):
        BatchReader(found.schema).read(pa.py_buffer(with_offsets(body, offsets)), 2)


def test_a_text_that_is_not_utf8_is_refused_before_it_leaves_arrow(folder):
    partitions.create(folder, TYPED, Disk())
    partition = opened(folder, TYPED)
    sound = draft(typed_batch(pa.array(["abc", "def"])), 0)
    body = bytes(sound.body).replace(b"abcdef", b"abc\xff\xfe\xfd")
    partition.append([crafted(body, 2, flags=sound.flags)], sync=False)
    with pytest.raises(DamagedLog, match="UTF8"):
        read(partition)


@pytest.mark.parametrize("text", ["plain", "añ", "日本"])
def test_sound_texts_are_read(folder, text):
    partitions.create(folder, TYPED, Disk())
    partition = opened(folder, TYPED)
    partition.append([draft(typed_batch(pa.array([text, text])), 0)], sync=False)
    assert read(partition)[0].column("value").field(0).to_pylist() == [text, text]


def test_a_compressed_batch_is_refused_before_it_is_unpacked(partition):
    zeros = batch([bytes(10_000_000)])
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, zeros.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(zeros)
    _, packed = pa.ipc.MessageReader.open_stream(stream.getvalue())
    assert packed.body.size < 10_000
    partition.append([crafted(packed.serialize(), 1)], sync=False)
    with pytest.raises(DamagedLog, match="compressed"):
        read(partition)


@pytest.mark.parametrize("body", [b"", bytes(64), b"\xff" * 128, b"\xff\xff\xff\xff\xf0\xff\xff\x7f" + bytes(120)])
def test_bytes_that_are_not_a_batch_are_refused(partition, body):
    partition.append([crafted(body, 1)], sync=False)
    with pytest.raises(DamagedLog, match="damaged"):
        read(partition)


@pytest.mark.parametrize("rows", [1, 3, 0xFFFFFFFF])
def test_more_or_fewer_records_than_the_header_counts_are_refused(partition, rows):
    body = draft(batch([b"x", b"y"]), 0)
    partition.append([replace(body, rows=rows, span=rows)], sync=False)
    with pytest.raises(DamagedLog):
        read(partition)


def test_a_frame_that_ends_behind_the_last_offset_is_refused(partition, folder):
    path = segment_of(folder)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"".join(map(bytes, frame(b"x").at((1 << 63) - 1))))
    mark = partition.marks.read()
    partition.marks.write(replace(mark, end=FrameBoundary(1 << 62, 0, path.stat().st_size)), sync=False)
    assert path.stat().st_size > size
    with pytest.raises(DamagedLog):
        read(opened(folder))


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("value", pa.binary())]),
        SCHEMA.set(1, pa.field("value", pa.dictionary(pa.int32(), pa.string()))),
        SCHEMA.set(1, pa.field("value", pa.large_binary())),
        SCHEMA.set(1, pa.field("value", pa.struct([("x", pa.list_view(pa.int8()))]))),
        SCHEMA.set(1, pa.field("value", pa.dense_union([pa.field("x", pa.int8())]))),
        SCHEMA.append(pa.field("key", pa.binary())),
        SCHEMA.append(pa.field("offset", pa.string())),
    ],
)
def test_a_segment_of_other_columns_than_records_have_is_refused(partition, folder, schema):
    content = header_bytes(0, schema)
    segment_of(folder).write_bytes(content + b"".join(map(bytes, frame(b"one", b"two").at(0))))
    mark = partition.marks.read()
    partition.marks.write(replace(mark, end=FrameBoundary(2, 0, segment_of(folder).stat().st_size)), sync=False)
    with pytest.raises(DamagedLog, match="schema"):
        read(opened(folder))


# ---------------------------------------------------------------- links, pipes, huge files


FILES = ["00000000000000000000.seg", "00000000000000000000.idx", "mark", "lock", "aborted"]


@pytest.fixture
def precious(folder):
    path = folder.parent / "precious"
    path.write_bytes(b"precious" * 2000)
    return path


def exercise(folder):
    """Opens, reads, writes, aborts, rolls and repairs; what each step says of it."""
    said = []

    def attempt(step):
        try:
            step()
        except MillstreamError as error:
            said.append(error)

    def write():
        partition = opened(folder)
        partition.append([frame(b"three")], sync=True)
        partition.append([frame(b"four", producer_id=7, flags=1)], sync=True)
        partition.end_transaction(7, 0, commit=False)
        partition.roll()
        read(partition)

    attempt(lambda: read(opened(folder)))
    attempt(write)
    attempt(lambda: repair(folder, 0, SCHEMA, Disk()))
    return said


@pytest.mark.parametrize("name", FILES)
def test_a_link_in_place_of_a_file_is_not_followed(partition, folder, precious, name):
    before = precious.read_bytes()
    del partition
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(precious)
    said = exercise(folder)
    assert precious.read_bytes() == before
    assert any(isinstance(error, DamagedLog) and "symbolic link" in error.what for error in said)
    assert all(error.next_step for error in said)


@pytest.mark.parametrize("name", [*FILES, "upkeep"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(partition, folder, name):
    del partition
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with within(20):
        said = exercise(folder)
    assert any(isinstance(error, DamagedLog) for error in said)


@pytest.mark.parametrize("name", [*FILES[:2], "aborted"])
def test_a_huge_file_of_nothing_is_not_read_into_memory(partition, folder, name):
    """A process of its own may use no more than what it takes to map the file."""
    with (folder / name).open("ab") as file:
        file.truncate(HUGE)
    script = f"""
import resource, sys
sys.path[:0] = [{str(Path(__file__).parents[3])!r}, {str(Path(__file__).parents[2])!r}]
from pathlib import Path
from tests.log.storage.test_crafted import exercise
resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))
exercise(Path(sys.argv[1]))
"""
    subprocess.run([sys.executable, "-c", script, str(folder)], check=True, timeout=100)


def test_a_huge_list_of_aborted_transactions_is_not_read_into_memory(folder):
    folder.mkdir()
    aborted = AbortedTransactions(folder / "aborted", Disk())
    aborted.add(0, 1, 1, 1)
    with (folder / "aborted").open("ab") as file:
        file.truncate(HUGE)
    assert aborted.intact_count() == 1
    with pytest.raises(DamagedLog):
        aborted.entries(HUGE // 24)


@pytest.mark.parametrize("number", range(7))
def test_a_mark_with_negative_numbers_is_refused(folder, number):
    numbers = [0] * 7
    numbers[number] = -1
    folder.mkdir()
    MarkFile.create(
        folder / "mark", Mark(FrameBoundary(*numbers[:3]), FrameBoundary(*numbers[3:6]), (), numbers[6]), Disk()
    )
    with pytest.raises(DamagedLog):
        MarkFile(folder / "mark", Disk()).read()


def test_new_files_take_the_place_of_links_and_never_follow_them(folder, precious):
    folder.mkdir()
    before = precious.read_bytes()
    draft_name = f".topic.json.{os.getpid()}.{threading.get_ident()}"
    for name in ("mark.new", draft_name, "00000000000000000000.seg"):
        (folder / name).symlink_to(precious)
    MarkFile.create(folder / "mark", Mark(FrameBoundary(0, 0, 64), FrameBoundary(0, 0, 64)), Disk())
    write_document(folder / "topic.json", {"a": 1})
    partitions.segments.create(SegmentName(0, None, folder), SCHEMA, Disk())
    assert precious.read_bytes() == before
    (folder / "link").symlink_to(precious)
    with pytest.raises(DamagedLog, match="symbolic link"):
        FileLock(folder / "link")


def test_a_partition_that_is_a_link_is_refused(partition, folder):
    shutil.move(folder, folder.parent / "elsewhere")
    folder.symlink_to(folder.parent / "elsewhere")
    with pytest.raises(DamagedLog, match="link"):
        opened(folder)
    os.mkfifo(folder.parent / "pipe")
    with within(10), pytest.raises(NotADirectoryError):
        sync_folder(folder.parent / "pipe")


def test_a_list_whose_items_have_a_name_that_is_not_utf8_is_refused(folder):
    """Arrow reads such a schema and ignores the name; polars panics at it."""
    nested = stored_schema(Schema.of("items array<int>"))
    name = nested.field("value").type.field("items").type.value_field.name.encode()
    partitions.create(folder, nested, Disk())
    row = pa.RecordBatch.from_pylist([{"timestamp": 0, "value": {"items": [1]}}], nested)
    opened(folder, nested).append([draft(row, 0)], sync=False)
    path = segment_of(folder)
    header, _, frames = path.read_bytes().rpartition(name + b"\0")
    content = bytearray(header + b"\xd8" + name[1:] + b"\0" + frames)
    length = PREFIX.unpack_from(content)[3]
    struct.pack_into("<I", content, 7, crc32c(memoryview(content)[11 : PREFIX.size + length]))
    path.write_bytes(content)
    with pytest.raises(DamagedLog, match="the name of a field is not UTF-8"):
        read(opened(folder, nested))


# ---------------------------------------------------------------- at random


def mutate(seed, rounds, timeout):
    home = Path(tempfile.mkdtemp(prefix="millstream-test-", dir=MEMORY))
    try:
        done = subprocess.run(
            [sys.executable, str(MUTATIONS), str(home), str(seed), str(rounds)],
            capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
    finally:
        shutil.rmtree(home)
    assert done.returncode == 0, done.stderr[-3000:]
    records, refused = (int(word) for word in done.stdout.split() if word.isdecimal())
    assert records
    assert refused


def test_random_mutations_end_in_records_or_in_an_error_of_ours():
    mutate(seed=1, rounds=200, timeout=300)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 10))
def test_many_random_mutations(seed, rounds):
    mutate(seed, rounds=rounds(20_000, 500), timeout=3600)
