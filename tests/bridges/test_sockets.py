"""Lines, syslog and datagrams over real sockets into a topic."""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from ipaddress import ip_network
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.bridges.arrivals import Arrival, Landed
from millstream.bridges.grouping import GroupedLanding
from millstream.bridges.landing import Landing
from millstream.bridges.sockets import running
from millstream.bridges.sockets.framing import Counted, Lines, Piece, Unframed
from millstream.bridges.sockets.listener import (
    Doors,
    Numbered,
    Reader,
    Traffic,
    datagram_socket,
    named_pipe,
    unix_socket,
)
from millstream.bridges.sockets.sequences import MISSING_MAX, Sequence
from millstream.bridges.sockets.syslog import NotSyslog, parsed
from millstream.errors import BufferFull, InvalidInput
from millstream.log import EmbeddedLog
from millstream.serving.access import ListenAddress
from millstream.serving.http import bound
from waiting import until

from .support import records, values
from .test_webhook import certified

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@contextmanager
def serving(log: EmbeddedLog, doors: Doors, reader: Reader) -> Iterator[Traffic]:
    traffic, ready = Traffic(), threading.Event()
    stops: list[Callable[[], None]] = []

    def on_ready(stop: Callable[[], None]) -> None:
        stops.append(stop)
        ready.set()

    with Landing(log, "test", [reader.topic]) as landing:
        thread = threading.Thread(target=running.serve, args=(landing, doors, reader, traffic, on_ready))
        thread.start()
        until(ready.is_set, "the bridge is ready")
        try:
            yield traffic
        finally:
            stops[0]()
            thread.join()


@pytest.fixture
def logs(log: EmbeddedLog) -> EmbeddedLog:
    log.create_topic("logs")
    return log


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    with bound(ListenAddress.of("127.0.0.1", 0)) as made:
        yield made


def send(taken: socket.socket, *parts: bytes) -> None:
    with socket.create_connection(taken.getsockname()) as connection:
        for part in parts:
            connection.sendall(part)


def stored(log: EmbeddedLog, count: int, topic: str = "logs") -> list[bytes]:
    until(lambda: topic in log.topics() and len(records(log, topic)) >= count, "the messages are stored")
    return values(log, topic)


# ---------------------------------------------------------------- streams


def test_lines_over_tcp(logs: EmbeddedLog, taken: socket.socket) -> None:
    with serving(logs, Doors([taken]), Reader("logs", "lines", bytes_max=10)):
        send(taken, b"one\r\ntw", b"o\n\nthree")
        assert stored(logs, 3) == [b"one", b"two", b"three"]
        send(taken, b"x" * 25 + b"\nfour\n")
        assert stored(logs, 4)[3] == b"four"
        (letter,) = stored(logs, 1, "logs.dead")
        assert (letter["value"], letter["topic"]) == (b"x" * 10, "lines 127.0.0.1")
        assert "longer than 10 bytes" in letter["reason"]


def test_lines_over_tls_from_a_known_network(logs: EmbeddedLog, taken: socket.socket, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate = certified(tmp_path)
    context.load_cert_chain(certificate)
    trusting = ssl.create_default_context(cafile=str(certificate))
    with serving(logs, Doors([taken], tls=context), Reader("logs", "lines")):
        plain = socket.create_connection(taken.getsockname())
        with trusting.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
            connection.sendall(b"secret\n")
        assert stored(logs, 1) == [b"secret"]


def test_unknown_senders_are_refused(logs: EmbeddedLog, taken: socket.socket) -> None:
    reader = Reader("logs", "lines", allowed=[ip_network("192.0.2.0/24")])
    with serving(logs, Doors([taken]), reader) as traffic:
        with socket.create_connection(taken.getsockname()) as connection:
            assert connection.recv(1) == b""  # closed
        assert traffic.refused_connections == 1
    assert values(logs, "logs") == []


def test_a_unix_socket(logs: EmbeddedLog, tmp_path: Path) -> None:
    path = tmp_path / "logs.sock"
    unix_socket(path).close()  # left by a process that is gone
    with unix_socket(path) as taken, serving(logs, Doors([taken]), Reader("logs", "lines")):
        assert path.stat().st_mode & 0o777 == 0o600
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(b"one\ntwo")
        assert stored(logs, 2) == [b"one", b"two"]
        with pytest.raises(InvalidInput):
            unix_socket(path)


def test_a_named_pipe(logs: EmbeddedLog, tmp_path: Path) -> None:
    path = named_pipe(tmp_path / "logs.pipe")
    with serving(logs, Doors(pipe=path), Reader("logs", "lines")):
        for line in (b"one\n", b"two\n"):  # two writers, one after the other
            opened = os.open(path, os.O_WRONLY)
            os.write(opened, line)
            os.close(opened)
        assert stored(logs, 2) == [b"one", b"two"]
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="pipe"):
        named_pipe(tmp_path / "file")


# ---------------------------------------------------------------- syslog


def test_syslog_over_tcp_and_udp(logs: EmbeddedLog, taken: socket.socket) -> None:
    message = b"<34>1 2026-01-01T00:00:00Z web1 app 42 ID47 - started"
    port = taken.getsockname()[1]
    with (
        datagram_socket("127.0.0.1", port) as datagrams,
        serving(logs, Doors([taken], [datagrams]), Reader("logs", "syslog")),
    ):
        send(taken, b"%d %b" % (len(message), message) * 2)
        assert [json.loads(value)["message"] for value in stored(logs, 2)] == ["started"] * 2
        send(taken, message + b"\n<13>Jan  1 00:00:00 db1 cron[7]: done\n")
        stored(logs, 4)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(message, ("127.0.0.1", port))
            sender.sendto(b"no priority", ("127.0.0.1", port))
        stored(logs, 5)
        (letter,) = stored(logs, 1, "logs.dead")
        assert (letter["value"], letter["topic"]) == (b"no priority", "udp 127.0.0.1")
    found = records(logs, "logs")
    assert [record.key for record in found] == [b"web1", b"web1", b"web1", b"db1", b"web1"]
    assert json.loads(found[3].value) | {"at": ""} == {
        "facility": "user",
        "severity": "notice",
        "level": 5,
        "at": "",
        "host": "db1",
        "app": "cron",
        "process": "7",
        "message": "done",
    }


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            b'<165>1 2003-10-11T22:14:15.003Z host app - ID47 [a@1 b="1" c="\\"]\\\\"][d@2] \xef\xbb\xbfmessage',
            {
                "facility": "local4",
                "severity": "notice",
                "level": 5,
                "at": "2003-10-11T22:14:15.003Z",
                "host": "host",
                "app": "app",
                "message_id": "ID47",
                "data": {"a@1": {"b": "1", "c": '"]\\'}, "d@2": {}},
                "message": "message",
            },
        ),
        (b"<0>1 - - - - - -", {"facility": "kern", "severity": "emergency", "level": 0, "message": ""}),
        (
            b"<13>Dec 31 23:59:59 host su: 'su root' failed",
            {"at": "2025-12-31T23:59:59Z", "host": "host", "app": "su", "message": "'su root' failed"},
        ),
        (b"<13>Feb 31 00:00:00 host su: x", {"message": "Feb 31 00:00:00 host su: x"}),
        (b"<13>no header at all", {"message": "no header at all"}),
    ],
)
def test_a_message_of_syslog(message: bytes, expected: dict[str, object]) -> None:
    found = parsed(message, NOW)
    if "facility" not in expected:
        expected = {"facility": "user", "severity": "notice", "level": 5, **expected}
    assert found == expected


@pytest.mark.parametrize("message", [b"", b"<192>x", b"<13", b'<13>1 - - - - - [a b="]', b"<13>1 - - - - - x"])
def test_what_is_not_syslog(message: bytes) -> None:
    with pytest.raises(NotSyslog):
        parsed(message, NOW)


# ---------------------------------------------------------------- datagrams


def test_numbered_datagrams_of_two_lines_are_merged(logs: EmbeddedLog) -> None:
    """Method: each line loses some of the datagrams; one is lost on both."""
    with (
        datagram_socket("127.0.0.1", 0) as a,
        datagram_socket("127.0.0.1", 0) as b,
        serving(logs, Doors(datagrams=[a, b], numbered=Numbered(0, 8)), Reader("logs", "lines")) as traffic,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        for numbers, line in (([0, 1, 3, 6], a), ([0, 2, 3, 5, 6], b)):
            for number in numbers:
                sender.sendto(number.to_bytes(8) + b"quote", line.getsockname())
        stored(logs, 6)
        sender.sendto(b"short", a.getsockname())
        assert stored(logs, 1, "logs.dead")[0]["value"] == b"short"
        until(lambda: traffic.numbers.duplicates == 3, "all were received")
        assert traffic.numbers.missing == 1
        assert "missing numbers 1, repeated 3" in traffic.summary()
    sequences = [dict(record.headers)["sequence"] for record in records(logs, "logs")]
    assert sorted(sequences) == [b"0", b"1", b"2", b"3", b"5", b"6"]


def test_what_one_line_had_no_space_for_comes_from_the_other(
    logs: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: what line A brings first is not taken; line B brings the same later."""
    land, calls = GroupedLanding.land, count()

    async def full_at_first(self: GroupedLanding, arrivals: list[Arrival]) -> Landed:
        if next(calls) == 0:
            raise BufferFull("there is no space")
        return await land(self, arrivals)

    monkeypatch.setattr(GroupedLanding, "land", full_at_first)
    with (
        datagram_socket("127.0.0.1", 0) as a,
        datagram_socket("127.0.0.1", 0) as b,
        serving(logs, Doors(datagrams=[a, b], numbered=Numbered(0, 8)), Reader("logs", "lines")) as traffic,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        sender.sendto((7).to_bytes(8) + b"quote", a.getsockname())
        until(lambda: traffic.numbers.missing == 1, "it was dropped, and is missing")
        assert traffic.dropped == 1
        sender.sendto((7).to_bytes(8) + b"quote", b.getsockname())
        assert stored(logs, 1) == [(7).to_bytes(8) + b"quote"]
        assert traffic.numbers.missing == 0


def test_a_datagram_that_is_too_long(logs: EmbeddedLog) -> None:
    with (
        datagram_socket("127.0.0.1", 0) as at,
        serving(logs, Doors(datagrams=[at]), Reader("logs", "lines", 10)),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        sender.sendto(b"0123456789a", at.getsockname())
        sender.sendto(b"0123456789", at.getsockname())
        assert stored(logs, 1) == [b"0123456789"]
        (letter,) = stored(logs, 1, "logs.dead")
        assert (letter["value"], letter["reason"]) == (
            b"0123456789",
            "the datagram is longer than 10 bytes, and was cut",
        )


def test_multicast(logs: EmbeddedLog) -> None:
    with datagram_socket("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    try:
        taken = datagram_socket("127.0.0.1", port, "239.1.2.3")
    except InvalidInput as error:
        pytest.skip(f"this machine has no multicast: {error.what}")
    with (
        taken,
        serving(logs, Doors(datagrams=[taken]), Reader("logs", "lines")),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        sender.sendto(b"quote", ("239.1.2.3", port))
        assert stored(logs, 1) == [b"quote"]


# ---------------------------------------------------------------- framing and numbers


@given(
    messages=st.lists(st.binary(max_size=20).filter(lambda each: b"\n" not in each and not each.endswith(b"\r"))),
    cuts=st.lists(st.integers(1, 7), min_size=1),
)
def test_framing_does_not_depend_on_how_bytes_arrive(messages: list[bytes], cuts: list[int]) -> None:
    for framing, sent in (
        (Lines(20), b"".join(message + b"\n" for message in messages)),
        (Counted(20), b"".join(b"%d %b" % (len(message), message) for message in messages)),
    ):
        found: list[Piece] = []
        position = turn = 0
        while position < len(sent):
            size = cuts[turn % len(cuts)]
            found += framing.feed(sent[position : position + size])
            position, turn = position + size, turn + 1
        assert [*found, *framing.end()] == [Piece(message) for message in messages]


def test_a_length_that_cannot_be() -> None:
    framing = Counted(100)
    assert list(framing.feed(b"5 hello")) == [Piece(b"hello")]
    with pytest.raises(Unframed):
        list(framing.feed(b"5x hello"))
    cut = Counted(100)
    assert list(cut.feed(b"5 he")) == []
    assert [piece.fault for piece in cut.end()] == ["the connection ended in the middle of the message"]


@given(st.lists(st.integers(0, 30), min_size=1))
def test_numbers_are_counted_once(numbers: list[int]) -> None:
    sequence = Sequence()
    first = numbers[0]
    taken = [number for number in numbers if sequence.is_new(number)]
    expected = [number for index, number in enumerate(numbers) if number >= first and number not in numbers[:index]]
    assert taken == expected
    assert sequence.missing == max(numbers) - first + 1 - len(expected)


def test_a_sender_that_starts_again() -> None:
    sequence = Sequence()
    assert [sequence.is_new(number) for number in (MISSING_MAX + 10, 0, 1, 0)] == [True, True, True, False]
    assert (sequence.restarts, sequence.missing) == (1, 0)
