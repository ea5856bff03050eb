"""Goal: no file, however it was made, takes memory without limit or ends the process that reads it.

Method: files that unpack to far more than they are, read by a process that may take little; and the bounds one by one.
"""

import bz2
import gzip
import io
import json
import lzma
import subprocess
import sys
import zlib

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.reading import dead, rows, slabs
from millstream.connectors.files import avro_file, parquet_pages
from millstream.connectors.files import bounds as file_bounds
from millstream.connectors.files import lines as file_lines
from millstream.connectors.files.endpoint import files
from millstream.connectors.files.lines import csv_records
from millstream.errors import InvalidInput, InvalidSetting

READ = """
import json, resource, sys, tempfile
from pathlib import Path
import fastavro, pyarrow.parquet
from millstream.connectors.files.endpoint import files
from millstream.records import Schema
from millstream.connectors.opening import open_source
path, format, schema, room_mb = json.loads(sys.stdin.read())
limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + room_mb * 1_000_000
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
with tempfile.TemporaryDirectory() as folder:
    source = open_source(files(path, format), Schema.of(schema), broker=None, folder=Path(folder), name="in")
    count, letters = 0, []
    for task in source.slices(source.earliest(), source.latest(), 1):
        for part in task:
            for slab in source.read(part):
                count += slab.rows.num_rows
                letters += slab.dead.to_pylist() if slab.dead is not None else []
    print(json.dumps([count, [(each["topic"], each["offset"], each["reason"]) for each in letters]]))
"""


def read_in_little_memory(path, format, schema, room_mb=900):
    done = subprocess.run(
        [sys.executable, "-c", READ],
        input=json.dumps([str(path), format, schema, room_mb]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.fixture
def inbox(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    return folder


# ---------------------------------------------------------------- lines


def bomb(size, *, before=b"", after=b""):
    """gzip of so many MB of one letter, without having them in memory."""
    packer = zlib.compressobj(wbits=31)
    block = b"x" * (1 << 20)
    pieces = [packer.compress(before), *(packer.compress(block) for _ in range(size)), packer.compress(after)]
    return b"".join([*pieces, packer.flush()])


def test_a_packed_line_without_end_is_one_dead_letter(inbox):
    (inbox / "a.gz").write_bytes(bomb(150, before=b'{"n":1}\n', after=b'\n{"n":2}\n'))
    count, [(file, line, reason)] = read_in_little_memory(inbox, "json", "n int", room_mb=120)
    assert count == 2
    assert (file, line) == ("a.gz", 2)
    assert "the line has 150 MiB, more than the limit of 16 MiB" in reason
    assert "max_record" in reason


def test_a_packed_line_of_csv_without_end_is_one_dead_letter(inbox, open_):
    (inbox / "a.gz").write_bytes(bomb(18, before=b"n\n1\n", after=b"\n2\n"))
    source = open_(files(inbox, "csv"), "n int")
    assert rows(source) == [{"n": 1}, {"n": 2}]
    [letter] = dead(source)
    assert (letter["topic"], letter["offset"]) == ("a.gz", 3)


def test_a_file_that_expands_too_much_is_read_up_to_there(inbox, open_, monkeypatch):
    monkeypatch.setattr(file_bounds, "EXPANDED_BYTES_MIN", 100_000)
    monkeypatch.setattr(file_lines, "BLOCK_BYTES", 10_000)
    (inbox / "a.json.gz").write_bytes(gzip.compress(b'{"n": 1}\n' * 100_000))
    source = open_(files(inbox, "json", max_expansion=50), "n int")
    [letter] = dead(source)
    read = len(rows(source))
    assert letter["topic"] == "a.json.gz"
    assert 0 < read < 100_000
    assert letter["offset"] == read + 1
    assert "more than 50 times its size" in letter["reason"]
    assert "max_expansion" in letter["reason"]
    assert len(rows(open_(files(inbox, "json", max_expansion=5000), "n int", name="more"))) == 100_000


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r\r\n", b""])
@pytest.mark.parametrize("block_bytes", [1, 5, 21, 1 << 20])
def test_a_line_may_be_as_long_as_the_limit(inbox, open_, monkeypatch, end, block_bytes):
    monkeypatch.setattr(file_lines, "BLOCK_BYTES", block_bytes)
    texts = [b'{"s":"' + b"x" * size + b'"}' for size in (1, 12, 13, 100, 2, 0, 500)]
    (inbox / "a").write_bytes((end or b"\n").join(texts) + end)
    source = open_(files(inbox, "json", max_record=20), "s string")
    assert [len(row["s"]) for row in rows(source)] == [1, 12, 2, 0]
    found = dead(source)
    assert [letter["offset"] for letter in found] == [3, 4, 7]
    for letter, text in zip(found, (texts[2], texts[3], texts[6]), strict=True):
        assert text.startswith(letter["value"])
        assert len(letter["value"]) > 20


def test_the_start_of_a_line_that_is_too_long_is_kept(inbox, open_):
    (inbox / "a").write_bytes(b'{"s":"' + b"x" * 5000 + b'"}\n{"s":"y"}\n')
    source = open_(files(inbox, "json", max_record="2 KiB"), "s string")
    assert rows(source) == [{"s": "y"}]
    [letter] = dead(source)
    assert (letter["offset"], len(letter["value"])) == (1, 1000)


def test_a_quote_that_is_never_closed_holds_few_lines(inbox, open_):
    (inbox / "a").write_bytes(b's,n\n"open,1\n' + b"xx,2\n" * 500 + b'"y\nz",3\n')
    source = open_(files(inbox, "csv", max_record=100), "s string, n int")
    assert rows(source) == [{"s": "xx", "n": 2}] * 500 + [{"s": "y\nz", "n": 3}]
    assert [letter["offset"] for letter in dead(source)] == [2]


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b'"' + b"x" * 200_000 + b'"', "the header line cannot be read"),
        (b"a\rb", "the header line cannot be read"),
        (b"," * 100_001, "more than 100,000 columns"),
    ],
)
def test_an_invalid_header_line_is_a_dead_letter(inbox, open_, header, reason):
    (inbox / "a").write_bytes(header + b"\n1\n")
    [letter] = dead(open_(files(inbox, "csv"), "n int"))
    assert reason in letter["reason"]


def test_settings_that_make_no_sense():
    with pytest.raises(InvalidInput, match="max_record"):
        files("in", "json", max_record=0)
    with pytest.raises(InvalidInput, match="max_record"):
        files("in", "json", max_record="2 GiB")
    with pytest.raises(InvalidSetting, match="max_record"):
        files("in", "json", max_record="much")
    with pytest.raises(InvalidInput, match="max_expansion"):
        files("in", "json", max_expansion=0)


def test_lines_of_csv_are_joined_until_the_limit():
    given = [(1, b'"a', None), (2, b"b" * 50, None), (3, b'c"', None)]
    assert list(csv_records(iter(given), 100)) == [[(1, b'"a\n' + b"b" * 50 + b'\nc"', None)]]
    assert [line[0] for some in csv_records(iter(given), 10) for line in some] == [1, 2, 3]


# ---------------------------------------------------------------- avro

LINKED = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "n", "type": "int"}, {"name": "next", "type": ["null", "Node"]}],
}
SCORE = {"type": "record", "name": "Score", "fields": [{"name": "n", "type": "int"}]}


def varint(number):
    left, made = (number << 1) ^ (number >> 63), b""
    while left > 0x7F:
        made, left = made + bytes([left & 0x7F | 0x80]), left >> 7
    return made + bytes([left])


def text(content):
    return varint(len(content)) + content


def container(schema, blocks, codec="null", sync=b"S" * 16):
    entries = [(b"avro.schema", schema if isinstance(schema, bytes) else json.dumps(schema).encode())]
    entries.append((b"avro.codec", codec.encode()))
    made = b"Obj\x01" + varint(len(entries)) + b"".join(text(name) + text(value) for name, value in entries) + b"\0"
    return made + sync + b"".join(varint(count) + text(data) + sync for count, data in blocks)


def test_a_record_that_is_nested_too_deeply_costs_its_block(inbox):
    deep = b"\x02\x02" * 100_000 + b"\x02\x00"
    blocks = [(2, b"\x02\x00" * 2), (3, b"\x04\x00" + deep + b"\x06\x00"), (1, b"\x08\x00")]
    (inbox / "a").write_bytes(container(LINKED, blocks))
    count, letters = read_in_little_memory(inbox, "avro", "n int")
    assert count == 4
    assert letters == [
        ["a", 3, "nested more than 200 levels deep; the 1 records after it in its block are lost as well"]
    ]


def test_records_that_take_no_bytes_are_not_endless(inbox, open_):
    nothing = {"type": "record", "name": "Nothing", "fields": [{"name": "n", "type": "null"}]}
    (inbox / "a").write_bytes(container(nothing, [(3, b""), (10**12, b"")]))
    source = open_(files(inbox, "avro"), "n int")
    [letter] = dead(source)
    assert (len(rows(source)), letter["offset"]) == (3, 3)
    assert "a block of 0 bytes cannot hold 1000000000000 records" in letter["reason"]


@pytest.mark.parametrize("codec", ["deflate", "bzip2", "xz", "zstandard", "snappy"])
def test_a_block_that_unpacks_to_too_much_is_refused(inbox, open_, monkeypatch, codec):
    monkeypatch.setattr(avro_file, "BLOCK_BYTES_MAX", 1 << 20)
    good, much = packed(codec, b"\x02" * 100), packed(codec, b"\0" * (3 << 20))
    (inbox / "a").write_bytes(container(SCORE, [(100, good), (1, much), (100, good)], codec))
    source = open_(files(inbox, "avro"), "n int")
    [letter] = dead(source)
    assert len(rows(source)) == 100
    assert (letter["topic"], letter["offset"]) == ("a", 100)
    assert "unpacks to more than 1 MiB" in letter["reason"] or "it claims to have 3 MiB" in letter["reason"]


def packed(codec, data):
    if codec == "deflate":
        packer = zlib.compressobj(wbits=-15)
        return packer.compress(data) + packer.flush()
    if codec == "bzip2":
        return bz2.compress(data)
    if codec == "xz":
        return lzma.compress(data, preset=0)
    if codec == "zstandard":
        return pa.compress(data, "zstd", asbytes=True)
    if len(data) > 1 << 20:  # snappy packs badly, but its size can be a lie
        return b"\x80\x80\xc0\x01" + b"\0" * 100
    return pa.compress(data, "snappy", asbytes=True) + zlib.crc32(data).to_bytes(4, "big")


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_what_fastavro_writes_is_read(inbox, open_, codec):
    with (inbox / "a").open("wb") as file:
        fastavro.writer(file, SCORE, [{"n": n} for n in range(50_000)], codec=codec, metadata={"made": "here"})
    assert [row["n"] for row in rows(open_(files(inbox, "avro"), "n int"))] == list(range(50_000))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (container(b"[" * 100_000, []), "its schema cannot be used: it is nested"),
        (container(b'"int"', [(1, b"\x02")]), "its schema is not that of a record"),
        (container(b"\xff", []), "its schema cannot be used"),
        (container(json.dumps(SCORE | {"doc": " " * (2 << 20)}).encode(), []), "more than 1 MiB"),
        (container(SCORE, [], "lzo"), "its codec is 'lzo'"),
        (b"Obj\x01" + varint(10**9), "header has more than 10000 entries"),
        (b"Obj\x01" + varint(1) + varint(10**12), "header has more than 4 MiB"),
        (b"Obj\x01" + b"\xff" * 100, "a number has too many bytes"),
        (b"Obj\x01", "ends in the middle"),
        (b"", "does not start like one"),
        (container(SCORE, []) + varint(1) + varint(1 << 60), "at most 64 MiB"),
        (container(SCORE, []) + varint(-1) + varint(1), "a block of -1 records"),
        (container(SCORE, [(5, b"\x02")]), "cannot hold 5 records"),
    ],
)
def test_avro_files_that_cannot_be_read_are_one_dead_letter(inbox, open_, content, reason):
    (inbox / "a").write_bytes(content)
    source = open_(files(inbox, "avro"), "n int")
    [letter] = dead(source)
    assert rows(source) == []
    assert (letter["topic"], letter["offset"]) == ("a", 0)
    assert reason in letter["reason"]


def test_an_avro_record_beyond_the_limit_is_a_dead_letter_of_its_own(inbox, open_):
    schema = {"type": "record", "name": "R", "fields": [{"name": "s", "type": "string"}]}
    with (inbox / "a").open("wb") as file:
        fastavro.writer(file, schema, [{"s": "x" * size} for size in (1, 1000, 2)])
    source = open_(files(inbox, "avro", max_record=500), "s string")
    assert rows(source) == [{"s": "x"}, {"s": "xx"}]
    [letter] = dead(source)
    assert letter["offset"] == 1
    assert "limit of 500 bytes" in letter["reason"]


def test_a_large_block_comes_in_parts(inbox, open_):
    schema = {"type": "record", "name": "R", "fields": [{"name": "s", "type": "string"}]}
    with (inbox / "a").open("wb") as file:
        fastavro.writer(file, schema, [{"s": str(n) + "x" * 100_000} for n in range(100)], sync_interval=100 << 20)
    source = open_(files(inbox, "avro"), "s string")
    assert [row["s"].rstrip("x") for row in rows(source)] == [str(n) for n in range(100)]
    assert max(slab.rows.num_rows for slab in slabs(source)) < 15


def test_much_of_avro_comes_in_parts(inbox, open_):
    with (inbox / "a").open("wb") as file:
        fastavro.writer(file, SCORE, [{"n": n % 50} for n in range(60_000)])
    source = open_(files(inbox, "avro"), "n int")
    parts = [slab.rows.num_rows for slab in slabs(source)]
    assert sum(parts) == 60_000
    assert 20_000 <= max(parts) < 40_000


# ---------------------------------------------------------------- parquet


def write(path, table, **settings):
    pq.write_table(table, path, compression="zstd", write_statistics=False, store_schema=False, **settings)
    assert path.stat().st_size < 200_000


def test_a_dictionary_of_one_long_text_is_unpacked_in_pieces(inbox):
    """467 bytes that stand for 100 GB."""
    places = pa.array(np.zeros(100_000, np.int32))
    write(inbox / "a", pa.table({"s": pa.DictionaryArray.from_arrays(places, pa.array(["x" * (1 << 20)]))}))
    count, [(file, offset, reason)] = read_in_little_memory(inbox, "parquet", "s string")
    assert file == "a"
    assert 900 < count < 1100
    assert offset == count
    assert "more than 1000 times its size" in reason


def test_lists_of_long_texts_are_unpacked_in_pieces(inbox, open_, monkeypatch):
    """360 bytes that stand for 20 GB, 20 MB in a row."""
    monkeypatch.setattr(file_bounds, "EXPANDED_BYTES_MIN", 100 << 20)
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000, np.int32)), pa.array(["x" * (1 << 20)]))
    lists = pa.ListArray.from_arrays(pa.array(np.arange(0, 20_001, 20, dtype=np.int32)), texts)
    write(inbox / "a", pa.table({"a": lists}))
    found = slabs(open_(files(inbox), "a array<string>"))
    assert 0 < sum(slab.rows.num_rows for slab in found) <= 5
    assert max(slab.rows.nbytes for slab in found) <= 128 << 20
    assert "more than 1000 times its size" in found[-1].dead.column("reason")[0].as_py()


def test_a_page_that_unpacks_to_too_much_is_refused(inbox, open_, monkeypatch):
    monkeypatch.setattr(parquet_pages, "PAGES_BYTES_MAX", 10 << 20)
    write(inbox / "a", pa.table({"s": ["x" * (20 << 20)]}), use_dictionary=False)
    [letter] = dead(open_(files(inbox), "s string"))
    assert "the pages of row group 0 unpack to 20 MiB at once" in letter["reason"]


def test_a_row_of_very_many_items_is_refused(inbox, open_, monkeypatch):
    monkeypatch.setattr(parquet_pages, "PAGES_BYTES_MAX", 10 << 20)
    items = pa.array(np.zeros(5_000_000, np.int8))
    write(inbox / "a", pa.table({"a": pa.ListArray.from_arrays(pa.array([0, 5_000_000], pa.int32()), items)}))
    [letter] = dead(open_(files(inbox), "a array<tinyint>"))
    assert "the 5000000 values of column 'a.list.element'" in letter["reason"]


def test_a_row_that_unpacks_to_too_much_is_refused(inbox, open_, monkeypatch):
    monkeypatch.setattr(parquet_pages, "BATCH_BYTES", 1 << 20)
    monkeypatch.setattr(parquet_pages, "ROW_BYTES_MAX", 2 << 20)
    write(inbox / "a", pa.table({"a": [["x" * (1 << 20)], ["y" * (1 << 20)] * 5]}))
    source = open_(files(inbox), "a array<string>")
    assert len(rows(source)) == 1
    assert "a row unpacks to 5 MiB" in dead(source)[0]["reason"]


@pytest.mark.parametrize(
    "settings", [{}, {"data_page_version": "2.0"}, {"use_dictionary": False}, {"row_group_size": 7}]
)
def test_what_is_read_in_pieces_is_what_was_written(inbox, open_, monkeypatch, settings):
    monkeypatch.setattr(parquet_pages, "BATCH_BYTES", 500)
    values = [
        {"s": f"text {n % 3}" if n % 5 else None, "l": [f"a{n % 2}", None] * (n % 3), "m": {"k": "v" * (n % 9)},
         "st": {"a": "x", "b": ["y"] * n} if n % 7 else None, "n": n}
        for n in range(100)
    ]  # fmt: skip
    schema = pa.schema(
        [("s", pa.string()), ("l", pa.list_(pa.string())), ("m", pa.map_(pa.string(), pa.string())),
         ("st", pa.struct([("a", pa.string()), ("b", pa.list_(pa.string()))])), ("n", pa.int32())]
    )  # fmt: skip
    with_pairs = [value | {"m": list(value["m"].items())} for value in values]
    pq.write_table(pa.Table.from_pylist(with_pairs, schema), inbox / "a", **settings)
    ddl = "s string, l array<string>, m map<string,string>, st struct<a string, b array<string>>, n int"
    source = open_(files(inbox), ddl)
    assert rows(source) == values
    assert len(slabs(source)) > 20


def test_texts_with_shared_prefixes_are_read_a_few_at_a_time(inbox, open_, monkeypatch):
    monkeypatch.setattr(parquet_pages, "BATCH_BYTES", 1 << 20)
    texts = ["x" * 10_000 + str(n) for n in range(1000)]
    write(inbox / "a", pa.table({"s": texts}), use_dictionary=False, column_encoding={"s": "DELTA_BYTE_ARRAY"})
    source = open_(files(inbox), "s string")
    assert [row["s"] for row in rows(source)] == texts
    assert max(slab.rows.nbytes for slab in slabs(source)) < 2 << 20


def test_many_columns_are_read_in_fewer_rows(inbox, open_):
    names = [f"c{n}" for n in range(300)]
    write(inbox / "a", pa.table({name: pa.array(np.zeros(100_000)) for name in names}))
    source = open_(files(inbox), ", ".join(f"{name} double" for name in names))
    assert sum(slab.rows.num_rows for slab in slabs(source)) == 100_000
    assert max(slab.rows.nbytes for slab in slabs(source)) <= 128 << 20


def test_bytes_of_a_stream_are_not_parquet(inbox, open_):
    target = io.BytesIO()
    pq.write_table(pa.table({"n": pa.array(range(1000), pa.int32())}), target)
    whole = bytearray(target.getvalue())
    whole[4:40] = b"\xff" * 36  # the header of the first page
    (inbox / "a").write_bytes(whole)
    [letter] = dead(open_(files(inbox), "n int"))
    assert "from here on the file cannot be read" in letter["reason"]


def test_a_row_with_invalid_text_is_a_dead_letter(inbox, open_):
    raw = [b"a", b"\xff", None, b"\xc3\xa9"] * 100
    lists = pa.array([[value, b"x"] for value in raw], pa.list_(pa.binary()))
    made = pa.table({"s": pa.array(raw, pa.binary()).view(pa.string()), "a": lists.view(pa.list_(pa.string()))})
    for name in ("s", "a"):
        pq.write_table(made.select([name]), inbox / f"{name}.parquet")
        source = open_(files(inbox / f"{name}.parquet"), "s string, a array<string>", name=name)
        assert len(rows(source)) == 300
        letters = dead(source)
        assert [letter["offset"] for letter in letters] == list(range(1, 400, 4))
        assert {letter["reason"] for letter in letters} == {"a text in the row is not valid UTF-8"}
