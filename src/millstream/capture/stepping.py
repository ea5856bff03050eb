"""Steps that are repeated for as long as a program runs, and wait while the other side is away."""

from __future__ import annotations

import threading
from collections.abc import Callable

from millstream import terminal
from millstream.errors import MillstreamError

WAIT_SECONDS = 0.5
RETRY_SECONDS = 1.0
logger = terminal.logger(__name__)


def repeat(
    step: Callable[[float], object],
    stop: threading.Event,
    *,
    until: Callable[[], bool],
    watch: Callable[[], None],
    away: type[MillstreamError],
    recover: Callable[[], None],
) -> None:
    """Calls `step` with the seconds it may wait, then `watch`. After the error `away`, `recover` is called first."""
    while not stop.is_set() and not until():
        try:
            step(WAIT_SECONDS)
            watch()
        except away as error:
            logger.warning("%s: retrying", error)
            stop.wait(RETRY_SECONDS)
            recover()
