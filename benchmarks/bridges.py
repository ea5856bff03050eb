"""Bridges into the log: webhooks that are durable before they are answered, MQTT, and Arrow Flight beside Kafka.

usage: bridges.py [--quick]

The clients of webhooks are processes of their own, with many connections. MQTT: what a broker has kept for a session
is received and stored, and in turn received by a loop that only counts. Both have a persistent session of MQTT 5 with
the same broker, subscribe with QoS 1 and acknowledge every message: the loop at once, the bridge when it is on disk.
Flight: the same program sends typed rows in batches and reads them back as columns, on a log behind a server in
another process and on a Kafka broker, both on this machine, in turn. The last line is one JSON document with the
figures.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import selectors
import shutil
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
from paho.mqtt import client as mqtt_client
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from rich.console import Console
from rich.table import Table

import millstream as ms
from millstream.bridges.flight_server import FlightServer
from millstream.bridges.http.connection import BridgeConnection
from millstream.bridges.http.listener import Rules, listener, share_processor
from millstream.bridges.landing import Landing
from millstream.bridges.mqtt.bridge import MqttBridge, MqttSource
from millstream.bridges.mqtt.client import MqttBroker
from millstream.log import EmbeddedLog
from millstream.secrets import Secret
from millstream.serving.access import Access, ListenAddress
from millstream.serving.http import listening, server
from millstream.webhooks.signatures import Verifier, signed_headers

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
from kafka_cluster import KafkaCluster
from mosquitto_server import PROGRAM, Mosquitto

TOPIC = "events"
SECRET = "a-secret-of-the-benchmark"
CONNECTIONS = 64
EVENTS_PER_BODY = 100
SCHEMA = "user string, score int"
BATCH_ROWS = 50_000
ROUNDS = 3
EVENT = {"user": "user-17", "team": "red", "score": 42, "at": "2026-01-01T00:00:00Z"}


# ---------------------------------------------------------------- clients, in their own process


def signed_requests(body: bytes, count: int, name: str) -> list[bytes]:
    made = []
    for number in range(count):
        headers = signed_headers(Secret(SECRET), f"{name}-{number}", body, int(time.time()))
        lines = [f"{key}: {value}" for key, value in headers.items()]
        head = ["POST /events HTTP/1.1", "Host: localhost", "Content-Type: application/json", *lines]
        made.append("\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body)
    return made


def send_all(port: int, body: bytes, count: int, name: str) -> tuple[float, float]:
    """When it began and ended; every answer must be 200. It does little else, to leave the processor to the server."""
    waiting = iter(signed_requests(body, count, name))
    selector = selectors.DefaultSelector()
    begun, open_count = time.time(), 0
    for request in itertools.islice(waiting, CONNECTIONS):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(request)
        selector.register(connection, selectors.EVENT_READ, bytearray())
        open_count += 1
    while open_count:
        for key, _ in selector.select():
            connection, received = cast("socket.socket", key.fileobj), key.data
            received += connection.recv(65536)
            if not received.endswith(b"}"):
                continue
            assert received.startswith(b"HTTP/1.1 200 "), received
            received.clear()
            following = next(waiting, None)
            if following is None:
                selector.unregister(connection)
                connection.close()
                open_count -= 1
            else:
                connection.sendall(following)
    return begun, time.time()


# ---------------------------------------------------------------- the server, in this process


@contextmanager
def http_bridge(log: EmbeddedLog) -> Iterator[int]:
    address = ListenAddress.of("127.0.0.1", 0)
    rules = Rules(Access.at(address), Verifier("standard", [Secret(SECRET)]))
    with (
        Landing(log, "http", [TOPIC]) as landing,
        listening(address) as at,
        listener(landing, rules) as application,
    ):
        running = server(application, BridgeConnection)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [at]})
        thread.start()
        wait_for(at)
        try:
            yield at.getsockname()[1]
        finally:
            running.should_exit = True
            thread.join()


def wait_for(at: socket.socket) -> None:
    with socket.create_connection(at.getsockname()):
        pass


def http_figures(folder: Path, requests: int) -> dict[str, float]:
    single = json.dumps(EVENT).encode()
    many = json.dumps([EVENT] * EVENTS_PER_BODY).encode()
    with EmbeddedLog(folder / "log") as log:
        log.create_topic(TOPIC, partitions=2)
        with http_bridge(log) as port, ProcessPoolExecutor(1) as client:
            client.submit(send_all, port, single, CONNECTIONS, "warm").result()
            begun, ended = client.submit(send_all, port, single, requests, "single").result()
            singles_per_s = requests / (ended - begun)
            bodies = max(requests // 20, CONNECTIONS)
            begun, ended = client.submit(send_all, port, many, bodies, "many").result()
            events_per_s = bodies * EVENTS_PER_BODY / (ended - begun)
        stored = sum(log.topic(TOPIC).partition(number).end_offset() for number in range(2))
        assert stored == CONNECTIONS + requests + bodies * EVENTS_PER_BODY, f"{stored} events are stored"
    return {"http_requests_per_s": round(singles_per_s), "http_events_per_s": round(events_per_s)}


# ---------------------------------------------------------------- MQTT


def mqtt_seconds(drain: Callable[[Mosquitto, int], None], broker: Mosquitto, messages: int) -> float:
    """How long it takes to receive what the broker has kept for a session."""
    drain(broker, 0)  # the broker keeps its session from here on
    publish(broker, messages)
    opened = time.perf_counter()
    drain(broker, messages)
    return time.perf_counter() - opened


def publish(broker: Mosquitto, messages: int) -> None:
    sender = mqtt_client.Client(CallbackAPIVersion.VERSION2)
    sender.max_inflight_messages_set(1000)
    sender.connect("127.0.0.1", broker.port)
    sender.loop_start()
    body = json.dumps(EVENT).encode()
    for sent in [sender.publish("devices/7", body, 1) for _ in range(messages)]:
        sent.wait_for_publish()
    sender.disconnect()
    sender.loop_stop()


def paho_loop(broker: Mosquitto, messages: int) -> None:
    """What users write: a loop that counts, and acknowledges what it has not stored."""
    left, done = messages, threading.Event()

    def received(*_: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    client = mqtt_client.Client(CallbackAPIVersion.VERSION2, "loop", protocol=mqtt_client.MQTTv5)
    client.on_message = received
    client.on_connect = lambda client, *_: client.subscribe("devices/#", 1)
    client.on_subscribe = lambda *_: None if messages else done.set()
    session = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    session.SessionExpiryInterval = 3600
    client.connect("127.0.0.1", broker.port, clean_start=False, properties=session)
    client.loop_start()
    done.wait()
    client.disconnect()
    client.loop_stop()


def mqtt_bridge(log: EmbeddedLog, broker: Mosquitto, messages: int) -> None:
    with Landing(log, "mqtt", [TOPIC]) as landing:
        bridge = MqttBridge(MqttSource(MqttBroker(broker.address), ["devices/#"], "bridge"), landing, TOPIC)
        ready = threading.Event()
        bridge.on_ready = ready.set
        thread = threading.Thread(target=bridge.run)
        thread.start()
        ready.wait()
        while landing.counts.stored < messages:
            time.sleep(0.02)
        bridge.stop()
        thread.join()


def mqtt_figures(folder: Path, messages: int) -> dict[str, float]:
    folder.mkdir()
    broker = Mosquitto(folder, saves=False)
    taken: list[list[float]] = [[], []]
    try:
        with EmbeddedLog(folder / "log") as log:
            log.create_topic(TOPIC)
            ways: list[Callable[[Mosquitto, int], None]] = [partial(mqtt_bridge, log), paho_loop]
            for _ in range(ROUNDS):
                for way, seconds in zip(ways, taken, strict=True):
                    seconds.append(mqtt_seconds(way, broker, messages))
    finally:
        broker.stop()
    bridge, loop = (messages / statistics.median(seconds) for seconds in taken)
    return {"mqtt_messages_per_s": round(bridge), "mqtt_messages_per_s_vs_paho_loop": round(bridge / loop, 2)}


# ---------------------------------------------------------------- Flight and Kafka


def flight_server(folder: str, port: Connection) -> None:
    """In its own process, until it is terminated."""
    with EmbeddedLog(folder) as log, FlightServer(log, "grpc+tcp://127.0.0.1:0") as running:
        port.send(running.port)
        running.wait_until_stopped()


def there_and_back(log: ms.Broker, topic: str, batch: pa.RecordBatch, batches: int) -> float:
    """Seconds to send all rows and to read them back."""
    log.create_topic(topic, partitions=2, schema=SCHEMA)
    begun = time.perf_counter()
    with log.producer(acks=1) as producer:
        for _ in range(batches):
            producer.send_batch(topic, batch, key="user")
    left = batches * batch.num_rows
    with log.consumer(topic) as consumer:
        while left:
            left -= sum(map(len, consumer.poll_batches(1.0)))
    return time.perf_counter() - begun


def flight_figures(folder: Path, batches: int) -> dict[str, float]:
    random = np.random.default_rng(7)
    users = pa.array([f"user-{number}" for number in random.integers(0, 1000, BATCH_ROWS)])
    scores = pa.array(random.integers(0, 100, BATCH_ROWS), pa.int32())
    batch = pa.RecordBatch.from_arrays([users, scores], names=["user", "score"])
    receive, send = multiprocessing.Pipe(duplex=False)
    serving = multiprocessing.get_context("spawn").Process(target=flight_server, args=(str(folder / "flight"), send))
    serving.start()
    cluster = KafkaCluster(1)
    cluster.start()
    try:
        places = [f"flight://127.0.0.1:{receive.recv()}", f"kafka://{cluster.bootstrap}"]
        taken: list[list[float]] = [[], []]
        for number in range(ROUNDS + 1):
            for place, seconds in zip(places, taken, strict=True):
                with ms.connect(place) as log:
                    seconds.append(there_and_back(log, f"rows-{number}", batch, batches))
    finally:
        cluster.stop()
        serving.terminate()
        serving.join()
    flight, kafka = (batches * BATCH_ROWS / statistics.median(seconds[1:]) for seconds in taken)  # the first warms up
    return {
        "flight_rows_per_s": round(flight),
        "kafka_rows_per_s": round(kafka),
        "flight_rows_vs_kafka": round(flight / kafka, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="within a minute")
    quick = parser.parse_args().quick
    share_processor()
    folder = Path(tempfile.mkdtemp(prefix="millstream-bridges-"))
    try:
        figures = http_figures(folder, 10_000 if quick else 50_000)
        if PROGRAM is not None:
            figures |= mqtt_figures(folder / "mqtt", 10_000 if quick else 50_000)
        figures |= flight_figures(folder, 5 if quick else 40)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    table = Table("figure", "value", "at least")
    table.add_row("webhooks with one event, per second", f"{figures['http_requests_per_s']:,}", "2,000")
    table.add_row(f"events in bodies of {EVENTS_PER_BODY}, per second", f"{figures['http_events_per_s']:,}", "10,000")
    if PROGRAM is not None:
        table.add_row("MQTT messages stored, per second", f"{figures['mqtt_messages_per_s']:,}", "")
        ratio = f"{figures['mqtt_messages_per_s_vs_paho_loop']:.2f}"
        table.add_row("the same, as a share of a loop that only counts them", ratio, "0.8")
    table.add_row("rows through Flight, per second", f"{figures['flight_rows_per_s']:,}", "")
    table.add_row("rows through Kafka, per second", f"{figures['kafka_rows_per_s']:,}", "")
    table.add_row("Flight, as many times the rows of Kafka", f"{figures['flight_rows_vs_kafka']:.1f}", "2")
    Console(stderr=True).print(table)
    json.dump(figures, sys.stdout)
    print()


if __name__ == "__main__":
    main()
