"""Waiting for what other threads and processes do, for as long as a busy machine may need.

What waits ends when a condition holds; the deadline only says when a test is hung, and names what it waited for.
"""

from __future__ import annotations

import multiprocessing.process
import subprocess
import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 300
SOAK_PATIENCE_S = 1800
"""Of the long runs, which share the machine with each other and have hours."""
LOOK_S = 0.05


def until(holds: Callable[[], Any], what: str, look_s: float = LOOK_S) -> Any:
    """Waits until something holds, and returns what it gave."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
        time.sleep(look_s)
    return found


def exit_code(process: subprocess.Popen[Any], what: str) -> int:
    """Waits until a process has ended."""
    try:
        return process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"not within {PATIENCE_S} s: the end of {what}") from None


def exit_code_of_child(process: multiprocessing.process.BaseProcess, what: str) -> int | None:
    """Waits until a child of multiprocessing has ended."""
    process.join(PATIENCE_S)
    assert not process.is_alive(), f"not within {PATIENCE_S} s: the end of {what}"
    return process.exitcode
