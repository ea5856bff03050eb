"""Callback URLs: each gets the records of a topic as webhooks, in order, at its own pace and from its own position.

URLs, secrets and positions are in a private SQLite file. A position is stored after its records were answered, so after
a crash some are delivered again, with the same ids. A receiver that is slow or away holds back no other.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson

from millstream import terminal
from millstream.bridges.arrivals import Counts
from millstream.bridges.http.json_records import as_json, written
from millstream.bridges.http.positions import position_of, position_text
from millstream.bridges.landing import create_dead_letter_topic, dead_letter_topic
from millstream.bridges.reports import Behind
from millstream.errors import BufferFull, InvalidInput, MillstreamError, NotFound, SinkUnavailable
from millstream.log import Broker, Consumer, Producer, Record
from millstream.records import duration
from millstream.secrets import Secret, revealed, shown_address
from millstream.sqlite_file import SqliteFile
from millstream.webhooks.sender import WebhookRefused, WebhookSender, host_of

CALLBACKS_MAX = 200
"""Each keeps a thread and a connection."""
TOGETHER_MAX = 100
POLL_SECONDS = 0.5
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 1.0, 60.0
BEHIND_SECONDS = 5.0
RETRY_FOR = "1 day"
TABLES = """
create table if not exists callbacks (
    id text primary key, topic text not null, url text not null, secret text, headers text not null,
    position text not null, created_at real not null) strict;
"""
logger = terminal.logger(__name__)


class Stopped(Exception):
    """The callback was removed, or the server ends."""


@dataclass(frozen=True)
class Callback:
    id: str
    topic: str
    url: str = field(repr=False)
    secret: Secret | None = field(default=None, repr=False)
    headers: Mapping[str, Secret] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return f"callback {self.id} at {host_of(self.url)}"


class Delivery:
    """The thread of one callback."""

    def __init__(
        self, log: Broker, store: CallbackStore, callback: Callback, position: str, retry_s: float, counts: Counts
    ) -> None:
        self.callback = callback
        self._log = log
        self._store = store
        self._retry_s = retry_s
        self._counts = counts
        self._stopped = threading.Event()
        self._sender = WebhookSender(callback.url, callback.secret, headers=callback.headers, sleep=self._sleep)
        self._position = position
        self.delivered = self.dead = 0
        self.failure: str | None = None
        """Why it waits now."""
        self._dead_letters: Producer | None = None
        self._thread = threading.Thread(target=self._run, name=f"millstream-callback-{callback.id}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> None:
        self._thread.join()

    def shown(self) -> dict[str, Any]:
        """Without the secret, the headers and the query of the URL."""
        return {
            "id": self.callback.id,
            "topic": self.callback.topic,
            "url": shown_address(self.callback.url),
            "signed": self.callback.secret is not None,
            "position": self._position,
            "delivered": self.delivered,
            "dead": self.dead,
            "failure": self.failure,
        }

    def behind(self) -> int:
        """How many records are not delivered yet, at most."""
        topic = self.callback.topic
        ends, position = position_of(self._log, topic, "latest"), position_of(self._log, topic, self._position)
        return sum(max(0, end - position[number]) for number, end in ends.items())

    # ------------------------------------------------------------ its thread

    def _run(self) -> None:
        pause = PAUSE_SECONDS
        try:
            while not self._stopped.is_set():
                try:
                    self._follow()
                except Stopped:
                    raise
                except Exception as error:  # of the log or the disk: those of the receiver are waited for below
                    self.failure = error.what if isinstance(error, MillstreamError) else type(error).__name__
                    logger.warning("%s: %s; trying again", self.callback, self.failure)
                    self._sleep(pause)
                    pause = min(2 * pause, PAUSE_SECONDS_MAX)
        except Stopped:
            pass
        finally:
            self._sender.close()
            if self._dead_letters is not None:
                with suppress(MillstreamError):
                    self._dead_letters.close()

    def _follow(self) -> None:
        topic = self.callback.topic
        position = position_of(self._log, topic, self._position)
        with self._log.consumer(topic, start=dict(position), pinned=True) as consumer:
            while not self._stopped.is_set():
                records = consumer.poll(POLL_SECONDS, TOGETHER_MAX)
                done = 0
                try:
                    for record in records:
                        self._deliver(record)
                        position[record.partition] = record.offset + 1
                        done += 1
                finally:
                    if done:
                        self._keep(position if done < len(records) else self._after(consumer, position))

    def _after(self, consumer: Consumer, position: Mapping[int, int]) -> dict[int, int]:
        return {number: consumer.position(self.callback.topic, number) for number in position}

    def _keep(self, position: Mapping[int, int]) -> None:
        self._position = position_text(position)
        self._store.move(self.callback.id, self._position)

    def _deliver(self, record: Record) -> None:
        """Returns when the receiver has answered, or the record is a dead letter."""
        id = f"{record.topic}-{record.partition}-{record.offset}"
        body = written(as_json(record))
        begun_at, pause = time.monotonic(), PAUSE_SECONDS
        while True:
            self._sleep(0)  # it may have been removed while it waited for records
            try:
                self._sender.deliver(id, body)
                self.delivered += 1
                self._counts.add(sent=1)
                break
            except WebhookRefused as error:
                self._bury(record, error.what)
                break
            except SinkUnavailable as error:
                self.failure = error.what
                if time.monotonic() - begun_at >= self._retry_s:
                    self._bury(record, f"{error.what}, and did so for too long")
                    break
                self._sleep(pause)
                pause = min(2 * pause, PAUSE_SECONDS_MAX)
        self.failure = None

    def _bury(self, record: Record, reason: str) -> None:
        if self._dead_letters is None:
            create_dead_letter_topic(self._log, self.callback.topic)
            self._dead_letters = self._log.producer(acks="all")
        value = record.value if isinstance(record.value, bytes) else written(record.value)
        letter = {
            "value": value,
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "reason": reason,
            "at": datetime.now(UTC),
        }
        headers = (("callback", self.callback.id.encode()),)
        self._dead_letters.send(dead_letter_topic(self.callback.topic), letter, record.key, headers=headers).wait()
        self.dead += 1
        self._counts.add(dead=1)

    def _sleep(self, seconds: float) -> None:
        if self._stopped.wait(seconds):
            raise Stopped


class CallbackStore(SqliteFile):
    """What survives a restart. The file is for its owner alone: it has secrets."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, TABLES)

    def all(self) -> list[tuple[Callback, str]]:
        with self.transaction() as connection:
            rows = connection.execute(
                "select id, topic, url, secret, headers, position from callbacks order by created_at"
            ).fetchall()
        return [
            (
                Callback(
                    id,
                    topic,
                    url,
                    None if secret is None else Secret(secret),
                    {name: Secret(value) for name, value in orjson.loads(headers).items()},
                ),
                position,
            )
            for id, topic, url, secret, headers, position in rows
        ]

    def add(self, callback: Callback, position: str) -> None:
        secret = None if callback.secret is None else callback.secret.reveal()
        headers = orjson.dumps(revealed(callback.headers)).decode()
        with self.transaction() as connection:
            connection.execute(
                "insert into callbacks values (?, ?, ?, ?, ?, ?, ?)",
                (callback.id, callback.topic, callback.url, secret, headers, position, time.time()),
            )

    def move(self, id: str, position: str) -> None:
        with self.transaction() as connection:
            connection.execute("update callbacks set position = ? where id = ?", (position, id))

    def remove(self, id: str) -> None:
        with self.transaction() as connection:
            connection.execute("delete from callbacks where id = ?", (id,))


class Callbacks:
    """All callbacks of one server. Two processes must not have the same file: both would deliver."""

    def __init__(
        self,
        log: Broker,
        path: Path,
        *,
        hosts: Sequence[str] = (),
        retry_for: str | timedelta = RETRY_FOR,
        counts: Counts | None = None,
    ) -> None:
        """`hosts`: the only ones that URLs may have. `retry_for`: how long a record is tried before it is dead."""
        self._log = log
        self._hosts = frozenset(host.lower() for host in hosts)
        self._retry_s = duration(retry_for, what="retry_for").total_seconds()
        self._counts = counts or Counts()
        self._behind: Behind | None = None
        self._behind_at = 0.0
        self._lock = threading.Lock()
        self._store = CallbackStore(path)
        self._deliveries: dict[str, Delivery] = {}
        self._removed: list[Delivery] = []
        for callback, position in self._store.all():
            self._start(callback, position)

    def register(
        self,
        topic: str,
        url: str,
        *,
        secret: str | None = None,
        headers: Mapping[str, str] | None = None,
        start: str = "latest",
    ) -> dict[str, Any]:
        """From now on, or from a position on. Registering the same URL again makes a second callback."""
        hidden = {name: Secret(value) for name, value in (headers or {}).items()}
        made = Callback(uuid.uuid4().hex, topic, url, None if secret is None else Secret(secret), hidden)
        WebhookSender(url, made.secret, headers=hidden).close()  # a wrong URL or secret is reported here
        if self._hosts and host_of(url).lower() not in self._hosts:
            raise InvalidInput(
                f"callbacks to {host_of(url)} are not allowed here",
                next_step="name the host with --callback-host when the server is started",
            )
        position = position_text(position_of(self._log, topic, start))
        with self._lock:
            if len(self._deliveries) >= CALLBACKS_MAX:
                raise BufferFull(f"there are {CALLBACKS_MAX} callbacks", next_step="remove one")
            self._store.add(made, position)
            return self._start(made, position).shown()

    def remove(self, id: str) -> None:
        with self._lock:
            found = self._found(id)
            self._store.remove(id)
            del self._deliveries[id]
            found.stop()  # a request that is on its way may still arrive
            self._removed = [each for each in self._removed if each.is_alive]
            self._removed.append(found)

    def all(self) -> list[dict[str, Any]]:
        with self._lock:
            return [each.shown() for each in self._deliveries.values()]

    def one(self, id: str) -> dict[str, Any]:
        with self._lock:
            return self._found(id).shown()

    def behind(self) -> Behind | None:
        """How many records the receiver that is furthest behind has not got yet."""
        if time.monotonic() >= self._behind_at:
            self._behind_at = time.monotonic() + BEHIND_SECONDS
            with self._lock:
                open = list(self._deliveries.values())
            left = 0
            for each in open:
                with suppress(MillstreamError):  # its topic was deleted, or Kafka does not answer
                    left = max(left, each.behind())
            self._behind = Behind(left, "records")
        return self._behind

    def close(self) -> None:
        with self._lock:
            for each in self._deliveries.values():
                each.stop()
            for each in (*self._deliveries.values(), *self._removed):
                each.join()
            self._store.close()

    def _found(self, id: str) -> Delivery:
        if id not in self._deliveries:
            raise NotFound("there is no such callback", next_step="GET /v1/callbacks lists them")
        return self._deliveries[id]

    def _start(self, callback: Callback, position: str) -> Delivery:
        made = self._deliveries[callback.id] = Delivery(
            self._log, self._store, callback, position, self._retry_s, self._counts
        )
        made.start()
        return made
