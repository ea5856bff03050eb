"""Goal: a value that the typed parser accepts is the row that orjson makes of it, and none is lost.

Method: conftest.py compares both for every test here and beside; these go where the two parsers could disagree.
"""

import json
import random
import sys

import pytest

from millstream.records import batch_to_rows, codec
from millstream.records.codecs import json as json_codec
from millstream.records.codecs.typed_json import OTHER_FIELDS_MAX

from .test_fuzz import PIECES, mutated

SCHEMA = "s string, n int, b bigint, i tinyint, x float, y double, at timestamp, day date, raw binary, t boolean"
NUMBERS = [
    b"0", b"-0", b"-0.0", b"1.0", b"1e2", b"1E-2", b"01", b"+1", b".5", b"1.", b"1e", b"-", b"127", b"128", b"-129",
    b"2147483648", b"9223372036854775807", b"9223372036854775808", b"-9223372036854775809", b"18446744073709551616",
    b"9007199254740993", b"1e999", b"1e-400", b"2.2250738585072011e-308", b"3.5e38", b"9" * 400, b"0." + b"1" * 400,
    b"NaN", b"Infinity", b"true", b"null", b'"NaN"', b'"1"', b"[]", b"{}",
]  # fmt: skip
TEXTS = [
    b'"\\ud800"', b'"\\ud83d\\ude00"', b'"\\ud83dx"', b'"\\udc00\\ud83d"', b'"\\u0000"', b'"\\u00zz"', b'"\\x"',
    b'"a\x01b"', b'"a\nb"', b'"\x7f"', b'"\xff"', b'"\xed\xa0\x80"', b'"\xc3\xa9"', b'"\\/"', b"'a'", b'"a', b'""',
    b'"2024-01-01T00:00:00Z"', b'"2024-13-01T00:00:00Z"', b'"2024-01-01T24:00:00Z"', b'"2024-01-01T00:00:00.123Z"',
    b'"2024-01-01t00:00:00Z"', b'"2024-01-01"', b'"AAEC"', b'"AAE"',
]  # fmt: skip
WHOLE = [
    b"", b" ", b"null", b"[]", b"1", b"{}", b" {} ", b"\x0c{}", b"{}}", b"{},", b"{}{}", b"\xef\xbb\xbf{}", b"{}\x00",
    b'{"n":1,}', b'{"n":1,"n":2}', b'{"n":1 /*c*/}', b'{"\\u006e":5}', b"{'n':1}", b'{"n" :\t1}', b'{"z":1e999}',
    b'{"z":"\\ud800"}', b'{"z":"a\x01"}', b'{"z":"\xff"}', b'{"z":{"\xff":1}}', b'{"\xff":1}', b'{"z":01}', b'{"":1}',
    b'{"z":' + b"[" * 500 + b"]" * 500 + b"}", b'{"z":' + b"[" * 1100 + b"]" * 1100 + b"}", b'{"a\\"b":1}',
]  # fmt: skip
LONG = 100_000


def spoil(column: str, text: bytes) -> bytes:
    return b'{"%s":%s}' % (column.encode(), text)


def test_every_odd_value_in_every_column_and_beside_good_ones():
    one = codec("json", SCHEMA)
    for column in [*one.schema.names, "other"]:
        odd = [spoil(column, text) for text in NUMBERS + TEXTS]
        one.decode(odd)
        for value in odd:
            one.decode([b'{"n":1}', value, b'{"n":2,"other":1}'])


def test_odd_objects():
    one = codec("json", SCHEMA)
    for value in WHOLE:
        one.decode([value])
        one.decode([b'{"n":1}', value, b'{"n":2}', b'{"z":1}'])


@pytest.mark.parametrize("dtype", ["int", "string", "double", "timestamp", "timestamp_millis", "array<int>"])
def test_columns_that_must_not_be_null(dtype):
    one = codec("json", f"x {dtype} not null, y int")
    one.decode([b"{}", b'{"x":null}', b'{"x":1}', b'{"x":"a"}', b'{"x":[1]}', b'{"x":1.5,"y":1}'] * 2)


def test_nesting_beyond_what_orjson_accepts():
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        one = codec("json", "x array<array<int>>, y int")
        values = [
            b'{"%s":' % name + b"[" * deep + b"]" * deep + b"}" for name in (b"x", b"z") for deep in (1, 800, 2000)
        ]
        one.decode([*values, b'{"y":1}'])
    finally:
        sys.setrecursionlimit(before)


def test_nested_columns_and_big_numbers_inside():
    one = codec("json", "a array<bigint>, s struct<f double, t string>, m map<string, double>")
    numbers = [json.loads(b"[%s]" % text)[0] for text in (b"1", b"1.5", b"18446744073709551616", b"1e25", b"null")]
    numbers.append(int("9" * 400))
    values = [json.dumps({"a": [n], "s": {"f": n, "t": "x", "u": n}, "m": {"k": n}}).encode() for n in numbers]
    for value in values:
        one.decode([value])
        one.decode([b'{"a":[1]}', value, b'{"m":{}}'])


def test_fields_that_are_not_columns_are_learned_and_the_rows_are_right():
    one = codec("json", "n int")
    values = [b'{"n":%d,"f%d":{"deep":[1]}}' % (number, number % 3) for number in range(100)]
    decoded = one.decode(values)
    assert [row["n"] for row in batch_to_rows(decoded.rows)] == list(range(100))
    typed = json_codec._typed(one.schema.ddl)
    assert typed is not None
    accepted = typed.rows(values)
    while accepted is None or accepted[1]:  # each chunk teaches it the fields of one value
        accepted = typed.rows(values)
    assert accepted[0].num_rows == 100


def test_ever_new_fields_are_not_learned_forever():
    one = codec("json", "n int")
    values = [b'{"n":%d,"f%d":1}' % (number, number) for number in range(5 * OTHER_FIELDS_MAX)]
    for start in range(0, len(values), 2):
        one.decode(values[start : start + 2])
    typed = json_codec._typed(one.schema.ddl)
    assert typed is not None
    assert len(typed._others) <= OTHER_FIELDS_MAX


def test_a_chunk_of_mostly_odd_values_is_left_to_the_other_parser():
    one = codec("json", "n int")
    one.decode([b'{"n":1.5}'] * 10)
    typed = json_codec._typed(one.schema.ddl)
    assert typed is not None
    assert typed.rows([b'{"n":1}']) is None


def good_value(random_: random.Random) -> bytes:
    chosen = {
        "s": random_.choice(["", "plain", "héllo", 'a"b\\c', "\u2028", "😀", "x" * 200]),
        "n": random_.choice([0, -1, 2**31 - 1, 2**31, 1.5]),
        "b": random_.choice([2**63 - 1, 2**63, 10**25, 7]),
        "i": random_.choice([1, -128, 128]),
        "x": random_.choice([0.1, 1, 1e38, 1e39, -0.0, "NaN"]),
        "y": random_.choice([0.1, 2**53 + 1, 10**30, "Infinity", 1e-320]),
        "at": random_.choice(["2024-01-01T00:00:00Z", "2024-01-01T00:00:00.123Z", "2024-01-01 00:00:00", "soon", 5]),
        "day": random_.choice(["2024-02-29", "2023-02-29"]),
        "raw": random_.choice(["AAEC", "?"]),
        "t": random_.choice([True, False, 1]),
        "other": random_.choice([None, {"deep": [1, {"a": "b"}]}, "text", 1e300]),
    }
    names = random_.sample(sorted(chosen), random_.randint(0, len(chosen)))
    return json.dumps({name: chosen[name] for name in names}, ensure_ascii=random_.random() < 0.5).encode()


def fuzz(seed: int, rounds: int) -> int:
    """How many values were decoded both ways."""
    random_ = random.Random(seed)
    schemas = [SCHEMA, "s string", "n int not null, other string", f"{SCHEMA}, other struct<deep array<bigint>>"]
    count = 0
    for number in range(rounds):
        values = [good_value(random_) for _ in range(20)]
        spoiled = [mutated(random_, value) if random_.random() < 0.3 else value for value in values]
        if number % 7 == 0:
            spoiled.append(random_.choice(PIECES))
        codec("json", random_.choice(schemas)).decode(spoiled)
        count += len(spoiled)
    return count


def test_changed_values_are_judged_alike():
    assert fuzz(1, 50) >= 1000


@pytest.mark.soak
def test_changed_values_are_judged_alike_for_long():
    assert fuzz(random.SystemRandom().randrange(2**32), LONG // 20) >= LONG
