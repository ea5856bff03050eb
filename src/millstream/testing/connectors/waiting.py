"""Waiting for what other threads and processes do, for as long as a busy machine may need."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE_SECONDS = 240.0
LOOK_SECONDS = 0.05
MOMENT_SECONDS = 0.2


def until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"after {PATIENCE_SECONDS:g} s, not yet: {what}"
        time.sleep(LOOK_SECONDS)


@contextmanager
def meanwhile(work: Callable[[], object], what: str) -> Iterator[None]:
    """Work goes on in a thread, and is complete at the end."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive(), f"after {PATIENCE_SECONDS:g} s, not yet: {what}"
    if raised:
        raise raised[0]
