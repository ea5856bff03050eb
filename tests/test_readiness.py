"""Waiting for sockets and pipes, whatever the number of their descriptors."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
from collections.abc import Iterator

import pytest

from millstream.readiness import wait_readable

ABOVE_SELECT = 1500


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two connected sockets, the first with a descriptor that select refuses."""
    first, second = socket.socketpair()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit[0], 2 * ABOVE_SELECT), limit[1]))
    moved = socket.socket(fileno=fcntl.fcntl(first, fcntl.F_DUPFD, ABOVE_SELECT))
    first.close()
    yield moved, second
    moved.close()
    second.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, limit)


Pair = tuple[socket.socket, socket.socket]


def test_a_socket_is_readable_once_something_has_arrived(pair: Pair) -> None:
    here, there = pair
    assert wait_readable([here], 0) == set()
    there.send(b"x")
    assert wait_readable([here], 10) == {here.fileno()}


def test_a_socket_whose_other_end_has_closed_is_readable(pair: Pair) -> None:
    here, there = pair
    there.close()
    assert wait_readable([here], 10) == {here.fileno()}


def test_room_to_write_ends_the_wait_without_anything_to_read(pair: Pair) -> None:
    here, there = pair
    assert wait_readable([here], 10, writing=here) == set()
    assert wait_readable([there], 10, writing=here) == set()


def test_only_the_descriptors_that_are_ready_are_returned(pair: Pair) -> None:
    here, _ = pair
    read_end, write_end = os.pipe()
    try:
        os.write(write_end, b"x")
        assert wait_readable([here, read_end], 10) == {read_end}
    finally:
        os.close(read_end)
        os.close(write_end)
