"""The catalog of jobs and the tables they write: stored in the job's folder when it starts, for lookup by name.

Passwords are never stored.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream.errors import DamagedLog
from millstream.log import DEFAULT_FOLDER, Broker, EmbeddedLog
from millstream.log.kafka.address import SCHEME, with_ports
from millstream.log.storage.disk import read_document, write_document
from millstream.plan.nodes import Write

TOPIC = "topic"
NOTE = "tables.json"
HOME_VARIABLE = "MILLSTREAM_HOME"
KEY_TEXT = ("key",)
"""The lookup column of a topic that no job has recorded: the record's key, as text."""


@dataclass(frozen=True)
class Remembered:
    """A table with one row per key."""

    name: str
    kind: str
    """A topic, or the connector that looks rows up."""
    where: str
    """The log's folder or Kafka's servers, the SQLite file, or the address of the database without its password."""
    key: tuple[str, ...]
    """The columns by which rows are looked up, as named in the stored table."""
    schema: str | None
    """The schema of the rows that the job writes; None for a topic that no job has recorded."""
    job: str | None = None

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "where": self.where,
            "key": list(self.key),
            "schema": self.schema,
        }

    @classmethod
    def of(cls, document: dict[str, Any], job: str, log: Path | str) -> Remembered:
        kind, where = document["kind"], document["where"]
        if not isinstance(kind, str):
            raise ValueError(f"{kind!r} is not a kind of table")
        key = tuple(map(str, document["key"]))
        if kind == TOPIC and not where.startswith(SCHEME) and isinstance(log, Path):
            where = str(log)  # the log's folder may have been moved
        return cls(document["name"], kind, where, key, document["schema"], job)


def jobs_folder(log: Broker | Path | str) -> Path:
    """Where job folders are: in the folder of an embedded log; for Kafka, in a folder on this machine."""
    if isinstance(log, EmbeddedLog | Path):
        return (log.path if isinstance(log, EmbeddedLog) else log) / "jobs"
    return Path(os.environ.get(HOME_VARIABLE) or DEFAULT_FOLDER).expanduser().absolute() / "jobs"


def remember(folder: Path, outputs: Iterable[Write], log: Path | str) -> None:
    """Records the tables that a job writes in its folder. `log` is a folder or the address of Kafka."""
    tables = [output.sink.remembered(output, log) for output in outputs]
    found = [table.document() for table in tables if table is not None]
    write_document(folder / NOTE, {"tables": found})


def topic_location(log: Path | str) -> str:
    """The log as recorded: for Kafka only its servers, since settings do not identify it."""
    return (
        SCHEME + with_ports(log.removeprefix(SCHEME).partition("?")[0].rstrip("/"))
        if isinstance(log, str)
        else str(log)
    )


def remembered(log: Path | str) -> list[Remembered]:
    """The tables recorded by the jobs of a log; if several write a table, the newest entry.

    One folder may have jobs on several logs: topics of other logs are left out.
    """
    found: dict[tuple[str, str, str], Remembered] = {}
    for note in sorted(_notes(log), key=lambda path: path.stat().st_mtime_ns):
        try:
            tables = [Remembered.of(each, note.parent.name, log) for each in read_document(note)["tables"]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedLog(
                f"the catalog of the job '{note.parent.name}' cannot be read: {error}",
                where=str(note),
                next_step="delete the file: the job recreates it at its next start",
            ) from error
        found |= {
            (table.kind, table.where, table.name): table
            for table in tables
            if table.kind != TOPIC or table.where == topic_location(log)
        }
    return sorted(found.values(), key=lambda table: (table.name, table.kind, table.where))


def _notes(log: Path | str) -> Iterator[Path]:
    jobs = jobs_folder(log)
    for folder in jobs.iterdir() if jobs.is_dir() else ():
        if not folder.name.startswith(".") and (folder / NOTE).is_file():
            yield folder / NOTE
