"""A real Apache ActiveMQ Artemis on this machine, for AMQP 1.0 and STOMP, gone when its starter is.

It is brought by Maven once and kept in `.kafka/`.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from unittest import SkipTest

from kafka_jars import KafkaFailed, KafkaUnavailable, assemble_unpacked, find_java
from kafka_node import HOST, Node, free_ports

BROKER = "org.apache.activemq:apache-artemis:2.44.0:tar.gz:bin"
HERE = Path(__file__).resolve().parent / "artemis"
START_S_MAX = 240
STOP_S_MAX = 20
LOOK_S = 0.1
JAVA = ("-Xmx300m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")  # it lives for minutes
SETTINGS = ("broker.xml", "bootstrap.xml", "login.config")
PROTOCOLS = "protocols=STOMP,AMQP;anycastPrefix=/queue/;multicastPrefix=/topic/"
USER, PASSWORD = "guest", "guest-password"
LOGGING = "rootLogger=WARN,console\nappender.console.type=Console\nappender.console.name=console\n"


class ArtemisServer:
    """On a free port of the loopback interface. It can be killed and started again with what it has stored."""

    def __init__(self, certificate: Path | None = None) -> None:
        """With a certificate and its key in one file, it also has a port for TLS."""
        try:
            self._home = next(assemble_unpacked(BROKER).glob("apache-artemis-*"))
        except KafkaUnavailable as missing:
            raise SkipTest(f"Artemis cannot be brought: {missing.what}") from missing
        self._folder = tempfile.TemporaryDirectory(prefix="millstream-artemis-")
        self.port, self.tls_port = free_ports(2)
        self.certificate = certificate
        self._node = Node(0, Path(self._folder.name), self.port, 0, 0)
        self._write_settings(Path(self._folder.name))
        self.start()

    def _write_settings(self, folder: Path) -> None:
        etc = folder / "etc"
        etc.mkdir()
        for name in SETTINGS:
            text = (HERE / name).read_text()
            (etc / name).write_text(text.format(folder=folder, port=self.port, secure=self._secure()))
        (etc / "users.properties").write_text(f"{USER}={PASSWORD}\n")
        (etc / "roles.properties").write_text(f"users={USER}\n")
        (etc / "management.xml").write_text('<management-context xmlns="http://activemq.apache.org/schema"/>\n')
        (etc / "log4j2.properties").write_text(LOGGING)

    def _secure(self) -> str:
        """The acceptor for TLS."""
        if self.certificate is None:
            return ""
        settings = f"{PROTOCOLS};sslEnabled=true;keyStoreType=PEM;keyStorePath={self.certificate}"
        return f'<acceptor name="secure">tcp://{HOST}:{self.tls_port}?{settings}</acceptor>'

    def start(self) -> None:
        folder = self._node.folder
        settings = {
            "artemis.home": self._home,
            "artemis.instance": folder,
            "artemis.instance.etc": folder / "etc",
            "data.dir": folder / "data",
            "java.security.auth.login.config": folder / "etc" / "login.config",
            "log4j2.configurationFile": folder / "etc" / "log4j2.properties",
            "java.io.tmpdir": folder,
        }
        given = [f"-D{name}={value}" for name, value in settings.items()]
        main = ["-cp", str(self._home / "lib" / "artemis-boot.jar"), "org.apache.activemq.artemis.boot.Artemis", "run"]
        self._node.start([str(find_java().command), *JAVA, *given, *main])
        deadline = time.monotonic() + START_S_MAX
        while not self._answers():
            if not self._node.runs or time.monotonic() > deadline:
                raise self._node.failed("Artemis did not start")
            time.sleep(LOOK_S)

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection((HOST, self.port), 1) as trying:
            trying.sendall(f"CONNECT\naccept-version:1.2\nhost:x\nlogin:{USER}\npasscode:{PASSWORD}\n\n\0".encode())
            return trying.recv(9) == b"CONNECTED"
        return False

    def run_client(self, *arguments: str) -> str:
        """What Artemis' own command for clients prints: that speaks AMQP 1.0 as programs with JMS do."""
        jar = str(self._home / "lib" / "artemis-boot.jar")
        home = [f"-Dartemis.home={self._home}", f"-Djava.io.tmpdir={self._node.folder}"]
        command = [str(find_java().command), *JAVA, *home, "-cp", jar, "org.apache.activemq.artemis.boot.Artemis"]
        login = ["--user", USER, "--password", PASSWORD, "--url", f"amqp://{HOST}:{self.port}", "--protocol", "AMQP"]
        done = subprocess.run([*command, *arguments, *login], capture_output=True, text=True, timeout=START_S_MAX)
        if done.returncode:
            raise KafkaFailed(f"the client of Artemis failed: {done.stdout}{done.stderr}")
        return done.stdout

    def kill(self) -> None:
        self._node.send(signal.SIGKILL)
        self._node.wait(STOP_S_MAX)

    def close(self) -> None:
        self.kill()
        self._folder.cleanup()
