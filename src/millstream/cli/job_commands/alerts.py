"""`millstream alerts`: where alerts are sent to, what holds now, and a test of it."""

from __future__ import annotations

from typing import Annotated

import typer

from millstream.cli.job_commands.supervised import supervisor_of, time_text
from millstream.cli.output import Cell, show_note, show_table
from millstream.cli.session import Session, subcommands


def register(app: typer.Typer) -> None:
    subcommands(app, "alerts", "List and test the alerts of the supervisor.", list_alerts, test)


def list_alerts(session: Session) -> None:
    """List the rules and targets of the supervisor's alerts, and the rules that hold now.

    \b
    Example:
      millstream alerts list
    """
    found = supervisor_of(session).alerts()
    rows: list[list[Cell]] = []
    for rule in found["rules"]:
        held = [each for each in found["active"] if each["rule"] == rule["rule"]]
        shown = ", ".join(f"{each['job']} since {time_text(each['since'])}" for each in held)
        rows.append([rule["rule"], ", ".join(rule["jobs"]) or None, ", ".join(rule["to"]) or None, shown or None])
    show_table(session, ["rule", "jobs", "to", "holds for"], rows, document=found, empty="there are no rules")
    if session.json:
        return
    if found["error"]:
        show_note(found["error"])
    for database in found["databases"]:
        if database["error"]:
            show_note(f"the slots of {database['name']} ({database['address']}) are not known: {database['error']}")
    for target in found["targets"]:
        state = f"fails: {target['error']}" if target["failures"] else "works, as far as is known"
        show_note(f"{target['name']} ({target['target']}): {state}")


def test(
    session: Session,
    target: Annotated[str | None, typer.Argument(metavar="[TARGET]", help="Default: all.")] = None,  # noqa: PT028 - no test
) -> None:
    """Send a test message to a target of the supervisor's alerts, or to all.

    \b
    Example:
      millstream alerts test
    """
    results = supervisor_of(session).test_alerts(target)
    rows: list[list[Cell]] = [[each["target"], "sent" if each["sent"] else each["error"]] for each in results]
    show_table(session, ["target", "result"], rows, document=results, empty="there are no targets")
    if not all(each["sent"] for each in results):
        raise typer.Exit(1)
