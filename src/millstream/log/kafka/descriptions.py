"""Metadata that Kafka does not store is in the compacted topic `_millstream`: one JSON document per kind and name.

It is read completely on first use, and incrementally after that. A writer waits until the brokers have the document and
this process has read it back. If two write the same document at once, the last one wins.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from millstream import terminal
from millstream.errors import KafkaUnavailable, UnknownTopic
from millstream.log.kafka.clients import ANSWER_SECONDS, GLANCE_SECONDS, Clients
from millstream.log.kafka.failures import client_module, translated

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer

TOPIC = "_millstream"
SETTINGS = {"cleanup.policy": "compact", "retention.ms": "-1"}
LOOK_SECONDS = 1.0
ABSENCE_SECONDS = 3.0
SHOWN_CHARACTERS_MAX = 100
Documents = Mapping[str, Mapping[str, Any]]
logger = terminal.logger(__name__)


class Descriptions:
    """Documents by kind (`topic`, `queue`, `switch`, …) and name."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._lock = threading.RLock()
        self._reader: Consumer | None = None
        self._writer: Producer | None = None
        self._next_offset = 0
        self._looked_at = float("-inf")
        self._unreadable: dict[tuple[str, str], int] = {}
        self._known: dict[str, dict[str, dict[str, Any]]] = {}
        self._views: dict[str, Documents] = {}

    def of(self, kind: str, *, fresh: bool = True) -> Documents:
        """By name; the same object as long as nothing of this kind has changed. If not `fresh`, up to a second old."""
        with self._lock:
            if fresh or time.monotonic() - self._looked_at > LOOK_SECONDS:
                (self._look if fresh or self._looked_at < 0 else self._refresh_if_reachable)()
            return self._views.setdefault(kind, dict(self._known.get(kind, {})))

    def write(self, kind: str, name: str, document: Mapping[str, Any] | None) -> None:
        """Replaces a document; None deletes it."""
        with self._lock:
            self._ensure_topic()
            value = None if document is None else json.dumps(document).encode()
            offset = self._send(f"{kind}/{name}".encode(), value)
            deadline = time.monotonic() + ANSWER_SECONDS
            while self._next_offset <= offset:
                if time.monotonic() > deadline:
                    raise KafkaUnavailable(
                        f"a description that was just written could not be read back within {ANSWER_SECONDS} s",
                        where=self._where,
                        next_step="check that this user may read the topic and that its brokers are up, then try again",
                    )
                self._look()

    def close(self) -> None:
        with self._lock:
            if self._reader is not None:
                self._reader.close()
            self._reader = self._writer = None

    @property
    def _where(self) -> str:
        return f"topic '{TOPIC}', {self._clients.where}"

    # ------------------------------------------------------------ writing

    def _ensure_topic(self) -> None:
        from millstream.log.kafka.topics import make_topic

        if TOPIC not in self._clients.retrying(
            lambda: self._clients.admin.list_topics(timeout=ANSWER_SECONDS).topics, self._where
        ):
            make_topic(self._clients, TOPIC, 1, SETTINGS, missing_ok=True)

    def _send(self, key: bytes, value: bytes | None) -> int:
        if self._writer is None:
            self._writer = self._clients.producer(acks="all", enable_idempotence=True, linger_ms=0)
        reports: list[Any] = []
        self._writer.produce(TOPIC, value, key, on_delivery=lambda error, sent: reports.append((error, sent)))
        self._writer.flush(ANSWER_SECONDS)
        if not reports:
            self._writer.purge()
            raise KafkaUnavailable("Kafka does not accept the description", where=self._where)
        error, sent = reports[0]
        if error is not None:
            raise translated(error, self._where)
        offset: int = sent.offset()
        return offset

    # ------------------------------------------------------------ reading

    def _refresh_if_reachable(self) -> None:
        """A refresh that does not wait for unavailable brokers: what is known will do."""
        try:
            self._look(GLANCE_SECONDS)
        except KafkaUnavailable:
            self._looked_at = time.monotonic() + ABSENCE_SECONDS

    def _look(self, seconds: float = ANSWER_SECONDS) -> None:
        """Reads up to the current end of the topic, if it exists."""
        confluent_kafka = client_module()
        if self._reader is None:
            self._reader = self._clients.consumer(
                group_id="millstream-descriptions",
                enable_auto_commit=False,
                enable_partition_eof=True,
                auto_offset_reset="earliest",
                allow_auto_create_topics=False,
                fetch_wait_max_ms=50,
            )
        reader = self._reader
        place = confluent_kafka.TopicPartition(TOPIC, 0)
        try:
            _, end = self._clients.retrying(lambda: reader.get_watermark_offsets(place, seconds), self._where, seconds)
        except UnknownTopic:
            self._looked_at = time.monotonic()
            return
        if end < self._next_offset:  # the topic was deleted and created again
            self._next_offset = 0
            self._known.clear()
            self._views.clear()
        if end > self._next_offset and not reader.assignment():
            reader.assign([confluent_kafka.TopicPartition(TOPIC, 0, self._next_offset)])
        deadline = time.monotonic() + seconds
        while self._next_offset < end:
            if time.monotonic() > deadline:
                raise KafkaUnavailable("the descriptions of topics and queues cannot be read", where=self._where)
            for message in reader.consume(500, 0.2):
                self._take(message)
        self._looked_at = time.monotonic()
        for (kind, name), offset in self._unreadable.items():  # and not replaced by anything newer
            logger.warning(
                "%s, offset %d: the description of %r cannot be read and is skipped: only Millstream should write "
                "to this topic",
                self._where,
                offset,
                f"{kind}/{name}"[:SHOWN_CHARACTERS_MAX],  # anybody may have written it: shown escaped
            )
        self._unreadable.clear()

    def _take(self, message: Any) -> None:
        error = message.error()
        if error is not None:
            if error.name() == "_PARTITION_EOF":
                self._next_offset = max(self._next_offset, message.offset())
            return
        self._next_offset = message.offset() + 1
        kind, _, name = (message.key() or b"").decode(errors="replace").partition("/")
        documents = self._known.setdefault(kind, {})
        self._views.pop(kind, None)
        self._unreadable.pop((kind, name), None)
        if message.value() is None:
            documents.pop(name, None)
            return
        try:
            document = json.loads(message.value())
        except (ValueError, RecursionError):
            document = None
        if isinstance(document, dict):
            documents[name] = document
        else:
            self._unreadable[kind, name] = message.offset()
