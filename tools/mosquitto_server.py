"""A real MQTT broker, mosquitto, in a folder of its own; tests are skipped where the machine does not have it."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path
from unittest import SkipTest

from debian_servers import MISSING, program

PROGRAM = program("mosquitto")
START_SECONDS, LOOK_SECONDS = 120.0, 0.02
SAVES = "autosave_interval 1\nautosave_on_changes true"
CONFIGURATION = """
listener {port} 127.0.0.1
allow_anonymous {anonymous}
{more}
persistence true
persistence_location {folder}/
{autosave}
max_queued_messages 0
max_inflight_messages 0
"""


class Mosquitto:
    """It can be killed and started again with what it has stored."""

    def __init__(
        self, folder: Path, passwords: Path | None = None, tls: Path | None = None, *, saves: bool = True
    ) -> None:
        """`tls` has a certificate and its key. Without `saves`, sessions are only stored when it is stopped."""
        if PROGRAM is None:
            raise SkipTest(MISSING.format("mosquitto"))
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._file = folder / "mosquitto.conf"
        self._log = folder / "mosquitto.log"
        self._scheme = "mqtt" if tls is None else "mqtts"
        more = [] if passwords is None else [f"password_file {passwords}"]
        more += [] if tls is None else [f"certfile {tls}", f"keyfile {tls}"]
        anonymous = "true" if passwords is None else "false"
        text = CONFIGURATION.format(
            port=self.port, folder=folder, anonymous=anonymous, more="\n".join(more), autosave=SAVES if saves else ""
        )
        self._file.write_text(text + ("user root\n" if Path.home() == Path("/root") else ""))
        self.start()

    @property
    def address(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}"

    def start(self) -> None:
        assert PROGRAM is not None
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([PROGRAM, "-c", str(self._file)], stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            assert time.monotonic() < deadline, f"mosquitto does not listen after {START_SECONDS:g} s"
            time.sleep(LOOK_SECONDS)

    def _answers(self) -> bool:
        ended = self._process.poll()
        assert ended is None, f"mosquitto has ended with {ended}: {self._log.read_text()}"
        with socket.socket() as trying:
            return trying.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        """It stores its sessions first."""
        ended = self._process.poll()
        assert ended is None, f"mosquitto has ended with {ended}: {self._log.read_text()}"
        self._process.terminate()
        self._process.wait()
