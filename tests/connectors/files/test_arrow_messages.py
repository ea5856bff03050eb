"""Arrow files as an attacker would write them: each is refused by its description, in little memory.

Files are made with Arrow's own writer and then changed: numbers in their messages are replaced by others of the same
width, so that everything around them stays as it was.
"""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
from contextlib import suppress

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from millstream.connectors.files import arrow_messages, parquet_pages
from millstream.connectors.files.arrow_messages import CheckedMessages, arrow_batches, arrow_schema
from millstream.connectors.files.bounds import FileBounds, Unreadable

READ = """
import json, resource, sys
from pathlib import Path
import pyarrow as pa
from millstream.connectors.files.arrow_messages import CheckedMessages, arrow_batches
from millstream.connectors.files.bounds import FileBounds, Unreadable
limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + 900_000_000
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
rows, reason = 0, None
with open(sys.argv[1], "rb") as file:
    try:
        for batch in arrow_batches(CheckedMessages(file, FileBounds(Path(sys.argv[1]).stat().st_size, 0, 1000))):
            rows += batch.num_rows
    except (Unreadable, pa.ArrowException) as error:
        reason = str(error)
print(json.dumps([rows, reason]))
"""


@pytest.fixture
def read_in_little_memory(tmp_path):
    def read(content):
        path = tmp_path / "crafted.arrow"
        path.write_bytes(content)
        done = subprocess.run([sys.executable, "-c", READ, path], capture_output=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    return read


def stored(batches, form="stream", **options):
    target = io.BytesIO()
    opened = pa.ipc.new_stream if form == "stream" else pa.ipc.new_file
    with opened(target, batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return target.getvalue()


def read(content, expansion=1000):
    messages = CheckedMessages(io.BytesIO(content), FileBounds(0, 0, expansion))
    batches = list(arrow_batches(messages))
    return pa.Table.from_batches(batches) if batches else pa.table({})


def refusal(content, expansion=1000):
    with pytest.raises(REFUSALS) as caught:
        read(content, expansion)
    return str(caught.value)


def replaced(content, old, new, code="<q"):
    before, after = struct.pack(code, old), struct.pack(code, new)
    assert before in content
    return content.replace(before, after)


REFUSALS = (Unreadable, pa.ArrowException, OSError)
NUMBERS = pa.record_batch({"n": pa.array(range(1000), pa.int64()), "s": [f"text {n}" for n in range(1000)]})


# ---------------------------------------------------------------- what is read


@pytest.mark.parametrize("form", ["stream", "file"])
@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_what_was_written_is_read(form, compression):
    values = [
        {"s": f"t{n % 3}" if n % 5 else None, "l": [f"a{n % 2}", None] * (n % 3), "m": [("k", "v" * (n % 9))],
         "st": {"a": "x", "b": ["y"] * n} if n % 7 else None, "n": n, "v": "long enough for a view" * (n % 3),
         "f": [n, n + 1], "nothing": None, "e": "de"[n % 2]}
        for n in range(100)
    ]  # fmt: skip
    schema = pa.schema(
        [("s", pa.dictionary(pa.int8(), pa.string())), ("l", pa.list_(pa.string_view())),
         ("m", pa.map_(pa.string(), pa.string())),
         ("st", pa.struct([("a", pa.string()), ("b", pa.list_(pa.string()))])), ("n", pa.int32()),
         ("v", pa.string_view()), ("f", pa.list_(pa.int64(), 2)), ("nothing", pa.null()),
         ("e", pa.dictionary(pa.uint32(), pa.large_string()))]
    )  # fmt: skip
    table = pa.Table.from_pylist(values, schema)
    content = stored(table.to_batches(max_chunksize=30), form, compression=compression)
    assert read(content).to_pylist() == table.to_pylist()
    assert arrow_schema(io.BytesIO(content)) == schema


@pytest.mark.parametrize("form", ["write_ipc", "write_ipc_stream"])
def test_what_polars_writes_is_read(form):
    frame = pl.DataFrame({"c": ["a", "b", "a"], "l": [["x"], ["y", "z" * 20], None], "e": ["p", "q", "p"]})
    frame = frame.with_columns(pl.col("c").cast(pl.Categorical), pl.col("e").cast(pl.Enum(["p", "q"])))
    target = io.BytesIO()
    getattr(frame, form)(target)
    assert read(target.getvalue()).to_pylist() == frame.to_dicts()


def test_dictionaries_that_grow_or_change():
    parts = [pa.DictionaryArray.from_arrays([0, 1], list(names)) for names in ("ab", "abc", "xy")]
    batches = [pa.record_batch({"d": part}) for part in parts]
    content = stored(batches, emit_dictionary_deltas=True)
    assert read(content)["d"].to_pylist() == ["a", "b", "a", "b", "x", "y"]


def test_large_batches_come_in_pieces():
    batch = pa.record_batch({"n": pa.array(np.arange(300_000))})
    pieces = list(arrow_batches(CheckedMessages(io.BytesIO(stored([batch])), FileBounds(0, 0, 1000))))
    assert max(piece.num_rows for piece in pieces) < 140_000
    assert pa.Table.from_batches(pieces) == pa.Table.from_batches([batch])


def test_a_file_that_is_cut_is_refused():
    content = stored([NUMBERS, NUMBERS], "file")
    for end in [*range(1, 600, 7), *range(len(content) - 400, len(content))]:
        refusal(content[:end])


def test_a_stream_may_end_after_any_message():
    content = stored([NUMBERS.slice(0, 10)] * 2)
    whole = set()
    for end in range(1, len(content)):
        try:
            whole.add((end, read(content[:end]).num_rows))
        except REFUSALS:
            continue
    assert sorted(rows for _, rows in whole) == [0, 10, 20]


# ---------------------------------------------------------------- more than memory


def test_a_column_without_bytes_and_very_many_rows(read_in_little_memory):
    content = stored([pa.RecordBatch.from_arrays([pa.nulls(2**31 - 1)], names=["a"])])
    assert len(content) < 1000
    rows, reason = read_in_little_memory(content)
    assert rows == 0
    assert "it unpacks to more than 1 GiB and more than 1000 times its size" in reason


def test_a_row_with_very_many_items_without_bytes():
    items = pa.FixedSizeListArray.from_arrays(pa.nulls(2**31 - 1), 2**31 - 1)
    assert "unpacks to more than 1 GiB" in refusal(stored([pa.record_batch({"a": items})]))


def test_many_batches_without_bytes():
    batch = pa.RecordBatch.from_arrays([pa.nulls(100_000_000)], names=["a"])
    assert "unpacks to more than 1 GiB" in refusal(stored([batch] * 100))


def test_a_buffer_that_claims_to_unpack_to_more(read_in_little_memory):
    """The size before a compressed buffer is what Arrow allocates, whatever comes after it."""
    content = stored([pa.record_batch({"n": np.zeros(4096, np.int64)})], compression="zstd")
    rows, reason = read_in_little_memory(replaced(content, 8 * 4096, 100 << 30))
    assert rows == 0
    assert "a batch unpacks to 100 GiB at once, more than 1 GiB" in reason


def test_a_buffer_that_unpacks_to_more():
    content = stored([pa.record_batch({"n": np.zeros(1 << 18, np.int64)})], compression="zstd")
    refusal(replaced(content, 8 << 18, 100))


def test_compressed_batches_that_are_much_together(monkeypatch):
    monkeypatch.setattr("millstream.connectors.files.bounds.EXPANDED_BYTES_MIN", 10 << 20)
    content = stored([pa.record_batch({"n": np.zeros(1 << 18, np.int64)})] * 10, compression="zstd")
    assert "more than 50 times its size" in refusal(content, expansion=50)
    assert read(content, expansion=1_000_000).num_rows == 10 << 18


def test_a_false_body_size(read_in_little_memory):
    content = stored([NUMBERS])
    [size] = {len(body) for body in bodies(content) if body}
    for claimed in (100 << 30, -1, (1 << 30) - 8):
        rows, reason = read_in_little_memory(replaced(content, size, claimed))
        assert rows == 0
        assert "more than 1 GiB" in reason or "ends in the middle" in reason


def test_a_dictionary_of_one_long_text(read_in_little_memory):
    """1 MB that stands for 100 GB."""
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(100_000, np.int32)), pa.array(["x" * (1 << 20)]))
    pieces = CheckedMessages(io.BytesIO(stored([pa.record_batch({"s": texts})])), FileBounds(0, 0, 1000))
    first = next(arrow_batches(pieces))
    assert first.schema.field("s").type == pa.string()
    assert 1 <= first.num_rows <= 128


def test_views_of_one_long_text():
    """A view may be used by many rows."""
    views = pa.array(["y" * (1 << 20)], pa.string_view())
    _, view, text = views.buffers()
    many = pa.Array.from_buffers(pa.string_view(), 10_000, [None, pa.py_buffer(view.to_pybytes()[:16] * 10_000), text])
    content = stored([pa.record_batch({"s": many})])
    assert "it unpacks to more than 1 GiB and more than 1000 times its size" in refusal(content)
    first = next(arrow_batches(CheckedMessages(io.BytesIO(content), FileBounds(0, 0, 1_000_000))))
    assert 1 <= first.num_rows <= 128


def test_dictionaries_that_are_too_large(monkeypatch):
    monkeypatch.setattr(parquet_pages, "PAGES_BYTES_MAX", 1 << 20)
    texts = [pa.DictionaryArray.from_arrays([0], ["x" * (400 << 10)]) for _ in range(3)]
    content = stored([pa.record_batch(dict(zip("abc", texts, strict=True)))])
    assert "the dictionaries unpack to" in refusal(content)


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.string())]
)
def test_dictionaries_of_nested_values_are_refused(kind):
    values = pa.array([None], kind)
    batch = pa.record_batch({"d": pa.DictionaryArray.from_arrays([0, 0], values)})
    assert "a column is a dictionary of" in refusal(stored([batch]))


@pytest.mark.parametrize(
    "column",
    [
        pa.RunEndEncodedArray.from_arrays(pa.array([2**31 - 1], pa.int32()), pa.array([1])),
        pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [pa.array([1, 2])]),
        pa.ListViewArray.from_arrays([0, 0], [1, 1], pa.array([1])),
    ],
)
def test_kinds_of_columns_that_no_topic_has_are_refused(column):
    assert "which is not supported" in refusal(stored([pa.RecordBatch.from_arrays([column], names=["a"])]))


# ---------------------------------------------------------------- schemas


def test_a_schema_that_is_nested_very_deeply(read_in_little_memory):
    kind = pa.int64()
    for _ in range(5000):
        kind = pa.list_(kind)
    rows, reason = read_in_little_memory(pa.schema([("a", kind)]).serialize().to_pybytes())
    assert rows == 0
    assert "nested more than 64 deep" in reason


def test_a_schema_whose_fields_share_their_children(read_in_little_memory):
    """Forty structs, each of which holds the next one twice: a million million columns in 4 kB."""
    kind = pa.int64()
    for _ in range(40):
        kind = pa.struct([("a", kind), ("b", pa.int8())])
    content = bytearray(pa.schema([("a", kind)]).serialize().to_pybytes())
    for field, children in list(fields(content)):
        if len(children) == 2:
            first = children[0]
            place = vector(content, field, 14) + 4
            struct.pack_into("<I", content, place, target(content, first) - place)
            place += 4
            struct.pack_into("<i", content, place, target(content, first) - place)
    rows, reason = read_in_little_memory(bytes(content))
    assert rows == 0
    assert "more than 100,000 columns" in reason


def test_a_name_that_very_many_columns_share(monkeypatch):
    monkeypatch.setattr(arrow_messages, "METADATA_BYTES_MAX", 100_000)
    content = bytearray(pa.schema([("x" * 20_000, pa.int8()), *((f"c{n}", pa.int8()) for n in range(9))]).serialize())
    (long, _), *others = fields(content)
    name = vector(content, long, 4)
    for other, _ in others:
        place = field_at(content, other, 4)
        if place < name:
            struct.pack_into("<I", content, place, name - place)
    assert "the names of the columns have more than" in refusal(bytes(content))


def test_many_columns_are_read():
    names = [f"c{n}" for n in range(5000)]
    content = stored([pa.record_batch([pa.array([n]) for n in range(5000)], names=names)])
    assert read(content).to_pylist() == [{name: n for n, name in enumerate(names)}]


# ---------------------------------------------------------------- values out of place


def test_offsets_that_leave_their_bytes():
    content = stored([pa.record_batch({"s": ["some", "texts", "here"]})])
    offsets = struct.pack("<4i", 0, 4, 9, 13)
    assert offsets in content
    for wrong in [(0, 4, 9, 1 << 30), (0, 4, -9, 13), (0, 9, 4, 13), (-5, 4, 9, 13)]:
        refusal(content.replace(offsets, struct.pack("<4i", *wrong)))


def test_places_that_are_not_in_the_dictionary():
    texts = pa.DictionaryArray.from_arrays(pa.array([0x01020304 - 0x01020304, 1], pa.int64()), ["a", "b"])
    content = stored([pa.record_batch({"d": texts})])
    pair = struct.pack("<2q", 0, 1)
    for wrong in (2, 1 << 40, -1):
        at = content.rindex(pair)
        refusal(content[:at] + struct.pack("<2q", 0, wrong) + content[at + 16 :])


def test_invalid_texts():
    refusal(stored([pa.record_batch({"s": ["plain"]})]).replace(b"plain", b"pl\xff\xffn"))


def test_a_null_whose_view_leaves_its_bytes():
    content = stored([pa.record_batch({"v": pa.array(["text", None], pa.string_view())})])
    at = content.rindex(b"text".ljust(12, b"\0")) + 12
    refusal(content[:at] + struct.pack("<4i", 1 << 30, 0, 0, 0) + content[at + 16 :])


def test_any_byte_may_be_wrong():
    """Whatever a byte is replaced by, the file is read or refused; nothing else is raised."""
    for options in ({}, {"compression": "zstd"}):
        batch = pa.record_batch(
            {"d": pa.DictionaryArray.from_arrays([0, 1, 0], ["a", "b"]),
             "v": pa.array(["x" * 20, "y", None], pa.string_view()), "l": [[1], None, [2, 3]]}
        )  # fmt: skip
        content = stored([batch], **options)
        random = np.random.default_rng(3)
        for _ in range(4000):
            changed = bytearray(content)
            changed[random.integers(len(content))] = random.integers(256)
            with suppress(REFUSALS):
                read(bytes(changed)).to_pylist()


# ---------------------------------------------------------------- flatbuffers


def bodies(content):
    reader = pa.ipc.MessageReader.open_stream(content)
    return [message.body for message in iter(lambda: next(reader, None), None)]


def target(content, place):
    return place + struct.unpack_from("<i", content, place)[0]


def field_at(content, table, entry):
    fields_at = table - struct.unpack_from("<i", content, table)[0]
    offset = struct.unpack_from("<H", content, fields_at + entry)[0] if entry < content[fields_at] else 0
    return table + offset if offset else None


def vector(content, table, entry):
    place = field_at(content, table, entry)
    return None if place is None else target(content, place)


def children_of(content, table, entry):
    at = vector(content, table, entry)
    return [] if at is None else [at + 4 + 4 * n for n in range(struct.unpack_from("<i", content, at)[0])]


def fields(content):
    """Every field of the schema in a stream: its table, and the places that refer to its children."""
    message = target(content, 8)
    waiting = children_of(content, vector(content, message, 8), 6)
    while waiting:
        field = target(content, waiting.pop(0))
        below = children_of(content, field, 14)
        yield field, below
        waiting += below
