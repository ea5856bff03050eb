"""Rate limits of what is sent: at most so many messages in any span of a length, also right after a start."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from millstream.errors import InvalidSetting

TEXT = re.compile(r"([1-9][0-9]{0,8}) per (second|minute|hour|day)")
SECONDS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86_400.0}


@dataclass(frozen=True)
class RateLimit:
    count: int
    span_s: float

    @classmethod
    def of(cls, text: str | None) -> RateLimit | None:
        """Of a text such as '30 per minute'."""
        if text is None:
            return None
        found = TEXT.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise InvalidSetting(f"{text!r} is not a rate limit", next_step="for example limit='30 per minute'")
        return cls(int(found[1]), SECONDS[found[2]])


class Pace:
    """When the next message may be sent. For one thread at a time."""

    def __init__(self, limit: RateLimit | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._sent: deque[float] = deque()

    def wait_s(self) -> float:
        """How long to wait before the next; 0: it may be sent now."""
        if self._limit is None or len(self._sent) < self._limit.count:
            return 0.0
        return max(0.0, self._sent[0] + self._limit.span_s - self._clock())

    def note(self) -> None:
        """One is sent now."""
        if self._limit is not None:
            self._sent.append(self._clock())
            while len(self._sent) > self._limit.count:
                self._sent.popleft()
