"""`millstream listen tcp`, `unix`, `pipe`, `syslog`, `udp`, `nanomsg` and `zeromq`: nothing is acknowledged."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.bridge_commands.stopping import on_stop
from millstream.cli.output import show_note
from millstream.cli.session import Options, Session, complete_topics
from millstream.errors import InvalidInput

if TYPE_CHECKING:
    from millstream.bridges.peers.messages import Address, Kind, PeerBridge, PeerSource
    from millstream.bridges.sockets.listener import Doors, Reader

Topic = Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topics)]
Host = Annotated[str, typer.Option(help="The address to listen on.")]
Senders = Annotated[
    list[str] | None,
    typer.Option(
        "--from", metavar="NETWORK", help="Senders to accept, such as 10.0.0.0/8; repeatable. Needed beyond loopback."
    ),
]
MaxMessage = Annotated[str, typer.Option(metavar="SIZE", help="The largest message.")]


@dataclass(frozen=True)
class ServerTls(Options):
    """How a listener encrypts, and whom it accepts."""

    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="The server's certificate, for TLS.")] = None
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="The key of the certificate.")] = None
    tls_ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Accept only clients with a certificate that this file trusts.")
    ] = None

    def context(self) -> ssl.SSLContext | None:
        if self.tls_cert is None and self.tls_key is None and self.tls_ca is None:
            return None
        if self.tls_cert is None or self.tls_key is None:
            raise InvalidInput("a certificate and its key belong together", next_step="give --tls-cert and --tls-key")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.tls_cert, self.tls_key)
            if self.tls_ca is not None:
                context.load_verify_locations(self.tls_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as error:
            raise InvalidInput(f"the certificate cannot be used: {error}", next_step="give PEM files") from error
        return context


@dataclass(frozen=True)
class Peer(Options):
    """The other side of a protocol without a broker, and which of its messages."""

    at: Annotated[str, typer.Option(metavar="ADDRESS", help="tcp://HOST:PORT or ipc://PATH.")]
    bind: Annotated[bool, typer.Option("--bind", help="Wait for senders there, instead of connecting to one.")] = False
    subscribe: Annotated[
        list[str] | None,
        typer.Option(metavar="PREFIX", help="Of a publisher, the topics that begin so; '' is all. Default: pull."),
    ] = None
    max_message: MaxMessage = "1 MiB"

    def source(self, address: type[Address], *, numbered: bool) -> PeerSource[Address]:
        from millstream.bridges.peers.messages import PeerSource
        from millstream.records import size_bytes

        kind: Kind = "pull" if self.subscribe is None else "subscribe"
        prefixes = self.subscribe or [""]
        return PeerSource(address(self.at, self.bind), kind, prefixes, numbered, size_bytes(self.max_message))


def tcp(
    session: Session,
    topic: Topic,
    *,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 9000,
    senders: Senders = None,
    max_message: MaxMessage = "1 MiB",
    tls: ServerTls,
) -> None:
    """Receive lines over TCP until Ctrl-C: every line is a record.

    \b
    Example:
      millstream listen tcp logs --port 9000
      tail -f app.log | nc 127.0.0.1 9000
    """
    from millstream.bridges.sockets.listener import Doors
    from millstream.serving.access import ListenAddress
    from millstream.serving.http import bound

    address = ListenAddress.of(host, port)
    reader = _reader(topic, "lines", max_message, senders, is_local=address.is_local)
    with bound(address) as taken:
        number = taken.getsockname()[1]
        doors = Doors(streams=[taken], tls=tls.context())
        _serve(session, doors, reader, "tcp", f"{host}:{number}")


def unix(
    session: Session,
    topic: Topic,
    path: Annotated[Path, typer.Option(help="The path of the socket; only this user can connect.")],
    max_message: MaxMessage = "1 MiB",
) -> None:
    """Receive lines over a Unix socket until Ctrl-C: every line is a record.

    \b
    Example:
      millstream listen unix logs --path /tmp/logs.sock
    """
    from millstream.bridges.sockets.listener import Doors, unix_socket

    with unix_socket(path) as taken:
        try:
            _serve(session, Doors(streams=[taken]), _reader(topic, "lines", max_message), "unix", str(path))
        finally:
            path.unlink(missing_ok=True)


def pipe(
    session: Session,
    topic: Topic,
    path: Annotated[Path, typer.Option(help="The path of the pipe, which is created if it does not exist.")],
    max_message: MaxMessage = "1 MiB",
) -> None:
    """Receive lines from a named pipe until Ctrl-C: every line is a record.

    \b
    Example:
      millstream listen pipe logs --path /tmp/logs.pipe
      echo hello > /tmp/logs.pipe
    """
    from millstream.bridges.sockets.listener import Doors, named_pipe

    doors = Doors(pipe=named_pipe(path))
    _serve(session, doors, _reader(topic, "lines", max_message), "pipe", str(path))


def syslog(
    session: Session,
    topic: Topic,
    *,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of TCP and UDP; 0: any free port.")] = 5514,
    senders: Senders = None,
    max_message: MaxMessage = "64 KiB",
    tls: ServerTls,
) -> None:
    """Receive syslog over TCP and UDP until Ctrl-C, as JSON: facility, severity, at, host, app, process, message.

    RFC 5424 and RFC 3164; over TCP with lengths or by lines. The key of a record is the host. With a certificate,
    TCP is TLS (RFC 5425), and UDP is off.

    \b
    Example:
      millstream listen syslog logs --port 5514
      logger --server 127.0.0.1 --port 5514 --tcp hello
    """
    from millstream.bridges.sockets.listener import Doors, datagram_socket
    from millstream.serving.access import ListenAddress
    from millstream.serving.http import bound

    address = ListenAddress.of(host, port)
    reader = _reader(topic, "syslog", max_message, senders, is_local=address.is_local)
    context = tls.context()
    with ExitStack() as opened:
        taken = opened.enter_context(bound(address))
        number = taken.getsockname()[1]
        datagrams = [] if context else [opened.enter_context(datagram_socket(str(address.ip), number))]
        _serve(session, Doors([taken], datagrams, tls=context), reader, "syslog", f"{host}:{number}")


def udp(
    session: Session,
    topic: Topic,
    host: Annotated[
        str, typer.Option(help="The address to listen on, or of the interface for multicast.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 9000,
    multicast: Annotated[
        list[str] | None,
        typer.Option(metavar="GROUP", help="A multicast group; repeatable: lines with the same numbers are merged."),
    ] = None,
    sequence: Annotated[
        str | None,
        typer.Option(metavar="AT:SIZE", help="Where datagrams have a big-endian number, in bytes: 0:8 is the first 8."),
    ] = None,
    senders: Senders = None,
    max_message: MaxMessage = "64 KiB",
) -> None:
    """Receive datagrams until Ctrl-C: each is a record. Those that are lost are counted, not repeated.

    \b
    Example:
      millstream listen udp quotes --port 9000 --multicast 239.0.0.1 --multicast 239.0.0.2 --sequence 0:8
    """
    from millstream.bridges.sockets.listener import Doors, Numbered, datagram_socket
    from millstream.serving.access import ListenAddress

    address = ListenAddress.of(host, port)
    reader = _reader(topic, "lines", max_message, senders, is_local=address.is_local)
    numbered = None
    if sequence is not None:
        at, colon, size = sequence.partition(":")
        if not (colon and at.isdecimal() and size.isdecimal() and 1 <= int(size) <= 8):
            raise InvalidInput(f"{sequence!r} is not AT:SIZE", next_step="for example --sequence 0:8")
        numbered = Numbered(int(at), int(size))
    with ExitStack() as opened:
        groups: list[str | None] = [*multicast] if multicast else [None]
        taken = [opened.enter_context(datagram_socket(str(address.ip), port, group)) for group in groups]
        where = ",".join(f"{group or host}:{port}" for group in groups)
        _serve(session, Doors(datagrams=taken, numbered=numbered), reader, "udp", where)


def zeromq(
    session: Session,
    topic: Topic,
    peer: Peer,
    numbered: Annotated[
        bool, typer.Option("--numbered", help="Messages have the parts of ms.zeromq: count missing ones, keep ids.")
    ] = False,
) -> None:
    """Receive messages over ZeroMQ until Ctrl-C: pull, or subscribe to a publisher. There are no acknowledgements.

    The last part of a message is the value of its record, and the first of several is the key. Needs: pip install
    'millstream[zeromq]'

    \b
    Example:
      millstream listen zeromq trades --at tcp://127.0.0.1:5555 --subscribe 'trades.'
    """
    from millstream.bridges.peers.zeromq import ZmqAddress, ZmqBridge

    _receive(session, ZmqBridge, peer.source(ZmqAddress, numbered=numbered), topic)


def nanomsg(
    session: Session,
    topic: Topic,
    peer: Peer,
    numbered: Annotated[
        bool, typer.Option("--numbered", help="Messages have the parts of ms.nanomsg: count missing ones, keep ids.")
    ] = False,
) -> None:
    """Receive messages over nanomsg (NNG) until Ctrl-C: pull, or subscribe to a publisher. No acknowledgements.

    Needs: pip install 'millstream[nanomsg]'

    \b
    Example:
      millstream listen nanomsg trades --at tcp://127.0.0.1:5555 --subscribe 'trades.'
    """
    from millstream.bridges.peers.nanomsg import NanomsgAddress, NanomsgBridge

    _receive(session, NanomsgBridge, peer.source(NanomsgAddress, numbered=numbered), topic)


def _receive(session: Session, kind: type[PeerBridge[Address]], source: PeerSource[Address], topic: str) -> None:
    from millstream.bridges.landing import Landing
    from millstream.bridges.reports import reported
    from millstream.bridges.sockets.running import bridge_name

    at = source.address.text
    with session.log() as log, Landing(log, bridge_name(kind.name, at), [topic]) as landing:
        bridge = kind(source, landing, topic)
        bridge.on_ready = lambda: show_note(f"receiving from {at} for topic '{topic}' until Ctrl-C")
        on_stop(bridge.stop)
        try:
            with reported(log, kind.name, landing, missing=lambda: bridge.missing):
                bridge.run()
        finally:
            show_note(f"{landing.counts.summary()}, missing numbers {bridge.missing:,}")


COMMANDS: tuple[Callable[..., None], ...] = (tcp, unix, pipe, syslog, udp, nanomsg, zeromq)


def _reader(
    topic: str, kind: str, max_message: str, senders: list[str] | None = None, *, is_local: bool = True
) -> Reader:
    from ipaddress import ip_network

    from millstream.bridges.sockets.listener import Reader
    from millstream.records import size_bytes

    try:
        allowed = [ip_network(sender) for sender in senders or ()]
    except ValueError as error:
        raise InvalidInput(f"not a network: {error}", next_step="for example --from 10.0.0.0/8") from error
    if not is_local and not allowed:
        raise InvalidInput(
            "this address can be reached from other machines, and the protocol has no passwords",
            next_step="name the senders, such as --from 10.0.0.0/8, or listen on this machine only: --host 127.0.0.1",
        )
    return Reader(topic, kind, size_bytes(max_message), allowed)


def _serve(session: Session, doors: Doors, reader: Reader, kind: str, where: str) -> None:
    from millstream.bridges.landing import Landing
    from millstream.bridges.reports import reported
    from millstream.bridges.sockets import running
    from millstream.bridges.sockets.listener import Traffic

    traffic = Traffic()
    with session.log() as log, Landing(log, running.bridge_name(kind, where), [reader.topic]) as landing:

        def ready(stop: Callable[[], None]) -> None:
            show_note(f"listening at {where} for topic '{reader.topic}' until Ctrl-C")

        try:
            with reported(log, kind, landing, missing=lambda: traffic.missing):
                running.serve(landing, doors, reader, traffic, ready)
        finally:
            show_note(f"{landing.counts.summary()}, {traffic.summary()}")
