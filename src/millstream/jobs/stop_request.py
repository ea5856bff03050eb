"""Whether a job was asked to stop, by Ctrl-C or SIGTERM.

While the job runs, both are only recorded: an exception in the middle of a call to the JVM would break the connection.
Before the job runs there is nothing to save, and SIGTERM ends the process at once.

A handler runs between any two instructions of the main thread, which may hold a lock. So handlers set plain
attributes and put into a `SimpleQueue`, whose `put` is reentrant; `Event.set` and starting a thread are not.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

TERMINATED = 128 + signal.SIGTERM
TIDY_S_MAX = 3.0
"""How long clean-up may take after SIGTERM before the process is killed."""
POLL_S = 0.02
Result = TypeVar("Result")


class StopRequest:
    def __init__(self, *, handles_signals: bool = True) -> None:
        self._handles_signals = handles_signals and threading.current_thread() is threading.main_thread()
        self.is_made = False
        self.is_urgent = False
        """Whether it was made twice: then the current batch is abandoned."""
        self.interrupted = False
        self.terminated = False
        self._job_runs = False
        self._terminating = False
        self._ends: SimpleQueue[bool] = SimpleQueue()
        """Tells the watchdog whether the process must end."""
        self._handlers_before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if self._handles_signals:
            threading.Thread(target=self._watch, name="millstream-sigterm", daemon=True).start()
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers_before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if not self._handles_signals:
            return
        for number, handler in self._handlers_before.items():
            with suppress(TypeError):  # a handler that was not installed from Python
                signal.signal(number, handler)
        if not self._terminating:
            self._ends.put(False)

    def _watch(self) -> None:
        """After SIGTERM, kills a process that does not exit, as when its JVM does not answer."""
        if self._ends.get():
            time.sleep(TIDY_S_MAX)
            os._exit(TERMINATED)

    def _handle(self, number: int, _: Any) -> None:
        if self._terminating:
            return
        if number == signal.SIGTERM and not self._job_runs:
            self._terminating = True
            self._ends.put(True)
            sys.exit(TERMINATED)
        self.is_urgent = self.is_made
        self.interrupted = self.interrupted or number == signal.SIGINT
        self.terminated = self.terminated or number == signal.SIGTERM
        self.is_made = True

    def job_runs(self) -> None:
        """From now on SIGTERM also waits for the current batch."""
        self._job_runs = True

    def check(self) -> None:
        """Raises KeyboardInterrupt if the job was asked to stop before it runs."""
        if self.is_made:
            raise KeyboardInterrupt

    def interruptible(self, work: Callable[[], Result]) -> Result:
        """Runs slow work that no signal may interrupt, such as calls to the JVM, and returns at once if asked to stop.

        The work runs in a thread: only the main thread handles signals, and it just waits here. After a stop the work
        continues while the process lives. PySpark takes over Ctrl-C when a session starts in the main thread, but not
        in others.
        """
        if not self._handles_signals:
            return work()
        done: Future[Result] = Future()
        threading.Thread(target=_complete, args=(done, work), name="millstream-starting", daemon=True).start()
        while not done.done():
            self.check()
            time.sleep(POLL_S)
        self.check()
        return done.result()


def _complete(done: Future[Result], work: Callable[[], Result]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:
        done.set_exception(error)


def end_after(seconds: float, exit_code: int) -> None:
    """Kills the process after a while unless it exits first. Not for signal handlers: it starts a thread."""
    timer = threading.Timer(seconds, os._exit, (exit_code,))
    timer.daemon = True
    timer.start()
