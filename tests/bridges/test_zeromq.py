"""ZeroMQ in both directions, between real sockets: pull and subscribe, gaps that are counted, ids, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zmq

import millstream as ms
from millstream.bridges import zeromq_sink
from millstream.bridges.arrivals import ID_HEADER
from millstream.bridges.landing import Landing
from millstream.bridges.zeromq import ZmqAddress, ZmqBridge, ZmqSource
from millstream.connectors.opening import open_sink
from millstream.connectors.refusals import Refusal
from millstream.errors import InvalidInput, InvalidPlan, SinkUnavailable
from millstream.log import EmbeddedLog
from millstream.records import Schema, rows_to_batch
from waiting import until

from .support import in_thread, records, values

TRADES = Schema.of("symbol string, price int")


@pytest.fixture
def trades(log: EmbeddedLog) -> EmbeddedLog:
    log.create_topic("trades")
    return log


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/feed"


@contextmanager
def bridging(log: EmbeddedLog, source: ZmqSource) -> Iterator[ZmqBridge]:
    with Landing(log, "zeromq", ["trades"]) as landing:
        made = ZmqBridge(source, landing, "trades")
        with in_thread(made):
            yield made


@contextmanager
def sending(kind: int, address: str, *, bind: bool = False) -> Iterator[zmq.Socket[Any]]:
    with zmq.Context() as context, ZmqAddress(address, bind).open(context, kind, LINGER=60_000) as made:
        yield made


def rows(*given: tuple[str | None, int]) -> pa.Table:
    batch, _ = rows_to_batch([{"symbol": symbol, "price": price} for symbol, price in given], TRADES)
    return pa.Table.from_batches([batch])


def sink(endpoint: Any, folder: Path) -> Any:
    return open_sink(endpoint, TRADES, job="j", step="out", broker=folder / "log", folder=folder / "job")


def stored(log: EmbeddedLog, count: int) -> list[Any]:
    until(lambda: len(records(log, "trades")) >= count, "the messages are stored")
    return records(log, "trades")


def test_pulled_messages_become_records(trades: EmbeddedLog, address: str) -> None:
    source = ZmqSource(ZmqAddress(address, bind=True), "pull", bytes_max=10)
    with bridging(trades, source), sending(zmq.PUSH, address) as sender:
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
    with bridging(trades, source) as bridge, sending(zmq.PUSH, address) as sender:
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


def test_from_a_publisher_to_a_subscriber(trades: EmbeddedLog, address: str, tmp_path: Path) -> None:
    """Method: until the subscription has arrived, what is published is lost; so the first batches may be."""
    endpoint = ms.zeromq(address, "trades.{symbol}", kind="publish", bind=True)
    source = ZmqSource(ZmqAddress(address), "subscribe", ["trades.E"], numbered=True)
    with bridging(trades, source) as bridge, closing(sink(endpoint, tmp_path)) as made:
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


def test_a_repeated_batch_has_the_same_ids(trades: EmbeddedLog, address: str, tmp_path: Path) -> None:
    endpoint = ms.zeromq(address)
    with bridging(trades, ZmqSource(ZmqAddress(address, bind=True), "pull", numbered=True)):
        for _ in range(2):
            with closing(sink(endpoint, tmp_path)) as made:
                made._sink._ledger.has = lambda batch: False  # as if it had been killed before it was recorded
                made._sink.write(0, rows(("EUR", 1), ("EUR", 1), ("USD", 2)), None)
        stored(trades, 3)
        with closing(sink(endpoint, tmp_path)) as made:
            made.write(1, rows(("EUR", 4)), None)
        assert [record.value[-2:-1] for record in stored(trades, 4)] == [b"1", b"1", b"2", b"4"]


def test_without_a_receiver(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zeromq_sink, "SEND_MS", 10)
    monkeypatch.setattr(zeromq_sink, "LINGER_MS", 0)
    made = sink(ms.zeromq(address, bind=True), tmp_path)
    with pytest.raises(SinkUnavailable, match="no receiver"):
        made.write(0, rows(("EUR", 1)), None)
    made.close()


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
