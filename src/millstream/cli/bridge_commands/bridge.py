"""`millstream bridge`: runs the bridges of a file, and lists those that run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.bridge_commands.stopping import on_stop
from millstream.cli.failures import NOT_FOR_ALL
from millstream.cli.output import show_note, show_table
from millstream.cli.session import Session, subcommands


def register(app: typer.Typer) -> None:
    subcommands(app, "bridge", "Run many bridges at once, and see what they do.", run, list_bridges)


def run(
    session: Session, file: Annotated[Path, typer.Argument(metavar="FILE", help="A TOML file: [bridges.NAME].")]
) -> None:
    """Run all bridges of a file until Ctrl-C; each is a process of its own, and started again when it fails.

    A table of the file has the options of `millstream listen`, by their names.

    \b
    Example:
      millstream bridge run bridges.toml
    """
    from millstream.bridges.fleet import Fleet, read_fleet

    fleet = Fleet(read_fleet(file), session.existing(), show_note, reports=_reports(session))
    on_stop(fleet.stop)
    fleet.run()
    if fleet.given_up:
        raise typer.Exit(NOT_FOR_ALL)


def list_bridges(session: Session) -> None:
    """List the bridges of this log, with their rates, and what waits: those that run, and those that failed today.

    \b
    Example:
      millstream bridge list --json | jq '.[] | select(.state != "running")'
    """
    from millstream.bridges.reports import read_reports

    found = read_reports(_reports(session))
    rows = [
        (
            each["name"],
            each["kind"],
            ", ".join(each["topics"]) or None,
            each["state"],
            f"{each['per_s']:.1f}",
            each["waiting"],
            None if each["behind"] is None else f"{each['behind']['amount']:,.0f} {each['behind']['unit']}",
            each["stored"],
            each["dead"],
            each["reason"],
        )
        for each in found
    ]
    titles = ["bridge", "kind", "topics", "state", "per second", "waiting", "behind", "stored", "dead", "reason"]
    show_table(session, titles, rows, document=found, empty=session.nothing("bridges that run"))


def _reports(session: Session) -> Path:
    from millstream.bridges.reports import reports_folder
    from millstream.log import chosen_address, log_folder

    address = chosen_address(session.address)
    folder = log_folder(address)
    return reports_folder(address if folder is None else folder.absolute())
