"""AMQP into a topic and out of it, with a real RabbitMQ: acknowledged when stored, prefetch, bindings, confirms."""

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
from folders import in_memory
from millstream.bridges.amqp import bridge as amqp
from millstream.bridges.amqp.bridge import AmqpBridge, AmqpSource
from millstream.bridges.amqp.client import AmqpBroker
from millstream.bridges.amqp.sink import NO_QUEUE
from millstream.bridges.landing import Landing
from millstream.connectors.opening import open_sink
from millstream.errors import InvalidInput, InvalidPlan, MillstreamError, SinkFailed, SourceUnavailable
from millstream.log import EmbeddedLog
from millstream.records import Schema
from millstream.secrets import Secret
from rabbitmq_server import RabbitMq
from waiting import until

from .amqp_clients import channel_of, publish, taken, waiting_count
from .support import in_thread, records

NUMBERS = count()
SCHEMA = Schema.of("name string, n int")


@pytest.fixture(scope="module")
def rabbit() -> Iterator[RabbitMq]:
    with in_memory() as folder, closing(RabbitMq(folder)) as made:
        yield made


@pytest.fixture
def queue() -> str:
    return f"orders-{next(NUMBERS)}"


@contextmanager
def bridging(log: EmbeddedLog, rabbit: RabbitMq, queue: str, **settings: Any) -> Iterator[Landing]:
    with Landing(log, "amqp", ["orders"]) as landing:
        made = AmqpBridge(AmqpSource(AmqpBroker(rabbit.address), queue, **settings), landing, "orders")
        with in_thread(made):
            yield landing


def stored(log: EmbeddedLog, count: int) -> list[str]:
    until(lambda: len(records(log, "orders")) >= count, "the messages are stored")
    return [record.value.decode() for record in records(log, "orders")]


# ---------------------------------------------------------------- without a broker


@pytest.mark.parametrize("address", ["http://127.0.0.1", "amqp://", "amqp://user:secret@127.0.0.1"])
def test_an_address_without_a_password(address: str) -> None:
    with pytest.raises(InvalidInput, match="not the address of an AMQP broker") as raised:
        AmqpBroker(address)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "settings",
    [{"queue": ""}, {"exchange": "shop"}, {"bindings": ["#"]}, {"prefetch": 0}, {"exchange_kind": "magic"}],
)
def test_settings_that_cannot_work(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        AmqpSource(AmqpBroker("amqp://127.0.0.1"), **{"queue": "orders", **settings})


def test_the_columns_of_a_sink_are_checked() -> None:
    orders = ms.Flow("orders").read("orders", "region string, n int")
    with pytest.raises(InvalidPlan, match="no column 'place'"):
        orders.write(ms.amqp("amqp://127.0.0.1", "orders.{place}"))
    with pytest.raises(InvalidPlan, match="neither text nor bytes"):
        orders.write(ms.amqp("amqp://127.0.0.1", "orders.{region}", payload="n"))


# ---------------------------------------------------------------- in


@pytest.mark.more
def test_messages_become_records_and_leave_the_queue(orders: EmbeddedLog, rabbit: RabbitMq, queue: str) -> None:
    with bridging(orders, rabbit, queue, prefetch=10):
        publish(rabbit, queue, [str(number).encode() for number in range(100)], region="north")
        assert stored(orders, 100) == [str(number) for number in range(100)]
    record = records(orders, "orders")[0]
    assert (record.key, dict(record.headers)["region"]) == (queue.encode(), b"north")
    assert waiting_count(rabbit, queue) == 0


@pytest.mark.more
def test_only_what_is_bound_arrives(orders: EmbeddedLog, rabbit: RabbitMq, queue: str) -> None:
    exchange = f"{queue}-exchange"
    with bridging(orders, rabbit, queue, exchange=exchange, bindings=["orders.#", "refunds.*"]):
        for key in ("orders.north.1", "clicks.1", "refunds.1", "refunds.north.1"):
            publish(rabbit, key, [key.encode()], exchange=exchange)
        publish(rabbit, "orders.last", [b"last"], exchange=exchange)
        assert stored(orders, 3) == ["orders.north.1", "refunds.1", "last"]


@pytest.mark.more
def test_a_queue_that_exists_is_used_as_it_is(orders: EmbeddedLog, rabbit: RabbitMq, queue: str) -> None:
    with channel_of(rabbit) as channel:
        channel.queue_declare(queue, durable=True, arguments={"x-max-length": 5})
    publish(rabbit, queue, [b"1"])
    with bridging(orders, rabbit, queue):
        assert stored(orders, 1) == ["1"]


@pytest.mark.more
def test_no_more_than_the_prefetch_is_taken_while_the_disk_is_slow(
    orders: EmbeddedLog, rabbit: RabbitMq, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_store, land = threading.Event(), Landing.land

    def slowly(self: Landing, arrivals: Any) -> Any:
        may_store.wait()
        return land(self, arrivals)

    monkeypatch.setattr(Landing, "land", slowly)
    monkeypatch.setattr(amqp, "COUNT_SECONDS", 0.0)
    with Landing(orders, "amqp", ["orders"]) as landing:
        bridge = AmqpBridge(AmqpSource(AmqpBroker(rabbit.address), queue, prefetch=7), landing, "orders")
        with in_thread(bridge):
            publish(rabbit, queue, [b"x"] * 50)
            until(lambda: waiting_count(rabbit, queue) == 43, "the broker keeps the rest")
            until(lambda: bridge.behind() == (43, "messages"), "the bridge knows what waits")
            may_store.set()
            stored(orders, 50)


@pytest.mark.more
def test_what_is_not_stored_is_delivered_again(
    orders: EmbeddedLog, rabbit: RabbitMq, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = MillstreamError("the disk is on fire")
    with monkeypatch.context() as patched:
        patched.setattr(Landing, "land", lambda self, arrivals: [error] * len(arrivals))
        with Landing(orders, "amqp", ["orders"]) as landing:
            bridge = AmqpBridge(AmqpSource(AmqpBroker(rabbit.address), queue), landing, "orders")
            bridge.on_ready = lambda: publish(rabbit, queue, [b"1", b"2"])
            with pytest.raises(MillstreamError, match="fire"):
                bridge.run()
    with bridging(orders, rabbit, queue):
        assert stored(orders, 2) == ["1", "2"]


@pytest.mark.more
@pytest.mark.parametrize("id_property", ["message-id", "order"])
def test_an_id_is_stored_once(orders: EmbeddedLog, rabbit: RabbitMq, queue: str, id_property: str) -> None:
    with bridging(orders, rabbit, queue, id_property=id_property) as landing:
        for id in ("a", "b", "a"):
            publish(rabbit, queue, [id.encode()], ids=[id], order=id)
        until(lambda: landing.counts.duplicates, "the duplicate was recognized")
        assert stored(orders, 2) == ["a", "b"]


@pytest.mark.more
def test_a_broker_that_is_killed(orders: EmbeddedLog, rabbit: RabbitMq, queue: str) -> None:
    """What it had confirmed before is delivered after it, and the bridge connects again."""
    with bridging(orders, rabbit, queue, id_property="message-id"):
        publish(rabbit, queue, [b"1", b"2"], ids=["1", "2"])
        stored(orders, 2)
        rabbit.kill()
        rabbit.start()
        publish(rabbit, queue, [b"3"], ids=["3"])
        assert stored(orders, 3) == ["1", "2", "3"]


@pytest.mark.more
def test_a_broker_that_rejects_the_user(orders: EmbeddedLog, rabbit: RabbitMq, queue: str) -> None:
    with Landing(orders, "amqp", ["orders"]) as landing:
        broker = AmqpBroker(rabbit.address, Secret("not-the-password"))
        with pytest.raises(SourceUnavailable, match="rejects the bridge") as raised:
            AmqpBridge(AmqpSource(broker, queue), landing, "orders").run()
    assert "not-the-password" not in str(raised.value)


# ---------------------------------------------------------------- out


def write(connector: Any, folder: Path, names: list[str], refused: list[str] | None = None) -> None:
    rows = pa.Table.from_arrays([pa.array(names), pa.array(range(len(names)), pa.int32())], schema=SCHEMA.arrow)
    reasons = [] if refused is None else refused
    where = {"job": "job", "step": "out", "broker": folder / "log", "folder": folder / "job"}
    with closing(open_sink(connector, SCHEMA, **where)) as sink:
        sink.write(0, rows, None, lambda found: reasons.extend(each.reason for each in found))


@pytest.mark.more
def test_rows_are_persistent_messages_in_order(rabbit: RabbitMq, queue: str, tmp_path: Path) -> None:
    with channel_of(rabbit) as channel:
        channel.queue_declare(queue, durable=True)
    write(ms.amqp(rabbit.address, queue, payload="name"), tmp_path, [f"row-{n}" for n in range(3000)])
    found = taken(rabbit, queue)
    assert [body.decode() for _, body in found] == [f"row-{n}" for n in range(3000)]
    assert {properties.delivery_mode for properties, _ in found} == {2}
    assert len({properties.message_id for properties, _ in found}) == 3000


@pytest.mark.more
def test_a_row_that_no_queue_gets_is_rejected(rabbit: RabbitMq, queue: str, tmp_path: Path) -> None:
    with channel_of(rabbit) as channel:
        channel.exchange_declare(queue, "topic")
        channel.queue_declare(queue)
        channel.queue_bind(queue, queue, "rows.a")
    refused: list[str] = []
    write(ms.amqp(rabbit.address, "rows.{name}", exchange=queue), tmp_path, ["a", "b", "x" * 300], refused)
    assert [body for _, body in taken(rabbit, queue)] == [b'{"name":"a","n":0}']
    assert sorted(refused) == sorted([NO_QUEUE, "its topic is longer than 255 bytes"])


@pytest.mark.more
def test_rows_that_are_too_large_for_the_broker_are_rejected(rabbit: RabbitMq, queue: str, tmp_path: Path) -> None:
    with channel_of(rabbit) as channel:
        channel.queue_declare(queue, durable=True)
    large, refused = "x" * (5 << 20), list[str]()
    write(ms.amqp(rabbit.address, queue, payload="name"), tmp_path, ["a", large, "b", large, "c"], refused)
    assert refused == ["the broker takes messages of up to 4,194,304 bytes"] * 2
    assert {body.decode() for _, body in taken(rabbit, queue)} == {"a", "b", "c"}


@pytest.mark.more
def test_an_exchange_that_does_not_exist(rabbit: RabbitMq, queue: str, tmp_path: Path) -> None:
    with pytest.raises(SinkFailed, match="NOT_FOUND"):
        write(ms.amqp(rabbit.address, "rows", exchange=f"no-{queue}"), tmp_path, ["a"])
