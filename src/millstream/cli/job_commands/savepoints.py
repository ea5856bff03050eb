"""`millstream jobs savepoint`, `savepoints`, `restore` and `state`, with or without a supervisor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.job_commands.supervised import JobName, parameters, supervisor_of, time_text
from millstream.cli.output import show_details, show_done, show_table
from millstream.cli.session import Session
from millstream.errors import NotFound, SourceUnavailable

if TYPE_CHECKING:
    from millstream.jobs.versions.saved_jobs import SavedJobs
    from millstream.supervision.client import Jobs

WORDS = {"changed": "changed", "only old": "removed", "only new": "added"}
SavepointName = Annotated[str, typer.Argument(metavar="SAVEPOINT", help="Its name: see millstream jobs savepoints.")]


def savepoint(
    session: Session,
    name: JobName,
    savepoint: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Its name; default: that of the job, with the time.")
    ] = None,
) -> None:
    """Take a savepoint of a job, which may be running: a consistent copy of its offsets, its state and its plan.

    \b
    Example:
      millstream jobs savepoint team-scores before-release-7
    """
    taken = _saved(session).savepoint(name, savepoint)
    show_done(session, f"took the savepoint '{taken['name']}' after batch {taken['batch']}", document=taken)


def savepoints(
    session: Session,
    name: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Only those of one job.")] = None,
    remove: Annotated[str | None, typer.Option(metavar="SAVEPOINT", help="Remove this one.")] = None,
) -> None:
    """List savepoints, the newest first, or remove one.

    \b
    Example:
      millstream jobs savepoints team-scores
      millstream jobs savepoints --remove before-release-7
    """
    if remove is not None:
        gone = _saved(session).remove_savepoint(remove)
        show_done(session, f"removed the savepoint '{remove}' of '{gone['job']}'", document=gone)
        return
    found: list[dict[str, Any]] = _saved(session).savepoints(name)
    rows = [
        (each["name"], each["job"], time_text(each["taken"]), each["batch"], each["size_bytes"], each["why"])
        for each in found
    ]
    columns = ["savepoint", "job", "taken", "batch", "bytes", "why"]
    show_table(session, columns, rows, document=found, empty="no savepoints")


def restore(
    session: Session,
    savepoint: SavepointName,
    into: Annotated[
        str | None, typer.Option(metavar="JOB", help="Another job, without progress; default: its own job.")
    ] = None,
) -> None:
    """Restore a savepoint into its job, or another one, which must not run.

    In its own job, outputs keep what they have, and get nothing twice.

    \b
    Example:
      millstream jobs restore before-release-7
      millstream jobs restore before-release-7 --into team-scores-copy
    """
    done = _saved(session).restore(savepoint, into=into)
    lines = [f"restored '{savepoint}' into '{done['job']}'"]
    if done["records"]:
        lines.append(f"its next run reads the {done['records']:,} records since then again")
    if done["before"]:
        lines.append(f"how it was before is the savepoint '{done['before']}'")
    show_done(session, *lines, document=done)


def state(
    session: Session,
    name: JobName,
    step: Annotated[str, typer.Argument(metavar="STEP", help="A step that keeps state: see millstream jobs list.")],
    key: Annotated[
        list[str] | None, typer.Option("--key", metavar="COLUMN=VALUE", help="Only rows of this key; repeatable.")
    ] = None,
    batches: Annotated[
        int, typer.Option(min=0, max=20, metavar="N", help="Instead, show what each of the newest N batches changed.")
    ] = 0,
) -> None:
    """Show the rows that a step of a job keeps, after its newest batch. It reads them with Spark.

    \b
    Example:
      millstream jobs state team-scores scores.agg-1f6b0c --key team=red
      millstream jobs state team-scores scores.agg-1f6b0c --key team=red --batches 5
    """
    found = _saved(session).state(name, step, parameters(key), batches)
    if batches and not session.json:
        _show_changes(session, found["batches"])
        return
    for table, rows in found["tables"].items() if not session.json else ():
        for row in rows:
            show_details(session, {"table": table, **{name: _cell(value) for name, value in row.items()}}, document=row)
    if session.json:
        show_details(session, {}, document=found)


def _show_changes(session: Session, batches: list[dict[str, Any]]) -> None:
    """A line for each row that a batch changed, the newest batch first."""
    rows: list[tuple[Any, ...]] = []
    for each in batches:
        for table, found in each["tables"].items():
            rows += [
                (each["batch"], table, WORDS[row["what"]], *(_cell(row[side]) for side in ("old", "new")))
                for row in found["rows"]
            ]
    show_table(session, ["batch", "table", "row", "before", "after"], rows, document=batches, empty="no changes")


def _saved(session: Session) -> Jobs | SavedJobs:
    """By the supervisor, which keeps an audit, or else by this process."""
    try:
        jobs = supervisor_of(session)
        jobs.list()
        return jobs
    except (NotFound, SourceUnavailable):
        from millstream.jobs.versions.saved_jobs import SavedJobs
        from millstream.log import chosen_address
        from millstream.supervision.home import Home

        return SavedJobs(Home.of(chosen_address(session.address)).jobs)


def _cell(value: Any) -> str | int | None:
    return value if value is None or isinstance(value, int) else str(value)
