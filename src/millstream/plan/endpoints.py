"""Sources and sinks as seen by a plan. Connectors define endpoints; a plan never opens one."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar, Self

from millstream.errors import InvalidPlan
from millstream.records import Schema
from millstream.user_lines import users_line

LOST_CHOICES = ("error", "earliest", "latest")
VALUE_FORMATS = ("json", "avro", "protobuf", "csv", "string", "bytes")


@dataclass(frozen=True)
class KeptTable:
    """A source of the rows of a table that changes, each with its key."""

    source: Endpoint
    schema: Schema
    key: tuple[str, ...]
    event_time: str
    deleted: str
    """A condition: the row was deleted."""
    emptied: str
    """A condition: all rows were deleted."""
    places: tuple[str, ...]
    """Columns that order rows with equal event time."""
    apart: tuple[str, ...]
    """Columns that are not those of the table."""


class Endpoint:
    """A source, a sink or both. Every method has a default."""

    can_read: ClassVar[bool] = False
    can_write: ClassVar[bool] = False
    refuses_rows: ClassVar[bool] = False
    """Whether the sink may reject single rows, so that the origin of each row must be tracked."""
    only_counts: ClassVar[bool] = False
    """Whether the sink only needs the number of its rows."""

    is_inner: ClassVar[bool] = False
    """Whether it is a queue inside a flow, which its job writes and reads."""

    @property
    def name(self) -> str:
        """A short name, for the default name of a step."""
        return type(self).__name__.lower()

    @property
    def decodes(self) -> bool:
        """Whether records are parsed when read, and may be malformed."""
        return False

    @property
    def topic_name(self) -> str | None:
        """The name of the topic, if the endpoint is one."""
        return None

    @property
    def broker_topic(self) -> str | None:
        """The name of the topic, if it is on the job's own broker."""
        return None

    @property
    def is_topic(self) -> bool:
        """Whether it reads or writes topics: one, or several."""
        return self.topic_name is not None

    def reads_topic(self, topic: str) -> bool:
        """Whether a topic of the job's own broker is read."""
        return self.broker_topic == topic

    @property
    def lost_choice(self) -> str:
        """What to do if records were deleted before they were read: one of LOST_CHOICES."""
        return LOST_CHOICES[0]

    @property
    def terms(self) -> str:
        """For plans: what limits the records that are read, if anything does."""
        return ""

    @property
    def target(self) -> Hashable:
        """What is written to: two sinks with the same target are the same."""
        return self

    def __str__(self) -> str:
        """For plans, messages and dead letters, so without passwords. Not the fields, as of a dataclass."""
        return self.name

    def check_read(self) -> None:
        """Raises InvalidPlan, at the user's line, if the endpoint cannot be read."""
        if not self.can_read:
            raise InvalidPlan(
                f"{self} can only be written, not read",
                where=users_line(),
                next_step="read a topic, or kafka, files, rate or socket",
            )

    def check_columns(self, columns: Schema) -> None:
        """Raises InvalidPlan, at the user's line, if rows of these columns cannot be read as the endpoint says."""

    def check_written(self, schema: Schema) -> None:
        """Raises InvalidPlan, at the user's line, if rows of this schema cannot be written to the endpoint."""
        if not self.can_write:
            raise InvalidPlan(
                f"{self} can only be read, not written",
                where=users_line(),
                next_step="write to a topic, or to kafka, files, sqlite, postgres, delta_table, iceberg, console, "
                "memory, foreach_batch or discard",
            )

    def own_schema(self, broker: str | None) -> Schema:
        """The schema of a source that knows its own. `broker` is the address of the flow's log, if it is set."""
        raise InvalidPlan(
            f"{self.name} needs a schema",
            where=users_line(),
            next_step="read(source, 'user string, at timestamp')",
        )

    def keyed_by(self, key: tuple[str, ...]) -> Self:
        """The endpoint as the sink of a table with this key."""
        return self

    def with_lost_choice(self, choice: str) -> Self:
        return self

    def with_format(self, format: str) -> Self:
        """The same source with values in this format, one of VALUE_FORMATS."""
        raise InvalidPlan(
            f"format applies to topics only, and {self} is not a topic", where=users_line(), next_step="remove format="
        )


class TableSource(Endpoint):
    """A source that `flow.table` keeps up to date, instead of reading its rows once."""

    def as_table(self, broker: str | None) -> KeptTable:
        """`broker` is the address of the flow's log, if it is set."""
        raise NotImplementedError
