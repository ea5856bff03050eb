"""Whether somebody asks the job to stop, by Ctrl-C or SIGTERM.

While the job runs both are only noted: to break off a call to the JVM confuses it, and Spark's own handler would break
off the running batch. Before it runs there is nothing to save, and SIGTERM ends the process at once.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

TERMINATED = 128 + signal.SIGTERM
TIDY_S_MAX = 3.0
"""How long clean-up may take after SIGTERM before the process ends all the same."""


class StopRequest:
    def __init__(self, *, deaf: bool = False) -> None:
        self._deaf = deaf or threading.current_thread() is not threading.main_thread()
        self.event = threading.Event()
        self.is_urgent = False
        """Whether it was asked for twice: then the running batch is not waited for."""
        self.interrupted = False
        self.terminated = False
        self.job_runs = False
        self._before: dict[int, Any] = {}
        self._terminating = threading.Event()
        self._is_over = False

    def __enter__(self) -> StopRequest:
        if not self._deaf:
            # Started now: a handler that starts a thread hangs if it interrupts the start of another one.
            threading.Thread(target=self._end_in_time, name="millstream-sigterm", daemon=True).start()
        for number in () if self._deaf else (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._hear)
        return self

    def _end_in_time(self) -> None:
        """After SIGTERM, ends the process if it does not end by itself, as when it waits for a JVM without answer."""
        self._terminating.wait()
        if not self._is_over:
            time.sleep(TIDY_S_MAX)
            os._exit(TERMINATED)

    def _hear(self, number: int, _: Any) -> None:
        if number == signal.SIGTERM and not self.job_runs:
            self._terminating.set()
            sys.exit(TERMINATED)
        self.is_urgent = self.event.is_set()
        self.interrupted = self.interrupted or number == signal.SIGINT
        self.terminated = self.terminated or number == signal.SIGTERM
        self.event.set()

    @contextmanager
    def signals_deferred(self) -> Iterator[None]:
        """A session brings a handler of its own for Ctrl-C: it would call the JVM in the middle of a call. Inside this
        it stays away, and a Ctrl-C that came meanwhile takes effect at the end."""
        plain = signal.signal

        def chosen(number: int, handler: Any) -> Any:
            return signal.getsignal(number) if callable(handler) else plain(number, handler)

        if not self._deaf:
            signal.signal = chosen  # type: ignore[assignment]
        try:
            yield
        finally:
            signal.signal = plain
        self.check()

    def check(self) -> None:
        """Ends what does not run yet."""
        if self.event.is_set():
            raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        if not self._terminating.is_set():
            self._is_over = True
            self._terminating.set()
        for number, handler in self._before.items():
            with suppress(TypeError):
                signal.signal(number, handler)


def end_after(seconds: float, exit_code: int) -> None:
    """Ends the process then if it has not ended by itself. Not for signal handlers, which must not start threads."""
    timer = threading.Timer(seconds, os._exit, (exit_code,))
    timer.daemon = True
    timer.start()
