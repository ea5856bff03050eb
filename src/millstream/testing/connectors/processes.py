"""Processes that can be killed at a chosen step. They are forked from a server that has loaded what all need."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Literal

from millstream.secrets import delivery

KILL_SECONDS_MAX = 0.01
READY_SECONDS = 120.0
KILLED = -signal.SIGKILL
Step = Literal["before", "during", "after", "soon"]
STEPS: tuple[Step, ...] = ("before", "during", "after", "soon")
"""When a process dies: before it stores, while it does, before it acknowledges, and just after it does."""
Ready = Callable[[], None]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_soon() -> None:
    """At a moment that is not known beforehand."""
    threading.Timer(random.uniform(0, KILL_SECONDS_MAX), die).start()


def killed_around(work: Callable[..., Any], step: Step | None) -> Callable[..., Any]:
    """The same work, in which the process dies at a step."""

    def run(*arguments: Any, **named: Any) -> Any:
        if step == "before":
            die()
        if step == "during":
            die_soon()
        done = work(*arguments, **named)
        if step == "after":
            die()
        if step == "soon":
            die_soon()
        return done

    return run


class Jumps:
    """Makes `time.time` of this process jump forth and back with every call."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._now = time.time
        self._offset = 0.0
        time.time = lambda: self._now() + self._offset

    def __call__(self) -> None:
        self._offset = -self._seconds if self._offset > 0 else self._seconds


class Child:
    """A process that reports when it is ready."""

    def __init__(self, work: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["millstream.testing.connectors.preloaded"])
        self._ready, ready = context.Pipe(duplex=False)
        self._process = context.Process(target=_run, args=(_Environment(), work, ready, *arguments), daemon=True)
        self._process.start()
        ready.close()

    def wait_until_ready(self, *, may_be_killed: bool = False) -> None:
        """A process that is going to be killed may be dead before it is ready."""
        if not self._ready.poll(READY_SECONDS):
            raise AssertionError(f"the process is not ready after {READY_SECONDS:g} s")
        try:
            self._ready.recv()
        except EOFError:
            code = self.wait_until_dead()
            if code != KILLED or not may_be_killed:
                raise AssertionError(f"the process ended with code {code}") from None

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def wait_until_dead(self) -> int:
        """Its exit code."""
        self._process.join(READY_SECONDS)
        code = self._process.exitcode
        assert code is not None, f"the process is still alive after {READY_SECONDS:g} s"
        return code

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


class _Environment:
    """Brings it and the values of secrets to another process, before what refers to them is unpickled there.

    The server that processes are forked from has the environment of the time when the first one was started.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, ({**os.environ, **delivery()},)


def _receive(environment: dict[str, str]) -> None:
    os.environ.update(environment)


def _run(_: None, work: Callable[..., None], ready: Connection, *arguments: Any) -> None:
    work(lambda: ready.send(None), *arguments)
