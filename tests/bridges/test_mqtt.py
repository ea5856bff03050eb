"""MQTT into a topic, with a real broker: acknowledged when stored, sessions, ids, and a broker that restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from millstream.bridges.landing import Landing
from millstream.bridges.mqtt import MqttBridge, MqttSource
from millstream.bridges.mqtt_client import MqttBroker
from millstream.errors import InvalidInput, MillstreamError, SourceUnavailable
from millstream.log import EmbeddedLog
from mosquitto_server import Mosquitto
from waiting import until

from .support import in_thread, records

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
    sender.connect("127.0.0.1", mosquitto.port)
    sender.loop_start()
    for sent in [sender.publish(topic, payload, qos, **more) for payload in payloads]:
        sent.wait_for_publish(60)
    sender.disconnect()
    sender.loop_stop()


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
