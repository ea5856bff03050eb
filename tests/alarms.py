"""Alarms that go off at random moments and raise, as a user's signal handler does, in Millstream's code alone."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import millstream

SOURCE = millstream.__file__.removesuffix("__init__.py")
SILENT = ("__del__", "_remove", "unraisable_hook")
"""Python only prints what is raised in these."""


class Alarm(Exception):
    """What the handler raises."""


class Alarms:
    def __init__(self, seed: int, seconds_mean: float) -> None:
        self._random = random.Random(seed)
        self._seconds_mean = seconds_mean
        self.count = 0

    def arm(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, max(1e-5, self._random.expovariate(1 / self._seconds_mean)))

    def ring(self, signum: int, frame: FrameType | None) -> None:
        self.arm()
        while frame is not None:
            if frame.f_code.co_name in SILENT:
                return
            if frame.f_code.co_filename.startswith(SOURCE):
                self.count += 1
                raise Alarm
            frame = frame.f_back


@contextmanager
def ringing(*, seed: int, seconds_mean: float) -> Iterator[Alarms]:
    alarms = Alarms(seed, seconds_mean)
    limit_s, began_at = signal.getitimer(signal.ITIMER_REAL)[0], time.monotonic()  # that of the test, if it has one
    before = signal.signal(signal.SIGALRM, alarms.ring)
    alarms.arm()
    try:
        yield alarms
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if limit_s:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, limit_s - (time.monotonic() - began_at)))
