"""What AMQP 1.0 and STOMP look like on the wire: cut anywhere, too large, broken, and any value back again."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.bridges.amqp1 import wire as amqp1_wire
from millstream.bridges.amqp1.message import VALUE, Amqp1Message, decoded
from millstream.bridges.amqp1.types import BrokenValue, Described, Reader, Symbol, UByte, UInt, ULong, UShort, encoded
from millstream.bridges.stomp import wire as stomp_wire
from properties import examples

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(0, (1 << 32) - 1).map(UInt),
    st.integers(0, (1 << 64) - 1).map(ULong),
    st.integers(0, 255).map(UByte),
    st.integers(0, 65_535).map(UShort),
    st.text(st.characters(exclude_categories=("Cs",))),
    st.binary(max_size=300),
    st.text("abc:-", max_size=300).map(Symbol),
)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.lists(inner), st.dictionaries(st.text("abc"), inner), st.builds(Described, LEAVES, inner))


VALUES = st.recursive(LEAVES, _nested, max_leaves=20)


@given(VALUES)
@examples(300)
def test_any_value_comes_back(value: Any) -> None:
    reader = Reader(encoded(value))
    assert reader.value() == value
    assert not reader.has_more


@given(st.binary(max_size=60))
@examples(300)
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    try:
        Reader(data).value()
    except BrokenValue:
        return


@pytest.mark.parametrize(
    ("data", "value"),
    [
        ("45", []),
        ("56 01", True),
        ("54 ff", -1),
        ("82 3ff8000000000000", 1.5),
        ("98 00112233445566778899aabbccddeeff", uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")),
        ("e0 05 02 a3 01 61 01 62", [Symbol("a"), Symbol("b")]),
        ("c1 05 02 a1 01 61 40", {"a": None}),
    ],
)
def test_what_others_write(data: str, value: Any) -> None:
    """Encodings of the standard that are never written here."""
    assert Reader(bytes.fromhex(data)).value() == value


@given(st.binary(max_size=700), st.integers(0, 500), st.integers(1, 40))
@examples(100)
def test_a_message_that_is_cut_keeps_the_beginning_of_its_body(body: bytes, kept: int, step: int) -> None:
    message = Amqp1Message(body, {"message-id": "a", "content-type": "text/plain"}, {"region": "north"})
    whole = message.encoded()
    assert decoded(whole) == message
    sections = len(whole) - len(body)
    found = decoded(whole[: sections + kept], is_cut=True)
    assert (found.body, found.application) == (body[:kept], message.application)
    decoder, frames = amqp1_wire.Decoder(), amqp1_wire.HEADER + amqp1_wire.BEAT
    frames += amqp1_wire.frame(amqp1_wire.TRANSFER, [UInt(1), UInt(2)], whole)
    parts = [frames[at : at + step] for at in range(0, len(frames), step)]
    [transfer] = [each for part in parts for each in decoder.feed(part)]
    assert (transfer.code, transfer.field(1), transfer.field(5, False)) == (amqp1_wire.TRANSFER, 2, False)
    assert transfer.payload == whole


@pytest.mark.parametrize("size", [1, 255, 256, 3000])
def test_a_text_that_is_cut_keeps_its_beginning(size: int) -> None:
    """As programs with JMS send it."""
    whole = encoded(Described(ULong(VALUE), "x" * size))
    assert decoded(whole[:-1], is_cut=True).body == b"x" * (size - 1)
    assert decoded(whole[:2], is_cut=True).body == b""


@given(
    st.dictionaries(st.text("ab:\\\n\r", min_size=1), st.text("ab:\\\n\r"), max_size=3),
    st.binary(max_size=300),
    st.booleans(),
    st.integers(1, 40),
)
@examples(200)
def test_frames_of_stomp_come_back_from_parts_of_any_size(
    headers: dict[str, str], body: bytes, is_text: bool, step: int
) -> None:
    if is_text:
        body = body.replace(b"\0", b"")
    else:
        headers = {**headers, "content-length": str(len(body))}
    data = stomp_wire.BEAT + stomp_wire.encoded("MESSAGE", headers, body) + b"\n\n"
    decoder = stomp_wire.Decoder(1000)
    found = [each for at in range(0, len(data), step) for each in decoder.feed(data[at : at + step])]
    assert found == [stomp_wire.Frame("MESSAGE", headers, body)]


@pytest.mark.parametrize("headers", [{}, {"content-length": "5000"}])
def test_a_frame_of_stomp_that_is_too_large_is_cut_and_the_next_one_is_read(headers: dict[str, str]) -> None:
    decoder = stomp_wire.Decoder(10)
    data = stomp_wire.encoded("MESSAGE", headers, b"x" * 5000) + stomp_wire.encoded("RECEIPT", {})
    large, following = decoder.feed(data)
    assert (large.body, following.command) == (b"x" * 11, "RECEIPT")


@pytest.mark.parametrize("data", [b"MESSAGE\nno-value\n\n\0", b"MESSAGE\na:\\x\n\n\0", b"A\ncontent-length:x\n\n\0"])
def test_what_is_not_stomp_is_refused(data: bytes) -> None:
    with pytest.raises(stomp_wire.BrokenFrame):
        stomp_wire.Decoder(10).feed(data)
