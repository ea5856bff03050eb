"""The proxy that breaks connections: what passes, what waits, what is lost, and who is notified."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from millstream.testing.connectors import FaultProxy

WAIT_SECONDS = 60


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    """In front of a server that sends everything back."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve(connection: socket.socket) -> None:
            with connection, suppress(OSError):
                while received := connection.recv(4096):
                    connection.sendall(received)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        with FaultProxy(listener.getsockname()[1]) as made:
            yield made


def connected(proxy: FaultProxy) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", proxy.port), WAIT_SECONDS)
    assert echoed(made, b"hello")
    return made


def echoed(connection: socket.socket, text: bytes) -> bool:
    connection.sendall(text)
    return connection.recv(len(text), socket.MSG_WAITALL) == text


def is_silent(connection: socket.socket) -> bool:
    connection.settimeout(0.05)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(WAIT_SECONDS)
    return False


def test_it_passes_bytes_and_the_end(proxy: FaultProxy) -> None:
    proxy.delay_seconds = 0.01
    with connected(proxy) as connection:
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(10) == b""


def test_a_cut_ends_connections_and_loses_what_is_on_the_way(proxy: FaultProxy) -> None:
    with connected(proxy) as connection:
        proxy.hold()
        connection.sendall(b"lost")
        assert is_silent(connection)
        proxy.cut()
        with suppress(ConnectionError):
            assert connection.recv(10) == b""
        proxy.heal()
        with connected(proxy) as another:
            assert echoed(another, b"new")


@pytest.mark.parametrize("direction", ["to_server", "to_client"])
def test_what_is_held_back_in_one_direction_comes_later(proxy: FaultProxy, direction: str) -> None:
    with connected(proxy) as connection:
        proxy.hold(direction)  # type: ignore[arg-type]
        connection.sendall(b"later")
        assert is_silent(connection)
        proxy.heal()
        assert connection.recv(5, socket.MSG_WAITALL) == b"later"


def test_a_frozen_connection_is_silent_and_new_ones_work(proxy: FaultProxy) -> None:
    with connected(proxy) as frozen:
        proxy.freeze()
        frozen.sendall(b"?")
        with connected(proxy) as another:
            assert echoed(another, b"new")
        assert is_silent(frozen)


def test_a_server_that_is_down(proxy: FaultProxy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with (
        FaultProxy(port) as nowhere,
        socket.create_connection(("127.0.0.1", nowhere.port), WAIT_SECONDS) as connection,
        suppress(ConnectionError),
    ):
        assert connection.recv(10) == b""
