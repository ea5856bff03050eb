"""A real schema registry on this machine, Apicurio's, gone when its starter is.

It is brought by Maven once and kept in `.kafka/`. Its schemas are in memory.
"""

from __future__ import annotations

import json
import signal
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from kafka_jars import assemble_unpacked, find_java
from kafka_node import HOST, Node, free_ports

REGISTRY = "io.apicurio:apicurio-registry-app:3.0.9:tar.gz:all"
"""The last one that runs on Java 17."""
INTERFACE = "/apis/ccompat/v7"
START_S_MAX = 180
STOP_S_MAX = 20
LOOK_S = 0.1
JAVA = ("-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")  # it lives for minutes


class SchemaRegistryServer:
    """A registry on a free port of the loopback interface."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="millstream-registry-")
        [port] = free_ports(1)
        self._node = Node(0, Path(self._folder.name), port, 0, 0)
        self.url = f"http://{HOST}:{port}{INTERFACE}"

    def start(self) -> Self:
        [runner] = assemble_unpacked(REGISTRY).glob("*-runner.jar")
        settings = [f"-Dquarkus.http.port={self._node.port}", f"-Dquarkus.http.host={HOST}"]
        self._node.start([str(find_java().command), *JAVA, *settings, "-jar", str(runner)])
        deadline = time.monotonic() + START_S_MAX
        while not self._answers():
            if not self._node.runs or time.monotonic() > deadline:
                raise self._node.failed("the schema registry did not start")
            time.sleep(LOOK_S)
        return self

    def stop(self) -> None:
        self._node.send(signal.SIGTERM)
        self._node.wait(STOP_S_MAX)
        self._folder.cleanup()

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Without its answers: it is halted, and has all its schemas when it continues."""
        self._node.send(signal.SIGSTOP)
        try:
            yield
        finally:
            self._node.send(signal.SIGCONT)

    def ask(self, path: str, content: Any = None, method: str | None = None) -> Any:
        """The answer to a request, as JSON."""
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(
            self.url + path, data, {"Content-Type": "application/vnd.schemaregistry.v1+json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=START_S_MAX) as answer:
            return json.load(answer)

    def _answers(self) -> bool:
        try:
            self.ask("/subjects")
        except (OSError, ValueError):
            return False
        return True
