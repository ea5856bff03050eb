"""Bridges and sinks pass the public suite, with real servers: kills, restarts, broken connections, bad messages."""

from __future__ import annotations

import functools
import os
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPException
from pathlib import Path
from typing import Any, ClassVar

import orjson
import pytest

import millstream as ms
from artemis_server import PASSWORD, USER, ArtemisServer
from aws_server import KEYS, REGION, AwsServer
from folders import in_memory
from millstream.bridges.amqp.bridge import AmqpBridge, AmqpSource
from millstream.bridges.amqp.client import AmqpBroker
from millstream.bridges.aws.client import AwsAccount
from millstream.bridges.aws.sqs import SqsBridge, SqsSource
from millstream.bridges.http.connection import BridgeConnection
from millstream.bridges.http.listener import Rules, listener
from millstream.bridges.landing import Landing
from millstream.bridges.mqtt.bridge import MqttBridge, MqttSource
from millstream.bridges.mqtt.client import MqttBroker
from millstream.connectors import Connector
from millstream.serving.access import Access, ListenAddress
from millstream.serving.http import listening, server
from millstream.testing.connectors import (
    BridgeSuite,
    BridgeUnderTest,
    Delivered,
    Message,
    SinkSuite,
    SinkUnderTest,
)
from mosquitto_server import Mosquitto
from rabbitmq_server import RabbitMq
from waiting import until

from .. import amqp_clients, aws, broker_clients
from ..broker_clients import AMQP1, STOMP, Protocol, Sent
from ..mqtt_clients import ReconnectingLoop, Subscriber
from ..receiver import Receiver, receiving
from ..support import request
from .kills import killed_often

pytestmark = pytest.mark.more
PAUSE_SECONDS = 3.0


# ---------------------------------------------------------------- webhooks, where the bridge is the server


def run_http(landing: Landing, ready: Any, port: int) -> None:
    address = ListenAddress.of("127.0.0.1", port)
    with listening(address) as at, listener(landing, Rules(Access.at(address))) as application:
        ready()
        server(application, BridgeConnection).run(sockets=[at])


class HttpBridge(BridgeUnderTest):
    listens: ClassVar[bool] = True

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.server_port = free.getsockname()[1]

    def runner(self, port: int) -> Any:
        return functools.partial(run_http, port=self.server_port)

    def send(self, messages: Sequence[Message], port: int) -> None:
        with ThreadPoolExecutor(len(messages)) as senders:
            list(senders.map(lambda each: until(lambda: self._is_answered(each, port), "it is answered"), messages))

    def _is_answered(self, message: Message, port: int) -> bool:
        try:
            answer = request(port, "POST", "/messages", message.body, timeout=1, Idempotency_Key=message.id)
        except (OSError, HTTPException):  # killed before, or in the middle of, its answer
            return False
        assert answer.status in (200, 413, 429, 503), answer
        return answer.status in (200, 413)


class TestHttp(BridgeSuite):
    @pytest.fixture
    def bridge(self) -> HttpBridge:
        return HttpBridge()


# ---------------------------------------------------------------- MQTT, where both are clients of a broker


def run_mqtt(landing: Landing, ready: Any, port: int) -> None:
    broker = MqttBroker(f"mqtt://127.0.0.1:{port}", keep_alive_seconds=1)
    made = MqttBridge(MqttSource(broker, ["messages/#"], "bridge", id_property="id"), landing, "messages")
    made.on_ready = ready
    made.run()


class MqttUnderTest(BridgeUnderTest):
    def __init__(self, broker: Mosquitto) -> None:
        from paho.mqtt import client as paho

        self._broker = broker
        self.server_port = broker.port
        self._accepted: set[int] = set()
        self._sender = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        self._sender.on_publish = lambda client, data, number, reason, properties: self._accepted.add(number)
        self._loop = ReconnectingLoop(self._sender)
        self._sender.connect("127.0.0.1", broker.port)
        self._loop.start()

    def runner(self, port: int) -> Any:
        return functools.partial(run_mqtt, port=port)

    def send(self, messages: Sequence[Message], port: int) -> None:
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        waiting = set()
        for message in messages:
            properties = Properties(PacketTypes.PUBLISH)
            properties.UserProperty = ("id", message.id)
            waiting.add(self._sender.publish("messages/1", message.body, 1, properties=properties).mid)
        until(lambda: waiting <= self._accepted, "the broker has them")

    def restart_server(self) -> None:
        self._broker.stop()
        self._broker.start()

    def close(self) -> None:
        self._sender.disconnect()
        self._loop.stop()


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    folder = tmp_path / "mosquitto"
    folder.mkdir()
    made = Mosquitto(folder)
    yield made
    made.stop()


class TestMqtt(BridgeSuite):
    @pytest.fixture
    def bridge(self, mosquitto: Mosquitto) -> Iterator[MqttUnderTest]:
        with closing(MqttUnderTest(mosquitto)) as made:
            yield made


# ---------------------------------------------------------------- AMQP, where a queue keeps the messages


@pytest.fixture(scope="module")
def rabbit() -> Iterator[RabbitMq]:
    with in_memory() as folder, closing(RabbitMq(folder)) as made:
        yield made


def run_amqp(landing: Landing, ready: Any, port: int, queue: str) -> None:
    broker = AmqpBroker(f"amqp://127.0.0.1:{port}", heartbeat_seconds=1)
    made = AmqpBridge(AmqpSource(broker, queue, id_property="message-id"), landing, "messages")
    made.on_ready = ready
    made.run()


class AmqpUnderTest(BridgeUnderTest):
    def __init__(self, broker: RabbitMq, queue: str) -> None:
        self._broker = broker
        self._queue = queue
        self.server_port = broker.port

    def runner(self, port: int) -> Any:
        return functools.partial(run_amqp, port=port, queue=self._queue)

    def send(self, messages: Sequence[Message], port: int) -> None:
        bodies, ids = [each.body for each in messages], [each.id for each in messages]
        amqp_clients.publish(self._broker, self._queue, bodies, ids=ids)

    def restart_server(self) -> None:
        self._broker.kill()
        self._broker.start()


class TestAmqp(BridgeSuite):
    @pytest.fixture
    def bridge(self, rabbit: RabbitMq, tmp_path: Path) -> AmqpUnderTest:
        return AmqpUnderTest(rabbit, str(tmp_path))


# ---------------------------------------------------------------- AMQP 1.0 and STOMP, with the same broker


@pytest.fixture(scope="module")
def artemis() -> Iterator[ArtemisServer]:
    with closing(ArtemisServer()) as made:
        yield made


def run_of_broker(landing: Landing, ready: Any, port: int, protocol: Protocol, queue: str) -> None:
    made = protocol.bridge(protocol.broker(port), landing, "messages", protocol.queue.format(queue))
    made.on_ready = ready
    made.run()


class OnArtemis:
    def __init__(self, server: ArtemisServer, protocol: Protocol, queue: str) -> None:
        self._server, self._protocol, self._queue = server, protocol, queue
        self.server_port = server.port

    def restart_server(self) -> None:
        self._server.kill()
        self._server.start()


class BrokerUnderTest(OnArtemis, BridgeUnderTest):
    def runner(self, port: int) -> Any:
        return functools.partial(run_of_broker, port=port, protocol=self._protocol, queue=self._queue)

    def send(self, messages: Sequence[Message], port: int) -> None:
        broker_clients.send(self._server, f"/queue/{self._queue}", [Sent(each.body, each.id) for each in messages])


class TestAmqp1(BridgeSuite):
    @pytest.fixture
    def bridge(self, artemis: ArtemisServer, tmp_path: Path) -> BrokerUnderTest:
        return BrokerUnderTest(artemis, AMQP1, tmp_path.name)


class TestStomp(BridgeSuite):
    @pytest.fixture
    def bridge(self, artemis: ArtemisServer, tmp_path: Path) -> BrokerUnderTest:
        return BrokerUnderTest(artemis, STOMP, tmp_path.name)


# ---------------------------------------------------------------- SQS, whose server keeps everything in memory


@pytest.fixture(scope="module")
def aws_server() -> Iterator[AwsServer]:
    with aws.local_aws() as made:
        yield made


def run_sqs(landing: Landing, ready: Any, port: int, queue: str) -> None:
    os.environ |= KEYS
    account = AwsAccount(REGION, f"http://127.0.0.1:{port}", timeout_seconds=2)
    source = SqsSource(account, queue, visibility_seconds=1, id_attribute="id")
    made = SqsBridge(source, landing, "messages")
    made.on_ready = ready
    made.run()


def pause(server: AwsServer) -> None:
    """It would lose what it has if it ended: instead it does not answer for longer than clients wait."""
    server.pause()
    time.sleep(PAUSE_SECONDS)
    server.resume()


class SqsUnderTest(BridgeUnderTest):
    def __init__(self, server: AwsServer, queue: str) -> None:
        self._server = server
        self._queue = queue
        self._url = aws.queue_url(server, queue, MaximumMessageSize="1048576")
        self.server_port = server.port

    def runner(self, port: int) -> Any:
        return functools.partial(run_sqs, port=port, queue=self._queue)

    def send(self, messages: Sequence[Message], port: int) -> None:
        with closing(aws.client(self._server, "sqs")) as sqs:
            for message in messages:
                attributes = {"id": {"DataType": "String", "StringValue": message.id}}
                try:
                    sqs.send_message(
                        QueueUrl=self._url, MessageBody=message.body.decode(), MessageAttributes=attributes
                    )
                except sqs.exceptions.ClientError as error:
                    if "must be shorter" not in str(error):  # the message that is too large
                        raise

    def restart_server(self) -> None:
        pause(self._server)


class TestSqs(BridgeSuite):
    @pytest.fixture
    def bridge(self, aws_server: AwsServer, tmp_path: Path) -> SqsUnderTest:
        return SqsUnderTest(aws_server, tmp_path.name.replace(".", "-"))


# ---------------------------------------------------------------- sinks


class WebhookUnderTest(SinkUnderTest):
    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self.server_port = receiver.port

    def connector(self, port: int) -> Connector:
        return ms.webhook(f"http://127.0.0.1:{port}/hook", tries=1)

    def delivered(self) -> list[Delivered]:
        got = list(self._receiver.got)
        return [Delivered(headers["webhook-id"], orjson.loads(body)["n"]) for headers, body in got]

    def restart_server(self) -> None:
        self._receiver.answer([503] * 5)


class TestWebhook(SinkSuite):
    @pytest.fixture
    def sink(self) -> Iterator[WebhookUnderTest]:
        with receiving() as receiver:
            yield WebhookUnderTest(receiver)


class MqttSinkUnderTest(SinkUnderTest):
    """A subscriber with a session sees what the broker has received, also across its restarts."""

    def __init__(self, broker: Mosquitto) -> None:
        self._broker = broker
        self.server_port = broker.port
        self._subscriber = Subscriber(broker.port, "rows/#")

    def connector(self, port: int) -> Connector:
        return ms.mqtt(f"mqtt://127.0.0.1:{port}", "rows/{name}")

    def delivered(self) -> list[Delivered]:
        got = list(self._subscriber.got)
        return [Delivered(each.properties["millstream-id"], orjson.loads(each.payload)["n"]) for each in got]

    def restart_server(self) -> None:
        self._broker.stop()
        self._broker.start()

    def close(self) -> None:
        self._subscriber.close()


class TestMqttSink(SinkSuite):
    @pytest.fixture
    def sink(self, mosquitto: Mosquitto) -> Iterator[MqttSinkUnderTest]:
        with closing(MqttSinkUnderTest(mosquitto)) as made:
            yield made


class AmqpSinkUnderTest(SinkUnderTest):
    large_bytes: ClassVar[int] = 5 << 20  # the broker takes 4 MiB

    def __init__(self, broker: RabbitMq, queue: str) -> None:
        self._broker = broker
        self._queue = queue
        self.server_port = broker.port
        self._got: list[Delivered] = []
        with amqp_clients.channel_of(broker) as channel:
            channel.queue_declare(queue, durable=True)

    def connector(self, port: int) -> Connector:
        return ms.amqp(f"amqp://127.0.0.1:{port}", self._queue)

    def delivered(self) -> list[Delivered]:
        for properties, body in amqp_clients.taken(self._broker, self._queue):
            self._got.append(Delivered(properties.message_id, orjson.loads(body)["n"]))
        return self._got

    def restart_server(self) -> None:
        self._broker.kill()
        self._broker.start()


class TestAmqpSink(SinkSuite):
    @pytest.fixture
    def sink(self, rabbit: RabbitMq, tmp_path: Path) -> AmqpSinkUnderTest:
        return AmqpSinkUnderTest(rabbit, str(tmp_path))


class BrokerSinkUnderTest(OnArtemis, SinkUnderTest):
    def __init__(self, server: ArtemisServer, protocol: Protocol, queue: str) -> None:
        super().__init__(server, protocol, queue)
        self._got: list[Delivered] = []

    def connector(self, port: int) -> Connector:
        address, to = f"{self._protocol.scheme}://{USER}@127.0.0.1:{port}", self._protocol.queue.format(self._queue)
        return self._protocol.sink(address, to, password=PASSWORD)

    def delivered(self) -> list[Delivered]:
        for each in broker_clients.taken(self._server, self._queue):
            self._got.append(Delivered(dict(each.headers)["millstream-id"].decode(), orjson.loads(each.value)["n"]))
        numbers = [each.n for each in self._got]
        assert len(numbers) == len(set(numbers)), "the broker recognizes what is sent again"
        return self._got


class TestAmqp1Sink(SinkSuite):
    @pytest.fixture
    def sink(self, artemis: ArtemisServer, tmp_path: Path) -> BrokerSinkUnderTest:
        return BrokerSinkUnderTest(artemis, AMQP1, tmp_path.name)


class TestStompSink(SinkSuite):
    @pytest.fixture
    def sink(self, artemis: ArtemisServer, tmp_path: Path) -> BrokerSinkUnderTest:
        return BrokerSinkUnderTest(artemis, STOMP, tmp_path.name)


class SqsSinkUnderTest(SinkUnderTest):
    def __init__(self, server: AwsServer, queue: str) -> None:
        self._server = server
        self._queue = queue
        self._url = aws.queue_url(server, queue)
        self.server_port = server.port
        self._got: list[Delivered] = []

    def connector(self, port: int) -> Connector:
        return ms.sqs(self._queue, region=REGION, endpoint=f"http://127.0.0.1:{port}")

    def delivered(self) -> list[Delivered]:
        for each in aws.received(self._server, self._url):
            id = each["MessageAttributes"]["millstream-id"]["StringValue"]
            self._got.append(Delivered(id, orjson.loads(each["Body"])["n"]))
        return self._got

    def restart_server(self) -> None:
        pause(self._server)


class TestSqsSink(SinkSuite):
    @pytest.fixture
    def sink(self, aws_server: AwsServer, tmp_path: Path) -> SqsSinkUnderTest:
        return SqsSinkUnderTest(aws_server, tmp_path.name.replace(".", "-"))


# ---------------------------------------------------------------- many kills


TestHttpKilledOften = killed_often(TestHttp)
TestMqttKilledOften = killed_often(TestMqtt)
TestWebhookKilledOften = killed_often(TestWebhook)
TestAmqpKilledOften = killed_often(TestAmqp)
TestAmqpSinkKilledOften = killed_often(TestAmqpSink)
TestSqsKilledOften = killed_often(TestSqs)
TestSqsSinkKilledOften = killed_often(TestSqsSink)
TestMqttSinkKilledOften = killed_often(TestMqttSink)
TestAmqp1KilledOften = killed_often(TestAmqp1)
TestStompKilledOften = killed_often(TestStomp)
TestAmqp1SinkKilledOften = killed_often(TestAmqp1Sink)
TestStompSinkKilledOften = killed_often(TestStompSink)
