"""Goal: Protobuf messages of any writer are read, and rows are written so that Google's own library reads them.

Method: messages are made and read with generated classes (of a descriptor that this test builds) as the oracle.
"""

from __future__ import annotations

import pickle
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2, wrappers_pb2
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import InvalidInput, InvalidRecord
from millstream.records import Codec, Schema, batch_to_rows, codec, rows_to_batch
from millstream.records.bounds import CONTAINERS_MAX
from millstream.records.codecs.proto_files import MessageType, built, files_of
from millstream.records.codecs.proto_print import proto_text
from properties import examples

from .arbitrary import protobuf_schemas, schema_and_rows

ORDER = """
syntax = "proto3";
package shop.v1;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
// What a customer wants.
message Order {
  string id = 1;
  optional int32 n = 2;
  repeated sint64 sizes = 3 [packed = false];
  map<string, Line> lines = 4;
  google.protobuf.Timestamp at = 5;
  google.protobuf.Duration took = 6;
  google.protobuf.Int64Value maybe = 7;
  Kind kind = 8;
  oneof payment { string card = 9; uint32 cash = 10; }
  uint64 large = 11;
  bytes raw = 12;
  repeated Line more = 13;
  message Line { float price = 1; optional bool paid = 2; }
}
enum Kind { NEW = 0; DONE = 1 [deprecated = true]; reserved 5 to 9; }
service Shop { rpc Buy (Order) returns (Order) { option deprecated = true; } }
"""
COLUMNS = (
    "id string, n int, sizes array<bigint>, lines map<string, struct<price: float, paid: boolean>>, at timestamp, "
    "took interval day to second, maybe bigint, kind string, card string, cash bigint, large decimal(20,0), "
    "raw binary, more array<struct<price: float, paid: boolean>>"
)
ROW: dict[str, Any] = {
    "id": "a",
    "n": None,
    "sizes": [1, -(2**63)],
    "lines": {"x": {"price": 1.5, "paid": None}},
    "at": datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=UTC),
    "took": timedelta(seconds=-1, microseconds=-500_000),
    "maybe": 0,
    "kind": "DONE",
    "card": None,
    "cash": 2**32 - 1,
    "large": Decimal(2**64 - 1),
    "raw": b"\xff",
    "more": [],
}
LEGACY = """
message Old {
  required int32 n = 1;
  optional string name = 2 [default = "bob"];
  enum K { A = 1; B = 2; }
  optional K k = 3;
}
"""


def message(text: str = ORDER, name: str = "shop.v1.Order") -> MessageType:
    return MessageType(built(files_of(text, "shop.proto", lambda _: None)), name)


def of(text: str = ORDER, name: str = "shop.v1.Order", schema: str | None = None) -> Codec:
    made = message(text, name)
    return codec("protobuf", schema, message=made.name, descriptors=made.files)


def encoded(one: Codec, *rows: dict[str, Any]) -> tuple[list[bytes | None], list[str]]:
    batch, failures = rows_to_batch(rows, one.schema)
    assert failures == []
    found = one.encode_each(batch)
    return found.values.to_pylist(), [failure.reason for failure in found.failures]


def test_a_message_has_its_columns():
    assert of().schema == Schema.of(COLUMNS)


def test_a_message_of_another_writer():
    made = message().message_class(id="a", sizes=[1, -(2**63)], kind=1, cash=2**32 - 1, large=2**64 - 1, raw=b"\xff")
    made.lines["x"].price = 1.5
    made.at.FromDatetime(ROW["at"])
    made.took.FromTimedelta(ROW["took"])
    made.maybe.SetInParent()
    assert batch_to_rows(of().decode([made.SerializeToString()]).rows) == [ROW]
    [value], reasons = encoded(of(), ROW)
    assert reasons == []
    assert message().message_class.FromString(value) == made


def test_fields_and_columns_meet_by_name():
    newer = ORDER.replace("bytes raw = 12;", "bytes raw = 12; string later = 99;")
    value = message(newer).message_class(id="a", later="x", kind=7).SerializeToString()
    one = of(schema="kind string, n bigint, not_there int, id string")
    assert batch_to_rows(one.decode([value]).rows) == [{"kind": "7", "n": None, "not_there": None, "id": "a"}]
    assert batch_to_rows(of(schema="kind int").decode([value]).rows) == [{"kind": 7}]


def test_proto2():
    one = of(LEGACY, "Old")
    made = message(LEGACY, "Old").message_class(n=1, k=2)
    found = one.decode([made.SerializeToString(), b"", b"\x08\x01\x12\x01\xff"])
    assert batch_to_rows(found.rows) == [{"n": 1, "name": None, "k": "B"}]
    assert [failure.reason for failure in found.failures] == [
        "the message 'Old' lacks required fields: n",
        r"column 'name': expected string, found b'\xff' (bytes)",
    ]
    values, reasons = encoded(one, {"n": 1, "k": "C"}, {"n": None}, {"n": 1, "k": "9"}, {"n": 5, "name": "", "k": "A"})
    assert [value is None for value in values] == [True, True, True, False]
    assert "enum Old.K does not have: A, B" in reasons[0]
    assert reasons[1] == "column 'n' is null, but field 'n' is required"


@pytest.mark.parametrize("value", [b"\xff\xff", b"\x0a\x05a", b"\x0a\x01\xff", b"\x0b" * 200, b"\0"])
def test_bytes_that_are_no_message(value):
    [failure] = of().decode([value]).failures
    assert failure.reason == "not a Protobuf message 'shop.v1.Order'"


def test_times_out_of_range_are_refused():
    made = message().message_class(id="a")
    made.at.seconds = 2**40
    [failure] = of().decode([made.SerializeToString()]).failures
    assert failure.reason.startswith("column 'at': expected timestamp")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"cash": -1}, "column 'cash' has -1, which is out of the range of a field of type uint32: 0 to 4294967295"),
        ({"large": Decimal(2**64)}, "column 'large' has 18446744073709551616, which is out of the range"),
        ({"id": None}, "column 'id' is null, but field 'id' is not optional"),
        ({"sizes": None}, "column 'sizes' is null, and a repeated field has no null; use an empty array"),
        ({"sizes": [1, None]}, "column 'sizes[]' has a null"),
        ({"lines": {"x": None}}, "column 'lines{}' has a null"),
        ({"kind": "LOST"}, "column 'kind' has 'LOST', which enum shop.v1.Kind does not have: NEW, DONE"),
        ({"card": "x"}, "columns 'card' and 'cash' both have a value, and oneof 'payment' holds only one"),
        ({"more": [{"price": None, "paid": True}]}, "column 'more[].price' is null"),
    ],
)
def test_rows_that_a_message_cannot_hold(changed, reason):
    values, reasons = encoded(of(), ROW, ROW | changed, ROW)
    assert [value is None for value in values] == [False, True, False]
    assert reasons[0].startswith(reason)
    with pytest.raises(InvalidRecord, match=re.escape(f"row 0 cannot be written as protobuf: {reason}")):
        of().encode(rows_to_batch([ROW | changed], of().schema)[0])


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("id int", r"column 'id' is int, but field 'id' of message 'shop.v1.Order' is string"),
        ("sizes bigint", r"'sizes' of message 'shop.v1.Order' is repeated sint64"),
        ("lines array<string>", r"is map<string, shop.v1.Order.Line>"),
        ("lines map<string, struct<price: string>>", r"column 'lines{}.price' is string, .* is float"),
        ("at timestamp_ntz", r"google.protobuf.Timestamp"),
    ],
)
def test_columns_that_cannot_hold_their_field(schema, said):
    with pytest.raises(InvalidInput, match=said):
        of(schema=schema)


@pytest.mark.parametrize(
    ("text", "name", "schema", "said"),
    [
        (ORDER, "shop.v1.Order", "id string, extra int", "message 'shop.v1.Order' has no field for column 'extra'"),
        (LEGACY, "Old", "name string", "field 'n' of message 'Old' is required, and there is no such column"),
        (ORDER, "shop.v1.Order.Line", "price double", "column 'price' is double, but field 'price'"),
    ],
)
def test_columns_that_cannot_be_written(text, name, schema, said):
    with pytest.raises(InvalidInput, match=said):
        of(text, name, schema).check_encodes()


def test_where_a_message_may_come_from(tmp_path):
    made = message()
    (tmp_path / "shop.desc").write_bytes(made.files)
    (tmp_path / "shop.proto").write_text(ORDER)
    (tmp_path / "uses.proto").write_text('import "shop.proto"; message Uses { optional shop.v1.Order order = 1; }')
    for given_as in (
        {"message": made.message_class},
        {"message": "Order", "descriptors": made.files},
        {"message": "shop.v1.Order", "descriptors": str(tmp_path / "shop.desc")},
        {"descriptors": tmp_path / "shop.proto"},
    ):
        one = codec("protobuf", **given_as)
        assert one.schema == Schema.of(COLUMNS)
        assert pickle.loads(pickle.dumps(one)) == one
        assert "desc" not in repr(one)
    nested = codec("protobuf", "order struct<id: string>", descriptors=tmp_path / "uses.proto")
    assert nested.decode([b"\x0a\x03\x0a\x01x"]).rows.to_pylist() == [{"order": {"id": "x"}}]
    assert codec("protobuf", message=timestamp_pb2.Timestamp).schema == Schema.of("seconds bigint, nanos int")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"message": "Order"}, "is not known"),
        ({"message": 5}, "not a message of Protobuf"),
        ({"message": wrappers_pb2.Int32Value, "descriptors": b"x"}, "has its own descriptors"),
        ({"descriptors": b"\xff"}, "not a descriptor set"),
        ({"descriptors": "nowhere.desc"}, "cannot be read"),
        ({"message": "Ordr", "descriptors": message().files}, "those that exist: shop.v1.Order, shop.v1.Order.Line"),
    ],
)
def test_messages_that_cannot_be_used(options, said):
    with pytest.raises(InvalidInput) as refused:
        codec("protobuf", "id string", **options)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("message A {", "line 1: the file ends too early"),
        ("\n\nmessage A { int32 x = ; }", "line 3: expected a number, found ';'"),
        ("message A { Nothing x = 1; }", "Nothing"),
        ('import "other.proto";', "imports other.proto, which cannot be found"),
        ('edition = "2023";', "editions are not supported"),
        ("message A " + "{ message A " * 60, "nested too deeply"),
        ("?", "is not expected here"),
        ("message A { optional int32 x = 99999999999; }", "out of range"),
    ],
)
def test_texts_that_are_no_proto_file(text, said):
    with pytest.raises(InvalidInput) as refused:
        built(files_of(text, "a.proto", lambda _: None))
    assert said in str(refused.value)


def test_many_empty_messages_are_not_parsed():
    value = b"\x6a\x00" * (CONTAINERS_MAX + 1)
    [failure] = of().decode([value]).failures
    assert failure.reason == "the record has more than 1,000,000 arrays and objects"
    inside = b"\x0a\x00" * 10
    assert of(schema="id string").decode([b"\x6a" + bytes([len(inside)]) + inside]).failures == []


def nulls_fit(value: Any, dtype: Any) -> bool:
    """Whether arrays and maps are complete, as Protobuf wants them."""
    kind = type(value)
    if hasattr(dtype, "key_type"):
        return value is not None and all(v is not None and nulls_fit(v, dtype.item_type) for v in value.values())
    if hasattr(dtype, "value_type"):
        return value is not None and all(v is not None and nulls_fit(v, dtype.value_type) for v in value)
    return kind is not dict or all(nulls_fit(value[field.name], field.type) for field in dtype)


@examples(60)
@given(data=st.data())
def test_exactly_the_rows_with_nulls_in_arrays_are_refused(data):
    schema, rows = data.draw(schema_and_rows(protobuf_schemas()))
    values, reasons = encoded(codec("protobuf", schema), *rows)
    fit = [all(nulls_fit(row[field.name], field.type) for field in schema.arrow) for row in rows]
    assert [value is not None for value in values] == fit
    assert len(reasons) == fit.count(False)


@examples(60)
@given(data=st.data())
def test_a_printed_file_is_parsed_to_the_same(data):
    made = codec("protobuf", data.draw(protobuf_schemas())).type
    files = descriptor_pb2.FileDescriptorSet.FromString(made.files).file
    again = files_of(proto_text(files[-1]), files[-1].name, lambda _: None)
    same = MessageType(built(again), made.name)
    assert same.descriptor.full_name == made.descriptor.full_name
    one, other = descriptor_pb2.DescriptorProto(), descriptor_pb2.DescriptorProto()
    made.descriptor.CopyToProto(one)
    same.descriptor.CopyToProto(other)
    assert sorted(map(str, one.field)) == sorted(map(str, other.field))
    assert (
        codec("protobuf", message=same.name, descriptors=same.files).schema
        == codec("protobuf", message=made.name, descriptors=made.files).schema
    )
