"""Goal: whatever the bytes, a codec returns rows and failures, one of them for each value, and raises nothing.

Method: good values, changed at random places by bytes that parsers stumble over, for schemas of every kind.
"""

import json
import random

import pytest

from millstream.errors import InvalidSetting
from millstream.records import codec, rows_to_batch

ROUNDS = 60
FLAT = "s string, n int, b bigint, x float, y double, d decimal(20,5), at timestamp, day date, raw binary, t boolean"
NESTED = FLAT + ", a array<struct<k string, v array<int>>>, m map<string,decimal(5,2)>, st struct<i tinyint, z string>"
SCHEMAS = {"json": NESTED, "avro": NESTED, "csv": FLAT, "string": None, "bytes": None}
SAMPLES = [
    {"s": "héllo", "n": 1, "b": 2**62, "x": 0.5, "y": 1e300, "t": True, "raw": b"\x00\xff",
     "a": [{"k": "a", "v": [1, None]}, None], "st": {"i": 1, "z": "z"}},
    {"s": 'a,"b"\r\nc', "n": -1, "a": [], "m": {}},
    {},
]  # fmt: skip
PIECES = [
    b"", b"\x00", b"\xff", b"\x80" * 11, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x7f", b"\x01", b"\n", b"\r",
    b'"', b",", b"[", b"{", b"}", b"[" * 2000, b'{"s":' * 2000, b"1e999", b"-", b"9" * 5000, b"NaN", b"null",
    b'"\\ud800"', b"\xed\xa0\x80", b"\xef\xbb\xbf", b"1e-400", b"0.1e400000", b"1970-01-01", b"9999-12-31T23:59:59Z",
]  # fmt: skip
WRITERS = [
    {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": "R"}}]},
    {"type": "record", "name": "R", "fields": [{"name": "m", "type": {"type": "map", "values": ["null", "R", "int"]}}]},
    {"type": "record", "name": "R", "fields": [
        {"name": "s", "type": [{"type": "enum", "name": "E", "symbols": ["A"]}, "string", "bytes"]},
        {"name": "f", "type": {"type": "fixed", "name": "F", "size": 4}},
        {"name": "d", "type": {"type": "fixed", "name": "G", "size": 9, "logicalType": "decimal", "precision": 18}},
        {"name": "u", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "time", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "b", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}},
        {"name": "z", "type": {"type": "array", "items": "null"}},
    ]},
]  # fmt: skip


def mutated(random_, value):
    made = bytearray(value)
    for _ in range(random_.randint(0, 4)):
        place = random_.randint(0, len(made))
        until = min(len(made), place + random_.choice([0, 0, 1, 3, 20]))
        made[place:until] = (
            random_.choice(PIECES) if random_.random() < 0.7 else random_.randbytes(random_.randint(1, 9))
        )
    return bytes(made)


def check(one, values):
    decoded = one.decode(values)
    assert decoded.rows.num_rows == len(decoded.indices)
    places = [*decoded.indices.tolist(), *(failure.index for failure in decoded.failures)]
    assert sorted(places) == list(range(len(values)))
    decoded.rows.validate(full=True)
    for failure in decoded.failures:
        failure.reason.encode()


@pytest.mark.parametrize("name", SCHEMAS)
def test_changed_values(name):
    random_ = random.Random(name)
    one = codec(name, SCHEMAS[name])
    if name in ("string", "bytes"):
        good = [b"text", "é".encode()]
    else:
        rows = [{key: value for key, value in each.items() if key in one.schema} for each in SAMPLES]
        batch, failures = rows_to_batch(rows, one.schema)
        assert failures == []
        good = one.encode(batch).to_pylist()
    for _ in range(ROUNDS):
        check(one, [mutated(random_, random_.choice(good)) for _ in range(10)])


@pytest.mark.parametrize("writer", WRITERS, ids=["lists", "maps", "all kinds"])
def test_changed_values_of_other_writers(writer):
    random_ = random.Random(0)
    columns = "a array<string>, m map<string,int>, s string, d decimal(18,0), u string, at timestamp, day date"
    one = codec("avro", f"{columns}, time string, b decimal(4,2)", avro_schema=writer)
    for _ in range(ROUNDS):
        check(one, [mutated(random_, random_.randbytes(random_.randint(0, 40))) for _ in range(10)])


def test_changed_schemas():
    """A schema is used or refused with the same error, and neither takes the process along."""
    random_ = random.Random(1)
    words = [
        '"R"',
        '"null"',
        '"E"',
        '["null","R"]',
        "0",
        "-1",
        "[]",
        "{}",
        '""',
        '"array"',
        '{"type":"R"}',
        "1e9",
        "null",
    ]
    for _ in range(3 * ROUNDS):
        text = json.dumps(random_.choice(WRITERS))
        for _ in range(random_.randint(1, 3)):
            cuts = [place for place, letter in enumerate(text) if letter in ':,[]{}"']
            first = random_.choice(cuts)
            last = random_.choice([cut for cut in cuts if first < cut <= first + 40] or [first])
            text = text[: first + 1] + random_.choice(words) + text[last:]
        try:
            one = codec("avro", "s string, a array<int>", avro_schema=text)
        except InvalidSetting:
            continue
        check(one, [random_.randbytes(random_.randint(0, 30)) for _ in range(5)])


def test_what_is_measured_is_what_fastavro_reads():
    """Of each record that passes, fastavro reads exactly as many bytes as were measured: it is cut there and read."""
    random_ = random.Random(2)
    for writer in WRITERS:
        one = codec("avro", "s string", avro_schema=writer)
        for _ in range(ROUNDS):
            value = random_.randbytes(random_.randint(0, 30))
            decoded = one.decode([value])
            for failure in decoded.failures:
                if failure.reason.endswith("bytes follow the Avro record"):
                    extra = int(failure.reason.split()[0])
                    again = one.decode([value[: len(value) - extra]])
                    assert [each for each in again.failures if "follow" in each.reason or "middle" in each.reason] == []
