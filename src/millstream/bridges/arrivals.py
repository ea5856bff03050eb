"""What a bridge receives, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
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

    def cut_to(self, bytes_max: int) -> Arrival:
        """Itself; if it is longer, only its beginning is kept, as a dead letter."""
        if len(self.value) > bytes_max:
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
