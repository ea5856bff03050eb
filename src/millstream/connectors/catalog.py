"""Where jobs are, and which tables each writes: noted in its folder when it starts, so that they are found by name.

A password is never part of the note.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from millstream.errors import DamagedLog
from millstream.log import DEFAULT_FOLDER, Broker, EmbeddedLog
from millstream.log.disk import read_document, write_document
from millstream.log.kafka.address import SCHEME, with_ports
from millstream.plan.endpoints import Kafka, Postgres, Sqlite, Table
from millstream.plan.nodes import Write
from millstream.postgres_address import without_password

Kind = Literal["topic", "sqlite", "postgres"]
NOTE = "tables.json"
HOME_VARIABLE = "MILLSTREAM_HOME"
KEY_TEXT = ("key",)
"""What a topic that no job remembers is looked up by: the key of a record, as text."""


@dataclass(frozen=True)
class Remembered:
    """A table with a row per key."""

    name: str
    kind: Kind
    where: str
    """The log's folder or Kafka's servers, the SQLite file, or the address of the database without its password."""
    key: tuple[str, ...]
    """Columns by which rows are found, as they are called where the table is."""
    schema: str | None
    """Of the rows that the job writes; unknown of a topic that no job remembers."""
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
        if kind not in ("topic", "sqlite", "postgres"):
            raise ValueError(f"there is no kind of table {kind!r}")
        key = tuple(map(str, document["key"]))
        if kind == "topic" and not where.startswith(SCHEME) and isinstance(log, Path):
            where = str(log)  # the log's folder may have been moved
        return cls(document["name"], cast(Kind, kind), where, key, document["schema"], job)


def jobs_folder(log: Broker | Path | str) -> Path:
    """Where jobs keep what is theirs: in the folder of an embedded log; those on Kafka in a folder of this machine."""
    if isinstance(log, EmbeddedLog | Path):
        return (log.path if isinstance(log, EmbeddedLog) else log) / "jobs"
    return Path(os.environ.get(HOME_VARIABLE) or DEFAULT_FOLDER).expanduser().absolute() / "jobs"


def remember(folder: Path, outputs: Iterable[Write], log: Path | str) -> None:
    """Notes in a job's folder which tables its outputs are. The log is the folder of one, or the address of a Kafka."""
    found = [table.document() for output in outputs if (table := _table(output, log)) is not None]
    write_document(folder / NOTE, {"tables": found})


def _table(output: Write, log: Path | str) -> Remembered | None:
    sink, schema = output.sink, output.schema
    if isinstance(sink, str | Kafka):
        if not output.net or not output.keys:
            return None
        servers = None if isinstance(sink, str) else sink.servers
        where = _place(log if servers is None else servers)
        return Remembered(sink if isinstance(sink, str) else sink.topic, "topic", where, output.keys, schema.ddl)
    if not isinstance(sink, Table) or sink.mode != "upsert":
        return None
    key = sink.key_columns(schema)
    if isinstance(sink, Sqlite):
        # As the job sees it now: the reader may be in another folder.
        return Remembered(sink.table, "sqlite", str(Path(sink.path).expanduser().absolute()), key, schema.ddl)
    if isinstance(sink, Postgres):
        return Remembered(sink.table, "postgres", without_password(sink.dsn.reveal()), key, schema.ddl)
    return None


def _place(log: Path | str) -> str:
    """As it stands in a note: of the address of a Kafka its servers, since settings say nothing about where it is."""
    return (
        SCHEME + with_ports(log.removeprefix(SCHEME).partition("?")[0].rstrip("/"))
        if isinstance(log, str)
        else str(log)
    )


def remembered(log: Path | str) -> list[Remembered]:
    """What the jobs of a log have noted; of a table that several write, what was noted last.

    Jobs on several logs may lie in one folder: topics of others than this are left out.
    """
    found: dict[tuple[str, str, str], Remembered] = {}
    for note in sorted(_notes(log), key=lambda path: path.stat().st_mtime_ns):
        try:
            tables = [Remembered.of(each, note.parent.name, log) for each in read_document(note)["tables"]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedLog(
                f"which tables the job '{note.parent.name}' writes cannot be read: {error}",
                where=str(note),
                next_step="delete the file: the job writes it again at its next start",
            ) from error
        found |= {
            (table.kind, table.where, table.name): table
            for table in tables
            if table.kind != "topic" or table.where == _place(log)
        }
    return sorted(found.values(), key=lambda table: (table.name, table.kind, table.where))


def _notes(log: Path | str) -> Iterator[Path]:
    jobs = jobs_folder(log)
    for folder in jobs.iterdir() if jobs.is_dir() else ():
        if not folder.name.startswith(".") and (folder / NOTE).is_file():
            yield folder / NOTE
