"""Ctrl-C and SIGTERM end a bridge in the same way: what it has accepted is stored first, and its exit code is 0."""

from __future__ import annotations

import signal
from collections.abc import Callable

STOPS = (signal.SIGINT, signal.SIGTERM)


def on_stop(stop: Callable[[], None]) -> None:
    """From now on, both signals call `stop` instead of ending the process."""
    for number in STOPS:
        signal.signal(number, lambda *_: stop())
