"""A real server that speaks S3, for tests: its jar is brought by Maven once, and kept beside Kafka's."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from kafka_jars import HERE, KafkaFailed, assemble, find_java
from kafka_node import HOST, Node, free_ports

POM = HERE.parent / "s3" / "pom.xml"
JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""It lives for minutes, so starting fast matters most."""
START_S_MAX = 240


class S3Server:
    """Runs while it is entered. It takes any keys; `settings` are those that clients need."""

    def __init__(self, *buckets: str) -> None:
        self._buckets = buckets
        self._folder = tempfile.TemporaryDirectory(prefix="millstream-s3-")
        port, secure_port = free_ports(2)
        self._node = Node(0, Path(self._folder.name), port, 0, secure_port)

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self._node.port}"

    @property
    def settings(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "not-a-secret",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def start(self) -> None:
        jar = next(assemble(POM).glob("s3mock-*-exec.jar"))
        java = find_java().home / "bin" / "java"
        options = {
            "server.port": self._node.secure_port,
            "com.adobe.testing.s3mock.http-port": self._node.port,
            "http.port": self._node.port,
            "com.adobe.testing.s3mock.store.initial-buckets": ",".join(self._buckets),
            "com.adobe.testing.s3mock.store.root": self._node.data,
            "com.adobe.testing.s3mock.store.retain-files-on-exit": "true",
        }
        self._node.data.mkdir(exist_ok=True)
        given = [f"-D{name}={value}" for name, value in options.items()]
        self._node.start([str(java), *JAVA, *given, "-jar", str(jar)])
        deadline = time.monotonic() + START_S_MAX
        while not self._answers():
            if not self._node.runs or time.monotonic() > deadline:
                raise self._node.failed("the S3 server did not start")
            time.sleep(0.2)

    def stop(self) -> None:
        self._node.send(signal.SIGTERM)
        self._node.wait(10)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.endpoint}/", timeout=2) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def __enter__(self) -> S3Server:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()
        self._folder.cleanup()


if __name__ == "__main__":  # for trying things out: python tools/s3_server.py bucket
    try:
        with S3Server(*(sys.argv[1:] or ["lake"])) as server:
            print("\n".join(f"export {name}={value}" for name, value in server.settings.items()), flush=True)
            signal.sigwait([signal.SIGINT, signal.SIGTERM])
    except (KafkaFailed, subprocess.SubprocessError) as error:
        sys.exit(str(error))
