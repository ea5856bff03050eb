"""Sends what is in an outbox: everything that is due for a target in one notification, until it works."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from millstream import terminal
from millstream.alerts.message import SENDER, Message, together
from millstream.alerts.outbox import Outbox
from millstream.alerts.targets import Target
from millstream.errors import AlertNotSent, MillstreamError
from millstream.webhooks.pacing import Pace, RateLimit

GROUP_S = 5.0
"""How long a message waits for others to be sent with."""
AGAIN_S, AGAIN_S_MAX = 2.0, 300.0
FAILURES_REPORTED = 3
"""After so many failures in a row, the other targets get a message about it."""
LOOK_S = 1.0
CLOSE_S = 15.0
logger = terminal.logger("millstream.alerts")


class Sender:
    def __init__(self, outbox: Outbox, targets: Callable[[], Mapping[str, Target]]) -> None:
        self._outbox = outbox
        self._targets = targets
        self._now = 0.0
        self._paces: dict[str, tuple[RateLimit | None, Pace]] = {}

    def send_due(self, now: float) -> int:
        """Sends what is due, and returns how many notifications were sent."""
        self._now = now
        targets = self._targets()
        return sum(self._send(name, targets, now) for name in self._outbox.due(now))

    def _send(self, name: str, targets: Mapping[str, Target], now: float) -> bool:
        messages = self._outbox.waiting(name, now)
        if not messages:
            return False
        pace = self._pace(name, targets.get(name))
        if pace.wait_s() > 0:  # they wait, and are sent with those that come meanwhile
            return False
        dropped = self._outbox.health()[name].dropped
        try:
            if name not in targets:
                raise AlertNotSent("there is no such target any more")
            pace.note()
            targets[name].send(together(list(messages.values()), dropped))
        except Exception as error:  # whatever it is, it must be reported
            why = error.what if isinstance(error, MillstreamError) else f"{type(error).__name__}: {error}"
            self._failed(name, why, targets, now)
            return False
        before = self._outbox.sent(name, list(messages))
        if before.failures >= FAILURES_REPORTED:
            self._report(name, targets, now, f"Alerts to '{name}' are sent again", "It could not be reached before.")
        return True

    def _pace(self, name: str, target: Target | None) -> Pace:
        limit = None if target is None else target.limit
        if name not in self._paces or self._paces[name][0] != limit:
            self._paces[name] = limit, Pace(limit, lambda: self._now)
        return self._paces[name][1]

    def _failed(self, name: str, why: str, targets: Mapping[str, Target], now: float) -> None:
        failures = self._outbox.health()[name].failures
        again_at = now + min(AGAIN_S_MAX, AGAIN_S * 2**failures)
        health = self._outbox.failed(name, why, now, again_at)
        logger.warning("alerts to '%s' cannot be sent, %d times in a row: %s", name, health.failures, why)
        if health.failures == FAILURES_REPORTED:
            self._report(name, targets, now, f"Alerts to '{name}' cannot be sent", why)

    def _report(self, about: str, targets: Mapping[str, Target], now: float, title: str, text: str) -> None:
        """To all other targets: a sender that fails must not fail silently."""
        for other in targets:
            if other != about:
                self._outbox.put(other, Message(SENDER, title, text, now), now)


class SenderThread:
    """Sends in the background. Nothing waits for it, and what it cannot send stays in the outbox."""

    def __init__(self, sender: Sender, before: Callable[[float], None] | None = None) -> None:
        """`before` is called before each look, such as to judge rules."""
        self._sender = sender
        self._before = before
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millstream-alerts", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ends.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not self._ends.wait(LOOK_S):
            try:
                now = time.time()
                if self._before is not None:
                    self._before(now)
                self._sender.send_due(now)
            except Exception:  # a full disk, say: it is tried again
                logger.exception("alerts wait")
