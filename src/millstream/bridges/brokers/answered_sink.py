"""Sinks whose server answers every message: a batch is complete when each of its rows was accepted or rejected.

At least once: a message that is repeated has the same id. After a failure, only what has no answer yet is sent again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from millstream.bridges.identified import Identified, identified, run_of
from millstream.bridges.topic_pattern import TopicPattern, as_text, check_column
from millstream.connectors.connector import Connector, Writing
from millstream.connectors.refusals import AS_TEXT, Refuse, refusals_of, stop, unfit
from millstream.connectors.sink import Sink
from millstream.connectors.weights import with_weights
from millstream.errors import InvalidPlan, SinkFailed
from millstream.records import Schema
from millstream.user_lines import users_line

TOGETHER_MAX = 1000
Answers = dict[str, str | None]
"""By id: None if the message was accepted, else the reason."""


class Outgoing(NamedTuple):
    row: int
    id: str
    topic: str
    payload: bytes
    properties: tuple[tuple[str, str], ...] = ()
    """By which its receivers can select."""


class AnsweredEndpoint(Connector):
    """Where rows go, for every protocol: each to the queue, topic or key that its columns name."""

    broker: Any
    """Says which protocol it speaks."""
    pattern: TopicPattern
    payload: str | None
    """The column that is sent as it is, in place of the whole row as JSON."""
    can_write: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return f"{self.broker.protocol.lower()} {self.pattern.text}"

    def __str__(self) -> str:
        return f"{self.broker.protocol}({self.broker}, {self.pattern.text})"

    def check_written(self, schema: Schema) -> None:
        self.pattern.check(schema, str(self))
        check_payload(schema, self.payload, str(self))


class AnsweredSink(Sink):
    together_max = TOGETHER_MAX

    def __init__(
        self,
        where: str,
        writing: Writing,
        topic: TopicPattern,
        payload: str | None = None,
        properties: Sequence[str] = (),
    ) -> None:
        self._ledger = writing.ledger
        self._run = run_of(writing)
        self._where = f"step '{writing.step}', {where}"
        self._topic = topic
        self._payload = payload
        self._properties = properties
        self._done: tuple[int, Answers] = (-1, {})
        """What was answered of the last batch."""

    @abstractmethod
    def _send(self, messages: Sequence[Outgoing], answers: Answers) -> None:
        """Adds the answers as they come. Raises SinkUnavailable if some do not."""

    def write(self, batch: int, rows: pa.Table, weights: pa.Array | None, refuse: Refuse = stop) -> None:
        if self._ledger.has(batch):
            return
        refused = unfit(rows, AS_TEXT)
        outgoing = self._outgoing(batch, rows, weights, refused)
        if self._done[0] != batch:
            self._done = (batch, {})
        answers = self._done[1]
        for start in range(0, len(outgoing), self.together_max):
            missing = [each for each in outgoing[start : start + self.together_max] if each.id not in answers]
            if missing:
                self._send(missing, answers)
        refused |= {each.row: reason for each in outgoing if (reason := answers[each.id]) is not None}
        refuse(refusals_of(refused))
        self._ledger.record(batch)
        self._done = (batch, {})

    def _outgoing(
        self, batch: int, rows: pa.Table, weights: pa.Array | None, refused: dict[int, str]
    ) -> list[Outgoing]:
        """The messages of a batch, in order. Adds to `refused` the rows without a usable topic."""
        topics = self._topic.of(rows, refused)
        messages = identified(self._run, batch, with_weights(rows, weights), set(refused))
        self._check_weights(weights)
        usable = [row for row in range(rows.num_rows) if row not in refused]
        properties = self._properties_of(rows)
        return [self._message(row, topics[row], messages[row], rows, properties[row]) for row in usable]

    def _properties_of(self, rows: pa.Table) -> list[tuple[tuple[str, str], ...]]:
        """Of each row; a null is not there."""
        columns = {name: rows.column(name).to_pylist() for name in self._properties}
        return [
            tuple((name, as_text(values[row])) for name, values in columns.items() if values[row] is not None)
            for row in range(rows.num_rows)
        ]

    def _message(
        self, row: int, topic: str, message: Identified, rows: pa.Table, properties: tuple[tuple[str, str], ...] = ()
    ) -> Outgoing:
        assert message.id is not None
        if self._payload is None:
            return Outgoing(row, message.id, topic, message.body, properties)
        value = rows.column(self._payload)[row].as_py()
        payload = value.encode() if isinstance(value, str) else value or b""
        return Outgoing(row, message.id, topic, payload, properties)

    def _check_weights(self, weights: pa.Array | None) -> None:
        if self._payload is not None and weights is not None and any(each < 0 for each in weights.to_pylist()):
            raise SinkFailed(
                f"a row is retracted, and its column '{self._payload}' alone cannot express that",
                where=self._where,
                next_step="leave out payload=",
            )


def check_payload(schema: Schema, payload: str | None, sink: str) -> None:
    """Raises InvalidPlan, at the user's line, unless the column is there and has text or bytes."""
    if payload is None:
        return
    check_column(schema, payload, sink)
    kind = schema.field(payload).type
    if not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        raise InvalidPlan(
            f"the payload '{payload}' is neither text nor bytes",
            where=users_line(),
            next_step="select it as text: cast(column as string)",
        )
