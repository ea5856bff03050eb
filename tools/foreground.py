"""Runs a cluster in the foreground until Ctrl-C, and says so when a part of it ends by itself."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Protocol, Self, TypeVar

from millstream.errors import MillstreamError


class Cluster(Protocol):
    def ended(self) -> MillstreamError | None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


Made = TypeVar("Made", bound=Cluster)


def run(made: Callable[[], Made], starting: str, started: Callable[[Made], Sequence[str]], stopped: str) -> int:
    """The exit code. `started` gives the lines that a user needs now."""
    for end in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(end, signal.default_int_handler)
    try:
        cluster = made()
        print(starting, flush=True)
        with cluster:
            print("\n".join(started(cluster)), flush=True)
            while not (failed := cluster.ended()):
                time.sleep(1)
            raise failed
    except KeyboardInterrupt:
        print(f"\n{stopped}", flush=True)
        return 0
    except MillstreamError as error:
        print(error, file=sys.stderr)
        return error.exit_code
