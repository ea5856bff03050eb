"""Clients of one Kafka cluster, with shared settings, logging through `logging`, and retries.

Nothing of Kafka is imported before the first client is created.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from millstream import terminal
from millstream.errors import KafkaUnavailable, MillstreamError, NoAccess
from millstream.log.kafka.address import KafkaAddress
from millstream.log.kafka.column_client import ColumnConsumer, ObjectConsumer, column_consumer
from millstream.log.kafka.column_producer import ColumnProducer, column_producer
from millstream.log.kafka.failures import client_module, translated, translated_errors
from millstream.log.kafka.group_client import GroupConsumer
from millstream.log.kafka.received import Wanted
from millstream.secrets import concealed

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer, ShareConsumer
    from confluent_kafka.admin import AdminClient

OPEN_SECONDS = 10.0
ANSWER_SECONDS = 30.0
REFUSED_SECONDS = 5.0  # one broker may briefly refuse what the others accept
GLANCE_SECONDS = 2.0  # for callers that can do without the answer
# Transient errors: another broker takes over, or the same one comes back.
PASSING = frozenset(
    (
        "_TIMED_OUT",
        "_TRANSPORT",
        "_ALL_BROKERS_DOWN",
        "_WAIT_COORD",
        "_TIMED_OUT_QUEUE",
        "_NOENT",
        "_RESOLVE",
        "_DESTROY_BROKER",  # the client has dropped a broker that left the cluster
        "COORDINATOR_NOT_AVAILABLE",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "NOT_COORDINATOR",
        "LEADER_NOT_AVAILABLE",
        "NOT_LEADER_FOR_PARTITION",
        "NOT_CONTROLLER",
        "REQUEST_TIMED_OUT",
        "NETWORK_EXCEPTION",
        "UNSTABLE_OFFSET_COMMIT",
        "REBALANCE_IN_PROGRESS",
        "KAFKA_STORAGE_ERROR",
        "REPLICA_NOT_AVAILABLE",
        "OFFSET_NOT_AVAILABLE",
        "FENCED_LEADER_EPOCH",
        "UNKNOWN_LEADER_EPOCH",
    )
)
# The client keeps using the leaders and epochs it knows for as long as it lives; a new one looks up the current ones.
OUTDATED = frozenset(("FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH", "NOT_LEADER_FOR_PARTITION", "_NOENT"))
UNKNOWN = frozenset(("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_ID"))
NEWS_SECONDS = 10.0  # until every broker knows a new topic
END = "_PARTITION_EOF"
RECORD_BYTES_MAX = 1_000_000_000  # the broker's own limit decides
PRODUCER_DEFAULTS = {
    "partitioner": "murmur2_random",
    "linger.ms": 0,  # records have already lingered in the buffer
    "compression.type": "lz4",
    "queue.buffering.max.messages": 1_000_000,
    "message.max.bytes": RECORD_BYTES_MAX,
    "topic.metadata.refresh.interval.ms": 10_000,
}
READER_DEFAULTS = {
    "fetch.wait.max.ms": 100,
    "fetch.queue.backoff.ms": 20,  # default: 1000, which stalls a reader that empties its queue faster
    "queued.min.messages": 100_000,
    "queued.max.messages.kbytes": 32_768,
}
Answer = TypeVar("Answer")


class _Concealing(logging.Filter):
    """Redacts secrets that the client itself does not hide in its messages."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = concealed(record.getMessage()), ()
        return True


heard = terminal.logger("millstream.kafka", _Concealing())
heard.addHandler(logging.NullHandler())  # add a handler to see the client's messages


class Clients:
    """Creates the clients for one address; only their settings contain secrets."""

    def __init__(self, address: KafkaAddress) -> None:
        self.address = address
        self.where = str(address)
        self.refused: MillstreamError | None = None
        self._made: dict[str, float] = {}
        with translated_errors(self.where):
            self._admin: AdminClient | None = self._new_admin()

    def close(self) -> None:
        """Ends the connections that this has of its own: otherwise only the garbage collector would, much later."""
        self._admin = None

    @property
    def admin(self) -> AdminClient:
        admin = self._admin
        if admin is None:
            with translated_errors(self.where):
                admin = self._admin = self._new_admin()
        return admin

    def settings(self, *, defaults: Mapping[str, Any] | None = None, **fixed: Any) -> dict[str, Any]:
        """The address can override `defaults`, but not `fixed`."""
        return {**(defaults or {}), **self.address.client(**fixed), "logger": heard, "error_cb": self._on_error}

    def _new_admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        return AdminClient(self.settings())

    def producer(self, *, defaults: Mapping[str, Any] | None = None, **fixed: Any) -> Producer:
        with translated_errors(self.where):
            made: Producer = client_module().Producer(self.settings(defaults=defaults, **fixed))
            return made

    def consumer(self, *, defaults: Mapping[str, Any] | None = None, **fixed: Any) -> Consumer:
        with translated_errors(self.where):
            made: Consumer = client_module().Consumer(self.settings(defaults=defaults, **fixed))
            return made

    def record_consumer(
        self, wanted: Wanted, *, defaults: Mapping[str, Any] | None = None, **fixed: Any
    ) -> ColumnConsumer | ObjectConsumer:
        """A consumer that is in no group, and returns columns."""
        settings = self.settings(defaults=defaults, **fixed)
        with translated_errors(self.where):
            made = column_consumer(settings, wanted)
            return ObjectConsumer(client_module().Consumer(settings), wanted) if made is None else made

    def group_consumer(
        self, wanted: Wanted, *, defaults: Mapping[str, Any] | None = None, **fixed: Any
    ) -> GroupConsumer | ObjectConsumer:
        """The same for a member of a group."""
        records = self.record_consumer(wanted, defaults=defaults, **fixed)
        if isinstance(records, ObjectConsumer):
            return records
        return GroupConsumer(self.consumer(defaults=defaults, **fixed), records)

    def record_producer(self, *, defaults: Mapping[str, Any] | None = None, **fixed: Any) -> ColumnProducer | Producer:
        """A producer of columns, where that is possible."""
        settings = self.settings(defaults=defaults, **fixed)
        with translated_errors(self.where):
            made = column_producer(settings)
            if made is not None:
                return made
        return self.producer(defaults=defaults, **fixed)

    def share_consumer(self, *, defaults: Mapping[str, Any] | None = None, **fixed: Any) -> ShareConsumer:
        with translated_errors(self.where):
            made: ShareConsumer = client_module().ShareConsumer(self.settings(defaults=defaults, **fixed))
            return made

    def _on_error(self, error: KafkaError) -> None:
        """Errors that the client reports on its own: most are transient, a refused login is not."""
        heard.debug("%s: %s", self.where, error.str())
        if error.name() in ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED"):
            self.refused = translated(error, self.where)
        elif error.name() == "_SSL":
            self.refused = NoAccess(
                f"the broker and this client do not trust each other: {error.str()}",
                where=self.where,
                next_step="check security.protocol and ssl.ca.location",
            )

    # ------------------------------------------------------------ requests

    def check(self) -> None:
        """Raises within a few seconds if no broker answers, or none accepts this user."""
        kafka_exception = client_module().KafkaException
        deadline = time.monotonic() + OPEN_SECONDS
        while True:
            try:
                self.admin.list_topics(timeout=2.0)
                self.refused = None
                return
            except kafka_exception as error:
                self.admin.poll(0)
                if self.refused is not None:
                    raise self.refused from None
                if time.monotonic() >= deadline:
                    raise KafkaUnavailable(
                        f"no Kafka broker answered within {OPEN_SECONDS:.0f} seconds",
                        where=self.where,
                        next_step="check that it is running and that the address is right",
                    ) from error

    def retrying(self, ask: Callable[[], Answer], where: str, seconds: float = ANSWER_SECONDS) -> Answer:
        """The answer to a request, retried while brokers are away."""
        kafka_exception = client_module().KafkaException
        begun = time.monotonic()
        while True:
            try:
                answer = ask()
                self.refused = None  # it has passed, or came from another broker
                return answer
            except TimeoutError as error:
                raise KafkaUnavailable(
                    f"Kafka did not answer within {seconds:.0f} seconds",
                    where=f"{where}, {self.where}",
                    next_step="check that its brokers are up and reachable",
                ) from error
            except kafka_exception as error:
                self.admin.poll(0)
                name, waited = error.args[0].name(), time.monotonic() - begun
                if not name.startswith("_"):  # an answer from a broker that accepts this user
                    self.refused = None
                elif self.refused is not None and (name not in PASSING or waited > REFUSED_SECONDS):
                    raise self.refused from None
                may_pass = name in PASSING or (name in UNKNOWN and self._is_new(where))
                if not may_pass or waited >= seconds:
                    raise translated(error.args[0], where) from error
                if name in OUTDATED:
                    self._admin = self._new_admin()
                time.sleep(0.1)

    def made(self, topic: str) -> None:
        """Remembers a topic that was just created; brokers that do not know it yet are asked again."""
        self._made[topic] = time.monotonic()

    def removed(self, topic: str) -> None:
        self._made.pop(topic, None)

    def _is_new(self, where: str) -> bool:
        new = [topic for topic, at in self._made.items() if time.monotonic() - at < NEWS_SECONDS]
        return any(re.search(rf"(?<![\w.-]){re.escape(topic)}(?![\w.-])", where) for topic in new)

    def answered(
        self, ask: Callable[[], Mapping[Any, Future[Any]]], where: str, seconds: float = ANSWER_SECONDS
    ) -> dict[Any, Any]:
        """All answers to a request of the admin client; raises the first failure."""

        def wait() -> dict[Any, Any]:
            deadline = time.monotonic() + seconds
            return {what: self._result(future, deadline) for what, future in ask().items()}

        return self.retrying(wait, where, seconds)

    def _result(self, future: Future[Any], deadline: float) -> Any:
        """The client waits for the controller it knows and never looks for another if that one has died: we do."""
        while (left := deadline - time.monotonic()) > GLANCE_SECONDS:
            with suppress(TimeoutError):
                return future.result(GLANCE_SECONDS)
            with suppress(client_module().KafkaException):
                self.admin.list_topics(timeout=GLANCE_SECONDS)
        return future.result(max(0.0, left))
