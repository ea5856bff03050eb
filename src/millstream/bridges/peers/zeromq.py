"""Messages of ZeroMQ into a topic. Those of `ms.zeromq` have five parts: topic, sender, number, id and body."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from millstream.bridges.landing import Landing
from millstream.bridges.peers.messages import TOGETHER_MAX, PeerAddress, PeerBridge, PeerSource, Receive
from millstream.errors import InvalidInput

if TYPE_CHECKING:
    import zmq

WAIT_MS = 200
HEARTBEATS = {"HEARTBEAT_IVL": 2_000, "HEARTBEAT_TIMEOUT": 6_000}
"""In milliseconds. Without them, a connection that is half-open takes messages forever."""


class ZmqAddress(PeerAddress):
    protocol: ClassVar[str] = "ZeroMQ"

    def open(self, context: zmq.Context[Any], kind: int, **options: int) -> zmq.Socket[Any]:
        import zmq

        made: zmq.Socket[Any] = context.socket(kind)
        try:
            for name, value in (HEARTBEATS | options).items():
                made.setsockopt(getattr(zmq, name), value)
            (made.bind if self.bind else made.connect)(self.text)
        except zmq.ZMQError as error:
            made.close(0)
            raise self.unusable(error) from error
        return made


ZmqSource = PeerSource[ZmqAddress]


class ZmqBridge(PeerBridge[ZmqAddress]):
    name: ClassVar[str] = "zeromq"

    def __init__(self, source: ZmqSource, landing: Landing, topic: str) -> None:
        installed()
        super().__init__(source, landing, topic)

    @contextmanager
    def _opened(self) -> Iterator[Receive]:
        import zmq

        kind = zmq.PULL if self._source.kind == "pull" else zmq.SUB
        with zmq.Context() as context, self._source.address.open(context, kind, LINGER=0) as at:
            if self._source.kind == "subscribe":
                for prefix in self._source.prefixes:
                    at.setsockopt(zmq.SUBSCRIBE, prefix.encode())
            yield lambda: _received(at)


def _received(at: zmq.Socket[Any]) -> list[list[bytes]]:
    import zmq

    found: list[list[bytes]] = []
    if at.poll(WAIT_MS):
        try:
            while len(found) < TOGETHER_MAX:
                found.append(at.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            pass
    return found


def installed() -> None:
    try:
        import zmq as _zmq  # noqa: F401
    except ImportError as error:
        raise InvalidInput("ZeroMQ needs the package pyzmq", next_step="pip install 'millstream[zeromq]'") from error
