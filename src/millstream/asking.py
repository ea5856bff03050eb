"""A question to a running job: what it keeps for a key, and how far the job had come when that was true."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.connectors.catalog import jobs_folder
from millstream.errors import InvalidInput, NotFound
from millstream.jobs.asked.current_state import Held
from millstream.jobs.asked.questions import asked_of
from millstream.jobs.measuring.job_progress import read_progress
from millstream.log import Broker, EmbeddedLog, connect
from millstream.plan.time.bundles import BEGINNING, moment
from millstream.serving import Tables
from millstream.user_lines import AtUsersLine, users_line, what_exists

if TYPE_CHECKING:
    from millstream.jobs.job import Job

SHOWN = "%Y-%m-%d %H:%M:%S"
"""How the progress of a job of another process shows its watermark."""


@dataclass(frozen=True)
class Answer:
    """The rows of a key, and how far the job had come."""

    rows: list[dict[str, Any]]
    """One, or none; of a step with windows, one for each window that is open."""
    batch: int
    """Everything up to this batch is in the rows, and perhaps the next one. -1: no batch is known yet."""
    watermark: datetime | None
    """The watermark of the job after that batch; None if it has none."""
    as_of: datetime | None
    """When that batch began, by the clock of the job: the rows are not older, unless the job lags behind."""

    @property
    def row(self) -> dict[str, Any] | None:
        """The row, None if there is none; of several windows, the first."""
        return self.rows[0] if self.rows else None


def ask(
    job: Job | str,
    *,
    table: str | None = None,
    step: str | None = None,
    key: Any = None,
    window: datetime | None = None,
    broker: str | os.PathLike[str] | None = None,
    at: str | None = None,
) -> Answer:
    """What a running job holds for a key, with the batch and the watermark that it holds for.

    With `table`, the current row of a table that the job writes. With `step`, the rows in the state of a step, which
    may not have been written yet: of open windows, of a grouping, or of a table. `window` is the start of one window;
    with it, `table` names the output of a step with windows. `job` is what `flow.start(…)` has returned, or the name of
    a job of another process. `broker` and `at` are those of `open_table`. A key of several columns is a dict, or a
    tuple; a step over all rows has none.
    """
    with AtUsersLine():
        if (table is None) == (step is None):
            raise InvalidInput("ask for a table or for a step", next_step="table='totals', or step='totals'")
        if window is not None and (not isinstance(window, datetime) or window.tzinfo is None):
            raise InvalidInput(
                f"window is the start of a window, a time with a time zone, not {window!r}",
                next_step="datetime(2026, 1, 31, 12, tzinfo=timezone.utc)",
            )
        if table is not None and window is None:
            return _written(job, table, key, broker, at)
        held = _held(job, broker, step=step, table=table, key=key, window=window)
        return Answer(held.rows, held.batch, held.watermark, held.as_of)


def _held(job: Job | str, broker: str | os.PathLike[str] | None, **question: Any) -> Held:
    """From the state of the job."""
    if isinstance(job, str):
        with connect(broker) as log:
            return asked_of(_folder(job, log), job, **question)
    if job.current_state is None:
        raise InvalidInput(
            f"the job '{job.name}' keeps no state: it runs in real time", next_step="run it in micro-batches"
        )
    return job.current_state.held(**question)


def _written(job: Job | str, table: str, key: Any, broker: str | os.PathLike[str] | None, at: str | None) -> Answer:
    """From what the job has written."""
    with connect(broker) as log:
        name = job if isinstance(job, str) else job.name
        # The progress is read first: what had been written by then is in the row.
        known = _named(name, log) if isinstance(job, str) else _progress(job)
        tables = Tables(log, at=at, follows=False)
        try:
            _check(tables, name, table)
            found = tables.open(table).row(key)
        finally:
            tables.close()
    return Answer([] if found is None else [found.values()], *known)


def _progress(job: Job) -> tuple[int, datetime | None, datetime | None]:
    as_of, batch, watermark = job.progress.as_of, job.progress.batch, job.progress.watermark
    return batch, None if watermark is None or watermark <= BEGINNING else moment(watermark), as_of


def _folder(name: str, log: Broker) -> Path:
    folder = jobs_folder(log.path if isinstance(log, EmbeddedLog) else str(getattr(log, "address", ""))) / name
    if not folder.is_dir():
        known = sorted(each.name for each in folder.parent.iterdir()) if folder.parent.is_dir() else []
        raise NotFound(f"there is no job '{name}'", next_step=what_exists(name, known, kind="jobs"))
    return folder


def _named(name: str, log: Broker) -> tuple[int, datetime | None, datetime | None]:
    found = read_progress(_folder(name, log))
    try:
        watermark = datetime.strptime(str(found.get("watermark")), SHOWN).replace(tzinfo=UTC)
    except ValueError:  # the job has none, or it is not known yet
        watermark = None
    began = found.get("as_of")
    return int(found.get("batch", -1)), watermark, None if began is None else datetime.fromisoformat(began)


def _check(tables: Tables, job: str, table: str) -> None:
    own = [name for name, each in tables.known().items() if each.job == job]
    if table not in own:
        raise InvalidInput(
            f"the job '{job}' keeps no table '{table}'",
            where=users_line(),
            next_step=what_exists(table, own, kind="tables") if own else "write it: table.write('totals')",
        )
