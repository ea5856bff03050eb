"""Goal: a frame says exactly what was put into it, or is not taken for one."""

import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.log.storage import frame
from millstream.log.storage.frame import ALIGNMENT, HEADER_BYTES, Header, header_at, is_intact, marker, parts, skip
from millstream.log.storage.layout import completed

from .support import SCHEMA, batch, made


def bytes_of(draft, base_offset):
    return b"".join(draft.at(base_offset))


@given(
    st.lists(st.tuples(st.none() | st.binary(max_size=70), st.none() | st.binary(max_size=200)), max_size=9),
    st.integers(0, 2**62),
    st.integers(-1, 2**62),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
)
def test_a_frame_comes_back_as_it_was(rows, base_offset, producer_id, epoch, sequence):
    """Header and records after a round trip through bytes; the frame is aligned whatever its records are."""
    records = batch([value for _, value in rows], [key for key, _ in rows], list(range(len(rows))))
    draft = made(records, producer_id=producer_id, epoch=epoch, sequence=sequence)
    content = bytes_of(draft, base_offset)
    assert len(content) == draft.size_bytes
    assert len(content) % ALIGNMENT == 0
    header = header_at(content, 0, len(content))
    newest = len(rows) - 1 if rows else frame.NO_TIMESTAMP
    expected = (len(content) - 64, base_offset, len(rows), len(rows), newest, producer_id, epoch, sequence)
    assert (header.length, *header[2:-1]) == expected
    assert is_intact(content, 0, header)
    left_out = [column for column, flag in frame.WITHOUT.items() if header.flags & flag]
    stored = pa.schema([field for field in SCHEMA if field.name not in left_out])
    assert all(records.column(column).null_count == len(rows) for column in left_out)
    body = pa.py_buffer(content[HEADER_BYTES:])
    assert completed(pa.ipc.read_record_batch(body, stored), SCHEMA).equals(records)


@pytest.mark.parametrize("draft", [marker(7, 3, commit=True), marker(7, 3, commit=False), skip()])
def test_frames_without_records(draft):
    """The markers of transactions and the filler are a header alone."""
    content = bytes_of(draft, 12)
    header = header_at(content, 0, len(content))
    assert len(content) == HEADER_BYTES
    assert is_intact(content, 0, header)
    assert header.rows == 0


def test_every_flipped_bit_of_a_frame_is_noticed():
    """All bits of header, body and padding, one after the other."""
    content = bytearray(bytes_of(made(batch([b"some value", None], [b"k", b""])), 5))
    for position in range(len(content)):
        for bit in range(8):
            content[position] ^= 1 << bit
            header = header_at(content, 0, len(content))
            assert header is None or not is_intact(content, 0, header), (position, bit)
            content[position] ^= 1 << bit
    assert is_intact(content, 0, header_at(content, 0, len(content)))


def test_a_frame_cut_anywhere_is_not_whole():
    content = bytes_of(made(batch([b"x" * 300])), 0)
    assert all(header_at(content, 0, limit) is None for limit in range(len(content)))


@given(st.binary(min_size=64, max_size=512))
def test_garbage_is_not_a_frame(content):
    header = header_at(content, 0, len(content))
    assert header is None or not is_intact(content, 0, header)


def test_zeros_are_not_a_frame():
    """What a file system leaves behind after a crash is often a stretch of zeros; a header of zeros is aligned."""
    content = bytes(4096)
    header = header_at(content, 0, len(content))
    assert isinstance(header, Header)
    assert not is_intact(content, 0, header)


@given(st.lists(st.integers(0, 3000), max_size=40), st.integers(64, 4096))
def test_parts_are_the_batch_again(sizes, target):
    """Cutting a batch into frames loses nothing and keeps the order, whatever the sizes."""
    records = batch([random.randbytes(size) for size in sizes])
    before, frame.FRAME_BYTES_TARGET = frame.FRAME_BYTES_TARGET, target
    try:
        pieces = list(parts(records))
    finally:
        frame.FRAME_BYTES_TARGET = before
    assert pa.Table.from_batches(pieces).combine_chunks().equals(pa.Table.from_batches([records]).combine_chunks())


def test_a_batch_of_many_megabytes_is_cut_into_frames_of_about_one():
    pieces = list(parts(batch([b"x" * 1000] * 5000)))
    assert 4 <= len(pieces) <= 6
    assert [piece.num_rows for piece in parts(batch([b"x" * (3 << 20)]))] == [1]


def test_a_few_rows_of_a_large_batch_are_one_frame():
    """A slice shares its parent's buffers; only its own bytes count."""
    large = batch([b"x" * 1000] * 20_000)
    assert len(list(parts(large.slice(500, 100)))) == 1
