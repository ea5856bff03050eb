"""What protocols without a broker and without acknowledgements share: addresses, and messages with numbers.

What was received and not yet stored is lost with the process, and what is sent while nobody listens is lost too. With
numbers, that is counted: by sender and topic, so that a subscriber that takes only some topics sees no gaps.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from ipaddress import ip_address
from typing import ClassVar, Generic, Literal, TypeVar
from urllib.parse import urlsplit

from millstream.bridges.arrivals import Arrival
from millstream.bridges.landing import Landing
from millstream.bridges.sockets.sequences import Sequence as Numbers
from millstream.errors import InvalidInput, MillstreamError

Kind = Literal["pull", "subscribe"]
NUMBER_BYTES = 8
SENDER_BYTES = 8
PARTS = 5
TOGETHER_MAX = 1000
SENDERS_MAX = 10_000
"""Of topics and senders whose numbers are known; the one that was silent for longest is forgotten first."""
LOCAL_NAMES = ("localhost",)
Receive = Callable[[], Sequence[Sequence[bytes]]]
"""The parts of the messages that are there; it waits a moment for the first."""


@dataclass(frozen=True)
class PeerAddress:
    """`tcp://host:port` or `ipc://path`. The side that is there all the time binds, and the other connects."""

    text: str
    bind: bool = False

    protocol: ClassVar[str]

    def __post_init__(self) -> None:
        parts = urlsplit(self.text)
        try:
            host, is_tcp = parts.hostname, parts.scheme == "tcp" and parts.port is not None
        except ValueError:
            host, is_tcp = None, False
        if not (is_tcp and host) and not (parts.scheme == "ipc" and (parts.netloc or parts.path)):
            raise InvalidInput(
                f"{self.text[:100]!r} is not the address of a {self.protocol} socket",
                next_step="tcp://127.0.0.1:5555, or ipc:///tmp/feed",
            )
        if self.bind and is_tcp and not _is_local(str(host)):
            raise InvalidInput(
                f"{self.text} can be reached from other machines, and {self.protocol} asks for no password",
                next_step="bind to 127.0.0.1, and let a TLS proxy accept others, or bind on the other side",
            )

    def unusable(self, error: BaseException) -> InvalidInput:
        verb = "bind to" if self.bind else "connect to"
        return InvalidInput(f"cannot {verb} {self.text}: {error}", next_step="choose another address")


Address = TypeVar("Address", bound=PeerAddress)


@dataclass(frozen=True)
class PeerSource(Generic[Address]):
    """Which messages."""

    address: Address
    kind: Kind
    prefixes: Sequence[str] = ("",)
    """For subscribers: of the topics; "" is all."""
    numbered: bool = False
    """Whether messages have the parts of the sink of this protocol: topic, sender, number, id and body."""
    bytes_max: int = 1 << 20


class PeerBridge(ABC, Generic[Address]):
    """Receives, stores and receives again: meanwhile messages wait in the sockets, whose space is bounded."""

    name: ClassVar[str]
    """Of the protocol, as in `ms.NAME`."""

    def __init__(self, source: PeerSource[Address], landing: Landing, topic: str) -> None:
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
        with self._opened() as receive:
            self.on_ready()
            while not self._stopped.is_set():
                arrivals = [self._arrival(parts) for parts in receive()]
                self._store([each for each in arrivals if each is not None])
        if self._landing.failure is not None:
            raise self._landing.failure

    def stop(self) -> None:
        self._stopped.set()

    @abstractmethod
    def _opened(self) -> AbstractContextManager[Receive]: ...

    def _store(self, arrivals: Sequence[Arrival]) -> None:
        for outcome in self._landing.land(arrivals) if arrivals else ():
            if isinstance(outcome, MillstreamError):
                raise outcome

    def _arrival(self, parts: Sequence[bytes]) -> Arrival | None:
        """None: it was stored before."""
        origin = f"{self.name} {self._source.address.text}"
        if not self._source.numbered:
            made = Arrival(self._topic, parts[-1], parts[0] if len(parts) > 1 else None, origin=origin)
        elif len(parts) != PARTS or len(parts[2]) != NUMBER_BYTES:
            fault = f"it does not have the parts of ms.{self.name}"
            made = Arrival(self._topic, b"".join(parts), origin=origin, fault=fault)
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
