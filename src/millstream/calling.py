"""Calls the questions of a running flow: a request goes to a topic of the job, and its answer comes from another.

A call returns the rows of its answer, or raises: the error of the flow, or that the time is over. An answer that comes
after that is ignored.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import pyarrow as pa

from millstream.errors import (
    AskFailed,
    AskTimedOut,
    ClosedError,
    InvalidInput,
    InvalidName,
    MillstreamError,
    NotFound,
    UnknownTopic,
)
from millstream.log import Broker, connect
from millstream.log.buffer import Receipt
from millstream.plan.steps.asks import ANSWERS_TOPIC, ERROR, EXPIRES, REQUEST, REQUESTS_TOPIC, ROWS, topic_of
from millstream.records import Schema, duration, rows_to_batch
from millstream.user_lines import AtUsersLine, what_exists

TIMEOUT = timedelta(seconds=10)
POLL_S = 0.2
"""How often it is checked whether the time of a call is over."""
RECORDS_MAX = 5_000

Rows = list[dict[str, Any]]


def client(job: str, *, broker: str | os.PathLike[str] | Broker | None = None) -> Client:
    """Opens a client for the questions of a job: `ms.client("links").call("reach", url="…")`.

    `broker` is the log of the job: a folder or kafka://host:9092. Default: MILLSTREAM_BROKER, else `.millstream`.
    """
    opens = broker is None or isinstance(broker, str | os.PathLike)
    return Client(job, connect(broker) if opens else broker, owns_log=opens)  # type: ignore[arg-type]


class Client:
    """Made by `client(…)`. Its methods may be called from many threads at the same time."""

    def __init__(self, job: str, log: Broker, *, owns_log: bool) -> None:
        self.job = job
        self._log = log
        self._owns_log = owns_log
        self._producer = log.producer()
        self._lines: dict[str, _Line] = {}
        self._lock = threading.Lock()
        self._closed = False

    def call(self, name: str, /, timeout: str | timedelta = TIMEOUT, **arguments: Any) -> Rows:
        """Asks a question, and waits for the rows of the answer.

        Raises AskFailed with the error of a step that failed on the request, and AskTimedOut if no answer came in time.
        """
        with AtUsersLine():
            return self.send(name, arguments, duration(timeout, what="timeout"), at_once=True).result()

    def submit(self, name: str, /, timeout: str | timedelta = TIMEOUT, **arguments: Any) -> Future[Rows]:
        """Asks a question without waiting: the result of the future is the answer, or the error."""
        with AtUsersLine():
            return self.send(name, arguments, duration(timeout, what="timeout"))

    def send(self, name: str, arguments: Mapping[str, Any], limit: timedelta, *, at_once: bool = False) -> Future[Rows]:
        """The same, with the arguments as a mapping. `at_once` waits until the request is stored.

        Otherwise requests that follow one another are stored together; one that cannot be stored ends with the error.
        """
        line = self._line(name)
        request, future = uuid.uuid4().hex, Future[Rows]()
        line.check(arguments)
        waiting = line.expect(request, future, limit)
        row = {REQUEST: request, EXPIRES: datetime.now(UTC) + limit, **arguments}
        try:
            waiting.receipt = self._producer.send(line.requests, row, key=request)
            if at_once:
                waiting.receipt.wait()
        except BaseException:
            line.forget(request)
            raise
        return future

    def asks(self) -> dict[str, Schema]:
        """The questions of the job, with their columns."""
        found = {}
        first, last = f"{self.job}.", f".{REQUESTS_TOPIC}"
        for topic in self._log.topics():
            if topic.startswith(first) and topic.endswith(last):
                name = topic.removeprefix(first).removesuffix(last)
                columns = self._columns(name)
                if columns is not None:
                    found[name] = columns
        return found

    @property
    def in_flight(self) -> int:
        """How many requests wait for their answer."""
        with self._lock:
            return sum(line.in_flight for line in self._lines.values())

    def close(self) -> None:
        """Ends calls that still wait with an error."""
        with self._lock:
            self._closed = True
            lines, self._lines = list(self._lines.values()), {}
        for line in lines:
            line.close()
        try:
            with suppress(MillstreamError):  # the caller of a request that was not stored has its error
                self._producer.close()
        finally:
            if self._owns_log:
                self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _line(self, name: str) -> _Line:
        with self._lock:
            if self._closed:
                raise ClosedError("this client is closed", next_step="open another one: ms.client(…)")
            found = self._lines.get(name)
            if found is None or not found.is_open:
                self._lines[name] = found = self._opened(name)
            return found

    def _columns(self, name: str) -> Schema | None:
        """Those of a question; None if it is a topic of something else."""
        stored = self._log.topic(topic_of(self.job, name, REQUESTS_TOPIC)).settings.schema
        own = [] if stored is None else list(stored.arrow)
        is_of_requests = [field.name for field in own[:2]] == [REQUEST, EXPIRES]
        return Schema.from_arrow(pa.schema(own[2:])) if is_of_requests else None

    def _opened(self, name: str) -> _Line:
        with suppress(UnknownTopic, InvalidName):
            columns = self._columns(name)
            if columns is not None:
                return _Line(self._log, self.job, name, columns)
        known = list(self.asks())
        raise NotFound(
            f"the job '{self.job}' has no question '{name}'" + ("" if known else ", or has never run"),
            next_step=what_exists(name, known, kind="questions") if known else "start the job first",
        )


@dataclass
class _Waiting:
    """A call whose answer has not come yet."""

    future: Future[Rows]
    limit: timedelta
    until: float
    receipt: Receipt | None = None
    """Of the request."""

    @property
    def refused(self) -> MillstreamError | None:
        """Why the request could not be stored."""
        return self.receipt.error if self.receipt is not None and self.receipt.done else None


class _Line:
    """The requests and the answers of one question. A thread of its own reads the answers, from now on."""

    def __init__(self, log: Broker, job: str, name: str, columns: Schema) -> None:
        self.requests = topic_of(job, name, REQUESTS_TOPIC)
        self._job, self._name, self._columns = job, name, columns
        self._waiting: dict[str, _Waiting] = {}
        self._ends = threading.Event()
        self._consumer = log.consumer(topic_of(job, name, ANSWERS_TOPIC), start="latest", on_lost="earliest")
        # Its position is known before the first request is sent, so no answer can be missed.
        self._consumer.poll(0, max_records=1)
        self._thread = threading.Thread(target=self._read, name=f"millstream-answers-{name}", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        return self._thread.is_alive()

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Refuses arguments that do not fit the columns of the question."""
        own = self._columns.names
        if set(own) != set(arguments):
            raise InvalidInput(
                f"'{self._name}' takes {', '.join(own)}, not {', '.join(arguments) or 'nothing'}",
                next_step=f"call('{self._name}', {', '.join(f'{column}=…' for column in own)})",
            )
        _, failures = rows_to_batch([dict(arguments)], self._columns)
        if failures:
            raise InvalidInput(
                f"'{self._name}' cannot be asked: {failures[0].reason}", next_step=f"its columns: {self._columns.ddl}"
            )

    def expect(self, request: str, future: Future[Rows], limit: timedelta) -> _Waiting:
        made = self._waiting[request] = _Waiting(future, limit, time.monotonic() + limit.total_seconds())
        if self._ends.is_set():  # the thread may not look at it any more
            self.forget(request)
            raise ClosedError("the client was closed, or cannot read answers any more", next_step="ask again")
        return made

    def forget(self, request: str) -> None:
        self._waiting.pop(request, None)

    def close(self) -> None:
        self._ends.set()
        self._thread.join()

    def _read(self) -> None:
        failure: MillstreamError | None = None
        try:
            while not self._ends.is_set():
                for record in self._consumer.poll(POLL_S, max_records=RECORDS_MAX):
                    self._answer(record.value)
                self._end_late()
        except MillstreamError as error:
            failure = error
        finally:
            self._end_all(failure)
            with suppress(MillstreamError):
                self._consumer.close()

    def _answer(self, answer: Any) -> None:
        """Of another client's request, or one whose caller has gone: nobody waits for it."""
        waiting = self._waiting.pop(answer[REQUEST], None)
        if waiting is None:
            return
        if answer[ERROR] is None:
            _settle(waiting.future, lambda future: future.set_result(answer[ROWS]))
            return
        failed = AskFailed(
            f"'{self._name}' of the job '{self._job}' failed: {answer[ERROR]}",
            next_step="correct the arguments, or the function of the question",
        )
        _settle(waiting.future, lambda future: future.set_exception(failed))

    def _end_late(self) -> None:
        now = time.monotonic()
        for request, waiting in list(self._waiting.items()):
            if (refused := waiting.refused) is not None:
                self.forget(request)
                _settle(waiting.future, lambda future, why=refused: future.set_exception(why))  # type: ignore[misc]
            elif now >= waiting.until or waiting.future.cancelled():
                self.forget(request)
                late = AskTimedOut(
                    f"'{self._name}' of the job '{self._job}' was not answered within "
                    f"{waiting.limit.total_seconds():g} seconds",
                    next_step="check that the job is running, or give it more time: call(…, timeout='1 minute')",
                )
                _settle(waiting.future, lambda future, late=late: future.set_exception(late))  # type: ignore[misc]

    def _end_all(self, failure: MillstreamError | None) -> None:
        self._ends.set()
        ended = failure or ClosedError("the client was closed before the answer came", next_step="ask again")
        while self._waiting:
            with suppress(KeyError):
                _, waiting = self._waiting.popitem()
                _settle(waiting.future, lambda future: future.set_exception(ended))


def _settle(future: Future[Rows], settle: Callable[[Future[Rows]], None]) -> None:
    with suppress(InvalidStateError):  # its caller has cancelled it
        settle(future)
