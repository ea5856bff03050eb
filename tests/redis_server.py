"""A real Redis in a folder of its own; skipped by name where the machine does not have it."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from debian_servers import MISSING, program
from waiting import until

PROGRAM = program("redis-server")


class RedisServer:
    """It can be killed and started again with what it has stored."""

    def __init__(self, folder: Path) -> None:
        if PROGRAM is None:
            pytest.skip(MISSING.format("redis-server"))
        self._folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.start()

    def start(self) -> None:
        assert PROGRAM is not None
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        durable = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        self._process = subprocess.Popen([PROGRAM, *options, *durable], stdout=subprocess.DEVNULL)
        until(self._answers, "Redis listens")

    def _answers(self) -> bool:
        assert self._process.poll() is None, "Redis has ended"
        with socket.socket() as trying:
            return trying.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
