"""`millstream jobs`: which jobs there are on a log, how far they are, and how to begin one anew."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.output import ask, show_done, show_table
from millstream.cli.session import Session, command, subcommands
from millstream.errors import NotFound

JobName = Annotated[str, typer.Argument(metavar="JOB", help="The name of its flow.")]


def register(app: typer.Typer) -> None:
    jobs = subcommands(app, "jobs", "List jobs, and forget what one has kept.")
    command(jobs, "list")(list_jobs)
    command(jobs, "forget")(forget)


def list_jobs(session: Session) -> None:
    """List the jobs that have run on a log.

    \b
    Example:
      millstream jobs list
    """
    from millstream.jobs.progress import read_progress

    rows, document = [], []
    for folder in _folders(session):
        state, batches, steps = _state(folder)
        live = read_progress(folder) if state == "running" else {}
        shown = [live.get(name) for name in ("lag", "rows_per_s", "watermark")]
        rows.append((folder.name, state, batches, *shown, ", ".join(steps) or None))
        now = {name: live.get(name) for name in ("rows", "lag", "rows_per_s", "watermark", "late", "dead", "waits_for")}
        document.append({"name": folder.name, "state": state, "batches": batches, "steps": steps, **now})
    columns = ["job", "state", "batches", "lag", "rows/s", "watermark", "keeps state"]
    show_table(session, columns, rows, document=document, empty=session.nothing("jobs"))


def forget(
    session: Session,
    name: JobName,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Forget what a job has kept: it begins anew, at the beginning of its sources.

    What it has written stays; written again, its rows come on top.

    \b
    Example:
      millstream jobs forget team-scores --yes
    """
    from millstream.jobs.folder import JobFolder

    found = {folder.name: folder for folder in _folders(session)}
    if name not in found:
        raise NotFound(f"there is no job '{name}'", next_step=f"jobs that exist: {', '.join(found) or 'none'}")
    ask(f"Forget the state and the progress of '{name}'?", yes=yes)
    folder = JobFolder(found[name], name)
    with folder.held():
        folder.remove()
    show_done(session, f"forgot '{name}': it begins anew", document={"forgot": name})


def _folders(session: Session) -> list[Path]:
    from millstream.connectors.catalog import jobs_folder
    from millstream.jobs.folder import is_job

    if address := session.kafka():  # whether it answers or not: a job's folder is on this machine
        jobs = jobs_folder(address)
    elif session.missing_folder():
        return []
    else:
        with session.log() as log:
            jobs = jobs_folder(log)
    return sorted(folder for folder in jobs.iterdir() if is_job(folder)) if jobs.is_dir() else []


def _state(folder: Path) -> tuple[str, int, list[str]]:
    from millstream.jobs.folder import DESCRIPTION, JobFolder
    from millstream.log.disk import FileLock

    with FileLock(folder / "lock").attempt() as free:
        state = "stopped" if free else "running"
    commits = folder.glob("checkpoint*/commits/*")  # the second is of a job in real time
    numbers = [int(entry.name) for entry in commits if entry.name.isdigit()]
    kept = JobFolder(folder, folder.name).kept() if (folder / DESCRIPTION).exists() else None
    steps = [] if kept is None else list(kept.steps)
    return state, max(numbers, default=-1) + 1, steps
