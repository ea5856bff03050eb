"""`millstream jobs`: which jobs there are on a log, how far they are, and how to start one over."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.output import ask, show_done, show_table
from millstream.cli.session import Session, command, subcommands
from millstream.errors import DamagedState, NotFound

if TYPE_CHECKING:
    from millstream.jobs.folder import JobFolder

Folder = Annotated[Path | None, typer.Option(help="The job's folder, if it was run with --folder.")]
JobName = Annotated[str, typer.Argument(metavar="JOB", help="The name of its flow.")]


def register(app: typer.Typer) -> None:
    jobs = subcommands(app, "jobs", "List jobs, repair or rebuild one, and forget what one has kept.")
    command(jobs, "list")(list_jobs)
    command(jobs, "repair")(repair)
    command(jobs, "rebuild")(rebuild)
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


def repair(session: Session, name: JobName, folder: Folder = None) -> None:
    """Repair the checkpoint of a job: set damaged files aside, and go back to a batch that can be done again.

    No row is lost or written twice: batches are done again with the same rows, and outputs know which they have.

    \b
    Example:
      millstream jobs repair team-scores
    """
    from millstream.jobs.repairing import repair as repaired

    job = _job(session, name, folder)
    with job.held():
        done = repaired(job)
    if done is None:
        show_done(session, f"the checkpoint of '{name}' is not damaged", document={"job": name, "damaged": []})
        return
    damaged = [each.below(job.path) for each in done.damage]
    show_done(
        session,
        *damaged,
        f"set aside in {done.aside}; the next run goes on with batch {done.way.batch}",
        document={"job": name, "damaged": damaged, "next_batch": done.way.batch, "aside": str(done.aside)},
    )


def rebuild(
    session: Session,
    name: JobName,
    allow_loss: Annotated[
        bool, typer.Option("--allow-loss", help="Rebuild even if the sources have lost their first records.")
    ] = False,
    folder: Folder = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Rebuild the results of a job from its sources: its next run starts over, and empties its outputs first.

    \b
    Example:
      millstream jobs rebuild team-scores
      millstream run flow.py
    """
    from millstream.jobs.rebuilding import Rebuild, request_rebuild

    job = _job(session, name, folder)
    ask(f"Let the next run of '{name}' empty its outputs and start over?", yes=yes)
    with job.held():
        request_rebuild(job, Rebuild(allow_loss))
    show_done(
        session,
        f"'{name}' empties its outputs and starts over with its next run: millstream run FILE",
        document={"job": name, "allows_loss": allow_loss},
    )


def forget(
    session: Session,
    name: JobName,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Forget what a job has kept: its progress and its state.

    What it has written stays, so the same job is refused afterwards: run it with --start-over, which also empties its
    outputs, or under another name.

    \b
    Example:
      millstream jobs forget team-scores --yes
    """
    job = _job(session, name)
    ask(f"Forget the state and the progress of '{name}'?", yes=yes)
    with job.held():
        job.remove()
    show_done(session, f"forgot '{name}'", document={"forgot": name})


def _job(session: Session, name: str, folder: Path | None = None) -> JobFolder:
    from millstream.jobs.folder import JobFolder, is_job

    if folder is not None:
        if not is_job(folder):
            raise NotFound(f"there is no job in '{folder}'", next_step="name the folder that millstream run was given")
        return JobFolder(folder.absolute(), name)
    found = {folder.name: folder for folder in _folders(session)}
    if name not in found:
        raise NotFound(f"there is no job '{name}'", next_step=f"jobs that exist: {', '.join(found) or 'none'}")
    return JobFolder(found[name], name)


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
    from millstream.jobs.folder import REAL_TIME_CHECKPOINT, JobFolder
    from millstream.log.disk import FileLock

    with FileLock(folder / "lock").attempt() as free:
        state = "stopped" if free else "running"
    commits = folder.glob("checkpoint*/commits/*")  # the second is of a job in real time
    numbers = [int(entry.name) for entry in commits if entry.name.isdigit()]
    batches = max(numbers, default=-1) + 1
    if (folder / REAL_TIME_CHECKPOINT).exists():
        return state, batches, []
    try:
        kept = JobFolder(folder, folder.name).kept()
    except DamagedState:
        return "damaged", batches, []
    return state, batches, [] if kept is None else list(kept.steps)
