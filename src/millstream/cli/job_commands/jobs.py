"""`millstream jobs`: lists the jobs on a log and their progress, and repairs, rebuilds or forgets them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.job_commands import metrics, savepoints, supervised, upgrades
from millstream.cli.output import ask, show_done, show_table
from millstream.cli.session import Session, subcommands
from millstream.errors import DamagedState, NotFound

if TYPE_CHECKING:
    from millstream.jobs.job_folder import JobFolder

Folder = Annotated[Path | None, typer.Option(help="The job's folder, if it was run with --folder.")]
JobName = Annotated[str, typer.Argument(metavar="JOB", help="The name of its flow.")]


def register(app: typer.Typer) -> None:
    supervised_commands = (
        supervised.submit,
        supervised.show,
        supervised.logs,
        metrics.metrics,
        supervised.runs,
        supervised.failures,
        supervised.start,
        supervised.stop,
        supervised.restart,
        supervised.delete,
        savepoints.savepoint,
        savepoints.savepoints,
        savepoints.restore,
        savepoints.state,
        upgrades.reload,
        upgrades.upgrade,
        upgrades.rehearse,
        upgrades.rollback,
        upgrades.upgrades,
    )
    help = "List jobs; submit one to the supervisor, control and watch it; repair, rebuild or forget one."
    subcommands(app, "jobs", help, list_jobs, *supervised_commands, repair, rebuild, forget)


def list_jobs(session: Session) -> None:
    """List the jobs that have run on a log, and those of its supervisor.

    \b
    Example:
      millstream jobs list
    """
    from millstream.jobs.measuring.job_progress import read_progress

    rows, document = [], []
    submitted = {job["name"]: job for job in supervised.listed(session)}
    for folder in _folders(session):
        state, batches, steps = state_of(folder)
        job = submitted.pop(folder.name, None)
        state = state if job is None or state == "damaged" else job["state"]
        live = read_progress(folder) if state == "running" else {}
        shown = [live.get(name) for name in ("lag", "rows_per_s", "watermark")]
        rows.append((folder.name, state, batches, *shown, ", ".join(steps) or None))
        now = {name: live.get(name) for name in ("rows", "lag", "rows_per_s", "watermark", "late", "dead", "waits_for")}
        document.append({"name": folder.name, "state": state, "batches": batches, "steps": steps, **now})
    for name, job in submitted.items():  # those that have not run yet
        rows.append((name, job["state"], 0, None, None, None, None))
        document.append({"name": name, "state": job["state"], "batches": 0, "steps": []})
    columns = ["job", "state", "batches", "lag", "rows/s", "watermark", "keeps state"]
    show_table(session, columns, rows, document=document, empty=session.nothing("jobs"))


def repair(session: Session, name: JobName, folder: Folder = None) -> None:
    """Repair the checkpoint of a job: move damaged files away, and go back to a batch that can be redone.

    No row is lost or written twice: batches are redone with the same rows, and outputs skip those they have.

    \b
    Example:
      millstream jobs repair team-scores
    """
    from millstream.jobs.repairing import repair as repaired

    job = job_folder(session, name, folder)
    with job.held():
        done = repaired(job)
    if done is None:
        show_done(session, f"the checkpoint of '{name}' is not damaged", document={"job": name, "damaged": []})
        return
    damaged = [each.relative_to(job.path) for each in done.damage]
    show_done(
        session,
        *damaged,
        f"damaged files are in {done.aside}; the next run continues with batch {done.recovery.batch}",
        document={"job": name, "damaged": damaged, "next_batch": done.recovery.batch, "aside": str(done.aside)},
    )


def rebuild(
    session: Session,
    name: JobName,
    allow_loss: Annotated[
        bool, typer.Option("--allow-loss", help="Rebuild even if the sources have lost their first records.")
    ] = False,
    folder: Folder = None,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the prompt.")] = False,
) -> None:
    """Rebuild the results of a job from its sources: its next run starts over, and empties its outputs first.

    \b
    Example:
      millstream jobs rebuild team-scores
      millstream run flow.py
    """
    from millstream.jobs.results.rebuilding import Rebuild, request_rebuild

    job = job_folder(session, name, folder)
    ask(f"Empty the outputs of '{name}' and start over with its next run?", yes=yes)
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
    yes: Annotated[bool, typer.Option("--yes", help="Skip the prompt.")] = False,
) -> None:
    """Delete a job's progress and state.

    Its outputs stay, so the same job cannot run again as it is: use --start-over, which also empties its outputs, or
    another name.

    \b
    Example:
      millstream jobs forget team-scores --yes
    """
    job = job_folder(session, name)
    ask(f"Delete the state and progress of '{name}'?", yes=yes)
    with job.held():
        job.remove()
    show_done(session, f"forgot '{name}'", document={"forgot": name})


def job_folder(session: Session, name: str, folder: Path | None = None) -> JobFolder:
    """The folder of a job that has run on the log, or the one that is given."""
    from millstream.jobs.job_folder import JobFolder, is_job

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
    from millstream.jobs.job_folder import is_job

    if address := session.kafka():  # even if it does not answer: a job's folder is on this machine
        jobs = jobs_folder(address)
    elif session.missing_folder():
        return []
    else:
        with session.log() as log:
            jobs = jobs_folder(log)
    return sorted(folder for folder in jobs.iterdir() if is_job(folder)) if jobs.is_dir() else []


def state_of(folder: Path) -> tuple[str, int, list[str]]:
    """What a job's folder says: its state, its number of batches, and the steps that keep state."""
    from millstream.jobs.job_folder import REAL_TIME_CHECKPOINT, JobFolder
    from millstream.log.storage.disk import FileLock

    with FileLock(folder / "lock").attempt() as free:
        state = "stopped" if free else "running"
    commits = folder.glob("checkpoint*/commits/*")  # the second one is from real-time mode
    numbers = [int(entry.name) for entry in commits if entry.name.isdigit()]
    batches = max(numbers, default=-1) + 1
    if (folder / REAL_TIME_CHECKPOINT).exists():
        return state, batches, []
    try:
        kept = JobFolder(folder, folder.name).description()
    except DamagedState:
        return "damaged", batches, []
    return state, batches, [] if kept is None else list(kept.steps)
