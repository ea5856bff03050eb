"""Consumers of groups on behalf of HTTP clients: kept open between requests, and closed when they are abandoned."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from millstream.errors import JobRunning, MillstreamError, NotFound
from millstream.log import Broker, Consumer

IDLE_SECONDS = 60.0
SESSIONS_MAX = 1000


class _Session:
    def __init__(self, group: str, consumer: Consumer, used_at: float) -> None:
        self.group, self.consumer, self.used_at = group, consumer, used_at
        self.turn = threading.Lock()


class Sessions:
    def __init__(
        self, log: Broker, *, idle_seconds: float = IDLE_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self.idle_seconds = idle_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[str, _Session] = {}

    def open(self, group: str, topics: Sequence[str], start: str) -> str:
        self.close_idle()
        with self._lock:
            if len(self._open) >= SESSIONS_MAX:
                raise JobRunning(f"{SESSIONS_MAX} consumers are open", next_step="close those that are not used")
        consumer = self._log.consumer(list(topics), group=group, start=start)
        id = secrets.token_hex(16)
        with self._lock:
            self._open[id] = _Session(group, consumer, self._clock())
        return id

    @contextmanager
    def using(self, group: str, id: str) -> Iterator[Consumer]:
        self.close_idle()
        with self._lock:
            session = self._open.get(id)
        if session is None or session.group != group:
            raise NotFound("there is no such consumer", next_step="it was closed or idle for too long: open another")
        if not session.turn.acquire(blocking=False):
            raise JobRunning("another request uses this consumer", next_step="send one request at a time")
        try:
            yield session.consumer
        finally:
            session.used_at = self._clock()
            session.turn.release()

    def close(self, group: str, id: str) -> None:
        with self.using(group, id) as consumer:
            with self._lock:
                self._open.pop(id, None)
            consumer.close()

    def close_idle(self) -> None:
        oldest = self._clock() - self.idle_seconds
        self._close(lambda session: session.used_at < oldest)

    def close_all(self) -> None:
        self._close(lambda session: True)

    def _close(self, chosen: Callable[[_Session], bool]) -> None:
        with self._lock:
            closing = [id for id, session in self._open.items() if chosen(session) and session.turn.acquire(False)]
            consumers = [self._open.pop(id).consumer for id in closing]
        for consumer in consumers:
            try:
                consumer.close()
            except MillstreamError:  # its group is gone, or another member has its partitions
                continue
