"""The log over HTTP, for programs in any language: produce, read by position, follow as server-sent events, groups.

A reader's position is in its answers, so that it continues anywhere: nothing of it is stored here. Only consumers of
groups are kept open between requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager, suppress
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute

from millstream import terminal
from millstream.bridges.arrivals import Counts
from millstream.bridges.http.callbacks import Callbacks
from millstream.bridges.http.json_records import as_json, read_records, written
from millstream.bridges.http.positions import position_of, position_text
from millstream.bridges.http.sessions import Sessions
from millstream.errors import (
    AlreadyExists,
    BufferFull,
    InvalidInput,
    JobRunning,
    MillstreamError,
    NotFound,
    OffsetLost,
    StorageError,
)
from millstream.log import Broker, Producer, Record
from millstream.serving.access import Access, Denied
from millstream.serving.http import KINDS, Application

VERSION = "v1"
BODY_BYTES_MAX = 8 << 20
RECORDS_MAX = 10_000
WAIT_SECONDS_MAX = 30.0
POLL_SECONDS = 1.0
SILENCE_SECONDS = 15.0
STREAMS_MAX = 100
THREADS_MAX = STREAMS_MAX + 32


class TooLarge(InvalidInput):
    """A request with a body that is not read to its end."""


STATUS_OF: dict[type[MillstreamError], int] = {
    TooLarge: 413,
    NotFound: 404,
    AlreadyExists: 409,
    JobRunning: 409,
    OffsetLost: 410,
    InvalidInput: 400,
    BufferFull: 429,
    StorageError: 503,
}
DESCRIPTION = {
    "GET /v1/topics": "the topics",
    "GET /v1/topics/NAME": "a topic: its partitions, with their first and next offset",
    "POST /v1/topics/NAME/records": "stores [{value, key, headers, partition}, …]; answers when they are durable",
    "GET /v1/topics/NAME/records?position=P&limit=N&wait=S": "records from a position, and the next position",
    "GET /v1/topics/NAME/events?position=P": "the same as server-sent events, without end",
    "GET /v1/topics/NAME/socket?position=P": "a WebSocket: records from a position, and records to store",
    "POST /v1/groups/GROUP/consumers": "opens a consumer of a group: {topics, start}",
    "GET /v1/groups/GROUP/consumers/ID/records?limit=N&wait=S": "its next records; those before count as processed",
    "POST /v1/groups/GROUP/consumers/ID/commit": "the records that were returned count as processed",
    "DELETE /v1/groups/GROUP/consumers/ID": "closes it",
}
CALLBACK_DESCRIPTION = {
    "POST /v1/callbacks": "registers {topic, url, secret, headers, start}: records are posted to the URL",
    "GET /v1/callbacks": "the callbacks, with their positions; never their secrets",
    "GET /v1/callbacks/ID": "one of them",
    "DELETE /v1/callbacks/ID": "removes it",
}
logger = terminal.logger("uvicorn.error")
Handler = Callable[["Asked"], Any]


class Asked:
    """One request, with its body."""

    def __init__(self, request: Request, body: bytes) -> None:
        self.request, self.body = request, body

    def part(self, name: str) -> str:
        return str(self.request.path_params[name])

    def query(self, name: str, default: str) -> str:
        return self.request.query_params.get(name, default)

    def limit(self) -> int:
        return int(min(self._number("limit", 500), RECORDS_MAX))

    def wait_seconds(self) -> float:
        return min(self._number("wait", 0), WAIT_SECONDS_MAX)

    def _number(self, name: str, default: float) -> float:
        text = self.query(name, str(default))
        if not text.replace(".", "", 1).isdecimal():
            raise InvalidInput(f"{name}={text[:50]!r} is not a number", next_step=f"for example {name}=10")
        return float(text)


class Gateway:
    """What the routes do; each method runs in a thread."""

    def __init__(
        self,
        log: Broker,
        producer: Producer,
        topics: Sequence[str],
        *,
        read_only: bool,
        callbacks: Callbacks | None = None,
        counts: Counts | None = None,
    ) -> None:
        self._log = log
        self._counts = counts or Counts()
        self._producer = producer
        self._topics = frozenset(topics)
        self._read_only = read_only
        self._callbacks = callbacks
        self.sessions = Sessions(log)

    def topic_of(self, name: str) -> str:
        if self._topics and name not in self._topics:
            raise NotFound(f"there is no topic '{name}' here", next_step="GET /v1/topics lists them")
        self._log.topic(name)
        return name

    def root(self, asked: Asked) -> Any:
        return DESCRIPTION if self._callbacks is None else DESCRIPTION | CALLBACK_DESCRIPTION

    def topics(self, asked: Asked) -> Any:
        return sorted(self._topics or self._log.topics())

    def topic(self, asked: Asked) -> Any:
        found = self._log.topic(self.topic_of(asked.part("topic")))
        parts = [
            {"partition": part.number, "first": part.start_offset(), "next": part.stable_offset()}
            for part in found.partitions()
        ]
        schema = found.settings.schema
        return {"name": found.name, "schema": None if schema is None else str(schema), "partitions": parts}

    def produce(self, asked: Asked) -> Any:
        return self.store(self.topic_of(asked.part("topic")), asked.body)

    def store(self, topic: str, body: bytes) -> list[dict[str, Any]]:
        """Returns when all records are durable: their offsets, or why one was rejected."""
        if self._read_only:
            raise InvalidInput("this gateway is read-only", next_step="start it without --read-only")
        sent = [
            self._producer.send(topic, each.value, each.key, headers=each.headers, partition=each.partition)
            for each in read_records(body)
        ]
        answers: list[dict[str, Any]] = []
        rejected = 0
        for receipt in sent:
            try:
                answers.append({"partition": receipt.partition, "offset": receipt.offset})
            except InvalidInput as error:  # this record alone
                answers.append({"error": error.what})
                rejected += 1
        self._counts.add(stored=len(answers) - rejected)
        return answers

    def read(self, asked: Asked) -> Any:
        topic = self.topic_of(asked.part("topic"))
        position = position_of(self._log, topic, asked.query("position", "earliest"))
        with self._log.consumer(topic, start=position, pinned=True) as consumer:
            limit = asked.limit()
            records = found = consumer.poll(asked.wait_seconds(), limit)
            while found and len(records) < limit:  # a poll returns records of one partition
                found = consumer.poll(0, limit - len(records))
                records = records + found
            after = {number: consumer.position(topic, number) for number in position}
        return {"records": [as_json(record) for record in records], "position": position_text(after)}

    def open_consumer(self, asked: Asked) -> Any:
        given = msgspec.json.decode(asked.body, type=NewConsumer)
        for topic in given.topics:
            self.topic_of(topic)
        return {"consumer": self.sessions.open(asked.part("group"), given.topics, given.start)}

    def consume(self, asked: Asked) -> Any:
        with self.sessions.using(asked.part("group"), asked.part("id")) as consumer:
            return [as_json(record) for record in consumer.poll(asked.wait_seconds(), asked.limit())]

    def commit(self, asked: Asked) -> Any:
        with self.sessions.using(asked.part("group"), asked.part("id")) as consumer:
            consumer.commit()
        return {"committed": True}

    def close_consumer(self, asked: Asked) -> Any:
        self.sessions.close(asked.part("group"), asked.part("id"))
        return {"closed": asked.part("id")}

    @property
    def callbacks(self) -> Callbacks:
        if self._callbacks is None:
            raise NotFound("there are no callbacks here", next_step="start the gateway with --callbacks FILE")
        return self._callbacks

    def register_callback(self, asked: Asked) -> Any:
        callbacks, given = self.callbacks, msgspec.json.decode(asked.body, type=NewCallback)
        topic = self.topic_of(given.topic)
        return callbacks.register(topic, given.url, secret=given.secret, headers=given.headers, start=given.start)

    def list_callbacks(self, asked: Asked) -> Any:
        return self.callbacks.all()

    def callback(self, asked: Asked) -> Any:
        return self.callbacks.one(asked.part("id"))

    def remove_callback(self, asked: Asked) -> Any:
        self.callbacks.remove(asked.part("id"))
        return {"removed": asked.part("id")}

    def begin_events(self, name: str, position: str) -> tuple[str, dict[int, int]]:
        topic = self.topic_of(name)
        return topic, position_of(self._log, topic, position)

    async def follow(
        self, topic: str, position: Mapping[int, int], threads: ThreadPoolExecutor
    ) -> AsyncGenerator[Sequence[Record]]:
        """The records from a position on, without end; none if none came for a second."""
        loop = asyncio.get_running_loop()
        consumer = await loop.run_in_executor(
            threads, lambda: self._log.consumer(topic, start=dict(position), pinned=True)
        )
        try:
            while True:
                yield await loop.run_in_executor(threads, consumer.poll, POLL_SECONDS)
        finally:
            threads.submit(consumer.close)

    async def events(self, topic: str, position: dict[int, int], threads: ThreadPoolExecutor) -> AsyncGenerator[bytes]:
        """Every event carries the position after it: a client that reconnects sends the last one it has seen."""
        yield b": records follow\n\n"
        spoken_at = time.monotonic()
        async with aclosing(self.follow(topic, position, threads)) as following:
            async for records in following:
                if records:
                    yield b"".join(_event(record, position) for record in records)
                    spoken_at = time.monotonic()
                elif time.monotonic() - spoken_at > SILENCE_SECONDS:  # proxies close silent connections
                    yield b": nothing new\n\n"
                    spoken_at = time.monotonic()


class NewConsumer(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request for a consumer."""

    topics: list[str]
    start: str = "earliest"


class NewCallback(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request for a callback."""

    topic: str
    url: str
    secret: str | None = None
    headers: dict[str, str] | None = None
    start: str = "latest"


def _event(record: Record, position: dict[int, int]) -> bytes:
    position[record.partition] = record.offset + 1
    return b"id: %b\ndata: %b\n\n" % (position_text(position).encode(), written(as_json(record)))


# ---------------------------------------------------------------- the application


@contextmanager
def gateway(
    log: Broker,
    access: Access,
    topics: Sequence[str] = (),
    *,
    read_only: bool = False,
    callbacks: Callbacks | None = None,
    counts: Counts | None = None,
) -> Iterator[Application]:
    """The ASGI application, until it is no longer served. With `callbacks`, they are registered here."""
    threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="millstream-gateway")
    producer = log.producer(acks="all")
    made = Gateway(log, producer, topics, read_only=read_only, callbacks=callbacks, counts=counts)
    try:
        yield _app(made, access, threads)
    finally:
        made.sessions.close_all()
        threads.shutdown(wait=True, cancel_futures=True)
        with suppress(InvalidInput):  # about records that were rejected, as their senders know
            producer.close()


class Places:
    """How many streams may be open at once: each keeps a thread."""

    def __init__(self) -> None:
        self._taken = 0

    def check(self) -> None:
        if self._taken >= STREAMS_MAX:
            raise BufferFull(f"{STREAMS_MAX} streams are open", next_step="close one, or try again later")

    @contextmanager
    def taken(self) -> Iterator[None]:
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1


def _app(gateway: Gateway, access: Access, threads: ThreadPoolExecutor) -> Application:
    from millstream.bridges.http.gateway_sockets import Sockets

    places = Places()

    def answering(handler: Handler) -> Callable[..., Awaitable[Response]]:
        async def answer(request: Request, _: object = None) -> Response:
            try:
                access.check(request.scope["headers"])
                asked = Asked(request, await _body(request))
                made = await asyncio.get_running_loop().run_in_executor(threads, handler, asked)
                return Response(written(made), headers={"cache-control": "no-store"}, media_type="application/json")
            except Exception as error:
                return failed(error)

        return answer

    async def events(request: Request) -> Response:
        try:
            access.check(request.scope["headers"])
            places.check()
            asked = Asked(request, b"")
            given = request.headers.get("last-event-id") or asked.query("position", "latest")

            topic, position = await asyncio.get_running_loop().run_in_executor(
                threads, gateway.begin_events, asked.part("topic"), given
            )
        except Exception as error:
            return failed(error)

        async def counted() -> AsyncIterator[bytes]:
            with places.taken():
                async with aclosing(gateway.events(topic, position, threads)) as events:
                    async for part in events:
                        yield part

        return StreamingResponse(counted(), media_type="text/event-stream", headers={"cache-control": "no-store"})

    def unknown(asked: Asked) -> Any:
        raise NotFound("there is no such route", next_step="GET / lists them")

    topic, consumer = f"/{VERSION}/topics/{{topic}}", f"/{VERSION}/groups/{{group}}/consumers"
    callback = f"/{VERSION}/callbacks"
    routes: list[BaseRoute] = [
        Route("/", answering(gateway.root)),
        Route(f"/{VERSION}/topics", answering(gateway.topics)),
        Route(topic, answering(gateway.topic)),
        Route(f"{topic}/records", answering(gateway.produce), methods=["POST"]),
        Route(f"{topic}/records", answering(gateway.read)),
        Route(f"{topic}/events", events),
        WebSocketRoute(f"{topic}/socket", Sockets(gateway, access, places, threads).serve),
        Route(consumer, answering(gateway.open_consumer), methods=["POST"]),
        Route(f"{consumer}/{{id}}/records", answering(gateway.consume)),
        Route(f"{consumer}/{{id}}/commit", answering(gateway.commit), methods=["POST"]),
        Route(f"{consumer}/{{id}}", answering(gateway.close_consumer), methods=["DELETE"]),
        Route(callback, answering(gateway.register_callback), methods=["POST"]),
        Route(callback, answering(gateway.list_callbacks)),
        Route(f"{callback}/{{id}}", answering(gateway.remove_callback), methods=["DELETE"]),
        Route(f"{callback}/{{id}}", answering(gateway.callback)),
    ]
    made = Starlette(routes=routes)
    for code in (404, 405):
        made.add_exception_handler(code, answering(unknown))
    return made


async def _body(request: Request) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > BODY_BYTES_MAX:
            raise TooLarge(f"the request is larger than {BODY_BYTES_MAX:,} bytes", next_step="send less at once")
        parts.append(part)
    return b"".join(parts)


def failed(error: Exception) -> Response:
    """Errors of the user are answered with what to do; those of the server are only logged."""
    if isinstance(error, Denied):
        return _error(error.status, KINDS[error.status], error.what, None, error.next_step)
    if isinstance(error, msgspec.DecodeError):
        return _error(400, "InvalidInput", f"the body does not fit: {error}", None, "GET / lists the routes")
    if isinstance(error, MillstreamError):
        status = next((status for kind, status in STATUS_OF.items() if isinstance(error, kind)), 500)
        if status >= 500:
            logger.error("%s", error)
        return _error(status, type(error).__name__, error.what, error.where, error.next_step)
    logger.exception("a request failed", exc_info=error)
    return _error(500, "InternalError", "the server failed to answer", None, "the server reports why on its stderr")


def _error(status: int, kind: str, what: str, where: str | None, next_step: str | None) -> Response:
    headers = {"www-authenticate": "Bearer"} if status == 401 else {}
    if status == 429:
        headers["retry-after"] = "1"
    body = written({"error": {"kind": kind, "what": what, "where": where, "next": next_step}})
    return Response(body, status, headers, "application/json")
