"""A job's processing time. It never goes back, and a clock that was an hour ahead does not stop it for an hour.

Between two readings it advances by a steady clock, so a step of the machine's clock is recognized:

- a step ahead is followed only after it has held for a minute; a shorter one has no effect;
- while the machine is behind, because it was set back or was ahead when the job last ran, the job's clock runs at half
  speed, so that delays and timers still fire.
"""

from __future__ import annotations

import time
from collections.abc import Callable

STEP_US = 1_000_000
"""A smaller difference is normal clock synchronization, and followed at once."""
HOLD_US = 60_000_000


def _steady_us() -> int:
    """Includes time in which the machine is suspended, where the system has such a clock."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // 1000


def _machine_us() -> int:
    return time.time_ns() // 1000


class JobClock:
    def __init__(self, machine: Callable[[], int] = _machine_us, steady: Callable[[], int] = _steady_us) -> None:
        self._machine = machine
        self._steady = steady
        self._clock: int | None = None
        self._read_at = 0
        self._stepped_at: int | None = None
        """When the machine was first seen ahead."""
        self._reported: int | None = None
        self.report: str | None = None
        """A warning of the last reading, once for each step."""

    def read(self, last: int) -> int:
        """The time of a batch that follows one at `last`, in microseconds."""
        machine, steady = self._machine(), self._steady()
        self.report = None
        if self._clock is None or last > self._clock:  # of a run before this one
            self._clock, self._read_at = max(last, machine), steady
        elapsed = max(0, steady - self._read_at)
        expected = self._clock + elapsed
        ahead = machine - expected
        if ahead > STEP_US:
            now = self._followed(machine, expected, steady)
        else:
            self._stepped_at = None
            now = max(machine, self._clock + elapsed // 2)
            self._report_step(ahead)
        self._clock, self._read_at = max(last + 1, now), steady
        return self._clock

    def _followed(self, machine: int, expected: int, steady: int) -> int:
        """The time when the machine is ahead, by a recent step or by one that has held."""
        if self._stepped_at is None:
            self._stepped_at = steady
        if steady - self._stepped_at < HOLD_US:
            self._report_step(machine - expected)
            return expected
        self._stepped_at = None
        self.report = (
            f"the machine's clock is {_seconds(machine - expected)} ahead for a minute: the job's clock follows it"
        )
        self._reported = None
        return machine

    def _report_step(self, ahead: int) -> None:
        """Reports a step once, with its size."""
        if abs(ahead) <= STEP_US:
            self._reported = None
        elif self._reported is None or ahead * self._reported < 0 or abs(ahead) > abs(self._reported) + HOLD_US:
            self._reported = ahead
            self.report = (
                f"the machine's clock jumped ahead by {_seconds(ahead)}: the job follows if it stays so for a minute"
                if ahead > 0
                else f"the machine's clock is {_seconds(-ahead)} behind the job's: processing time runs at half speed "
                "until they meet"
            )


def _seconds(micros: int) -> str:
    return f"{micros / 1e6:,.1f} s"
