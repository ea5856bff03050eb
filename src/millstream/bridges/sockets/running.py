"""Runs the sockets of a bridge until it is stopped: by Ctrl-C, by SIGTERM, or because another process took over."""

from __future__ import annotations

import asyncio
import hashlib
import signal
from collections.abc import Callable
from contextlib import suppress

from millstream.bridges.grouping import GroupedLanding
from millstream.bridges.landing import Landing
from millstream.bridges.sockets.listener import Doors, Reader, Traffic

STOPS = (signal.SIGINT, signal.SIGTERM)


def bridge_name(kind: str, where: str) -> str:
    """Bridges of the same kind at different places do not replace each other."""
    return f"{kind}-{hashlib.blake2s(where.encode(), digest_size=4).hexdigest()}"


def serve(
    landing: Landing, doors: Doors, reader: Reader, traffic: Traffic, on_ready: Callable[[Callable[[], None]], None]
) -> None:
    """`on_ready` is called with a function that stops it, from any thread."""

    async def run() -> None:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()

        def stop() -> None:
            with suppress(RuntimeError):  # it has stopped already
                loop.call_soon_threadsafe(stopped.set)

        landing.on_failure = stop
        for number in STOPS:
            with suppress(ValueError, RuntimeError):  # not the main thread: its owner calls `stop`
                loop.add_signal_handler(number, stopped.set)
        grouped = GroupedLanding(landing)
        try:

            async def until() -> None:
                on_ready(stop)
                await stopped.wait()

            await doors.serve(grouped, reader, traffic, until)
        finally:
            await grouped.finish()
            grouped.close()

    asyncio.run(run())
    if landing.failure is not None:
        raise landing.failure
