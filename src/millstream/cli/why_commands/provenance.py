"""`millstream provenance`: what the batches of a job read and wrote, from the events in its topic."""

from __future__ import annotations

import time
from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.job_commands.metrics import Folder, JobName, Step
from millstream.cli.output import Cell, show_note, show_table
from millstream.cli.session import Session, command
from millstream.errors import InvalidInput, MillstreamError

if TYPE_CHECKING:
    from collections.abc import Sequence

TITLES = ["batch", "at", "step", "in", "out", "late", "dead", "offsets"]
TASK_TITLES = ["batch", "step", "task", "read", "late", "dead", "offsets", "out"]


def register(app: typer.Typer) -> None:
    command(app, "provenance")(provenance)


def provenance(
    session: Session,
    name: JobName,
    step: Step = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only batches since this time, or since so long: '1 hour'.")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="Only steps that read or wrote this topic.")] = None,
    partition: Annotated[int | None, typer.Option(help="Only steps that read or wrote this partition.")] = None,
    offset: Annotated[
        int | None, typer.Option(help="Only steps that read or wrote the record with this offset.")
    ] = None,
    tasks: Annotated[bool, typer.Option("--tasks", help="Show single tasks and key groups.")] = False,
    limit: Annotated[int, typer.Option(help="The newest so many lines.", min=1)] = 100,
    folder: Folder = None,
) -> None:
    """Show what the batches of a job read, how many rows each step had, and what was written where.

    \b
    Example:
      millstream provenance team-scores --since "1 hour"
      millstream provenance team-scores --topic totals --partition 0 --offset 12 --json
    """
    from millstream.cli.job_commands.jobs import job_folder
    from millstream.provenance.events import Search, events_of

    search = Search(step, None if since is None else _instant(since), topic, partition, offset)
    job = job_folder(session, name, folder)
    found: deque[dict[str, Any]] = deque(maxlen=limit)
    count = 0
    with session.log() as log:
        for each in search.found(events_of(log, job)):
            found.append(each)
            count += 1
    rows = [row for each in found for row in (_of_tasks(each) if tasks else [_of_step(each)])]
    titles = TASK_TITLES if tasks else TITLES
    empty = f"no recorded batch of '{name}' fits" if any((step, since, topic, offset is not None)) else ""
    show_table(session, titles, rows, document=list(found), empty=empty or f"'{name}' has no recorded batch")
    if count > len(found) and not session.json:
        show_note(f"the newest {len(found):,} of {count:,}; --limit shows more")


def _instant(since: str) -> float:
    from millstream.records import duration

    next_step = "for example --since 2026-01-31T12:00:00Z, or --since '1 hour'"
    try:
        found = datetime.fromisoformat(since)
    except ValueError:
        try:
            return time.time() - duration(since, what="since").total_seconds()
        except MillstreamError:
            raise InvalidInput(f"'{since}' is no time", next_step=next_step) from None
    if found.tzinfo is None:
        raise InvalidInput(f"the time '{since}' has no time zone", next_step=next_step)
    return found.timestamp()


def _of_step(found: dict[str, Any]) -> Sequence[Cell]:
    from millstream.provenance.events import range_text

    rows = [found[each] for each in ("rows_in", "rows_out", "rows_late", "rows_dead")]
    return [found["batch"], found["at"][:19] + "Z", found["step"], *rows, range_text(found["ranges"]) or None]


def _of_tasks(found: dict[str, Any]) -> list[Sequence[Cell]]:
    from millstream.provenance.events import range_text

    made: list[Sequence[Cell]] = []
    for task in found["tasks"]:
        rows = [task[each] for each in ("rows", "late", "dead")]
        out = ", ".join(f"{step}: {count}" for step, count in task["rows_out"].items())
        places = range_text([{"topic": None, **each} for each in task["read"]])
        made.append([found["batch"], found["step"], task["task"], *rows, places or None, out or None])
    return made
