"""Bridges and sinks pass the public suite, with real servers: kills, restarts, broken connections, bad messages."""

from __future__ import annotations

import functools
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

import millstream as ms
from millstream.bridges.connection import BridgeConnection
from millstream.bridges.http_listener import Rules, listener
from millstream.bridges.landing import Landing
from millstream.bridges.mqtt import MqttBridge, MqttSource
from millstream.bridges.mqtt_client import MqttBroker
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
from waiting import until

from .mqtt_clients import Subscriber
from .receiver import Receiver, receiving
from .support import request

pytestmark = pytest.mark.more


# ---------------------------------------------------------------- webhooks, where the bridge is the server


def run_http(landing: Landing, ready: Any, port: int) -> None:
    address = ListenAddress.of("127.0.0.1", port)
    with listening(address) as at, listener(landing, Rules(Access.at(address))) as application:
        ready()
        server(application, BridgeConnection).run(sockets=[at])


class HttpBridge(BridgeUnderTest):
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
        except OSError:
            return False
        assert answer.status in (200, 413, 429, 503), answer
        return answer.status in (200, 413)

    def restart_server(self) -> None:
        return


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
        self._sender.reconnect_delay_set(1, 1)
        self._sender.connect("127.0.0.1", broker.port)
        self._sender.loop_start()

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
        self._sender.loop_stop()


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


# ---------------------------------------------------------------- many kills


@pytest.mark.soak
class TestHttpKilledOften(TestHttp):
    kills = 100


@pytest.mark.soak
class TestMqttKilledOften(TestMqtt):
    kills = 100


@pytest.mark.soak
class TestWebhookKilledOften(TestWebhook):
    kills = 100


@pytest.mark.soak
class TestMqttSinkKilledOften(TestMqttSink):
    kills = 100
