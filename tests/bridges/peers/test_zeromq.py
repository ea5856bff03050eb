"""ZeroMQ in both directions, between real sockets: pull and subscribe, gaps that are counted, ids, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

import millstream as ms
from millstream.bridges.arrivals import ID_HEADER
from millstream.bridges.peers.zeromq import ZmqAddress, ZmqBridge, ZmqSource
from millstream.connectors.refusals import Refusal
from millstream.errors import InvalidInput, InvalidPlan
from millstream.log import EmbeddedLog
from waiting import until

from ..support import records, values
from .peer_messages import bridging, rows, sink, stored


@contextmanager
def sending(kind: int, address: str, *, bind: bool = False) -> Iterator[zmq.Socket[Any]]:
    with zmq.Context() as context, ZmqAddress(address, bind).open(context, kind, LINGER=60_000) as made:
        yield made


def test_pulled_messages_become_records(trades: EmbeddedLog, address: str) -> None:
    source = ZmqSource(ZmqAddress(address, bind=True), "pull", bytes_max=10)
    with bridging(trades, ZmqBridge, source), sending(zmq.PUSH, address) as sender:
        sender.send_multipart([b"ann", b"ignored", b"1"])
        sender.send(b"2")
        sender.send(b"x" * 11)
        found = stored(trades, 2)
        until(lambda: "trades.dead" in trades.topics() and records(trades, "trades.dead"), "it is a dead letter")
    assert [(record.key, record.value) for record in found] == [(b"ann", b"1"), (None, b"2")]
    (letter,) = values(trades, "trades.dead")
    assert (letter["value"], letter["topic"]) == (b"x" * 10, f"zeromq {address}")


def test_gaps_and_repeated_ids_of_numbered_messages(trades: EmbeddedLog, address: str) -> None:
    source = ZmqSource(ZmqAddress(address, bind=True), "pull", numbered=True)
    with bridging(trades, ZmqBridge, source) as bridge, sending(zmq.PUSH, address) as sender:
        for who, number, id in [(b"s", 7, b"a"), (b"s", 10, b"b"), (b"t", 0, b"b"), (b"s", 9, b"c"), (b"s", 9, b"c")]:
            sender.send_multipart([b"EUR", who, number.to_bytes(8), id, id])
        sender.send_multipart([b"EUR", b"short"])
        sender.send_multipart([b"EUR", b"s", (11).to_bytes(8), b"d", b"d"])
        found = stored(trades, 4)
        assert bridge.missing == 1
    assert [(record.value, dict(record.headers)[ID_HEADER]) for record in found] == [
        (b"a", b"a"),
        (b"b", b"b"),
        (b"c", b"c"),
        (b"d", b"d"),
    ]
    assert "parts" in values(trades, "trades.dead")[0]["reason"]


def test_rows_without_a_usable_topic_are_refused(address: str, tmp_path: Path) -> None:
    refused: list[Refusal] = []
    with closing(sink(ms.zeromq(address, "{symbol}", kind="publish", bind=True), tmp_path)) as made:
        made.write(0, rows((None, 1), ("EUR", 2)), None, refused.extend)
    assert refused == [Refusal(0, "column 'symbol' cannot be part of a topic")]


@pytest.mark.parametrize(
    ("address", "bind"),
    [
        ("http://host", False),
        ("tcp://host", False),
        ("tcp://host:x", False),
        ("ipc://", False),
        ("tcp://0.0.0.0:1", True),
    ],
)
def test_what_is_not_an_address(address: str, bind: bool) -> None:
    with pytest.raises(InvalidInput):
        ms.zeromq(address, bind=bind)


def test_what_is_refused_when_the_flow_is_built() -> None:
    with pytest.raises(InvalidInput, match="kind"):
        ms.zeromq("tcp://host:1", kind="pull")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="wildcards"):
        ms.zeromq("tcp://host:1", "{}")
    with pytest.raises(InvalidPlan, match="none"):
        ms.Flow("f").read("trades", "symbol string").write(ms.zeromq("tcp://host:1", "{none}"))
