"""Messages of ZeroMQ into a topic. The protocol has no acknowledgements: what was received and not yet stored is lost
with the process, and what a publisher sends while nobody listens is lost too. With numbers, that is counted.

Messages of `ms.zeromq` have five parts: topic, sender, number, id and body. Numbers are counted by sender and topic, so
a subscriber that takes only some topics sees no gaps.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from millstream.bridges.arrivals import Arrival
from millstream.bridges.landing import Landing
from millstream.bridges.sequences import Sequence as Numbers
from millstream.errors import InvalidInput, MillstreamError

if TYPE_CHECKING:
    import zmq

Kind = Literal["pull", "subscribe"]
NUMBER_BYTES = 8
PARTS = 5
TOGETHER_MAX = 1000
WAIT_MS = 200
SENDERS_MAX = 10_000
"""Of topics and senders whose numbers are known; the one that was silent for longest is forgotten first."""
LOCAL_NAMES = ("localhost",)


@dataclass(frozen=True)
class ZmqAddress:
    """`tcp://host:port` or `ipc://path`. The side that is there all the time binds, and the other connects."""

    text: str
    bind: bool = False

    def __post_init__(self) -> None:
        parts = urlsplit(self.text)
        try:
            host, is_tcp = parts.hostname, parts.scheme == "tcp" and parts.port is not None
        except ValueError:
            host, is_tcp = None, False
        if not (is_tcp and host) and not (parts.scheme == "ipc" and (parts.netloc or parts.path)):
            raise InvalidInput(
                f"{self.text[:100]!r} is not the address of a ZeroMQ socket",
                next_step="tcp://127.0.0.1:5555, or ipc:///tmp/feed",
            )
        if self.bind and is_tcp and not _is_local(str(host)):
            raise InvalidInput(
                f"{self.text} can be reached from other machines, and ZeroMQ asks for no password",
                next_step="bind to 127.0.0.1, and let a TLS proxy accept others, or bind on the other side",
            )

    def open(self, context: zmq.Context[Any], kind: int, **options: int) -> zmq.Socket[Any]:
        import zmq

        made: zmq.Socket[Any] = context.socket(kind)
        try:
            for name, value in options.items():
                made.setsockopt(getattr(zmq, name), value)
            (made.bind if self.bind else made.connect)(self.text)
        except zmq.ZMQError as error:
            made.close(0)
            verb = "bind to" if self.bind else "connect to"
            raise InvalidInput(f"cannot {verb} {self.text}: {error}", next_step="choose another address") from error
        return made


@dataclass(frozen=True)
class ZmqSource:
    """Which messages."""

    address: ZmqAddress
    kind: Kind
    prefixes: Sequence[str] = ("",)
    """For subscribers: of the topics; "" is all."""
    numbered: bool = False
    """Whether messages have the five parts of `ms.zeromq`."""
    bytes_max: int = 1 << 20


class ZmqBridge:
    """Receives, stores and receives again: meanwhile messages wait in the sockets, whose space is bounded."""

    def __init__(self, source: ZmqSource, landing: Landing, topic: str) -> None:
        installed()
        self._source = source
        self._landing = landing
        self._topic = topic
        self._stopped = threading.Event()
        self._numbers: OrderedDict[tuple[bytes, bytes], Numbers] = OrderedDict()
        self._missing = 0
        self.on_ready: Callable[[], None] = lambda: None
        landing.on_failure = self.stop

    @property
    def missing(self) -> int:
        """How many numbers were skipped since the first message of each sender and topic, and did not come since."""
        return self._missing + sum(numbers.missing for numbers in self._numbers.values())

    def run(self) -> None:
        """Until it is stopped."""
        import zmq

        kind = zmq.PULL if self._source.kind == "pull" else zmq.SUB
        with zmq.Context() as context, self._source.address.open(context, kind, LINGER=0) as at:
            if self._source.kind == "subscribe":
                for prefix in self._source.prefixes:
                    at.setsockopt(zmq.SUBSCRIBE, prefix.encode())
            self.on_ready()
            while not self._stopped.is_set():
                if at.poll(WAIT_MS):
                    self._store(self._received(at))
        if self._landing.failure is not None:
            raise self._landing.failure

    def stop(self) -> None:
        self._stopped.set()

    def _received(self, at: zmq.Socket[Any]) -> list[Arrival]:
        import zmq

        found: list[Arrival] = []
        try:
            while len(found) < TOGETHER_MAX:
                made = self._arrival(at.recv_multipart(zmq.NOBLOCK))
                if made is not None:
                    found.append(made)
        except zmq.Again:
            pass
        return found

    def _store(self, arrivals: Sequence[Arrival]) -> None:
        for outcome in self._landing.land(arrivals):
            if isinstance(outcome, MillstreamError):
                raise outcome

    def _arrival(self, parts: Sequence[bytes]) -> Arrival | None:
        """None: it was stored before."""
        origin = f"zeromq {self._source.address.text}"
        if not self._source.numbered:
            made = Arrival(self._topic, parts[-1], parts[0] if len(parts) > 1 else None, origin=origin)
        elif len(parts) != PARTS or len(parts[2]) != NUMBER_BYTES:
            made = Arrival(self._topic, b"".join(parts), origin=origin, fault="it does not have the parts of ms.zeromq")
        else:
            topic, sender, number, id, body = parts
            if not self._numbers_of(sender, topic).is_new(int.from_bytes(number)):
                return None
            headers = (("sequence", str(int.from_bytes(number)).encode()),)
            made = Arrival(self._topic, body, topic or None, id.decode("latin-1") or None, headers, origin)
        return made.cut_to(self._source.bytes_max)

    def _numbers_of(self, sender: bytes, topic: bytes) -> Numbers:
        found = self._numbers.setdefault((sender, topic), Numbers())
        self._numbers.move_to_end((sender, topic))
        if len(self._numbers) > SENDERS_MAX:
            self._missing += self._numbers.popitem(last=False)[1].missing
        return found


def _is_local(host: str) -> bool:
    try:
        return host in LOCAL_NAMES or ip_address(host).is_loopback
    except ValueError:
        return False


def installed() -> None:
    try:
        import zmq as _zmq  # noqa: F401
    except ImportError as error:
        raise InvalidInput("ZeroMQ needs the package pyzmq", next_step="pip install 'millstream[zeromq]'") from error
