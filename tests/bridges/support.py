"""What the tests of bridges share: servers in threads, requests, and what a topic has."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

from millstream.bridges.http.connection import BridgeConnection
from millstream.log import Broker, Record
from millstream.serving.access import ListenAddress
from millstream.serving.http import Application, listening, server
from serving.running import Answered
from waiting import until

MESSAGE_BYTES_MAX = 1 << 20


@contextmanager
def serving(application: Application, connection: Any = BridgeConnection) -> Iterator[int]:
    """The port of a server in a thread."""
    with listening(ListenAddress.of("127.0.0.1", 0)) as at:
        running = server(application, connection, message_bytes_max=MESSAGE_BYTES_MAX)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [at]}, daemon=True)
        thread.start()
        until(lambda: running.started, "the server has started")
        try:
            yield at.getsockname()[1]
        finally:
            running.should_exit = True
            thread.join()


@contextmanager
def in_thread(bridge: Any) -> Iterator[None]:
    """Runs a bridge in a thread, from when it is ready."""
    ready = threading.Event()
    bridge.on_ready = ready.set
    thread = threading.Thread(target=bridge.run)
    thread.start()
    try:
        until(ready.is_set, "the bridge receives")
        yield
    finally:
        bridge.stop()
        thread.join()


def request(
    port: int, method: str, path: str, body: bytes | str | None = None, *, timeout: float = 120, **headers: str
) -> Answered:
    """Names of headers have _ for -."""
    connection = HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return Answered(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def records(log: Broker, topic: str) -> list[Record]:
    with log.consumer(topic) as consumer:
        found = list(consumer.until_caught_up())
    return sorted(found, key=lambda record: (record.partition, record.offset))


def values(log: Broker, topic: str) -> list[Any]:
    return [record.value for record in records(log, topic)]
