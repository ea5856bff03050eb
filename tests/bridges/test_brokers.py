"""AMQP 1.0 and STOMP into a topic and out of it, with a real Artemis: transactions, selectors, subscriptions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millstream as ms
from artemis_server import PASSWORD, USER, ArtemisServer
from folders import in_memory
from millstream.bridges.brokers.answered_sink import Outgoing
from millstream.bridges.brokers.failures import ConnectionLost, Declined
from millstream.bridges.landing import Landing
from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.opening import open_sink
from millstream.errors import InvalidInput, InvalidPlan, SinkFailed, SinkUnavailable, SourceUnavailable
from millstream.log import EmbeddedLog
from millstream.records import Schema
from waiting import until

from .broker_clients import PROTOCOLS, STOMP, Protocol, Sent, send, taken
from .support import in_thread, records
from .test_webhook import certified

NUMBERS = count()
SCHEMA = Schema.of("name string, n int")
EACH = pytest.mark.parametrize("protocol", PROTOCOLS, ids=[each.name for each in PROTOCOLS])


@pytest.fixture(scope="module")
def artemis() -> Iterator[ArtemisServer]:
    with in_memory() as folder, closing(ArtemisServer(certified(folder))) as made:
        yield made


@pytest.fixture
def queue() -> str:
    return f"orders{next(NUMBERS)}"


@contextmanager
def bridging(
    log: EmbeddedLog, artemis: ArtemisServer, protocol: Protocol, at: str, **settings: Any
) -> Iterator[Landing]:
    with Landing(log, "under-test", ["orders"]) as landing:
        made = protocol.bridge(protocol.broker(artemis.port), landing, "orders", at, **settings)
        with in_thread(made):
            yield landing


def stored(log: EmbeddedLog, count: int) -> list[str]:
    until(lambda: len(records(log, "orders")) >= count, "the messages are stored")
    return [record.value.decode() for record in records(log, "orders")]


# ---------------------------------------------------------------- without a broker


@EACH
def test_addresses_and_columns_are_checked(protocol: Protocol) -> None:
    for address in ("http://127.0.0.1", f"{protocol.scheme}://", f"{protocol.scheme}://user:secret@127.0.0.1"):
        with pytest.raises(InvalidInput, match="not the address of a broker") as raised:
            protocol.kind(address)
        assert "secret" not in str(raised.value)
    with pytest.raises(InvalidInput, match="TLS only"):
        protocol.kind(f"{protocol.scheme}://127.0.0.1", ca_file="ca.pem")
    orders = ms.Flow("orders").read("orders", "region string, n int")
    address = f"{protocol.scheme}://127.0.0.1"
    for settings in ({"payload": "n"}, {"payload": "place"}, {"properties": ["place"]}):
        with pytest.raises(InvalidPlan):
            orders.write(protocol.sink(address, "orders", **settings))
    with pytest.raises(InvalidPlan, match="no column 'place'"):
        orders.write(protocol.sink(address, "orders.{place}"))
    assert "a-password" not in repr(protocol.sink(address, "orders", password="a-password"))


# ---------------------------------------------------------------- in


@pytest.mark.more
@EACH
def test_messages_that_fit_a_selector_are_stored_once(
    orders: EmbeddedLog, artemis: ArtemisServer, queue: str, protocol: Protocol
) -> None:
    north, south = Sent(b"1", "a", {"region": "north"}), Sent(b"2", "b", {"region": "south"})
    with bridging(orders, artemis, protocol, protocol.queue.format(queue), selector="region = 'north'") as landing:
        send(artemis, f"/queue/{queue}", [north, south, north])
        until(lambda: landing.counts.duplicates, "the duplicate was recognized")
        assert stored(orders, 1) == ["1"]
    assert dict(records(orders, "orders")[0].headers)["region"] == b"north"
    assert [each.value for each in taken(artemis, queue)] == [b"2"]


@pytest.mark.more
@EACH
def test_a_subscription_keeps_what_comes_while_the_bridge_is_away(
    orders: EmbeddedLog, artemis: ArtemisServer, queue: str, protocol: Protocol
) -> None:
    at = protocol.topic.format(queue)
    with bridging(orders, artemis, protocol, at, subscription=f"bridge-{queue}"):
        send(artemis, f"/topic/{queue}", [Sent(b"1")])
        stored(orders, 1)
    send(artemis, f"/topic/{queue}", [Sent(b"2")])
    with bridging(orders, artemis, protocol, at, subscription=f"bridge-{queue}"):
        assert stored(orders, 2) == ["1", "2"]


@pytest.mark.more
@EACH
def test_what_the_disk_does_not_take_stays_in_the_queue(
    orders: EmbeddedLog, artemis: ArtemisServer, queue: str, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is acknowledged before it is stored: what waits for the disk is delivered to another consumer."""
    may_store, land = threading.Event(), Landing.land

    def slowly(self: Landing, arrivals: Any) -> Any:
        may_store.wait()
        return land(self, arrivals)

    monkeypatch.setattr(Landing, "land", slowly)
    send(artemis, f"/queue/{queue}", [Sent(str(number).encode(), str(number)) for number in range(20)])
    with Landing(orders, "under-test", ["orders"]) as landing:
        bridge = protocol.bridge(protocol.broker(artemis.port), landing, "orders", protocol.queue.format(queue))
        with in_thread(bridge):
            bridge.stop()  # it has received, and is told to end while it stores
            may_store.set()
    with bridging(orders, artemis, protocol, protocol.queue.format(queue)):
        assert sorted(map(int, stored(orders, 20))) == list(range(20))


@pytest.mark.more
@EACH
def test_a_broker_that_rejects_the_user_or_the_selector(
    orders: EmbeddedLog, artemis: ArtemisServer, queue: str, protocol: Protocol
) -> None:
    at = protocol.queue.format(queue)
    with Landing(orders, "under-test", ["orders"]) as landing:
        with pytest.raises(SourceUnavailable, match=r"(?i)user") as raised:
            protocol.bridge(protocol.broker(artemis.port, "not-the-password"), landing, "orders", at).run()
        assert "not-the-password" not in str(raised.value)
        with pytest.raises(SourceUnavailable, match=r"(?i)filter|selector|subscription"):
            protocol.bridge(protocol.broker(artemis.port), landing, "orders", at, selector="n = '").run()


@pytest.mark.more
@EACH
def test_a_text_that_is_too_large_is_a_dead_letter(
    orders: EmbeddedLog, artemis: ArtemisServer, queue: str, tmp_path: Path, protocol: Protocol
) -> None:
    """Not a record with a part of it, or with nothing."""
    assert write(STOMP, artemis, queue, tmp_path, ["x" * (2 << 20), "small"]) == []
    with bridging(orders, artemis, protocol, protocol.queue.format(queue)) as landing:
        until(lambda: landing.counts.total == 2, "both are received")
        assert (landing.counts.stored, landing.counts.dead) == (1, 1)
        assert stored(orders, 1) == ['{"name":"small","n":1}']


# ---------------------------------------------------------------- out


def write(
    protocol: Protocol,
    artemis: ArtemisServer,
    to: str,
    folder: Path,
    names: list[str],
    *,
    backwards: bool = False,
    **settings: Any,
) -> list[str]:
    """The reasons of rows that were refused."""
    rows = pa.Table.from_arrays([pa.array(names), pa.array(range(len(names)), pa.int32())], schema=SCHEMA.arrow)
    if backwards:
        rows = rows.take(pa.array(range(len(names))[::-1]))
    reasons: list[str] = []
    where = {"job": "job", "step": "out", "broker": folder / "log", "folder": folder / "job"}
    address = f"{protocol.scheme}://{USER}@127.0.0.1:{artemis.port}"
    connector = protocol.sink(address, protocol.queue.format(to), password=PASSWORD, **settings)
    with closing(open_sink(connector, SCHEMA, **where)) as sink:
        sink.write(0, rows, None, lambda found: reasons.extend(each.reason for each in found))
    return reasons


@pytest.mark.more
@EACH
def test_rows_are_messages_in_order_and_can_be_selected(
    artemis: ArtemisServer, queue: str, tmp_path: Path, protocol: Protocol
) -> None:
    names = [f"row-{n}" for n in range(2500)]
    write(protocol, artemis, queue, tmp_path, names, payload="name", properties=["n"])
    [selected] = taken(artemis, queue, "n = '7'")
    assert (selected.value, dict(selected.headers)["n"]) == (b"row-7", b"7")
    found = taken(artemis, queue)
    assert [each.value.decode() for each in found] == names[:7] + names[8:]
    assert len({dict(each.headers)["millstream-id"] for each in found}) == 2499


@pytest.mark.more
@EACH
def test_rows_larger_than_a_frame_stand_between_others(
    artemis: ArtemisServer, queue: str, tmp_path: Path, protocol: Protocol
) -> None:
    names = ["a", "x" * 300_000, "b", "y" * 2_000_000, "c"]
    assert write(protocol, artemis, queue, tmp_path, names, payload="name") == []
    assert [each.value.decode() for each in taken(artemis, queue)] == names


@pytest.mark.more
@EACH
def test_a_batch_that_is_sent_again_is_there_once(
    artemis: ArtemisServer, queue: str, tmp_path: Path, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill between the broker's commit and the record of the batch; its rows may come in another order."""

    def killed(self: FileLedger, batch: int) -> None:
        raise KeyboardInterrupt

    names = [f"row-{n}" for n in range(20)]
    with monkeypatch.context() as patched:
        patched.setattr(FileLedger, "record", killed)
        with pytest.raises(KeyboardInterrupt):
            write(protocol, artemis, queue, tmp_path, names)
    write(protocol, artemis, queue, tmp_path, names, backwards=True)
    assert len(taken(artemis, queue)) == 20


@pytest.mark.more
@EACH
def test_a_transaction_is_there_as_a_whole_or_not_at_all(
    artemis: ArtemisServer, queue: str, protocol: Protocol
) -> None:
    to = protocol.queue.format(queue)
    address = f"{protocol.scheme}://{USER}@127.0.0.1:{artemis.port}"
    messages = [Outgoing(n, f"{queue}-{n}", to, b"%d" % n) for n in range(10)]
    with closing(protocol.sink(address, to, password=PASSWORD).connect()) as sender:
        sender.send_together(messages[4:5])
        with pytest.raises(Declined):
            sender.send_together(messages)  # the broker has one of them
    assert [each.value for each in taken(artemis, queue)] == [b"4"]


@pytest.mark.more
@EACH
def test_a_queue_that_is_full_or_not_ours(artemis: ArtemisServer, tmp_path: Path, protocol: Protocol) -> None:
    with pytest.raises(SinkUnavailable):
        write(protocol, artemis, f"small.{protocol.name}", tmp_path / "full", [f"row-{n}" for n in range(50)])
    with pytest.raises(SinkFailed, match="permission"):
        write(protocol, artemis, f"closed.{protocol.name}", tmp_path / "closed", ["row"])


@pytest.mark.more
@EACH
def test_a_row_that_cannot_name_a_queue_is_rejected(
    artemis: ArtemisServer, queue: str, tmp_path: Path, protocol: Protocol
) -> None:
    reasons = write(protocol, artemis, f"{queue}.{{name}}", tmp_path, ["a", "*", "b"])
    assert reasons == ["column 'name' cannot be part of a topic"]
    assert [each.value for name in "ab" for each in taken(artemis, f"{queue}.{name}")] == [
        b'{"name":"a","n":0}',
        b'{"name":"b","n":2}',
    ]


@pytest.mark.more
@EACH
@pytest.mark.parametrize("size", [600_000, 3_000_000])
def test_a_row_with_properties_that_are_too_long_is_rejected(
    artemis: ArtemisServer, queue: str, tmp_path: Path, protocol: Protocol, size: int
) -> None:
    names = ["a", "x" * size, "b"]
    [reason] = write(protocol, artemis, queue, tmp_path, names, payload="name", properties=["name"])
    assert "longer than 200,000" in reason or "bigger than" in reason
    assert [each.value for each in taken(artemis, queue)] == [b"a", b"b"]


@pytest.mark.more
@EACH
def test_over_tls(artemis: ArtemisServer, queue: str, protocol: Protocol) -> None:
    address, to = f"{protocol.scheme}s://{USER}@127.0.0.1:{artemis.tls_port}", protocol.queue.format(queue)
    message = Outgoing(0, queue, to, b"secret")
    with pytest.raises(ConnectionLost, match="certificate"):
        protocol.sink(address, to, password=PASSWORD).connect()
    trusting = protocol.sink(address, to, password=PASSWORD, ca_file=str(artemis.certificate))
    with closing(trusting.connect()) as sender:
        sender.send(message)
    assert [each.value for each in taken(artemis, queue)] == [b"secret"]


@pytest.mark.more
def test_programs_with_jms_understand_us_and_we_them(
    orders: EmbeddedLog, artemis: ArtemisServer, queue: str, tmp_path: Path
) -> None:
    """The client is that of Apache Qpid, not ours."""
    at = ("--destination", f"queue://{queue}", "--message-count", "3")
    artemis.run_client(
        "producer", *at, "--message", "café", "--properties", '[{"type":"string","key":"id","value":"7"}]'
    )
    with bridging(orders, artemis, PROTOCOLS[0], queue) as landing:
        until(lambda: landing.counts.duplicates == 2, "all are received")
        assert stored(orders, 1) == ["café"]
    write(PROTOCOLS[0], artemis, queue, tmp_path / "amqp1", ["a", "b"], properties=["n"])
    write(PROTOCOLS[1], artemis, queue, tmp_path / "stomp", ["c"])
    printed = artemis.run_client("consumer", *at, "--verbose")
    for text in ('{"name":"a","n":0}', '{"name":"b","n":1}', '{"name":"c","n":0}'):
        assert text in printed, printed
