"""Several topics of the job's own broker in one `read`: a list of names, or a pattern."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

from millstream.connectors import arguments
from millstream.connectors.connector import Connector, Reading, WorkerNeeds
from millstream.connectors.source import Source
from millstream.connectors.topic.endpoint import KAFKA_LIBRARIES, topic
from millstream.connectors.topic.names import TopicNames
from millstream.errors import InvalidPlan
from millstream.log.kafka.address import SCHEME, as_kafka
from millstream.records import Schema
from millstream.user_lines import users_line


@dataclass(frozen=True)
class Topics(Connector):
    names: TopicNames
    format: str | None = None
    can_read: ClassVar[bool] = True
    counts_lag: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return f"topics {self.names.pattern or ' '.join(self.names.names)}"

    @property
    def is_topic(self) -> bool:
        return True

    @property
    def decodes(self) -> bool:
        return self.format not in (None, "bytes")

    @property
    def fingerprint(self) -> tuple[str, ...]:
        return (str(self), str(self.format))

    def reads_topic(self, topic: str) -> bool:
        return self.names.includes(topic)

    def with_format(self, format: str) -> Self:
        return replace(self, format=format)

    def own_schema(self, broker: str | None) -> Schema:
        from millstream.connectors.topic.own_schema import existing_topics, no_schema, schema_in_format

        found = list(self.names.names)
        if self.names.pattern is not None and self.format is None:
            found = [each for each in existing_topics(broker) if self.reads_topic(each)]
        if not found:
            if self.format is None:
                raise no_schema(str(self), "no topic matches it now")
            return schema_in_format(str(self), broker, self.format)
        schemas = {each: schema_in_format(each, broker, self.format) for each in found}
        first = schemas[found[0]]
        for each, schema in schemas.items():
            if schema != first:
                raise InvalidPlan(
                    f"the topics '{found[0]}' and '{each}' have different schemas: {first} and {schema}",
                    where=users_line(),
                    next_step="give the schema to read them with: read([…], 'user string, at timestamp')",
                )
        return first

    def open_source(self, reading: Reading) -> Source:
        from millstream.connectors.topic.several import SeveralEmbedded, SeveralKafka

        address = as_kafka(reading.broker)
        if address is not None:
            return SeveralKafka(
                self.names,
                reading.schema,
                reading.folder,
                address=address,
                format=self.format or reading.format,
                on_lost=reading.on_lost,
            )
        return SeveralEmbedded(
            self.names,
            reading.schema,
            reading.folder,
            broker=str(reading.broker) if reading.broker is not None else None,
            format=self.format,
            columns=reading.columns,
            on_lost=reading.on_lost,
        )

    def worker_needs(self, broker: str) -> WorkerNeeds:
        if broker.startswith(SCHEME):
            return WorkerNeeds(libraries=KAFKA_LIBRARIES)
        return WorkerNeeds(folders=[Path(broker)])

    def __str__(self) -> str:
        return str(self.names)


def topics(pattern: str) -> Topics:
    """All topics of the job's broker whose whole name matches a regular expression, also those created later.

    For known topics, `flow.read` takes a list of their names. Topics whose names start with `_` are never included on
    Kafka. A column `topic string` in the schema has the name of the topic.
    """
    arguments.text(pattern, "a pattern is a regular expression", "topics('orders[.].*')")
    try:
        re.compile(pattern)
    except re.error as error:
        raise arguments.refused(f"{pattern!r} is not a regular expression: {error}", "topics('orders[.].*')") from None
    return Topics(TopicNames(pattern=pattern))


def named_topics(names: Sequence[object]) -> Topics:
    """Topics of the job's broker, each named once."""
    if not names:
        raise arguments.refused("there are no topics in the list", "name at least one: read(['a', 'b'], …)")
    checked = [topic(each).topic for each in names]  # type: ignore[arg-type]
    if len(set(checked)) < len(checked):
        raise arguments.refused(f"a topic is listed twice: {', '.join(checked)}", "name each once")
    return Topics(TopicNames(tuple(checked)))
