"""Shows a running job, updated in place: in the output of a notebook cell, or on a terminal."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol, Self

from millstream.jobs.shown.job_view import JobView, as_html, as_text, view_of
from millstream.plan.run_settings import refused
from millstream.terminal import in_notebook, notebook_display

if TYPE_CHECKING:
    from millstream.jobs.job import Job

REFRESH_S_MIN = 0.05
RATE_S = 10.0


class Screen(Protocol):
    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def update(self, view: JobView) -> None: ...


class Notebook:
    """One output of a cell, replaced with each update."""

    def __init__(self) -> None:
        self._handle: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, view: JobView) -> None:
        notebook = notebook_display()
        shown = notebook.HTML(as_html(view))
        if self._handle is None:
            self._handle = notebook.display(shown, display_id=True)
        else:
            self._handle.update(shown)


class Terminal:
    """Lines that are drawn again with each update; in a pipe, only the last of them."""

    def __init__(self) -> None:
        from rich.live import Live

        self._live = Live(auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, view: JobView) -> None:
        self._live.update(as_text(view), refresh=True)


class Rate:
    """Rows per second over the last seconds: those of a single batch say little, and an idle one has none."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def of(self, rows_read: int) -> float | None:
        now = time.monotonic()
        self._seen.append((now, rows_read))
        while len(self._seen) > 2 and now - self._seen[1][0] > RATE_S:
            self._seen.popleft()
        began, before = self._seen[0]
        return (rows_read - before) / (now - began) if now > began else None


def show(job: Job, refresh_s: float) -> None:
    """Returns when the job has ended, or when it is interrupted."""
    if not isinstance(refresh_s, int | float) or not REFRESH_S_MIN <= refresh_s < math.inf:
        raise refused(f"refresh_s is a number of seconds from {REFRESH_S_MIN} on, not {refresh_s!r}", "show()")
    rate = Rate()
    screen: Screen = Notebook() if in_notebook() else Terminal()
    with interruptible() as interrupt, screen:
        with suppress(KeyboardInterrupt):
            while job.is_running and not interrupt.is_made:
                screen.update(view_of(job, rate.of(job.progress.rows_read)))
                interrupt.wait(refresh_s)
        screen.update(view_of(job, rate.of(job.progress.rows_read)))
        has_ended = not job.is_running
    if has_ended:
        job.wait()  # raises the error that it failed with


class Interrupt:
    """Whether there was a Ctrl-C. Its handler may run while this thread holds any lock, so it takes none."""

    def __init__(self) -> None:
        self.is_made = False
        self._made: SimpleQueue[None] = SimpleQueue()  # whose `put` is reentrant; `Event.set` is not

    def note(self, *_: object) -> None:
        self.is_made = True
        self._made.put(None)

    def wait(self, seconds: float) -> None:
        """Returns early if there is one."""
        with suppress(Empty):
            self._made.get(timeout=seconds)


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Only notes a Ctrl-C. Spark's own handler would cancel the running batch of the job."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = signal.signal(signal.SIGINT, interrupt.note)
    try:
        yield interrupt
    finally:
        with suppress(TypeError):  # a handler that was not installed from Python
            signal.signal(signal.SIGINT, before)
