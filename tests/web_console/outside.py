"""While the network is blocked, this process and the Python processes that it starts can connect to nothing but this
machine, and each attempt is recorded."""

from __future__ import annotations

import ipaddress
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LOCAL = {"", "localhost"}
NAMES, ADDRESSES = {"socket.getaddrinfo", "socket.gethostbyname"}, {"socket.connect", "socket.sendto"}
RECORD = "MILLSTREAM_TEST_ATTEMPTS"
"""The file in which started processes record their attempts."""
STARTED = f"""
import os
import runpy

if "{RECORD}" in os.environ:
    runpy.run_path({__file__!r})["Attempts"].block()
"""


class Attempts:
    """Python has no way to remove an audit hook: there is one for all tests, which is quiet between them."""

    _hooked = False
    _blocking: Path | None = None

    @classmethod
    @contextmanager
    def blocked(cls) -> Iterator[list[str]]:
        """The attempts are in the list at the end."""
        found: list[str] = []
        names = ("PYTHONPATH", RECORD)
        before, kept = cls._blocking, {name: os.environ.get(name) for name in names}
        with tempfile.TemporaryDirectory() as folder:
            record = Path(folder) / "attempts"
            (Path(folder) / "sitecustomize.py").write_text(STARTED)
            os.environ["PYTHONPATH"] = os.pathsep.join(each for each in (folder, kept["PYTHONPATH"]) if each)
            os.environ[RECORD] = str(record)
            cls.block()
            try:
                yield found
            finally:
                cls._blocking = before
                for name, value in kept.items():
                    os.environ.pop(name) if value is None else os.environ.update({name: value})
                found += record.read_text().splitlines() if record.is_file() else []

    @classmethod
    def block(cls) -> None:
        """Without an end, as processes do that were started."""
        cls._blocking = Path(os.environ[RECORD])
        if not cls._hooked:
            sys.addaudithook(cls._noticed)
            cls._hooked = True

    @classmethod
    def _noticed(cls, event: str, arguments: tuple[Any, ...]) -> None:
        if cls._blocking is None or event not in NAMES | ADDRESSES:
            return
        place = arguments[0] if event in NAMES else arguments[1]
        host = place[0] if isinstance(place, tuple) else place if event in NAMES else ""  # a path is of a Unix socket
        if not _is_local(host):
            with suppress(OSError), cls._blocking.open("a") as record:  # a process may outlive the test
                record.write(f"{event} {host}\n")
            raise PermissionError(f"the network is blocked: {host}")


def _is_local(host: Any) -> bool:
    name = host.decode() if isinstance(host, bytes) else str(host or "")
    if name in LOCAL:
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
