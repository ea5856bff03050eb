"""Waiting for what other threads and processes do, for as long as a busy machine may need."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 300


def until(holds: Callable[[], Any], what: str) -> Any:
    """Waits until something holds, and returns what it gave."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < deadline, f"timed out: {what}"
        time.sleep(0.05)
    return found
