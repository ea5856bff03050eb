"""Rows published to a real MQTT broker: topics of columns, retained state, TLS, last will, what is refused."""

from __future__ import annotations

import os
import pickle
import resource
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millstream as ms
from millstream.connectors.opening import open_sink
from millstream.connectors.refusals import Refusal
from millstream.errors import InvalidInput, InvalidPlan, SinkFailed, SinkUnavailable
from millstream.records import Schema, rows_to_batch
from mosquitto_server import Mosquitto
from waiting import until

from .mqtt_clients import Received, Subscriber
from .test_webhook import certified

COMMANDS = Schema.of("device string, command string, speed int")
OPEN, SHUT, SLOW = (("fan", "open", 1), ("fan", "shut", 0), ("pump", "open", 1))
FILES = 1100
WET, DRY = (("drain", "wet", 1), ("drain", "dry", 1))


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    made = Mosquitto(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def subscribed(mosquitto: Mosquitto) -> Iterator[Callable[[int], list[Received]]]:
    """Waits for so many messages."""
    with closing(Subscriber(mosquitto.port, "plant/#")) as subscriber:

        def got(count: int) -> list[Received]:
            until(lambda: len(subscriber.got) >= count, "the messages have come")
            return list(subscriber.got)

        yield got


def rows(*given: tuple[str | None, str, int]) -> pa.Table:
    named = [dict(zip(COMMANDS.names, row, strict=True)) for row in given]
    batch, _ = rows_to_batch(named, COMMANDS)
    return pa.Table.from_batches([batch])


def sink(endpoint: Any, folder: Path) -> Any:
    return open_sink(endpoint, COMMANDS, job="j", step="out", broker=folder / "log", folder=folder / "job")


@pytest.mark.more
@pytest.mark.parametrize(("version", "qos"), [(5, 1), (5, 2), (3, 1)])
def test_rows_are_published_in_order(
    mosquitto: Mosquitto, subscribed: Any, tmp_path: Path, version: int, qos: int
) -> None:
    endpoint = ms.mqtt(mosquitto.address, "plant/{device}/{speed}", version=version, qos=qos)
    for _ in range(2):  # the second time, the batch is known
        with closing(sink(endpoint, tmp_path)) as made:
            made.write(0, rows(OPEN, SHUT, OPEN), None)
    with closing(sink(endpoint, tmp_path)) as made:
        made.write(1, rows(SLOW), None)
    got = subscribed(4)
    assert [each.topic for each in got] == ["plant/fan/1", "plant/fan/0", "plant/fan/1", "plant/pump/1"]
    assert got[0].payload == b'{"device":"fan","command":"open","speed":1}'
    if version == 5:
        assert len({each.properties["millstream-id"] for each in got}) == 4


@pytest.mark.more
def test_the_broker_keeps_the_newest_row_of_a_table(mosquitto: Mosquitto, tmp_path: Path) -> None:
    endpoint = ms.mqtt(mosquitto.address, "plant/{device}", payload="command", retain=True)
    with closing(sink(endpoint, tmp_path)) as made:
        made.write(0, rows(OPEN, SLOW), pa.array([1, 1]))
        made.write(1, rows(OPEN, SHUT), pa.array([-1, 1]))
        made.write(2, rows(SLOW), pa.array([-1]))
        made.write(3, rows(WET, DRY, WET, DRY), pa.array([1, 1, -1, -1]))  # gone again in the same batch
    with closing(Subscriber(mosquitto.port, "plant/#")) as late:
        until(lambda: late.got, "the kept message has come")
        assert [(each.topic, each.payload, each.is_retained) for each in late.got] == [("plant/fan", b"shut", True)]


@pytest.mark.more
def test_rows_without_a_usable_topic_are_refused(mosquitto: Mosquitto, subscribed: Any, tmp_path: Path) -> None:
    refused: list[Refusal] = []
    with closing(sink(ms.mqtt(mosquitto.address, "plant/{device}"), tmp_path)) as made:
        made.write(0, rows((None, "open", 1), ("a/b", "open", 1), ("#", "open", 1), OPEN), None, refused.extend)
    assert [each.row for each in refused] == [0, 1, 2]
    assert {each.reason for each in refused} == {"column 'device' cannot be part of a topic"}
    assert [each.topic for each in subscribed(1)] == ["plant/fan"]


@pytest.mark.more
def test_a_retraction_has_no_payload(mosquitto: Mosquitto, tmp_path: Path) -> None:
    endpoint = ms.mqtt(mosquitto.address, "plant/{device}", payload="command")
    with closing(sink(endpoint, tmp_path)) as made, pytest.raises(SinkFailed, match="retracted"):
        made.write(0, rows(OPEN), pa.array([-1]))


@pytest.mark.more
def test_over_tls_with_a_last_will(tmp_path: Path) -> None:
    """Method: a process publishes over TLS and ends without a goodbye; the broker then publishes its will."""
    certificate = certified(tmp_path)
    broker = Mosquitto(tmp_path, tls=certificate)
    context = ssl.create_default_context(cafile=str(certificate))
    with closing(Subscriber(broker.port, "#", context=context)) as subscriber:
        untrusted = sink(ms.mqtt(broker.address, "plant/a"), tmp_path)
        with pytest.raises(SinkUnavailable, match="certificate"):
            untrusted.write(0, rows(OPEN), None)
        script = (
            "import os, sys; from pathlib import Path; import millstream as ms\n"
            "from bridges.test_mqtt_sink import OPEN, rows, sink\n"
            f"to = ms.mqtt({broker.address!r}, 'plant/a', payload='command', ca_file={str(certificate)!r}, "
            "will=('status', 'gone'))\n"
            f"sink(to, Path({str(tmp_path)!r})).write(0, rows(OPEN), None)\n"
            "os._exit(0)\n"
        )
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run([sys.executable, "-c", script], check=True, env=environment)
        until(lambda: len(subscriber.got) == 2, "the row and the will have come")
        assert [(each.topic, each.payload) for each in subscriber.got] == [("plant/a", b"open"), ("status", b"gone")]
    broker.stop()


@pytest.mark.more
def test_a_process_with_many_open_files_publishes(mosquitto: Mosquitto, tmp_path: Path) -> None:
    """Method: the connections have descriptors that select refuses."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit[0], 2 * FILES), limit[1]))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limit)
        for _ in range(FILES):
            stack.enter_context(Path(os.devnull).open())
        subscriber = stack.enter_context(closing(Subscriber(mosquitto.port, "plant/#")))
        with closing(sink(ms.mqtt(mosquitto.address, "plant/{device}", payload="command"), tmp_path)) as made:
            made.write(0, rows(OPEN), None)
        until(lambda: subscriber.got, "the row has come")
        assert [(each.topic, each.payload) for each in subscriber.got] == [("plant/fan", b"open")]


def test_a_broker_that_is_down(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    made = sink(ms.mqtt(f"mqtt://127.0.0.1:{port}", "plant/a"), tmp_path)
    with pytest.raises(SinkUnavailable, match="cannot be reached"):
        made.write(0, rows(OPEN), None)


@pytest.mark.parametrize("topic", ["plant/+", "#", "plant/{device", "{device!r}", "", 7])
def test_what_is_not_a_topic(topic: Any) -> None:
    with pytest.raises(InvalidInput, match="topic"):
        ms.mqtt("mqtt://host", topic)


@pytest.mark.parametrize(
    ("address", "more"),
    [("http://host", {}), ("mqtt://a:b@host", {}), ("mqtt://host", {"qos": 0}), ("mqtt://host", {"ca_file": "f"})],
)
def test_what_is_not_a_broker(address: str, more: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refused:
        ms.mqtt(address, "a", **more)
    assert "a:b" not in str(refused.value)


@pytest.mark.parametrize(("topic", "payload"), [("plant/{none}", None), ("plant", "none"), ("plant", "speed")])
def test_columns_are_checked_when_the_flow_is_built(topic: str, payload: str | None) -> None:
    commands = ms.Flow("f").read("commands", "device string, command string, speed int")
    with pytest.raises(InvalidPlan, match=r"none|speed"):
        commands.write(ms.mqtt("mqtt://host", topic, payload=payload))


def test_no_password_is_shown() -> None:
    made = ms.mqtt("mqtt://me@host", "plant/{device}", password="hush-hush-hush")
    assert str(made) == "mqtt(mqtt://…@host, plant/{device})"
    assert "hush" not in repr(made)
    assert b"hush-hush" not in pickle.dumps(made)
