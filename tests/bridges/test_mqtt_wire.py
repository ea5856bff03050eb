"""Packets of MQTT are cut at any place, and none is lost or read twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.bridges.mqtt import wire
from properties import examples

PAIRS = st.lists(st.tuples(st.text(max_size=8), st.text(max_size=200)), max_size=3).map(tuple)
MESSAGES = st.lists(
    st.builds(
        wire.Published,
        st.text("abc/", min_size=1, max_size=20).map(str.encode),
        st.binary(max_size=300),
        st.one_of(st.none(), st.binary(min_size=2, max_size=2)),
        st.booleans(),
        st.booleans(),
        PAIRS,
    ).map(lambda each: each._replace(is_released=each.is_released and each.mid is not None)),
    max_size=6,
)


def packet(message: wire.Published, version: int) -> bytes:
    """As a broker sends it."""
    qos = 0 if message.mid is None else 2 if message.is_released else 1
    content = wire._text(message.topic.decode()) + (message.mid or b"")
    if version == 5:
        pairs = b"".join(b"\x26" + wire._text(name) + wire._text(value) for name, value in message.properties)
        pairs += b"\x01\x01\x0b\x81\x02"  # a payload format and a subscription id
        content += wire._length(len(pairs)) + pairs
    return wire._packet(wire.PUBLISH | qos << 1 | message.is_retained, content + message.payload)


@examples(200)
@given(MESSAGES, st.sampled_from([3, 5]), st.integers(1, 97))
def test_packets_are_cut_anywhere(messages: list[wire.Published], version: int, size: int) -> None:
    expected = messages if version == 5 else [each._replace(properties=()) for each in messages]
    stream = b"\xd0\x00".join(packet(each, version) for each in messages) + b"\xd0\x00"
    decoder = wire.Decoder(version)
    found: list[wire.Published] = []
    others = 0
    for start in range(0, len(stream), size):
        some, controls = decoder.feed(stream[start : start + size])
        found += some
        others += len(controls)
    assert found == expected
    assert others == max(len(messages), 1)


def test_acknowledgements_are_in_order_and_by_quality_of_service() -> None:
    one = wire.Published(b"t", b"", b"\x00\x01", False, False, ())
    two = one._replace(mid=b"\x00\x02", is_released=True)
    assert wire.acknowledgements([one, one._replace(mid=None), two]) == b"\x40\x02\x00\x01\x50\x02\x00\x02"


@pytest.mark.parametrize(
    "packet",
    [b"\x30\xff\xff\xff\xff\x01", b"\x30\x04\x00\x09ab", b"\x30\x06\x00\x01a\x02\x7f\x00", b"\x30\x05\x00\x01a\x05x"],
)
def test_what_is_no_packet(packet: bytes) -> None:
    with pytest.raises(wire.BrokenPacket):
        wire.Decoder(5).feed(packet)
