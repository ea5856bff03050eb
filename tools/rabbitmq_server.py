"""A real AMQP broker, RabbitMQ, in a folder of its own; tests are skipped where the machine does not have it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from unittest import SkipTest

from debian_servers import FOLDERS, MISSING, program

PROGRAM = program("rabbitmq-server")
SCRIPTS = Path("/usr/lib/rabbitmq/bin")
"""Debian's own programs want to run as the user `rabbitmq`; those that they call run as any user."""
NAMES = shutil.which("epmd", path=FOLDERS)
START_SECONDS, LOOK_SECONDS = 300.0, 0.1
STOP_SECONDS = 30.0
CONFIGURATION = """
loopback_users.guest = true
log.file.level = warning
log.console = false
vm_memory_high_watermark.absolute = 512MB
disk_free_limit.absolute = 10MB
max_message_size = 4194304
listeners.tcp.1 = 127.0.0.1:{port}
"""
GREETING = b"AMQP\x00\x00\x09\x01"
SMALL = "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none"
"""One scheduler that does not spin while it waits: tests share the machine."""


class RabbitMq:
    """It can be killed and started again with what it has stored."""

    def __init__(self, folder: Path) -> None:
        if PROGRAM is None or NAMES is None:
            raise SkipTest(MISSING.format("rabbitmq-server"))
        self.folder = folder
        self.port, self._names_port, self._nodes_port = _free_ports(3)
        (folder / "rabbitmq.conf").write_text(CONFIGURATION.format(port=self.port))
        (folder / "plugins").write_text("[].")
        self._environment = {
            "PATH": FOLDERS,
            "LANG": "C.UTF-8",
            "HOME": str(folder),  # where Erlang keeps the cookie of its nodes
            "ERL_EPMD_PORT": str(self._names_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"tests{self.port}@localhost",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(self._nodes_port),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "logs"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": SMALL,
            "RUNNING_UNDER_SYSTEMD": "1",  # then the script becomes the server instead of waiting for it
        }
        # The server would start it by itself, and leave it running for good.
        self._names = subprocess.Popen([NAMES, "-port", str(self._names_port), "-address", "127.0.0.1"])
        try:
            self.start()
        except BaseException:
            self._names.kill()
            self._names.wait()
            raise

    @property
    def address(self) -> str:
        return f"amqp://guest@127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns when it accepts clients. Its processes are a group of their own, which is killed as a whole."""
        self._process = subprocess.Popen(
            [SCRIPTS / "rabbitmq-server"],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"RabbitMQ does not accept clients; see {self.folder / 'logs'}")
            time.sleep(LOOK_SECONDS)

    def _answers(self) -> bool:
        """It accepts connections a while before it serves them."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as trying:
            trying.sendall(GREETING)
            return trying.recv(1) == b"\x01"
        return False

    def kill(self) -> None:
        """As when the machine loses power, except that what it gave to the operating system is kept."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        self.kill()

    def close(self) -> None:
        """Leaves no process behind. What it has stored is not needed any more."""
        self.kill()
        self._names.kill()
        self._names.wait()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def _free_ports(count: int) -> list[int]:
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in taken]
    finally:
        for each in taken:
            each.close()
