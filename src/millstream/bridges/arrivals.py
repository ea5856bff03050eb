"""What a bridge receives, and what became of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

ID_HEADER = "millstream-id"
"""The header with a record's id, and the property of a message with the id that its receiver keeps."""
ARRIVAL_BYTES = 200  # memory overhead of a small one


@dataclass(slots=True)
class Arrival:
    """One message from outside, on its way into a topic."""

    topic: str
    value: bytes
    key: bytes | None = None
    id: str | None = None
    """Stable: a message that is delivered again has the same. None: it is stored as often as it is delivered."""
    headers: tuple[tuple[str, bytes], ...] = ()
    origin: str = ""
    """Where it came from, for a dead letter."""
    fault: str | None = None
    """Why it cannot be used: it becomes a dead letter."""

    @property
    def size_bytes(self) -> int:
        return len(self.value) + ARRIVAL_BYTES

    def cut_to(self, bytes_max: int, *, is_cut: bool = False) -> Arrival:
        """Itself; if it is longer, or was cut before, only its beginning is kept, as a dead letter."""
        if is_cut or len(self.value) > bytes_max:
            self.fault = f"the message is longer than {bytes_max:,} bytes, and was cut"
            self.value = self.value[:bytes_max]
        return self


class Outcome(Enum):
    """What became of a message that was acknowledged."""

    STORED = "stored"
    DUPLICATE = "duplicate"
    DEAD = "dead"


class Landed(NamedTuple):
    """What became of several messages."""

    stored: int
    duplicates: int
    dead: int


@dataclass(slots=True)
class Counts:
    """Since the bridge was started."""

    stored: int = 0
    duplicates: int = 0
    dead: int = 0
    sent: int = 0
    """What a gateway has delivered to callback URLs."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def total(self) -> int:
        return self.stored + self.duplicates + self.dead + self.sent

    def add(self, *, stored: int = 0, dead: int = 0, sent: int = 0) -> None:
        """From any of several threads."""
        with self._lock:
            self.stored += stored
            self.dead += dead
            self.sent += sent

    def summary(self) -> str:
        return f"stored {self.stored:,}, duplicates {self.duplicates:,}, dead letters {self.dead:,}"


class Passage:
    """The messages that were received and are not stored yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: dict[object, float] = {}
        self.messages = 0

    @contextmanager
    def counted(self, messages: int) -> Iterator[None]:
        """While the block runs, so many are on their way."""
        if not messages:
            yield
            return
        ticket = object()
        with self._lock:
            self._begun[ticket] = time.monotonic()
            self.messages += messages
        try:
            yield
        finally:
            with self._lock:
                del self._begun[ticket]
                self.messages -= messages

    def seconds(self, now: float) -> float:
        """How long the first of them has waited."""
        with self._lock:
            return max(0.0, now - next(iter(self._begun.values()))) if self._begun else 0.0
