"""ZeroMQ and nanomsg from a sink to a bridge: topics, ids of a repeated batch, a receiver that is missing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import millstream as ms
from millstream.bridges.peers import nanomsg_sink, zeromq_sink
from millstream.bridges.peers.messages import PeerSource
from millstream.bridges.peers.nanomsg import NanomsgAddress, NanomsgBridge
from millstream.bridges.peers.zeromq import ZmqAddress, ZmqBridge
from millstream.errors import SinkUnavailable
from millstream.log import EmbeddedLog
from waiting import until

from ..support import records
from .peer_messages import bridging, rows, sink, stored


class Protocol(NamedTuple):
    endpoint: Callable[..., Any]
    bridge: Any
    address: Any
    sink: ModuleType


PROTOCOLS = [
    Protocol(ms.zeromq, ZmqBridge, ZmqAddress, zeromq_sink),
    Protocol(ms.nanomsg, NanomsgBridge, NanomsgAddress, nanomsg_sink),
]


@pytest.fixture(params=PROTOCOLS, ids=["zeromq", "nanomsg"])
def protocol(request: pytest.FixtureRequest) -> Protocol:
    made: Protocol = request.param
    return made


def test_from_a_publisher_to_a_subscriber(
    protocol: Protocol, trades: EmbeddedLog, address: str, tmp_path: Path
) -> None:
    """Method: until the subscription has arrived, what is published is lost; so the first batches may be."""
    endpoint = protocol.endpoint(address, "trades.{symbol}", kind="publish", bind=True)
    source = PeerSource(protocol.address(address), "subscribe", ["trades.E"], numbered=True)
    with bridging(trades, protocol.bridge, source) as bridge, closing(sink(endpoint, tmp_path)) as made:
        batches = iter(range(10_000))

        def is_published() -> bool:
            made.write(next(batches), rows(("EUR", 1)), None)
            return bool(records(trades, "trades"))

        until(is_published, "the subscription has arrived")
        before = len(records(trades, "trades"))
        made.write(next(batches), rows(("USD", 2), ("EUR", 3)), None)
        found = stored(trades, before + 1)
        until(lambda: records(trades, "trades")[-1].value == b'{"symbol":"EUR","price":3}', "the last one is stored")
        assert bridge.missing == 0
    assert {record.key for record in found} == {b"trades.EUR"}


def test_a_repeated_batch_has_the_same_ids(
    protocol: Protocol, trades: EmbeddedLog, address: str, tmp_path: Path
) -> None:
    endpoint = protocol.endpoint(address)
    with bridging(trades, protocol.bridge, PeerSource(protocol.address(address, bind=True), "pull", numbered=True)):
        for _ in range(2):
            with closing(sink(endpoint, tmp_path)) as made:
                made._sink._ledger.has = lambda batch: False  # as if it had been killed before it was recorded
                made._sink.write(0, rows(("EUR", 1), ("EUR", 1), ("USD", 2)), None)
        stored(trades, 3)
        with closing(sink(endpoint, tmp_path)) as made:
            made.write(1, rows(("EUR", 4)), None)
        assert [record.value[-2:-1] for record in stored(trades, 4)] == [b"1", b"1", b"2", b"4"]


def test_without_a_receiver(protocol: Protocol, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol.sink, "SEND_MS", 10)
    if protocol.sink is zeromq_sink:
        monkeypatch.setattr(zeromq_sink, "LINGER_MS", 0)
    made = sink(protocol.endpoint(address, bind=True), tmp_path)
    with pytest.raises(SinkUnavailable, match="no receiver"):
        made.write(0, rows(("EUR", 1)), None)
    made.close()
