"""Which run of a job an output belongs to, as the output itself knows it.

A job's folder and its outputs can be deleted, restored or copied one without the other. So each output holds a claim:
the job, the step and the run that writes it, and where that run keeps its folder. A job compares the claims of its
outputs with what it has kept before it writes anything.
"""

from __future__ import annotations

import hashlib
import socket
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from millstream.connectors.file_ledger import FileLedger
from millstream.errors import StartOverRefused
from millstream.log import Broker, EmbeddedLog
from millstream.log.kafka.address import KafkaAddress, address_of
from millstream.plan import endpoints as places


@dataclass(frozen=True)
class Claim:
    """Of one output, by one run of a job."""

    job: str
    step: str
    run: str
    folder: str = ""
    """The job's folder; empty where an older version of Millstream wrote."""
    host: str = ""

    @classmethod
    def here(cls, job: str, step: str, run: str, folder: Path) -> Claim:
        return cls(job, step, run, str(folder.absolute()), socket.gethostname())

    @classmethod
    def read(cls, document: Any) -> Claim | None:
        """None of what is no claim, or of one that was released."""
        names = [each.name for each in fields(cls)]
        if not isinstance(document, dict) or not all(isinstance(document.get(name), str) for name in names):
            return None
        return cls(**{name: document[name] for name in names}) if document["run"] else None

    def document(self) -> dict[str, str]:
        return asdict(self)

    def __str__(self) -> str:
        """The run, for people."""
        return f"run {self.run}" + (f", whose folder is {self.folder} on {self.host}" if self.folder else "")


@dataclass(frozen=True)
class Found:
    """What there is of an output."""

    there: bool
    """Whether the topic, table or folder exists."""
    claim: Claim | None = None
    """Of the run that wrote it last, so far as it is known."""
    newest: int | None = None
    """The newest batch of the run that asks."""
    identity: str = ""
    """Of a topic: one created again under the same name has another."""


class Keeper(Protocol):
    """Looks after the claim of one output. Raises SinkUnavailable if the output cannot be reached."""

    where: str
    """The output, for people."""
    keeps_claims: bool
    """Whether the output can hold a claim."""

    def look(self) -> Found: ...

    def make(self) -> None:
        """Writes the claim of the run that asks, in place of any other."""

    def check_clear(self) -> None:
        """Raises StartOverRefused if what the job wrote cannot be told from what others wrote."""

    def clear(self) -> None:
        """Removes what the job wrote and its claim. May be called again if it was cut short."""

    def release(self) -> None:
        """Removes the claim. What was written stays."""

    def close(self) -> None: ...


def keeper_of(place: Any, claim: Claim, ledger: FileLedger, broker: Broker) -> Keeper:
    if isinstance(place, str) and isinstance(broker, EmbeddedLog):
        from millstream.connectors.topic.claims import TopicKeeper

        return TopicKeeper(broker, place, claim)
    if isinstance(place, str | places.Kafka):
        from millstream.connectors.kafka.claims import KafkaKeeper

        return KafkaKeeper(_kafka(place, broker, claim.step), place if isinstance(place, str) else place.topic, claim)
    if isinstance(place, places.Sqlite):
        from millstream.connectors.databases.claims import SqliteKeeper

        return SqliteKeeper(place, claim)
    if isinstance(place, places.Postgres):
        from millstream.connectors.databases.claims import PostgresKeeper

        return PostgresKeeper(place, claim)
    if isinstance(place, places.Files):
        from millstream.connectors.file_claims import FilesKeeper

        return FilesKeeper(place, claim, ledger)
    from millstream.connectors.file_claims import LedgerKeeper, MemoryKeeper

    return MemoryKeeper(place, claim) if isinstance(place, places.Memory) else LedgerKeeper(place, claim, ledger)


def _kafka(place: str | places.Kafka, broker: Broker, step: str) -> KafkaAddress:
    own = None if isinstance(broker, EmbeddedLog) else str(broker.address)  # type: ignore[attr-defined]
    if isinstance(place, str):
        assert own is not None
        return KafkaAddress.of(own)
    return address_of(place.servers, place.settings, own, topic=place.topic, step=step)


def shared(what: str, where: str, next_step: str) -> StartOverRefused:
    return StartOverRefused(what, where=where, next_step=next_step)


def digest(job: str, step: str) -> str:
    """A name for files, of a job and a step."""
    return hashlib.sha256(f"{job}\0{step}".encode()).hexdigest()[:16]
