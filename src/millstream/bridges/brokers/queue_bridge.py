"""Messages of a broker's queue into a topic, for every protocol: received, stored, and only then acknowledged.

What was stored, but whose acknowledgement was lost, is delivered again: with an id it is stored once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from millstream import terminal
from millstream.bridges.arrivals import Arrival
from millstream.bridges.brokers.address import BrokerAddress
from millstream.bridges.brokers.failures import ConnectionLost, Rejected
from millstream.bridges.landing import Landing
from millstream.bridges.reports import Behind
from millstream.errors import MillstreamError, SourceUnavailable

RECONNECT_SECONDS, RECONNECT_SECONDS_MAX = 0.5, 60.0
TAKE_SECONDS = 0.2
PREFETCH = 1000
CHECK = "check the user, the password, the queue and the selector"
logger = terminal.logger(__name__)


@dataclass(frozen=True)
class QueueSource:
    """Which messages of which broker."""

    broker: BrokerAddress
    destination: str
    """A queue, or a topic of the broker with a subscription."""
    selector: str | None = None
    """Only messages that fit: `region = 'north' and amount > 10`."""
    subscription: str | None = None
    """The name by which the broker keeps what comes to a topic while the bridge is away."""
    id_property: str | None = None
    """The property or header with a message's stable id."""
    prefetch: int = PREFETCH
    bytes_max: int = 1 << 20
    """A larger message becomes a dead letter."""

    kind: ClassVar[str]
    """As in `millstream listen KIND`."""


class Delivery(NamedTuple):
    tag: Any
    """What its connection acknowledges it by."""
    arrival: Arrival


class Receiving(Protocol):
    """A connection that is subscribed. Every call may raise ConnectionLost or Rejected."""

    def receive(self, seconds: float) -> Sequence[Delivery]:
        """What has come, or nothing after so long. The broker limits what is not acknowledged."""

    def acknowledge(self, last: Delivery) -> None:
        """This one and all before it."""

    def close(self) -> None: ...


class QueueBridge:
    def __init__(self, connect: Callable[[], Receiving], landing: Landing, where: str) -> None:
        self._connect = connect
        self._landing = landing
        self._where = where
        self._stopped = threading.Event()
        self.on_ready: Callable[[], None] = lambda: None
        """Called whenever the broker has accepted the subscription."""
        landing.on_failure = self.stop

    def run(self) -> None:
        """Until it is stopped. A broker that is away is waited for."""
        pause = RECONNECT_SECONDS
        while not self._stopped.is_set():
            try:
                with closing(self._connect()) as connection:
                    pause = RECONNECT_SECONDS
                    self.on_ready()
                    while not self._stopped.is_set():
                        self._store(connection, connection.receive(TAKE_SECONDS))
            except Rejected as error:
                raise SourceUnavailable(str(error), where=self._where, next_step=CHECK) from error
            except ConnectionLost as error:
                logger.warning("the connection to %s ended: %s; connecting again", self._where, error)
                self._stopped.wait(pause)
                pause = min(2 * pause, RECONNECT_SECONDS_MAX)
        if self._landing.failure is not None:
            raise self._landing.failure

    def stop(self) -> None:
        self._stopped.set()

    def behind(self) -> Behind | None:
        """These protocols do not tell what waits in the queue."""
        return None

    def _store(self, connection: Receiving, deliveries: Sequence[Delivery]) -> None:
        if not deliveries:
            return
        last: Delivery | None = None
        failure: MillstreamError | None = None
        for delivery, outcome in zip(
            deliveries, self._landing.land([each.arrival for each in deliveries]), strict=True
        ):
            if isinstance(outcome, MillstreamError):
                failure = outcome
                break  # neither this one nor those after it are acknowledged: they are delivered again
            last = delivery
        if last is not None:
            connection.acknowledge(last)
        if failure is not None:
            raise failure
