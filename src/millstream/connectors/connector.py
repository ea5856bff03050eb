"""The interface of a connector: one class per external system, which opens its sources and sinks.

Every method has a default, so a connector defines only what it supports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

import pyarrow as pa

from millstream.connectors.catalog import Remembered
from millstream.connectors.claims import Claim, Keeper
from millstream.connectors.file_claims import LedgerKeeper
from millstream.connectors.file_ledger import FileLedger
from millstream.connectors.sink import Sink
from millstream.connectors.source import Source
from millstream.errors import InvalidInput, InvalidPlan
from millstream.log import Broker
from millstream.log.kafka.address import KafkaAddress
from millstream.plan.endpoints import Endpoint
from millstream.plan.nodes import Write
from millstream.records import Schema
from millstream.user_lines import users_line


@dataclass(frozen=True)
class Reading:
    """How a source is opened."""

    schema: Schema
    """The columns of its rows."""
    step: str
    folder: Path
    """The source's own folder, for what it needs to replay the same rows."""
    broker: str | KafkaAddress | None = None
    """The address of the job's broker."""
    format: str = "json"
    """The codec for the values of a topic without a schema."""
    columns: Schema | None = None
    """The columns that are used, if not all: a columnar source may skip the others."""
    on_lost: str = "error"


@dataclass(frozen=True)
class Writing:
    """How a sink is opened."""

    schema: Schema
    """The exact columns of its rows."""
    job: str
    step: str
    ledger: FileLedger
    """The job's folder, where a sink can record its batches. It also identifies the run."""
    broker: Broker | str
    """The job's broker, or its address: given an address, the sink opens and closes the broker itself."""
    keys: Sequence[str] = ()
    """The key columns of the rows."""
    is_table: bool = False
    """Whether the rows are the changes of a table."""
    partitions: int = 1
    """For a topic that does not exist yet."""

    @property
    def run(self) -> str:
        return self.ledger.run


@dataclass(frozen=True)
class WorkerNeeds:
    """What workers need to read a source: libraries by distribution and module, and folders of the driver."""

    libraries: Mapping[str, str] = field(default_factory=dict)
    folders: Sequence[Path] = ()


class Connector(Endpoint):
    """A source, a sink or both, such as `ms.files(…)`. It must be picklable, because plans are pickled."""

    counts_lag: ClassVar[bool] = False
    """Whether any process may poll the latest offsets to compute a job's lag."""
    can_peek: ClassVar[bool] = True
    """Whether reading the latest offsets has no side effects on the job."""
    can_replay: ClassVar[bool] = True
    """Whether a job that starts over can read the source from the beginning again."""
    leaves_no_trace: ClassVar[bool] = False
    """Whether the sink has nothing to undo when a job starts over."""

    @property
    def has_default_keeper(self) -> bool:
        return type(self).keeper is Connector.keeper

    @property
    def fingerprint(self) -> tuple[str, ...]:
        """Identifies the source, including settings that are not shown."""
        return (str(self),)

    def open_source(self, reading: Reading) -> Source:
        """Must be cheap: no connection, no reads. Those start with the first request for offsets."""
        raise InvalidInput(
            f"{self} cannot be read",
            where=reading.step,
            next_step="use a topic name, or kafka(…), files(…), rate(…) or socket(…)",
        )

    def open_sink(self, writing: Writing) -> Sink:
        """Opens the sink even if it is down: `write` reports that."""
        raise InvalidInput(
            f"{self} cannot be written",
            where=f"step '{writing.step}'",
            next_step="use a topic name, or kafka, files, sqlite, postgres, delta_table, iceberg, console, memory, "
            "foreach_batch or discard",
        )

    def keeper(self, claim: Claim, ledger: FileLedger, broker: Broker) -> Keeper:
        """Manages the claim of a job to this output, and removes its output when it starts over."""
        return LedgerKeeper(str(self), claim, ledger, leaves_no_trace=self.leaves_no_trace)

    def load(self, schema: Schema) -> pa.Table:
        """All rows, read once: for a lookup table."""
        raise InvalidInput(
            f"a lookup table cannot be read from {self}",
            where=users_line(),
            next_step="use a list of dicts, a polars, pyarrow or pandas frame, or ms.files(…), ms.sqlite(…), "
            "ms.postgres(…), ms.delta_table(…), ms.iceberg(…)",
        )

    def remembered(self, output: Write, log: Path | str) -> Remembered | None:
        """How `millstream table` finds the rows of an output by key; None if they cannot be looked up.

        `log` is the folder of an embedded log, or the address of Kafka.
        """
        return None

    def worker_needs(self, broker: str) -> WorkerNeeds:
        return WorkerNeeds()

    def kafka_topic(self, broker: str | None) -> KafkaTopic | None:
        """The Kafka topic, for real-time mode; None if it is not one."""
        return None

    def renamed(self, topic: str) -> Self:
        """The same endpoint with another topic, if it has a `topic_name`."""
        raise InvalidPlan(f"{self} is not a topic", where=users_line(), next_step="write to a topic")

    def with_suffix(self, suffix: str) -> Self:
        """A second output next to this one, for recomputed results; itself if it stores nothing."""
        return self


@dataclass(frozen=True)
class KafkaTopic:
    """A topic, and the address of its Kafka cluster."""

    address: KafkaAddress
    name: str
    is_plain_json: bool = True

    def __str__(self) -> str:
        return f"kafka({self.address.servers}, {self.name})"
