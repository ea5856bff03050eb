"""Topics with changes as tables: those of a capture. Those of Debezium build on them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from millstream.capture.changes import envelope
from millstream.capture.source import APART, Rows, envelopes, kept_table, rows_of_table
from millstream.connectors import arguments
from millstream.connectors.connector import Reading, WorkerNeeds
from millstream.connectors.source import Slab, Slice, Source
from millstream.connectors.topic.endpoint import OneTopic, Topic
from millstream.connectors.topic.own_schema import schema_of_topic
from millstream.connectors.wrapped_source import WrappedSource
from millstream.errors import InvalidSchema
from millstream.log.kafka.address import as_kafka
from millstream.plan.checks import NAME
from millstream.plan.endpoints import KeptTable, TableSource
from millstream.records import Schema
from millstream.user_lines import users_line, what_exists

ANOTHER_TOPIC = "capture the table under another name, into another topic, which starts with a snapshot, and read that"


class MappedSource(WrappedSource):
    """A source whose rows are made from those of another: as many, in the same order."""

    def __init__(self, inner: Source, columns: Rows) -> None:
        super().__init__(inner)
        self._columns = columns

    def read(self, slice: Slice) -> Iterator[Slab]:
        for slab in self._inner.read(slice):
            yield Slab(slab.partition, self._columns(slab.rows), slab.offsets, slab.dead)


@dataclass(frozen=True)
class TopicOfChanges(OneTopic, TableSource):
    """A topic of the job's broker with changes of one table."""

    key: tuple[str, ...]
    as_rows: bool
    can_read: ClassVar[bool] = True
    counts_lag: ClassVar[bool] = True

    @abstractmethod
    def row_schema(self, broker: str | None) -> Schema:
        """The columns of the table."""

    def own_schema(self, broker: str | None) -> Schema:
        return envelope(self.row_schema(broker))

    def as_table(self, broker: str | None) -> KeptTable:
        columns = self.row_schema(broker)
        for name in self.key:
            if name not in columns:
                raise InvalidSchema(
                    f"the table has no column '{name}'",
                    where=users_line(),
                    next_step=what_exists(name, columns.names),
                )
        return kept_table(replace(self, as_rows=True), columns, self.key)

    def mapped(self, schema: Schema) -> Rows:
        """Makes the rows of the source from changes."""
        return rows_of_table(schema, f"topic '{self.topic}'", ANOTHER_TOPIC) if self.as_rows else envelopes(schema)

    def worker_needs(self, broker: str) -> WorkerNeeds:
        return Topic(self.topic).worker_needs(broker)

    def __str__(self) -> str:
        return self.topic


@dataclass(frozen=True)
class Captured(TopicOfChanges):
    def row_schema(self, broker: str | None) -> Schema:
        found = schema_of_topic(self.topic, broker)
        if not {"op", "before", "after", "unsent", "at"} <= set(found.names):
            raise InvalidSchema(
                f"the topic '{self.topic}' does not have the changes of a table",
                where=users_line(),
                next_step="fill it with millstream capture; read other topics with flow.read",
            )
        return Schema.of(pa.schema(list(found.field("after").type)))

    def open_source(self, reading: Reading) -> Source:
        broker = reading.broker
        if as_kafka(broker) is None:  # the topic may have gained columns
            schema = schema_of_topic(self.topic, None if broker is None else str(broker))
        else:
            kept = [field for field in reading.schema.arrow if field.name not in APART]
            schema = envelope(Schema.of(pa.schema(kept))) if self.as_rows else reading.schema
        inner = Topic(self.topic).open_source(replace(reading, schema=schema, columns=None))
        return MappedSource(inner, self.mapped(reading.schema))


def captured(topic: str, *, key: str | Sequence[str]) -> Captured:
    """A topic that `millstream capture` fills: `flow.table` of it is the captured table, kept up to date.

    `key` has the columns of the table's primary key.
    """
    return Captured(topic_name(topic, "captured('orders', key='id')"), key_columns(key), False)


def topic_name(given: str, example: str) -> str:
    if not NAME.fullmatch(arguments.text(given, "a topic name must be a string", example)):
        raise arguments.refused(f"{given!r} is not a topic", "a topic's name has letters, digits and . _ -")
    return given


def key_columns(given: str | Sequence[str]) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise arguments.refused(f"key takes column names, not {given!r}", "for example key='id'")
    return names
