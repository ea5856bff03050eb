"""Bridges into the log: webhooks that are durable before they are answered.

usage: bridges.py [--quick]

The clients are processes of their own, with many connections. The last line is one JSON document with the figures.
"""

from __future__ import annotations

import argparse
import itertools
import json
import selectors
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from rich.console import Console
from rich.table import Table

from millstream.bridges.connection import BridgeConnection
from millstream.bridges.http_listener import Rules, listener, share_processor
from millstream.bridges.landing import Landing
from millstream.log import EmbeddedLog
from millstream.secrets import Secret
from millstream.serving.access import Access, ListenAddress
from millstream.serving.http import listening, server
from millstream.webhooks.signatures import Verifier, signed_headers

TOPIC = "events"
SECRET = "a-secret-of-the-benchmark"
CONNECTIONS = 64
EVENTS_PER_BODY = 100
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="within a minute")
    quick = parser.parse_args().quick
    share_processor()
    folder = Path(tempfile.mkdtemp(prefix="millstream-bridges-"))
    try:
        figures = http_figures(folder, 10_000 if quick else 50_000)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    table = Table("figure", "value", "at least")
    table.add_row("webhooks with one event, per second", f"{figures['http_requests_per_s']:,}", "2,000")
    table.add_row(f"events in bodies of {EVENTS_PER_BODY}, per second", f"{figures['http_events_per_s']:,}", "10,000")
    Console(stderr=True).print(table)
    json.dump(figures, sys.stdout)
    print()


if __name__ == "__main__":
    main()
