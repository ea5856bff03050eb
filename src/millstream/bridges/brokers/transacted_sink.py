"""Sinks to a broker with transactions: the rows of a part become visible together, or are sent again together.

At least once: a message that is repeated has the same id. A broker that drops repeated ids, as Artemis does, makes it
exactly once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from millstream.bridges.arrivals import ID_HEADER
from millstream.bridges.brokers.address import BrokerAddress
from millstream.bridges.brokers.answered_sink import AnsweredEndpoint, AnsweredSink, Answers, Outgoing
from millstream.bridges.brokers.failures import ConnectionLost, Declined, Rejected
from millstream.bridges.topic_pattern import TopicPattern, check_column
from millstream.connectors.connector import Writing
from millstream.connectors.sink import Sink
from millstream.errors import SinkFailed, SinkUnavailable
from millstream.records import Schema

DUPLICATE_ID = "_AMQ_DUPL_ID"
"""The property by which Artemis recognizes a message that it has."""


class Sending(Protocol):
    """A connection. Every call may raise ConnectionLost, Rejected or, if the broker does not take it now, Declined."""

    def send_together(self, messages: Sequence[Outgoing]) -> None:
        """In one transaction."""

    def send(self, message: Outgoing) -> str | None:
        """The reason why the broker will never take it, if so."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class QueueEndpoint(AnsweredEndpoint):
    """Where rows go, for every protocol."""

    broker: BrokerAddress
    pattern: TopicPattern
    payload: str | None = None
    properties: tuple[str, ...] = ()
    """Columns that consumers can select by."""

    @abstractmethod
    def connect(self) -> Sending: ...

    def check_written(self, schema: Schema) -> None:
        super().check_written(schema)
        for column in self.properties:
            check_column(schema, column, str(self))

    def open_sink(self, writing: Writing) -> Sink:
        return TransactedSink(self, writing)


def properties_of(message: Outgoing) -> dict[str, str]:
    """Those of every message, and its own."""
    return {ID_HEADER: message.id, DUPLICATE_ID: message.id, **dict(message.properties)}


class TransactedSink(AnsweredSink):
    def __init__(self, endpoint: QueueEndpoint, writing: Writing) -> None:
        super().__init__(str(endpoint), writing, endpoint.pattern, endpoint.payload, endpoint.properties)
        self._endpoint = endpoint
        self._connection: Sending | None = None

    def _send(self, messages: Sequence[Outgoing], answers: Answers) -> None:
        where = str(self._endpoint)
        try:
            try:
                self._connected().send_together(messages)
                answers.update(dict.fromkeys(message.id for message in messages))
            except Declined:
                # One of them stands in the way, such as one that the broker has from a try whose answer was lost.
                self.close()
                for message in messages:
                    answers[message.id] = self._connected().send(message)
        except Rejected as error:
            self.close()
            step = "check the user, the password and the destination"
            raise SinkFailed(f"the broker rejects the messages: {error}", where=where, next_step=step) from error
        except (ConnectionLost, Declined) as error:
            self.close()
            what = f"the broker does not take the messages: {error}"
            raise SinkUnavailable(what, where=where, next_step="check the broker; it is tried again") from error

    def _connected(self) -> Sending:
        if self._connection is None:
            self._connection = self._endpoint.connect()
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
