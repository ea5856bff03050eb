"""A real OpenSearch of one node on this machine, gone when its starter is.

Its jars are brought by Maven once and kept in `.kafka/`.
"""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

from kafka_jars import KafkaUnavailable, assemble
from kafka_node import HOST, Node, free_ports

HERE = Path(__file__).resolve().parent / "opensearch"
START_S_MAX = 240
STOP_S_MAX = 20
LOOK_S = 0.2
JAVA = ("-Xmx500m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.disable.jmx=true")  # it lives for minutes


class OpenSearchServer:
    """On a free port of the loopback interface. It can be killed and started again with what it has stored."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="millstream-opensearch-")
        folder = Path(self._folder.name)
        for name in ("config", "data", "logs", "modules", "plugins", "lib"):
            (folder / name).mkdir()
        http, transport = free_ports(2)
        self._node = Node(0, folder, http, transport, 0)
        self.url = f"http://{HOST}:{http}"

    def start(self) -> Self:
        javac = shutil.which("javac")
        if javac is None:
            raise KafkaUnavailable(
                "OpenSearch needs a JDK", where="no javac on the PATH", next_step="install a JDK, then try again"
            )
        jars = assemble(HERE / "pom.xml")
        java = str(Path(javac).resolve().parent / "java")
        ports = [str(self._node.port), str(self._node.controller_port)]
        folder = str(self._node.folder)
        self._node.start([java, *JAVA, "-cp", f"{jars}/*", str(HERE / "Server.java"), folder, *ports])
        deadline = time.monotonic() + START_S_MAX
        while not self._answers():
            if not self._node.runs or time.monotonic() > deadline:
                raise self._node.failed("OpenSearch did not start")
            time.sleep(LOOK_S)
        return self

    def kill(self) -> None:
        self._node.send(signal.SIGKILL)
        self._node.wait(STOP_S_MAX)

    def stop(self) -> None:
        self.kill()
        self._folder.cleanup()

    def ask(self, path: str, content: Any = None, method: str | None = None) -> Any:
        """The answer to a request, as JSON."""
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=START_S_MAX) as answer:
            return json.load(answer)

    def _answers(self) -> bool:
        try:
            return bool(self.ask("/_cluster/health")["status"] in ("green", "yellow"))
        except (OSError, ValueError):
            return False
