"""A sink that sends every row over nanomsg (NNG), to one of several workers (push) or to all subscribers (publish)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from millstream.bridges.peers.nanomsg import NanomsgAddress, installed, packed
from millstream.bridges.peers.sink import SEND_MS, PeerEndpoint, PeerSink, SendKind, checked
from millstream.connectors.connector import Writing
from millstream.connectors.sink import Sink

if TYPE_CHECKING:
    import pynng

EXAMPLE = "nanomsg('tcp://127.0.0.1:5555', 'trades.{symbol}', kind='publish', bind=True)"
LINGER_SECONDS = 0.5
"""NNG drops what it has not sent when it is closed."""


class NanomsgSink(PeerSink):
    def __init__(self, endpoint: Nanomsg, writing: Writing) -> None:
        super().__init__(endpoint, writing)
        self._endpoint = endpoint
        self._socket: pynng.Socket | None = None
        self._sent_at = 0.0

    def _send_parts(self, parts: list[bytes]) -> None:
        try:
            self._opened().send(packed(parts))
        except installed().Timeout as error:
            raise TimeoutError(f"{SEND_MS // 1000} s") from error
        self._sent_at = time.monotonic()

    def _opened(self) -> pynng.Socket:
        if self._socket is None:
            library = installed()
            kind = library.Push0 if self._endpoint.kind == "push" else library.Pub0
            made: pynng.Socket = kind(send_timeout=SEND_MS)
            self._endpoint.address.open(made)
            self._socket = made
        return self._socket

    def close(self) -> None:
        if self._socket is not None:
            time.sleep(max(self._sent_at + LINGER_SECONDS - time.monotonic(), 0))
            self._socket.close()
            self._socket = None


class Nanomsg(PeerEndpoint):
    address: NanomsgAddress

    def open_sink(self, writing: Writing) -> Sink:
        installed()
        return NanomsgSink(self, writing)


def nanomsg(address: str, topic: str = "", *, kind: SendKind = "push", bind: bool = False) -> Nanomsg:
    """A sink that sends every row as JSON over nanomsg (NNG): `push` to one receiver, `publish` to all subscribers.

    Columns in braces are part of the topic, which subscribers choose by its beginning: `trades.{symbol}`. What is sent
    while no subscriber is there is lost.
    """
    text, pattern = checked(kind, topic, address, EXAMPLE)
    return Nanomsg(NanomsgAddress(text, bind), pattern, kind)
