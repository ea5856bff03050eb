"""`millstream jobs reload`, `upgrade`, `rollback` and `upgrades`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from millstream.cli.job_commands.supervised import JobName, parameters, supervisor_of, time_text
from millstream.cli.output import ask, show_done, show_note, show_table
from millstream.cli.session import Session

KINDS = ("same", "changed", "only old", "only new")
SHOWN = 20
NewFile = Annotated[Path, typer.Argument(metavar="FILE", help="A Python file with the new flow.")]
Map = Annotated[
    list[str] | None, typer.Option("--map", metavar="OLD=NEW", help="The new name of a renamed step; repeatable.")
]


def upgrade(
    session: Session,
    name: JobName,
    file: NewFile,
    map: Map = None,
    allow_dropped: Annotated[bool, typer.Option("--allow-dropped", help="Even if state is lost.")] = False,
    watch: Annotated[
        str | None,
        typer.Option(metavar="'10 minutes'", help="Go back by itself if it fails or falls behind within this time."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only show what becomes of each step.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the prompt.")] = False,
) -> None:
    """Continue a job with another flow, on the state it has. Shows first what becomes of each step.

    \b
    Example:
      millstream jobs upgrade team-scores flow_v2.py --check
      millstream jobs upgrade team-scores flow_v2.py --map sums=totals --watch "10 minutes"
    """
    jobs, renamed = supervisor_of(session), parameters(map)
    plan = jobs.upgrade(name, file, map=renamed, check=True)
    if check or not session.json:
        _show_plan(session, plan)
    if check:
        return
    if not plan["dropped"] or allow_dropped:
        ask(f"Upgrade '{name}'?", yes=yes)
    begun = jobs.upgrade(name, file, map=renamed, allow_dropped=allow_dropped, watch=watch)
    show_done(session, f"upgrading '{name}'; how it was is the savepoint '{begun['savepoint']}'", document=begun)


def rehearse(
    session: Session,
    name: JobName,
    file: NewFile,
    last: Annotated[str, typer.Option(metavar="'1 hour'", help="The time span whose results are compared.")] = "1 hour",
    map: Map = None,
) -> None:
    """Run a job's flow and a new one from a savepoint over the same records, and compare the results row by row.

    Nothing is written: neither the job nor its outputs are touched.

    \b
    Example:
      millstream jobs rehearse team-scores flow_v2.py --last "1 hour"
    """
    found = supervisor_of(session).rehearse(name, file, last=last, map=parameters(map))
    rows = [(each["output"], *(each["counts"][kind] for kind in KINDS)) for each in found["outputs"]]
    show_table(session, ["output", *KINDS], rows, document=found, empty="neither flow has an output")
    if session.json:
        return
    for each in found["outputs"]:
        for row in each["rows"][:SHOWN]:
            parts = [f"{side}: {json.dumps(row[side])}" for side in ("old", "new") if row[side] is not None]
            show_note(f"{each['output']}, {row['what']}: {'; '.join(parts)}")
    show_note(
        f"compared since {found['since']}, {found['records']:,} records, from the savepoint '{found['savepoint']}'"
    )


def reload(session: Session, name: JobName) -> None:
    """Give a running app the flows that its file has now, without a restart of the others.

    New flows are added, and those that the file no longer has are removed. A flow that has changed continues as it was.

    \b
    Example:
      millstream jobs reload leaderboards
    """
    done = supervisor_of(session).reload(name)
    lines = [f"{what}: {', '.join(done[what])}" for what in ("added", "removed") if done[what]]
    if done["changed"]:
        lines.append(f"changed, but continued as before: {', '.join(done['changed'])}; millstream jobs restart {name}")
    show_done(session, *(lines or [f"'{name}' has the flows of its file already"]), document=done)


def rollback(session: Session, name: JobName) -> None:
    """Go back to the code and the state that a job had before its last upgrade.

    Outputs keep what the new flow has written, and get nothing twice.

    \b
    Example:
      millstream jobs rollback team-scores
    """
    begun = supervisor_of(session).rollback(name)
    show_done(session, f"'{name}' goes back to the savepoint '{begun['savepoint']}'", document=begun)


def upgrades(session: Session, name: JobName) -> None:
    """List the upgrades of a job, the newest first."""
    found = supervisor_of(session).upgrades(name)
    rows = [
        (
            time_text(each["started"]),
            each["phase"],
            each["file"],
            each["savepoint"],
            each["reason"],
        )
        for each in found
    ]
    columns = ["started", "phase", "file", "savepoint", "reason"]
    show_table(session, columns, rows, document=found, empty=f"'{name}' was never upgraded")


def _show_plan(session: Session, plan: dict[str, Any]) -> None:
    rows = [(each["step"], each["change"], each["details"] or None) for each in plan["steps"]]
    shown = {part: value for part, value in plan.items() if part != "description"}
    show_table(session, ["step", "what happens", "details"], rows, document=shown, empty="no step keeps state")
    for what, part in (("new outputs", "new_outputs"), ("outputs that end", "ended_outputs")):
        if plan[part] and not session.json:
            show_note(f"{what}: {', '.join(plan[part])}")
