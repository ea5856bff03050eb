"""nanomsg in both directions, between real sockets: pull and subscribe, gaps that are counted, ids, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pynng
import pytest

import millstream as ms
from millstream.bridges import nanomsg_sink
from millstream.bridges.arrivals import ID_HEADER
from millstream.bridges.landing import Landing
from millstream.bridges.nanomsg import NanomsgAddress, NanomsgBridge, NanomsgSource, packed, parts_of
from millstream.errors import InvalidInput, SinkUnavailable
from millstream.log import EmbeddedLog
from waiting import until

from .support import in_thread, records, values
from .test_zeromq import rows, sink, stored

PATIENCE_MS = 240_000


@pytest.fixture
def trades(log: EmbeddedLog) -> EmbeddedLog:
    log.create_topic("trades")
    return log


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/feed"


@contextmanager
def bridging(log: EmbeddedLog, source: NanomsgSource) -> Iterator[NanomsgBridge]:
    with Landing(log, "nanomsg", ["trades"]) as landing:
        made = NanomsgBridge(source, landing, "trades")
        with in_thread(made):
            yield made


def test_pulled_messages_gaps_and_repeated_ids(trades: EmbeddedLog, address: str) -> None:
    source = NanomsgSource(NanomsgAddress(address, bind=True), "pull", numbered=True, bytes_max=100)
    with bridging(trades, source) as bridge, pynng.Push0(dial=address, send_timeout=PATIENCE_MS) as sender:
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


def test_from_a_publisher_to_a_subscriber(trades: EmbeddedLog, address: str, tmp_path: Path) -> None:
    """Method: until the subscription has arrived, what is published is lost; so the first batches may be."""
    endpoint = ms.nanomsg(address, "trades.{symbol}", kind="publish", bind=True)
    source = NanomsgSource(NanomsgAddress(address), "subscribe", ["trades.E"], numbered=True)
    with bridging(trades, source) as bridge, closing(sink(endpoint, tmp_path)) as made:
        batches = iter(range(10_000))

        def is_published() -> bool:
            made.write(next(batches), rows(("EUR", 1)), None)
            return bool(records(trades, "trades"))

        until(is_published, "the subscription has arrived")
        made.write(next(batches), rows(("USD", 2), ("EUR", 3)), None)
        until(lambda: records(trades, "trades")[-1].value == b'{"symbol":"EUR","price":3}', "the last one is stored")
        assert bridge.missing == 0
    assert {record.key for record in records(trades, "trades")} == {b"trades.EUR"}


def test_a_repeated_batch_is_stored_once_and_close_sends_what_is_left(
    trades: EmbeddedLog, address: str, tmp_path: Path
) -> None:
    endpoint = ms.nanomsg(address)
    with bridging(trades, NanomsgSource(NanomsgAddress(address, bind=True), "pull", numbered=True)):
        for _ in range(2):
            with closing(sink(endpoint, tmp_path)) as made:
                made._sink._ledger.has = lambda batch: False  # as if it had been killed before it was recorded
                made._sink.write(0, rows(("EUR", 1), ("EUR", 1), ("USD", 2)), None)
        stored(trades, 3)
        with closing(sink(endpoint, tmp_path)) as made:
            made.write(1, rows(("EUR", 4)), None)
        assert [record.value[-2:-1] for record in stored(trades, 4)] == [b"1", b"1", b"2", b"4"]


def test_without_a_receiver(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nanomsg_sink, "SEND_MS", 10)
    with (
        closing(sink(ms.nanomsg(address, bind=True), tmp_path)) as made,
        pytest.raises(SinkUnavailable, match="no r"),
    ):
        made.write(0, rows(("EUR", 1)), None)


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
