"""Calls of a user's function that waits for another system: many at a time, each with a limit of time and retries."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

from millstream.plan.nodes import MapAsync
from millstream.records import batch_to_rows, format_duration, rows_to_batch

PAUSE_S_MIN, PAUSE_S_MAX = 0.1, 5.0


@dataclass(frozen=True)
class Answer:
    """What a call for the row at `place` gave: rows, or the reason why it failed."""

    place: int
    rows: list[dict[str, Any]]
    failure: str | None = None


def answers(node: MapAsync, rows: Sequence[dict[str, Any]]) -> list[Answer]:
    """The answers to all rows, in their order, or in the order in which they came."""
    if not rows:
        return []
    threads = ThreadPoolExecutor(node.concurrency, thread_name_prefix="millstream-calls")
    calls = Calls(node, threads)
    try:
        asyncio.run_coroutine_threadsafe(calls.all(rows), _loop(os.getpid())).result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)  # a call that was given up may still hang
    return sorted(calls.answers, key=lambda answer: answer.place) if node.ordered else calls.answers


class Calls:
    """The calls of one batch."""

    def __init__(self, node: MapAsync, threads: ThreadPoolExecutor) -> None:
        self._node = node
        self._threads = threads
        self._is_async = inspect.iscoroutinefunction(node.function) or inspect.iscoroutinefunction(
            getattr(node.function, "__call__", None)  # noqa: B004 - an object with an async method
        )
        self.answers: list[Answer] = []

    async def all(self, rows: Sequence[dict[str, Any]]) -> None:
        """As many workers as may call at a time take one row after the other."""
        left = iter(enumerate(rows))

        async def work() -> None:
            for place, row in left:
                self.answers.append(await self._answer(place, row))

        await asyncio.gather(*(work() for _ in range(min(self._node.concurrency, len(rows)))))

    async def _answer(self, place: int, row: dict[str, Any]) -> Answer:
        pause = PAUSE_S_MIN
        for attempt in range(self._node.retries + 1):
            if attempt:
                await asyncio.sleep(pause)
                pause = min(PAUSE_S_MAX, 2 * pause)
            try:
                result = await self._called(dict(row))
                break
            except TimeoutError as error:
                limit = self._node.timeout
                text = str(error) or (f"no answer within {format_duration(limit)}" if limit else "")
                failure = f"TimeoutError: {text}"
            except Exception as error:  # whatever a user's function raises
                failure = f"{type(error).__name__}: {error}"
        else:
            return Answer(place, [], failure)
        return self._fitted(place, result)

    async def _called(self, row: dict[str, Any]) -> Any:
        limit = None if self._node.timeout is None else self._node.timeout.total_seconds()
        if self._is_async:
            return await asyncio.wait_for(self._node.function(row), limit)
        called = asyncio.get_running_loop().run_in_executor(self._threads, self._node.function, row)
        return await asyncio.wait_for(called, limit)

    def _fitted(self, place: int, result: Any) -> Answer:
        """A result that does not fit the schema would not fit it the next time: it is not tried again."""
        batch, failures = rows_to_batch([] if result is None else [result], self._node.schema)
        reason = f"ValueError: {failures[0].reason}" if failures else None
        return Answer(place, batch_to_rows(batch), reason)


@cache
def _loop(process: int) -> asyncio.AbstractEventLoop:
    """One event loop per process, so that a client that the function keeps can be used again by the next batch."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="millstream-calls", daemon=True).start()
    return loop
