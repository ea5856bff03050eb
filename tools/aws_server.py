"""SQS, SNS and Kinesis on this machine: moto's server, in a process of its own. What it has is in memory only."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from unittest import SkipTest

START_SECONDS, LOOK_SECONDS = 120.0, 0.1
REGION = "us-east-1"
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": REGION}
"""What clients need in their environment; the server accepts any."""


class AwsServer:
    """It can be paused: then it accepts connections and does not answer."""

    def __init__(self) -> None:
        try:
            import moto.server  # noqa: F401
        except ImportError as error:
            raise SkipTest("moto is missing: pip install 'moto[server]'") from error
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self._process = subprocess.Popen(
            command, env={**os.environ, **KEYS}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise AssertionError("moto's server does not accept connections")
            time.sleep(LOOK_SECONDS)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _answers(self) -> bool:
        with socket.socket() as trying:
            return trying.connect_ex(("127.0.0.1", self.port)) == 0

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
