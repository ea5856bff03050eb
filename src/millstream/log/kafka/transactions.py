"""The transactions of one named producer on Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from millstream import terminal
from millstream.errors import KafkaUnavailable, MillstreamError, ProducerFenced, TransactionAborted
from millstream.log.kafka.clients import ANSWER_SECONDS, PASSING, PRODUCER_DEFAULTS, Clients
from millstream.log.kafka.failures import client_module, translated

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

FENCED = ("_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED")
COMMIT, ABORT = "commit_transaction", "abort_transaction"
CALL_SECONDS = 1.0  # a call that waits for records does not notice that they can no longer be stored; the next one does
logger = terminal.logger(__name__)


class Transactions:
    """A transactional id: a newer producer of the same name fences this one, and aborts what it left open."""

    def __init__(self, name: str, clients: Clients, open_client: Callable[..., Any] | None = None) -> None:
        self.name = name
        self._clients = clients
        self._fenced = False
        self._unanswered: str | None = None  # a call without an answer yet; the client accepts no other until then
        self.client: Any = (open_client or clients.producer)(
            defaults={**PRODUCER_DEFAULTS, "transaction.timeout.ms": 60_000},
            transactional_id=name,
            acks="all",
            enable_idempotence=True,
        )
        self._retrying(lambda: self.client.init_transactions(ANSWER_SECONDS))

    def begin(self) -> None:
        if self._unanswered is not None:
            try:
                self._end(self._unanswered)
            except TransactionAborted as error:
                logger.warning("a transaction with an unknown outcome was not stored: %s", error)
                self._end(ABORT)
        try:
            self._retrying(self.client.begin_transaction)
        except KafkaUnavailable as error:
            if not _is_of_state(error):
                raise
            self._end(ABORT)  # an exception hid from the producer that it had begun one
            self._retrying(self.client.begin_transaction)

    def commit(self, work: Callable[[object], None]) -> None:
        if self._unanswered is None:
            work(self)
        self._end(COMMIT)

    def abort(self) -> None:
        """A commit without an answer cannot be aborted: the next transaction waits for it."""
        if not self._fenced and not self.is_unanswered:
            try:
                self._end(ABORT)
            except KafkaUnavailable as error:
                if not _is_of_state(error):  # otherwise none is open: an exception hid that it had ended
                    raise

    @property
    def is_unanswered(self) -> bool:
        """Whether a commit may still succeed."""
        return self._unanswered == COMMIT

    def _end(self, call: str) -> None:
        try:
            self._retrying(lambda: getattr(self.client, call)(CALL_SECONDS))
            self._unanswered = None
        except KafkaUnavailable as error:
            cause = error.__cause__
            can_retry = isinstance(cause, client_module().KafkaException) and cause.args[0].retriable()
            self._unanswered = call if can_retry else None
            if call == ABORT or not can_retry:
                raise
            raise KafkaUnavailable(
                f"Kafka did not confirm that the transaction is stored: {error.what}",
                where=error.where,
                next_step="it may be; the next transaction waits for the answer",
            ) from error
        except MillstreamError:
            self._unanswered = None
            raise

    def send_offsets(self, offsets: list[Any], group: object) -> None:
        self._retrying(lambda: self.client.send_offsets_to_transaction(offsets, group, ANSWER_SECONDS))

    def is_fenced(self) -> bool:
        return self._fenced

    def close(self) -> None:
        self.client.poll(0)

    def _retrying(self, act: Callable[[], None]) -> None:
        """Retries a call as long as the client allows it."""
        confluent_kafka = client_module()
        deadline = time.monotonic() + 2 * ANSWER_SECONDS
        while True:
            try:
                return act()
            except confluent_kafka.KafkaException as raised:
                error = raised.args[0]
                if error.retriable() and time.monotonic() < deadline:
                    time.sleep(0.1)
                    continue
                raise self._translated(error) from raised

    def _translated(self, error: KafkaError) -> MillstreamError:
        where = f"producer '{self.name}', {self._clients.where}"
        if error.name() in FENCED or (error.fatal() and error.name() not in PASSING):
            self._fenced = True
            return ProducerFenced(
                "a newer producer of the same name has taken over", where=where, next_step="let that producer write"
            )
        if error.txn_requires_abort():
            return TransactionAborted(f"Kafka aborted the transaction: {error.str()}", where=where)
        return translated(error, where)


def _is_of_state(error: MillstreamError) -> bool:
    """Whether the client rejected a call because its transaction is, or is not, open."""
    cause = error.__cause__
    return isinstance(cause, client_module().KafkaException) and cause.args[0].name() == "_STATE"
