"""How far a consumer of Kafka has come, told to its group: by itself, or with the transaction of a producer."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, cast

from millstream import terminal
from millstream.errors import PartitionsRevoked, TransactionAborted
from millstream.log.consumer import Consumer
from millstream.log.groups import TopicPartition
from millstream.log.kafka.clients import ANSWER_SECONDS, Clients
from millstream.log.kafka.failures import client_module, said_plainly
from millstream.log.kafka.groups import without_errors
from millstream.log.kafka.producer import Transactions
from millstream.log.kafka.topics import as_kafka

RETRY_SECONDS = 0.1
SETTLE_SECONDS = 1.0
GONE = ("ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID", "_ASSIGNMENT_LOST", "_STATE")
logger = terminal.logger(__name__)


class Committing(Consumer):
    """The part of a consumer of Kafka that commits."""

    _client: Any
    _clients: Clients

    @property
    def _where(self) -> str:
        return f"group '{self.group}', {self._clients.where}" if self.group else self._clients.where

    @property
    def member(self) -> str | None:
        """The name under which the group knows this consumer."""
        return None if self._membership is None else str(self._client.memberid())

    def commit_with(self, transactions: Any) -> None:
        """Puts the offsets into the transaction of a producer."""
        self._check_transactional()
        news = self._passed(self._done | self._handed)
        if news:
            with said_plainly(self._where):
                metadata = self._client.consumer_group_metadata()
            try:
                cast(Transactions, transactions).send_offsets(list(as_kafka(news)), metadata)
            except TransactionAborted as error:
                if any(code in str(error.__cause__) for code in GONE):
                    raise self._not_ours(news) from error
                raise

    def rewind(self) -> None:
        """Goes back to what was committed last: what was handed out since will be handed out again.

        If nobody tells now what that is, it is asked again at the next poll, and nothing is committed before.
        """
        self.must_rewind = not self._closed  # until all partitions were
        self._revoked.clear()
        if self._closed:
            return
        self._offer = None
        places = self.assignment
        committed = self._committed(places) if self.group else {}
        for place in places:
            offset = committed.get(place)
            self._go(place, self._first_offset(place) if offset is None else offset)
        self.must_rewind = False

    def _committed(
        self, places: Iterable[TopicPartition], seconds: float = 3 * ANSWER_SECONDS
    ) -> dict[TopicPartition, int]:
        asked = list(as_kafka(dict.fromkeys(places, 0)))
        if not asked:
            return {}
        found = self._clients.patiently(
            lambda: without_errors(self._client.committed(asked, timeout=min(seconds, ANSWER_SECONDS))),
            self._where,
            seconds,
        )
        return {TopicPartition(place.topic, place.partition): place.offset for place in found if place.offset >= 0}

    def _commit(self) -> None:
        news = self._news()
        if news and self._membership is not None and not self._commit_now(news):
            raise self._not_ours(news)

    def _commit_owned(self) -> None:
        """Like `_commit`; the work on what was taken away others do again, so at least once is kept."""
        news = self._news()
        if news and self._membership is not None and not self._commit_now(news):
            logger.warning("%s", self._not_ours(news))  # the client tells at the next poll which are gone

    def _commit_now(self, news: Mapping[TopicPartition, int]) -> bool:
        """Whether the group took them: it does not from one that it counts as gone."""
        kafka_exception = client_module().KafkaException

        def act() -> bool:
            try:
                answers = self._client.commit(offsets=list(as_kafka(news)), asynchronous=False)
            except kafka_exception as error:
                if error.args[0].name() in GONE:
                    return False
                raise
            for answer in answers:
                if answer.error is not None:
                    if answer.error.name() in GONE:
                        return False
                    raise kafka_exception(answer.error)
            return True

        deadline = time.monotonic() + SETTLE_SECONDS
        while not (taken := self._clients.patiently(act, self._where)) and time.monotonic() < deadline:
            time.sleep(RETRY_SECONDS)  # partitions may just be being shared out anew, this member's own among them
        if taken:
            self._stored |= news
        return taken

    def _not_ours(self, places: Iterable[TopicPartition]) -> PartitionsRevoked:
        return PartitionsRevoked(
            f"partitions {', '.join(map(str, sorted(places)))} belong to another member by now",
            where=f"group '{self.group}', member {self.member}",
            next_step="poll again; if processing takes long, raise max_poll_interval",
        )
