"""One AMQP 1.0 connection with one session: what its links for receiving and for sending have in common."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar, NamedTuple

from millstream.bridges.amqp1 import wire
from millstream.bridges.amqp1.types import BrokenValue, Described, Symbol, UInt, UShort
from millstream.bridges.brokers.address import BrokerAddress
from millstream.bridges.brokers.failures import ConnectionLost, Rejected, is_not_permitted
from millstream.bridges.brokers.socket import BrokerSocket

ANSWER_SECONDS = 30.0
WINDOW = (1 << 31) - 1
FRAME_BYTES_MIN = 512
FINAL_CONDITIONS = frozenset(
    {
        "amqp:unauthorized-access",
        "amqp:not-found",
        "amqp:not-allowed",
        "amqp:not-implemented",
        "amqp:invalid-field",
        "amqp:precondition-failed",
        "amqp:link:message-size-exceeded",
        "amqp:decode-error",
    }
)
"""After which the same request would fail again."""


@dataclass(frozen=True)
class Amqp1Broker(BrokerAddress):
    protocol: ClassVar[str] = "AMQP 1.0"
    ports: ClassVar[Mapping[str, int]] = {"amqp": 5672, "amqps": 5671}
    password_variable: ClassVar[str] = "MILLSTREAM_AMQP_PASSWORD"


@dataclass(frozen=True)
class BrokerError:
    condition: str
    text: str

    @classmethod
    def of(cls, value: Any) -> BrokerError:
        if isinstance(value, Described) and isinstance(value.value, list) and value.value:
            condition, text, *_ = [*value.value, None]
            return cls(str(condition), str(text or condition))
        return cls("", "no reason was given")

    @property
    def is_final(self) -> bool:
        return self.condition in FINAL_CONDITIONS or is_not_permitted(self.text)

    def exception(self) -> Exception:
        return Rejected(self.text) if self.is_final else ConnectionLost(self.text)


class Attached(NamedTuple):
    """The numbers that both sides have given to one link."""

    ours: int
    theirs: int


class Amqp1Connection:
    """It handles what concerns all links; its owner gets the rest."""

    def __init__(self, broker: Amqp1Broker, on_frame: Callable[[wire.Performative], None], container: str = "") -> None:
        """Returns when the broker has accepted it."""
        self._on_frame = on_frame
        self._decoder = wire.Decoder()
        self._handles = count()
        self._socket = BrokerSocket(broker)
        self.frame_bytes_max = FRAME_BYTES_MIN
        """What the broker accepts."""
        self.next_outgoing = 0
        """The number of the next transfer of the session: a frame, of which a large message takes several."""
        self.next_delivery = 0
        """The number of the next message of the session."""
        self._next_incoming = 0
        self._window_end = 0
        """The number of the first transfer that the broker does not accept yet."""
        self._opened: set[int] = set()
        self._attached: dict[str, wire.Performative] = {}
        """The broker's answers, by the name of a link."""
        self._outcome: wire.Performative | None = None
        self._mechanisms: list[str] = []
        try:
            self._log_in(broker)
            self._open(broker, container or f"millstream-{uuid.uuid4()}")
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------ the handshake

    def _log_in(self, broker: Amqp1Broker) -> None:
        self._socket.send(wire.SASL_HEADER)
        self.wait(lambda: bool(self._mechanisms))
        user = broker.user
        password = "" if broker.password is None else broker.password.reveal()
        if user is not None and "PLAIN" in self._mechanisms:
            mechanism, answer = "PLAIN", b"\0".join((b"", user.encode(), password.encode()))
        elif broker.certificate is not None and "EXTERNAL" in self._mechanisms:
            mechanism, answer = "EXTERNAL", b""
        elif user is None and "ANONYMOUS" in self._mechanisms:
            mechanism, answer = "ANONYMOUS", b"millstream"
        else:
            offered = ", ".join(self._mechanisms)
            raise Rejected(f"the broker offers the logins {offered}: give a user in its address, and a password")
        self._socket.send(wire.frame(wire.INIT, [Symbol(mechanism), answer, broker.host], kind=wire.SASL))
        self.wait(lambda: self._outcome is not None)
        assert self._outcome is not None
        if (code := self._outcome.field(0, 0)) != 0:
            if code in (1, 2):
                raise Rejected("the broker rejects the user or the password")
            raise ConnectionLost("the broker could not check the user")

    def _open(self, broker: Amqp1Broker, container: str) -> None:
        beat_ms = UInt(broker.heartbeat_seconds * 1000 * 2)
        fields = [container, broker.host, UInt(wire.FRAME_BYTES_MAX), UShort(0), beat_ms]
        self._socket.send(wire.HEADER + wire.frame(wire.OPEN, fields))
        self.wait(lambda: wire.OPEN in self._opened)
        self._socket.send(wire.frame(wire.BEGIN, [None, UInt(0), UInt(WINDOW), UInt(WINDOW)]))
        self.wait(lambda: wire.BEGIN in self._opened)
        self._socket.keep_alive(wire.BEAT, self._beat_seconds, broker.heartbeat_seconds)

    # ------------------------------------------------------------ links

    def attach(self, name: str, *, receives: bool, source: Described, target: Described) -> Attached:
        """Returns when the broker has accepted it."""
        handle = next(self._handles)
        begin_count = None if receives else UInt(0)
        fields = [name, UInt(handle), receives, None, None, source, target, None, None, begin_count]
        self._socket.send(wire.frame(wire.ATTACH, fields))
        self.wait(lambda: name in self._attached)
        answer = self._attached[name]
        if answer.field(5 if receives else 6) is None:  # what follows says why
            self.wait(lambda: False)
        return Attached(handle, answer.field(1))

    def flow(self, handle: int, delivery_count: int, credit: int) -> None:
        """So many more messages may come over a link."""
        session = [UInt(self._next_incoming), UInt(WINDOW), UInt(self.next_outgoing), UInt(WINDOW)]
        self._socket.send(wire.frame(wire.FLOW, [*session, UInt(handle), UInt(delivery_count), UInt(credit)]))

    def transfer(self, handle: int, tag: bytes, message: bytes, state: Any = None) -> int:
        """The number of a delivery that was sent, in as many frames as it takes."""
        delivery, part_bytes = self.next_delivery, self.frame_bytes_max - 256  # for the fields of a frame
        self.next_delivery += 1
        for start in range(0, len(message), part_bytes):
            self.wait(lambda: self.next_outgoing < self._window_end)
            has_more = start + part_bytes < len(message)
            fields = [UInt(handle), UInt(delivery), tag, UInt(0), False, has_more, None, state]
            self._socket.send(wire.frame(wire.TRANSFER, fields, message[start : start + part_bytes]))
            self.next_outgoing += 1
        return delivery

    def settle(self, first: int, last: int) -> None:
        """Accepts the messages with these numbers."""
        accepted = wire.described(wire.ACCEPTED, [])
        self._socket.send(wire.frame(wire.DISPOSITION, [True, UInt(first), UInt(last), True, accepted]))

    # ------------------------------------------------------------ what comes

    def wait(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + ANSWER_SECONDS
        while not holds():
            if (left := deadline - time.monotonic()) <= 0:
                raise ConnectionLost(f"the broker did not answer in {ANSWER_SECONDS:g} s")
            self.receive(left)

    def receive(self, seconds: float) -> None:
        """Handles what has come, or returns after so long."""
        try:
            for each in self._decoder.feed(self._socket.receive(seconds)):
                self._handle(each)
        except BrokenValue as error:
            raise ConnectionLost(f"the broker sent what is not AMQP 1.0: {error}") from error

    def close(self) -> None:
        self._socket.close()

    def _handle(self, each: wire.Performative) -> None:
        code = each.code
        if code == wire.MECHANISMS:
            self._mechanisms = _names(each.field(0)) or ["ANONYMOUS"]
        elif code == wire.OUTCOME:
            self._outcome = each
        elif code == wire.OPEN:
            self.frame_bytes_max = max(min(each.field(2, WINDOW), wire.FRAME_BYTES_MAX), FRAME_BYTES_MIN)
            idle_ms = each.field(4)
            self._beat_seconds = None if not idle_ms else idle_ms / 4000
            self._opened.add(code)
        elif code == wire.BEGIN:
            self._next_incoming, self._window_end = each.field(1, 0), each.field(2, 0)
            self._opened.add(code)
        elif code == wire.ATTACH:
            self._attached[each.field(0)] = each
        elif code in (wire.CLOSE, wire.END, wire.DETACH):
            raise BrokerError.of(each.field(2 if code == wire.DETACH else 0)).exception()
        else:
            if code == wire.TRANSFER:
                self._next_incoming += 1
            elif code == wire.FLOW:
                self._window_end = each.field(0, 0) + each.field(1, 0)
            self._on_frame(each)

    _beat_seconds: float | None = None


def _names(given: Any) -> list[str]:
    return [str(each) for each in given] if isinstance(given, Sequence) and not isinstance(given, str) else [str(given)]
