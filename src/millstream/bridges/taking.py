"""What a receiving thread has put into a queue, taken many at a time, so that they share one commit."""

from __future__ import annotations

import queue
from typing import TypeVar

Waiting = TypeVar("Waiting")


def take(waiting: queue.SimpleQueue[Waiting], count_max: int, seconds: float) -> list[Waiting]:
    """Waits for the first one, and takes those that are there."""
    taken: list[Waiting] = []
    try:
        taken.append(waiting.get(timeout=seconds))
        while len(taken) < count_max:
            taken.append(waiting.get_nowait())
    except queue.Empty:
        pass
    return taken


def drop(waiting: queue.SimpleQueue[Waiting]) -> None:
    """What was not acknowledged is delivered again, on the next connection."""
    try:
        while True:
            waiting.get_nowait()
    except queue.Empty:
        return
