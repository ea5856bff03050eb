"""MQTT into a topic, with a real broker: acknowledged when stored, sessions, ids, and a broker that restarts."""

from __future__ import annotations

import resource
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from millstream.bridges.landing import Landing
from millstream.bridges.mqtt.bridge import MqttBridge, MqttSource
from millstream.bridges.mqtt.client import MqttBroker
from millstream.bridges.mqtt.client_loop import ClientLoop
from millstream.errors import InvalidInput, MillstreamError, SourceUnavailable
from millstream.log import EmbeddedLog
from mosquitto_server import Mosquitto
from waiting import until

from .mqtt_clients import Subscriber
from .support import in_thread, records
from .test_webhook import certified

pytestmark = pytest.mark.more


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    folder = tmp_path / "mosquitto"
    folder.mkdir()
    made = Mosquitto(folder)
    yield made
    made.stop()


@pytest.fixture
def readings(log: EmbeddedLog) -> EmbeddedLog:
    log.create_topic("readings")
    return log


@contextmanager
def bridging(log: EmbeddedLog, mosquitto: Mosquitto, **settings: Any) -> Iterator[MqttBridge]:
    given = {"filters": ["devices/#"], "client_id": "bridge", **settings}
    broker = MqttBroker(mosquitto.address, given.pop("version", 5))
    with Landing(log, "mqtt", ["readings"]) as landing:
        made = MqttBridge(MqttSource(broker, **given), landing, "readings")
        with in_thread(made):
            yield made


def publish(mosquitto: Mosquitto, *payloads: str, qos: int = 1, topic: str = "devices/1", **more: Any) -> None:
    """Returns when the broker has them."""
    from paho.mqtt import client as paho

    sender = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    loop = ClientLoop(sender)
    sender.connect("127.0.0.1", mosquitto.port)
    loop.start()
    for sent in [sender.publish(topic, payload, qos, **more) for payload in payloads]:
        sent.wait_for_publish(60)
    sender.disconnect()
    loop.stop()


def stored(log: EmbeddedLog, count: int) -> list[str]:
    until(lambda: len(records(log, "readings")) >= count, "the messages are stored")
    return [record.value.decode() for record in records(log, "readings")]


@pytest.mark.parametrize(("version", "qos"), [(5, 0), (5, 1), (5, 2), (3, 1)])
def test_messages_become_records(readings: EmbeddedLog, mosquitto: Mosquitto, version: int, qos: int) -> None:
    with bridging(readings, mosquitto, version=version, qos=qos):
        publish(mosquitto, *map(str, range(100)), qos=qos)
        assert stored(readings, 100) == [str(number) for number in range(100)]
    record = records(readings, "readings")[0]
    assert (record.key, dict(record.headers)["mqtt-topic"]) == (b"devices/1", b"devices/1")


def test_messages_wait_for_a_bridge_that_is_away(readings: EmbeddedLog, mosquitto: Mosquitto) -> None:
    with bridging(readings, mosquitto):
        publish(mosquitto, "1")
        stored(readings, 1)
    publish(mosquitto, "2", "3")
    with bridging(readings, mosquitto):
        assert stored(readings, 3) == ["1", "2", "3"]


def test_what_is_not_stored_is_delivered_again(
    readings: EmbeddedLog, mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    land: Callable[..., Any] = Landing.land
    error = MillstreamError("the disk is on fire")
    monkeypatch.setattr(Landing, "land", lambda self, arrivals: [error] * len(arrivals))
    with Landing(readings, "mqtt", ["readings"]) as landing:
        source = MqttSource(MqttBroker(mosquitto.address), ["devices/#"], "bridge")
        bridge = MqttBridge(source, landing, "readings")
        bridge.on_ready = lambda: publish(mosquitto, "1", "2")
        with pytest.raises(MillstreamError, match="fire"):
            bridge.run()
    monkeypatch.setattr(Landing, "land", land)
    with bridging(readings, mosquitto):
        assert stored(readings, 2) == ["1", "2"]


def test_an_id_is_stored_once(readings: EmbeddedLog, mosquitto: Mosquitto) -> None:
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    with bridging(readings, mosquitto, id_property="id"):
        for id in ("a", "b", "a"):
            properties = Properties(PacketTypes.PUBLISH)
            properties.UserProperty = ("id", id)
            publish(mosquitto, id, properties=properties)
        publish(mosquitto, "no id")
        assert stored(readings, 3) == ["a", "b", "no id"]


def test_a_broker_that_restarts(readings: EmbeddedLog, mosquitto: Mosquitto) -> None:
    with bridging(readings, mosquitto):
        publish(mosquitto, "1")
        stored(readings, 1)
        mosquitto.stop()
        mosquitto.start()
        publish(mosquitto, "2", qos=1)  # kept in the session, or delivered at once
        until(lambda: "2" in [record.value.decode() for record in records(readings, "readings")], "it goes on")


class Device:
    """As small as one is: it sends one message after the other, and keeps what the broker has not acknowledged."""

    def __init__(self, number: int) -> None:
        self.id = f"device-{number}"
        self.kept: list[int] = []

    def connect(self, broker: Mosquitto) -> None:
        self._socket = socket.create_connection(("127.0.0.1", broker.port), 60)
        id = self.id.encode()
        self._send(b"\x10", b"\x00\x04MQTT\x04\x02\x00\x00" + len(id).to_bytes(2) + id)

    def is_accepted(self) -> bool:
        return self._socket.recv(4, socket.MSG_WAITALL) == b"\x20\x02\x00\x00"

    def send(self) -> None:
        topic = f"devices/{self.id}".encode()
        for reading in self.kept:
            body = len(topic).to_bytes(2) + topic + (reading + 1).to_bytes(2) + f"{self.id} {reading}".encode()
            self._send(b"\x32", body)

    def is_acknowledged(self) -> bool:
        found = [self._socket.recv(4, socket.MSG_WAITALL) for _ in self.kept]
        is_all = found == [b"\x40\x02" + (reading + 1).to_bytes(2) for reading in self.kept]
        self.kept.clear()
        return is_all

    def close(self) -> None:
        self._socket.close()

    def _send(self, kind: bytes, content: bytes) -> None:
        self._socket.sendall(kind + bytes([len(content)]) + content)


def test_a_thousand_devices_at_once_send_what_they_kept(readings: EmbeddedLog, tmp_path: Path) -> None:
    """Method: all are connected when the broker stops; when it is back, so are they, with what they kept meanwhile."""
    least, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, max(least, 4096)), most))  # the broker inherits it
    broker = Mosquitto(tmp_path, saves=False)
    devices = [Device(number) for number in range(1000)]
    try:
        with bridging(readings, broker):
            for kept in ([0], [1, 2]):
                for device in devices:
                    device.kept = list(kept)
                    device.connect(broker)
                assert all(device.is_accepted() for device in devices)
                for device in devices:
                    device.send()
                assert all(device.is_acknowledged() for device in devices)
                broker.stop()
                for device in devices:
                    device.close()
                broker.start()
            expected = {f"{device.id} {reading}" for device in devices for reading in range(3)}
            until(lambda: expected <= set(stored(readings, 3000)), "all have arrived")
        assert set(stored(readings, 3000)) == expected
    finally:
        broker.stop()
        resource.setrlimit(resource.RLIMIT_NOFILE, (least, most))


def test_bridges_share_the_messages_of_a_group(readings: EmbeddedLog, mosquitto: Mosquitto) -> None:
    """Each message is for one of them."""
    readings.create_topic("others")
    shared = ["$share/cellar/devices/#"]
    with (
        bridging(readings, mosquitto, filters=shared),
        Landing(readings, "mqtt-2", ["others"]) as landing,
        in_thread(MqttBridge(MqttSource(MqttBroker(mosquitto.address), shared, "bridge-2"), landing, "others")),
    ):
        payloads = [str(number) for number in range(100)]
        publish(mosquitto, *payloads)
        until(lambda: len(records(readings, "readings") + records(readings, "others")) >= 100, "all are stored")
        parts = [[each.value.decode() for each in records(readings, topic)] for topic in ("readings", "others")]
        assert all(parts), "both got some"
        assert sorted(parts[0] + parts[1], key=int) == payloads


def test_over_tls_with_a_last_will(readings: EmbeddedLog, tmp_path: Path) -> None:
    """Method: the command is killed; the broker then publishes that it is offline, and keeps that for others."""
    certificate = certified(tmp_path)
    folder = tmp_path / "broker"
    folder.mkdir()
    broker = Mosquitto(folder, tls=certificate)
    options = ["--at", broker.address, "--subscribe", "devices/#", "--client-id", "cellar", "--will-topic", "status"]
    command = [sys.executable, "-m", "millstream.cli", "listen", "mqtt", "readings", *options]
    placed = ["--log", str(tmp_path / "log"), "--tls-ca", str(certificate)]
    try:
        context = ssl.create_default_context(cafile=str(certificate))
        with (
            closing(Subscriber(broker.port, "status", context=context)) as subscriber,
            subprocess.Popen([*command, *placed], stderr=subprocess.PIPE, text=True) as process,
        ):
            assert process.stderr is not None
            assert "receiving devices/#" in process.stderr.readline()
            process.kill()
            until(lambda: subscriber.got, "the will has come")
            assert (subscriber.got[0].topic, subscriber.got[0].payload) == ("status", b"offline")
        with closing(Subscriber(broker.port, "status", context=context)) as later:
            until(lambda: later.got, "the broker has kept it")
            assert later.got[0].is_retained
    finally:
        broker.stop()


def test_an_unknown_user_is_refused(readings: EmbeddedLog, tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    passwords = folder / "passwords"
    passwords.touch(0o600)
    broker = Mosquitto(folder, passwords)
    with Landing(readings, "mqtt", ["readings"]) as landing:
        bridge = MqttBridge(MqttSource(MqttBroker(broker.address), ["#"], "bridge"), landing, "readings")
        with pytest.raises(SourceUnavailable, match="rejects the client"):
            bridge.run()
    broker.stop()


@pytest.mark.parametrize(
    ("address", "more"),
    [("http://host", {}), ("mqtt://a:b@host", {}), ("mqtt://host", {"qos": 3}), ("mqtt://host", {"filters": []})],
)
def test_what_is_not_a_source(address: str, more: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refused:
        MqttSource(MqttBroker(address), **{"filters": ["#"], "client_id": "c", **more})
    assert "a:b" not in str(refused.value)
