"""Goal: whatever bytes come, a codec neither ends the process nor takes memory without limit.

Method: what used to do so runs in a process of its own with little address space; there it has to become a dead letter.
"""

import io
import json
import subprocess
import sys
import textwrap

import fastavro
import pytest

from millstream.errors import InvalidSetting
from millstream.records import codec
from millstream.records.bounds import CHUNK_BYTES, CONTAINERS_MAX, RECORD_BYTES_MAX
from millstream.records.codecs.avro_shape import FREE_VALUES_MAX, SCHEMA_BYTES_MAX

LINKED = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}

START = """
import json, resource, sys
from pathlib import Path
import fastavro
from millstream.records import codec
codec("json", "n int").decode([b"{}"])
given = json.loads(sys.stdin.read())
limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + 600_000_000
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
"""


def record(*types, **named):
    fields = [{"name": f"f{place}", "type": each} for place, each in enumerate(types)]
    fields += [{"name": name, "type": each} for name, each in named.items()]
    return {"type": "record", "name": "Top", "fields": fields}


def inner(name, *types):
    return record(*types) | {"name": name}


def array(items):
    return {"type": "array", "items": items}


def varint(number):
    left, made = (number << 1) ^ (number >> 63), b""
    while left > 0x7F:
        made, left = made + bytes([left & 0x7F | 0x80]), left >> 7
    return made + bytes([left])


def reasons(schema, *values, columns="x int"):
    return [failure.reason for failure in codec("avro", columns, avro_schema=schema).decode(values).failures]


def in_little_memory(code, **given):
    """Runs in another process that may take 600 MB more than it begins with, and returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", START + textwrap.dedent(code)],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


# ---------------------------------------------------------------- avro


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        (LINKED, b"\x02" * 100_000 + b"\x00", "nested more than 200 levels deep"),
        (record(array("null")), varint(10**9) + b"\x00", "more than 1,000 values that take no bytes"),
        (
            record(array(inner("Pair", "boolean", *["null"] * 50))),
            varint(10**6) + b"\x01" * 10**6 + b"\x00",
            "more than 1,000 values that take no bytes",
        ),
        (
            record(array(inner("One", "boolean"))),
            varint(10**7) + b"\x01" * 10**7 + b"\x00",
            "more than 1,000,000 arrays and objects",
        ),
    ],
    ids=["recursion", "null items", "null fields", "tiny items"],
)
def test_a_few_bytes_do_not_become_gigabytes_nor_end_the_process(schema, value, reason):
    code = """
        one = codec("avro", "x int, f0 int", avro_schema=given["schema"])
        good, bad = bytes.fromhex(given["good"]), bytes.fromhex(given["bad"])
        decoded = one.decode([good, bad, good])
        print(decoded.indices.tolist(), [(each.index, each.reason) for each in decoded.failures])
    """
    said = in_little_memory(code, schema=schema, good="00", bad=value.hex())
    assert said.startswith("[0, 2]") or schema["fields"][0]["type"] != ["null", "Node"]
    assert reason in said
    assert said.count("(1,") == 1


def test_recursion_within_the_limit_is_read():
    values = [b"\x02" * deep + b"\x00" for deep in (0, 1, 98, 99)]
    assert reasons(LINKED, *values) == ["nested more than 200 levels deep"]


def test_zero_width_items_are_counted_over_the_whole_record():
    lists = record(array(array("null")))
    inside = varint(FREE_VALUES_MAX // 2) + b"\x00"
    assert reasons(lists, varint(2) + inside * 2 + b"\x00") == []
    assert reasons(lists, varint(3) + inside * 3 + b"\x00") == ["more than 1,000 values that take no bytes"]
    by_size = varint(-FREE_VALUES_MAX - 1) + b"\x00" + b"\x00"  # a block that names its bytes as well
    assert reasons(record(array("null")), by_size) == ["more than 1,000 values that take no bytes"]


def test_records_that_double_with_every_level_are_counted_and_not_walked():
    types = [inner("Z0", "null"), *(inner(f"Z{n}", f"Z{n - 1}", f"Z{n - 1}") for n in range(1, 60))]
    assert reasons(record(*types), b"") == ["more than 1,000 values that take no bytes"]


def test_a_decimal_of_a_megabyte_is_not_computed():
    money = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
    assert reasons(record(money), varint(10**6) + b"\x7f" * 10**6) == ["a decimal of more than 1,000 bytes"]


def test_what_is_measured_is_read_as_before():
    """A schema with everything in it that is measured, and values that fastavro wrote."""
    schema = record(
        LINKED,
        "null",
        {"type": "map", "values": ["null", "Node", array("long")]},
        {"type": "fixed", "name": "F", "size": 3},
        {"type": "enum", "name": "E", "symbols": ["A", "B"]},
        array("double"),
        array(["string", "float"]),
        x="int",
    )
    value = {
        "f0": {"next": {"next": None}}, "f1": None, "f2": {"a": None, "b": {"next": None}, "c": [1, -(2**60)]},
        "f3": b"abc", "f4": "B", "f5": [0.5, 1.5], "f6": ["é", 0.5], "x": 7,
    }  # fmt: skip
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(schema), value)
    one = codec("avro", "x int, f4 string, f5 array<double>", avro_schema=schema)
    decoded = one.decode([target.getvalue()])
    assert decoded.failures == []
    assert decoded.rows.to_pylist() == [{"x": 7, "f4": "B", "f5": [0.5, 1.5]}]
    for cut in range(len(target.getvalue())):
        assert "end in the middle" in one.decode([target.getvalue()[:cut]]).failures[0].reason


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (record("Top"), "a record always contains itself"),
        (record(["null", inner("A", "Top")], "A"), "a record always contains itself"),
        (json.dumps(record()).replace("[]", '[{"name": "a", "type": ' + "[" * 5000 + "]" * 5000 + "}]"), "too deeply"),
        (json.dumps(record("x")).replace('"x"', '{"type": "array", "items": ' * 390 + '"int"' + "}" * 390), "200 lev"),
        (record(inner("Z0", "int"), *(inner(f"Z{n}", f"Z{n - 1}") for n in range(1, 300))), "200 levels"),
        (record(["int"] * 50_001), "more than 50,000 types"),
        (json.dumps(record("int", doc=" " * SCHEMA_BYTES_MAX)), "more than 1 MiB"),
        (json.dumps(record("int") | {"__fastavro_parsed": True, "__named_schemas": {}}), "start with '__'"),
        (record({"type": "fixed", "name": "F", "size": -1}), "size"),
    ],
    ids=["itself", "itself later", "json", "arrays", "chain of names", "wide", "large", "marked as parsed", "negative"],
)
def test_schemas_that_are_refused(schema, reason):
    with pytest.raises(InvalidSetting, match=reason):
        codec("avro", "x int", avro_schema=schema)


# ---------------------------------------------------------------- all of them


@pytest.mark.parametrize("name", ["json", "avro", "csv"])
def test_a_value_beyond_the_limit_is_a_failure_of_its_own(name):
    one = codec(name, "s string")
    good, large = one.encode(rows_of("a")).to_pylist()[0], one.encode(rows_of("b" * 100)).to_pylist()[0]
    decoded = one.decode([good, large, good], size_bytes_max=50)
    assert decoded.indices.tolist() == [0, 2]
    [failure] = decoded.failures
    assert failure.index == 1
    assert failure.reason == f"the record has {len(large)} bytes, more than the limit of 50 bytes"
    assert one.decode([large], size_bytes_max=len(large)).failures == []


def rows_of(text):
    import pyarrow as pa

    return pa.RecordBatch.from_pydict({"s": [text]})


def test_a_json_value_of_the_largest_size_does_not_take_a_hundred_times_as_much():
    code = """
        decoded = codec("json", "a array<array<int>>").decode([b'{"a":[' + b"[]," * given["count"] + b"[]]}"])
        print(decoded.failures[0].reason)
    """
    said = in_little_memory(code, count=RECORD_BYTES_MAX // 3 - 10)
    assert said == f"the record has more than {CONTAINERS_MAX:,} arrays and objects"


def test_fields_beyond_those_of_the_schema_are_not_split():
    code = """
        for value in (b"ab," * given["count"], b'"",' + b"ab," * given["count"]):
            print(codec("csv", "a string").decode([value]).failures[0].reason)
    """
    said = in_little_memory(code, count=RECORD_BYTES_MAX // 3 - 10)
    assert said.splitlines() == ["expected 1 fields, found 22369612", "expected 1 fields, found more"]


def test_chunks_are_bounded_in_bytes_and_keep_their_order():
    texts = ["a", "b" * CHUNK_BYTES, "c", "d" * (CHUNK_BYTES // 2), "e" * (CHUNK_BYTES // 2), "f"]
    one = codec("csv", "s string")
    decoded = one.decode([text.encode() for text in texts])
    assert decoded.rows.column("s").to_pylist() == texts
    assert decoded.indices.tolist() == list(range(6))
