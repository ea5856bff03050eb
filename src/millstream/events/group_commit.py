"""Appends of several threads share one commit: the first leads, and takes along all that wait when it begins."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from millstream.errors import StorageError
from millstream.events.decisions import Request

COMMIT_EVENTS_MAX = 20_000


class _Waiter:
    __slots__ = ("gate", "is_done", "requests")

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = requests
        self.is_done = False
        self.gate = threading.Lock()
        self.gate.acquire()


class GroupCommit:
    def __init__(self, commit: Callable[[Sequence[Request]], None]) -> None:
        self._commit = commit
        self._turn = threading.Lock()
        self._waiting: list[_Waiter] = []
        self._has_leader = False

    def submit(self, requests: Sequence[Request]) -> None:
        """Returns when every request has its outcome or its error."""
        waiter = _Waiter(requests)
        with self._turn:
            self._waiting.append(waiter)
            leads = not self._has_leader
            self._has_leader = True
        if not leads:
            try:
                waiter.gate.acquire()
            except BaseException:
                self._withdraw(waiter)
                raise
            if waiter.is_done:
                return
        self._lead()

    def _lead(self) -> None:
        with self._turn:
            taken = self._take()
        try:
            self._commit([request for waiter in taken for request in waiter.requests])
        except BaseException as error:
            for waiter in taken:
                for request in waiter.requests:
                    request.error = request.error or _interrupted(error)
            if not isinstance(error, Exception):
                raise
        finally:
            with self._turn:
                for waiter in taken:
                    waiter.is_done = True
                self._hand_over()
            for waiter in taken:
                waiter.gate.release()

    def _take(self) -> list[_Waiter]:
        if len(self._waiting) == 1:
            taken, self._waiting = self._waiting, []
            return taken
        events, count = 0, 0
        for waiter in self._waiting:
            events += sum(len(part.rows) for request in waiter.requests for part in request.parts)
            if count and events > COMMIT_EVENTS_MAX:
                break
            count += 1
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken

    def _hand_over(self) -> None:
        """The next leader is one of the waiters; it finds its gate open and its requests not done."""
        if self._waiting:
            self._waiting[0].gate.release()
        else:
            self._has_leader = False

    def _withdraw(self, waiter: _Waiter) -> None:
        """After an interrupt: a waiter that is gone must not be chosen as leader."""
        with self._turn:
            if waiter not in self._waiting:
                return
            chosen = self._waiting[0] is waiter and not waiter.gate.locked()
            self._waiting.remove(waiter)
            if chosen:
                self._hand_over()


def _interrupted(error: BaseException) -> BaseException:
    if isinstance(error, Exception):
        return error
    return StorageError(
        "the append was interrupted: it may be recorded or not",
        next_step="append the same events again: none is stored twice",
    )
