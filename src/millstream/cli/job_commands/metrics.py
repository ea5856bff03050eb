"""`millstream jobs metrics` and `why-silent`: what the steps of a job do, from its folder or from the supervisor."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.job_commands.supervised import supervisor_of
from millstream.cli.output import Cell, show_document, show_note, show_table, show_text
from millstream.cli.session import Session, command
from millstream.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Mapping

JobName = Annotated[str, typer.Argument(metavar="JOB", help="The name of the job.")]
Step = Annotated[str | None, typer.Option(help="Only this step.")]
Folder = Annotated[Path | None, typer.Option(help="The job's folder, if it was run with --folder.")]
COLUMNS = ["step", "in", "out", "late", "dead", "rows/s", "delay s", "own s", "lag", "lag s", "state rows", "bytes"]
HISTORY_COLUMNS = ["at", "batch", "rows/s", "lag", "lag s", "delay s", "batch s", "busy %"]


def register(app: typer.Typer) -> None:
    command(app, "why-silent")(why_silent)


def why_silent(session: Session, name: JobName, folder: Folder = None) -> None:
    """Find out why nothing comes out of a job: its input, its watermarks, its steps and its sinks.

    \b
    Example:
      millstream why-silent team-scores
    """
    found = _silence(session, name, folder)
    if session.json:
        show_document(found)
        return
    if not found["is_silent"]:
        show_note("rows were written in the last minute")
    elif not found["findings"]:
        show_note("nothing that is known explains it: look at its log and its metrics")
    for each in found["findings"]:
        show_text(f"{each['what']}\n  -> {each['next_step']}")


def metrics(
    session: Session,
    name: JobName,
    step: Step = None,
    last: Annotated[
        str | None, typer.Option(metavar="'10 minutes'", help="Also the history of this time; default: the newest.")
    ] = None,
    folder: Folder = None,
) -> None:
    """Show the metrics of each step of a job.

    \b
    Example:
      millstream jobs metrics team-scores
      millstream jobs metrics team-scores --step read_scores --last "10 minutes" --json
    """
    found = _metrics(session, name, step, last, folder)
    samples = found["samples"]
    if not session.json and samples and last is not None:
        show_table(session, HISTORY_COLUMNS, [_of_sample(each) for each in samples], document=found, empty="")
    newest: Mapping[str, Any] = samples[-1]["steps"] if samples else {}
    rows = [_of_step(each["name"], newest[each["name"]]) for each in found["plan"] if each["name"] in newest]
    show_table(session, COLUMNS, rows, document=found, empty=f"'{name}' has no metrics yet")
    if not session.json and samples and samples[-1]["waits_for"]:
        show_note(f"it waits for {samples[-1]['waits_for']}")


def _silence(session: Session, name: str, folder: Path | None) -> dict[str, Any]:
    from millstream.cli.job_commands.jobs import job_folder, state_of
    from millstream.metrics.history import read_metrics
    from millstream.metrics.silence import LOOK_BACK_S, why_silent

    if folder is None and _is_supervised(session, name):
        return supervisor_of(session).why_silent(name)
    path, now = job_folder(session, name, folder).path, time.time()
    return why_silent(name, read_metrics(path, since=now - LOOK_BACK_S), state_of(path)[0], now).document(name)


def _metrics(session: Session, name: str, step: str | None, last: str | None, folder: Path | None) -> dict[str, Any]:
    from millstream.cli.job_commands.jobs import job_folder
    from millstream.metrics.history import read_metrics
    from millstream.metrics.samples import Metrics, as_document
    from millstream.records import duration

    since = None if last is None else time.time() - duration(last, what="last").total_seconds()
    try:
        path = job_folder(session, name, folder).path
    except NotFound:
        if folder is not None or not _is_supervised(session, name):
            raise
        return supervisor_of(session).metrics(name, last=last, step=step)
    return as_document(read_metrics(path, since=since, step=step) or Metrics(0.0), name, step)


def _is_supervised(session: Session, name: str) -> bool:
    from millstream.cli.job_commands.supervised import listed

    return any(job["name"] == name for job in listed(session))


def _of_step(name: str, step: Mapping[str, Any]) -> list[Cell]:
    shown: list[Cell] = [step[each] for each in ("rows_in", "rows_out", "rows_late", "rows_dead")]
    rate = [_rounded(step[each]) for each in ("rows_per_s", "delay_s", "delay_own_s")]
    lag = [step["lag_records"], _rounded(step["lag_s"])]
    return [name, *shown, *rate, *lag, step["state_rows"], step["state_bytes"]]


def _of_sample(sample: Mapping[str, Any]) -> list[Cell]:
    at = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(sample["at"]))
    busy = None if sample["busy"] is None else round(100 * sample["busy"])
    shown = [_rounded(sample["rows_per_s"]), sample["lag_records"], _rounded(sample["lag_s"])]
    return [at, sample["batch"], *shown, _rounded(sample["delay_s"]), f"{sample['batch_s']:.2f}", busy]


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)
