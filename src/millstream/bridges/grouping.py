"""Many small requests share one commit: while one batch is being stored, the next one accumulates."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from millstream.bridges.arrivals import Arrival, Landed, Outcome
from millstream.bridges.landing import Landing
from millstream.errors import BufferFull, MillstreamError

WAITING_BYTES_MAX = 64 << 20
COMMIT_BYTES_MAX = 16 << 20


class _Waiter(NamedTuple):
    arrivals: Sequence[Arrival]
    size_bytes: int
    done: asyncio.Future[Landed]


class GroupedLanding:
    """The entrance of a bridge that serves many connections with asyncio."""

    def __init__(self, landing: Landing, *, waiting_bytes_max: int = WAITING_BYTES_MAX) -> None:
        self.landing = landing
        self.waiting_bytes_max = waiting_bytes_max
        self._waiting: deque[_Waiter] = deque()
        self._held_bytes = 0
        self._committing: asyncio.Task[None] | None = None
        landing.is_grouped = True
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="millstream-landing")

    async def land(self, arrivals: Sequence[Arrival]) -> Landed:
        """Returns when all are durable. Raises BufferFull, and takes none of them, while too much is waiting."""
        size = sum(arrival.size_bytes for arrival in arrivals)
        if self._held_bytes and self._held_bytes + size > self.waiting_bytes_max:
            raise BufferFull(
                f"{self._held_bytes:,} bytes are waiting to be stored, and the limit is {self.waiting_bytes_max:,}",
                next_step="send it again in a second",
            )
        loop = asyncio.get_running_loop()
        waiter = _Waiter(arrivals, size, loop.create_future())
        self._waiting.append(waiter)
        self._held_bytes += size
        if self._committing is None:
            self._committing = loop.create_task(self._commit_all())
        with self.landing.passage.counted(len(arrivals)):
            return await waiter.done

    async def _commit_all(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                taken = self._take()
                together = [arrival for waiter in taken for arrival in waiter.arrivals]
                try:
                    outcomes = await loop.run_in_executor(self._thread, self.landing.land, together)
                except Exception as error:
                    for waiter in taken:
                        if not waiter.done.done():
                            waiter.done.set_exception(error)
                else:
                    _answer(taken, outcomes)
                finally:
                    self._held_bytes -= sum(waiter.size_bytes for waiter in taken)
        finally:
            self._committing = None

    def _take(self) -> list[_Waiter]:
        taken = [self._waiting.popleft()]
        size = taken[0].size_bytes
        while self._waiting and size + self._waiting[0].size_bytes <= COMMIT_BYTES_MAX:
            taken.append(self._waiting.popleft())
            size += taken[-1].size_bytes
        return taken

    async def finish(self) -> None:
        """Returns when everything that was taken is stored or has its error."""
        if self._committing is not None:
            await self._committing

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def _answer(taken: Sequence[_Waiter], outcomes: Sequence[Outcome | MillstreamError]) -> None:
    first = 0
    for waiter in taken:
        own = outcomes[first : first + len(waiter.arrivals)]
        first += len(own)
        if waiter.done.done():  # the client is gone; what it sent is stored all the same
            continue
        error = next((each for each in own if isinstance(each, MillstreamError)), None)
        if error is not None:
            waiter.done.set_exception(error)
        else:
            counts = [own.count(outcome) for outcome in (Outcome.STORED, Outcome.DUPLICATE, Outcome.DEAD)]
            waiter.done.set_result(Landed(*counts))
