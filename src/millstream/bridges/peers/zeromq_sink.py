"""A sink that sends every row over ZeroMQ, to one of several workers (push) or to all subscribers (publish)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.bridges.peers.sink import SEND_MS, PeerEndpoint, PeerSink, SendKind, checked
from millstream.bridges.peers.zeromq import ZmqAddress, installed
from millstream.connectors.connector import Writing
from millstream.connectors.sink import Sink

if TYPE_CHECKING:
    import zmq

EXAMPLE = "zeromq('tcp://127.0.0.1:5555', 'trades.{symbol}', kind='publish', bind=True)"
LINGER_MS = 10_000


class ZeroMqSink(PeerSink):
    def __init__(self, endpoint: ZeroMq, writing: Writing) -> None:
        super().__init__(endpoint, writing)
        self._endpoint = endpoint
        self._context: zmq.Context[Any] | None = None
        self._socket: zmq.Socket[Any] | None = None

    def _send_parts(self, parts: list[bytes]) -> None:
        import zmq

        try:
            self._opened().send_multipart(parts)
        except zmq.Again as error:
            raise TimeoutError(f"{SEND_MS // 1000} s") from error

    def _opened(self) -> zmq.Socket[Any]:
        import zmq

        if self._socket is None:
            self._context = zmq.Context()
            kind = zmq.PUSH if self._endpoint.kind == "push" else zmq.PUB
            self._socket = self._endpoint.address.open(self._context, kind, LINGER=LINGER_MS, SNDTIMEO=SEND_MS)
        return self._socket

    def close(self) -> None:
        """Waits until receivers have taken what was sent, but not for long."""
        if self._socket is not None and self._context is not None:
            self._socket.close()
            self._context.term()
            self._socket = None


class ZeroMq(PeerEndpoint):
    address: ZmqAddress

    def open_sink(self, writing: Writing) -> Sink:
        installed()
        return ZeroMqSink(self, writing)


def zeromq(address: str, topic: str = "", *, kind: SendKind = "push", bind: bool = False) -> ZeroMq:
    """A sink that sends every row as JSON over ZeroMQ: `push` to one of the receivers, `publish` to all subscribers.

    Columns in braces are part of the topic, which subscribers choose by its beginning: `trades.{symbol}`. A message has
    five parts: topic, sender, number, id and body. What is sent while no subscriber is there is lost.
    """
    text, pattern = checked(kind, topic, address, EXAMPLE)
    return ZeroMq(ZmqAddress(text, bind), pattern, kind)
