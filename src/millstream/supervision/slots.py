"""Watches the replication slots of databases in a thread of its own: nothing waits for a database that does not answer.

A slot whose capture does not run keeps the change log of its server until the disk is full. So slots are watched
here, from outside of captures and jobs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from millstream import terminal
from millstream.capture.postgres.slots import slots
from millstream.errors import MillstreamError
from millstream.metrics.samples import SlotSample
from millstream.postgres_address import without_password

LOOK_S = 10.0
CLOSE_S = 15.0
logger = terminal.logger("millstream.slots")


@dataclass(frozen=True)
class WatchedDatabase:
    address: str
    """As it may be shown."""
    error: str | None
    """Why it cannot be asked."""
    slots: tuple[SlotSample, ...] = ()
    """Empty if it cannot be asked: what was true before may not be true any more."""


class SlotWatch:
    def __init__(self, addresses: Callable[[], Mapping[str, str]]) -> None:
        """`addresses` are those of the databases to watch, by name."""
        self._addresses = addresses
        self._found: dict[str, WatchedDatabase] = {}
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millstream-slots", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ends.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)

    def databases(self) -> dict[str, WatchedDatabase]:
        """The result of the last check."""
        return self._found

    def samples(self) -> list[SlotSample]:
        return [slot for database in self._found.values() for slot in database.slots]

    def document(self) -> list[dict[str, Any]]:
        return [{"name": name, **asdict(database)} for name, database in self._found.items()]

    def look(self) -> None:
        """Asks all databases."""
        found = {name: _asked(name, address) for name, address in self._addresses().items()}
        for name, database in found.items():
            before = self._found.get(name)
            if database.error is not None and (before is None or before.error is None):
                logger.warning("the slots of '%s' are not known: %s", name, database.error)
        self._found = found

    def _run(self) -> None:
        while not self._ends.is_set():
            try:
                self.look()
            except Exception:  # whatever it is, watching goes on
                logger.exception("slots are not known")
            self._ends.wait(LOOK_S)


def _asked(name: str, address: str) -> WatchedDatabase:
    try:
        found = slots(address)
    except MillstreamError as error:
        return WatchedDatabase(without_password(address), error.what)
    samples = (
        SlotSample(name, slot.name, slot.retained_bytes, slot.lag_bytes, int(slot.is_active), int(slot.is_lost))
        for slot in found
    )
    return WatchedDatabase(without_password(address), None, tuple(samples))
