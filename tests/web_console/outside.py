"""While the network is blocked, this process can connect to nothing but this machine, and each attempt is recorded."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LOCAL = {"", "localhost"}
NAMES, ADDRESSES = {"socket.getaddrinfo", "socket.gethostbyname"}, {"socket.connect", "socket.sendto"}


class Attempts:
    """Python has no way to remove an audit hook: there is one for all tests, which is quiet between them."""

    _hooked = False
    _blocking: list[str] | None = None

    @classmethod
    @contextmanager
    def blocked(cls) -> Iterator[list[str]]:
        if not cls._hooked:
            sys.addaudithook(cls._noticed)
            cls._hooked = True
        before, cls._blocking = cls._blocking, (found := [])
        try:
            yield found
        finally:
            cls._blocking = before

    @classmethod
    def _noticed(cls, event: str, arguments: tuple[Any, ...]) -> None:
        if cls._blocking is None or event not in NAMES | ADDRESSES:
            return
        place = arguments[0] if event in NAMES else arguments[1]
        host = place[0] if isinstance(place, tuple) else place if event in NAMES else ""  # a path is of a Unix socket
        if not _is_local(host):
            cls._blocking.append(f"{event} {host}")
            raise PermissionError(f"the network is blocked: {host}")


def _is_local(host: Any) -> bool:
    name = host.decode() if isinstance(host, bytes) else str(host or "")
    if name in LOCAL:
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
