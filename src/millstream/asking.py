"""A question to a running job: the row that it keeps for a key, and how far the job had come when it was true."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from millstream.connectors.catalog import jobs_folder
from millstream.errors import InvalidInput, NotFound
from millstream.jobs.job_progress import read_progress
from millstream.log import Broker, EmbeddedLog, connect
from millstream.plan.bundles import BEGINNING, moment
from millstream.serving import Tables
from millstream.user_lines import AtUsersLine, users_line, what_exists

if TYPE_CHECKING:
    from millstream.jobs.job import Job

SHOWN = "%Y-%m-%d %H:%M:%S"
"""How the progress of a job of another process shows its watermark."""


@dataclass(frozen=True)
class Answer:
    """The row of a key, None if there is none, and how far the job had come."""

    row: dict[str, Any] | None
    batch: int
    """Everything up to this batch is in the row, and perhaps the next one. -1: no batch is known yet."""
    watermark: datetime | None
    """The watermark of the job after that batch; None if it has none."""


def ask(
    job: Job | str, *, table: str, key: Any, broker: str | os.PathLike[str] | None = None, at: str | None = None
) -> Answer:
    """The current row of a key in a table that a job writes, with the batch and the watermark that it holds for.

    `job` is what `flow.start(…)` has returned, or the name of a job of another process, whose batch and watermark may
    be a second or two behind. `broker` and `at` are those of `open_table`. A key of several columns is a dict, or a
    tuple.
    """
    with AtUsersLine(), connect(broker) as log:
        name = job if isinstance(job, str) else job.name
        # The progress is read first: what had been written by then is in the row.
        batch, watermark = _named(name, log) if isinstance(job, str) else _progress(job)
        tables = Tables(log, at=at, follows=False)
        try:
            _check(tables, name, table)
            found = tables.open(table).row(key)
        finally:
            tables.close()
    return Answer(None if found is None else found.values(), batch, watermark)


def _progress(job: Job) -> tuple[int, datetime | None]:
    watermark = job.progress.watermark
    known = watermark is not None and watermark > BEGINNING
    return job.progress.batch, moment(watermark) if known else None


def _named(name: str, log: Broker) -> tuple[int, datetime | None]:
    folder = jobs_folder(log.path if isinstance(log, EmbeddedLog) else str(getattr(log, "address", ""))) / name
    if not folder.is_dir():
        known = sorted(each.name for each in folder.parent.iterdir()) if folder.parent.is_dir() else []
        raise NotFound(f"there is no job '{name}'", next_step=what_exists(name, known, kind="jobs"))
    found = read_progress(folder)
    try:
        watermark = datetime.strptime(str(found.get("watermark")), SHOWN).replace(tzinfo=UTC)
    except ValueError:  # the job has none, or it is not known yet
        watermark = None
    return int(found.get("batch", -1)), watermark


def _check(tables: Tables, job: str, table: str) -> None:
    own = [name for name, each in tables.known().items() if each.job == job]
    if table not in own:
        raise InvalidInput(
            f"the job '{job}' keeps no table '{table}'",
            where=users_line(),
            next_step=what_exists(table, own, kind="tables") if own else "write it: table.write('totals')",
        )
