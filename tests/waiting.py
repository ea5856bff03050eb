"""Waiting for what other threads and processes do, for as long as a busy machine may need."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 300
LOOK_S = 0.05


def until(holds: Callable[[], Any], what: str, look_s: float = LOOK_S) -> Any:
    """Waits until something holds, and returns what it gave."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < deadline, f"timed out: {what}"
        time.sleep(look_s)
    return found
