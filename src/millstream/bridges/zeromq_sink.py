"""A sink that sends every row over ZeroMQ, to one of several workers (push) or to all subscribers (publish).

Both sides must be there: a batch is complete when ZeroMQ has taken its messages, not when they were received. Messages
are numbered, so that a receiver can count what is missing, and have ids that stay the same when a batch is repeated.
"""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pyarrow as pa

from millstream.bridges.identified import identified, run_of
from millstream.bridges.topic_pattern import TopicPattern
from millstream.bridges.zeromq import NUMBER_BYTES, ZmqAddress, installed
from millstream.connectors import arguments
from millstream.connectors.connector import Connector, Writing
from millstream.connectors.refusals import AS_TEXT, Refuse, refusals_of, stop, unfit
from millstream.connectors.sink import Sink
from millstream.connectors.weights import with_weights
from millstream.errors import SinkUnavailable
from millstream.records import Schema

if TYPE_CHECKING:
    import zmq

EXAMPLE = "zeromq('tcp://127.0.0.1:5555', 'trades.{symbol}', kind='publish', bind=True)"
SEND_MS = 10_000
LINGER_MS = 10_000
SENDER_BYTES = 8
KINDS = ("push", "publish")


@dataclass(frozen=True)
class ZeroMq(Connector):
    address: ZmqAddress
    topic: TopicPattern
    kind: Literal["push", "publish"]
    can_write: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return f"zeromq {self.address.text}"

    def check_written(self, schema: Schema) -> None:
        self.topic.check(schema, str(self))

    def open_sink(self, writing: Writing) -> Sink:
        installed()
        return ZeroMqSink(self, writing)

    def __str__(self) -> str:
        return f"zeromq({self.address.text}, {self.kind})"


def zeromq(address: str, topic: str = "", *, kind: Literal["push", "publish"] = "push", bind: bool = False) -> ZeroMq:
    """A sink that sends every row as JSON over ZeroMQ: `push` to one of the receivers, `publish` to all subscribers.

    Columns in braces are part of the topic, which subscribers choose by its beginning: `trades.{symbol}`. A message has
    five parts: topic, sender, number, id and body. What is sent while no subscriber is there is lost.
    """
    if kind not in KINDS:
        raise arguments.refused(f"there is no kind {kind!r}", f"for example {EXAMPLE}")
    if not isinstance(topic, str):
        raise arguments.refused(f"a topic must be a string, not {topic!r}", f"for example {EXAMPLE}")
    text = arguments.text(address, "an address must be a string", EXAMPLE)
    return ZeroMq(ZmqAddress(text, bind), TopicPattern(topic, EXAMPLE, unusable="\0"), kind)


class ZeroMqSink(Sink):
    def __init__(self, endpoint: ZeroMq, writing: Writing) -> None:
        self._endpoint = endpoint
        self._ledger = writing.ledger
        self._run = run_of(writing)
        self._sender = uuid.uuid4().bytes[:SENDER_BYTES]
        self._numbers: Counter[bytes] = Counter()
        self._context: zmq.Context[Any] | None = None
        self._socket: zmq.Socket[Any] | None = None
        self._sent: tuple[int, set[str]] = (-1, set())
        """The ids of the last batch that ZeroMQ has taken."""

    def write(self, batch: int, rows: pa.Table, weights: pa.Array | None, refuse: Refuse = stop) -> None:
        if self._ledger.has(batch):
            return
        refused = unfit(rows, AS_TEXT)
        topics = self._endpoint.topic.of(rows, refused)
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
        import zmq

        number = self._numbers[topic].to_bytes(NUMBER_BYTES)
        try:
            self._opened().send_multipart([topic, self._sender, number, id.encode(), body])
        except zmq.Again as error:
            raise SinkUnavailable(
                f"no receiver takes messages for {SEND_MS // 1000} s",
                where=str(self._endpoint),
                next_step="start one; it is tried again",
            ) from error
        self._numbers[topic] += 1

    def _opened(self) -> zmq.Socket[Any]:
        import zmq

        if self._socket is None:
            self._context = zmq.Context()
            kind = zmq.PUSH if self._endpoint.kind == "push" else zmq.PUB
            self._socket = self._endpoint.address.open(self._context, kind, LINGER=LINGER_MS, SNDTIMEO=SEND_MS)
        return self._socket

    def close(self) -> None:
        """Waits until receivers have taken what was sent, but not for long."""
        if self._socket is not None and self._context is not None:
            self._socket.close()
            self._context.term()
            self._socket = None
