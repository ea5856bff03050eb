"""Sinks of protocols without a broker: every row goes to one of several workers (push) or to all subscribers (publish).

Both sides must be there: a batch is complete when the library has taken its messages, not when they were received.
Messages are numbered, so that a receiver can count what is missing, and have ids that stay the same when a batch is
repeated.
"""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, Literal

import pyarrow as pa

from millstream.bridges.identified import identified, run_of
from millstream.bridges.peers.messages import NUMBER_BYTES, SENDER_BYTES, PeerAddress
from millstream.bridges.topic_pattern import TopicPattern
from millstream.connectors import arguments
from millstream.connectors.connector import Connector, Writing
from millstream.connectors.refusals import AS_TEXT, Refuse, refusals_of, stop, unfit
from millstream.connectors.sink import Sink
from millstream.connectors.weights import with_weights
from millstream.errors import SinkUnavailable
from millstream.records import Schema

SendKind = Literal["push", "publish"]
KINDS = ("push", "publish")
SEND_MS = 10_000
"""How long a receiver is waited for before the sink counts as unavailable."""


@dataclass(frozen=True)
class PeerEndpoint(Connector):
    address: PeerAddress
    topic: TopicPattern
    kind: SendKind
    can_write: ClassVar[bool] = True

    @property
    def protocol(self) -> str:
        """As in `ms.NAME`."""
        return self.address.protocol.lower()

    @property
    def name(self) -> str:
        return f"{self.protocol} {self.address.text}"

    def check_written(self, schema: Schema) -> None:
        self.topic.check(schema, str(self))

    def __str__(self) -> str:
        return f"{self.protocol}({self.address.text}, {self.kind})"


def checked(kind: object, topic: object, address: object, example: str) -> tuple[str, TopicPattern]:
    """Returns the address as text, and the topic."""
    if kind not in KINDS:
        raise arguments.refused(f"there is no kind {kind!r}", f"for example {example}")
    if not isinstance(topic, str):
        raise arguments.refused(f"a topic must be a string, not {topic!r}", f"for example {example}")
    text = arguments.text(address, "an address must be a string", example)
    return text, TopicPattern(topic, example, unusable="\0")


class PeerSink(Sink):
    def __init__(self, endpoint: PeerEndpoint, writing: Writing) -> None:
        self._name = str(endpoint)
        self._topic = endpoint.topic
        self._ledger = writing.ledger
        self._run = run_of(writing)
        self._sender = uuid.uuid4().bytes[:SENDER_BYTES]
        self._numbers: Counter[bytes] = Counter()
        self._sent: tuple[int, set[str]] = (-1, set())
        """The ids of the last batch that the library has taken."""

    @abstractmethod
    def _send_parts(self, parts: list[bytes]) -> None:
        """Raises TimeoutError if no receiver takes it."""

    def write(self, batch: int, rows: pa.Table, weights: pa.Array | None, refuse: Refuse = stop) -> None:
        if self._ledger.has(batch):
            return
        refused = unfit(rows, AS_TEXT)
        topics = self._topic.of(rows, refused)
        if self._sent[0] != batch:
            self._sent = (batch, set())
        for topic, (id, body) in zip(
            topics, identified(self._run, batch, with_weights(rows, weights), set(refused)), strict=True
        ):
            if id is not None and id not in self._sent[1]:
                self._send(topic.encode(), id, body)
                self._sent[1].add(id)
        refuse(refusals_of(refused))
        self._ledger.record(batch)
        self._sent = (batch, set())

    def _send(self, topic: bytes, id: str, body: bytes) -> None:
        number = self._numbers[topic].to_bytes(NUMBER_BYTES)
        try:
            self._send_parts([topic, self._sender, number, id.encode(), body])
        except TimeoutError as error:
            what = f"no receiver takes messages for {error}"
            raise SinkUnavailable(what, where=self._name, next_step="start one; it is tried again") from error
        self._numbers[topic] += 1
