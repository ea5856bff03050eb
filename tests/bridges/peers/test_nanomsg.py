"""nanomsg in both directions, between real sockets: pull and subscribe, gaps that are counted, ids, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pynng
import pytest

import millstream as ms
from millstream.bridges.arrivals import ID_HEADER
from millstream.bridges.peers.nanomsg import NanomsgAddress, NanomsgBridge, NanomsgSource, packed, parts_of
from millstream.errors import InvalidInput
from millstream.log import EmbeddedLog
from waiting import until

from ..support import records, values
from .peer_messages import bridging, rows, sink, stored

PATIENCE_MS = 240_000


def test_pulled_messages_gaps_and_repeated_ids(trades: EmbeddedLog, address: str) -> None:
    source = NanomsgSource(NanomsgAddress(address, bind=True), "pull", numbered=True, bytes_max=100)
    with (
        bridging(trades, NanomsgBridge, source) as bridge,
        pynng.Push0(dial=address, send_timeout=PATIENCE_MS) as sender,
    ):
        for number, id in [(7, b"a"), (10, b"b"), (9, b"c"), (9, b"c"), (11, b"b")]:
            sender.send(packed([b"EUR", b"sender-1", number.to_bytes(8), id, id]))
        sender.send(b"EUR\0short")
        sender.send(packed([b"EUR", b"sender-1", (12).to_bytes(8), b"d", b"x" * 101]))
        until(lambda: "trades.dead" in trades.topics() and len(records(trades, "trades.dead")) == 2, "dead letters")
        assert bridge.missing == 1
    found = [(record.key, record.value, dict(record.headers)[ID_HEADER]) for record in stored(trades, 3)]
    assert found == [(b"EUR", b"a", b"a"), (b"EUR", b"b", b"b"), (b"EUR", b"c", b"c")]
    short, large = values(trades, "trades.dead")
    assert (short["value"], short["topic"]) == (b"EUR\0short", f"nanomsg {address}")
    assert large["value"] == b"x" * 100


@pytest.mark.parametrize(
    "message", [b"", b"topic", b"topic\0", b"topic\0" + b"x" * 16, b"topic\0" + b"x" * 16 + b"\x05abcd"]
)
def test_what_does_not_have_the_parts_stays_whole(message: bytes) -> None:
    assert parts_of(message) == [message]


def test_what_is_refused(tmp_path: Path) -> None:
    for given, bind in (("http://host", False), ("tcp://host", False), ("tcp://0.0.0.0:1", True)):
        with pytest.raises(InvalidInput, match="nanomsg"):
            ms.nanomsg(given, bind=bind)
    wrong: Any = "pull"
    with pytest.raises(InvalidInput, match="kind"):
        ms.nanomsg("tcp://host:1", kind=wrong)
    with pytest.raises(InvalidInput, match="cannot bind"):
        sink(ms.nanomsg(f"ipc://{tmp_path}/no/folder", bind=True), tmp_path).write(0, rows(("EUR", 1)), None)
