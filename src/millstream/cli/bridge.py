"""`millstream bridge run`: runs the bridges of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.failures import NOT_FOR_ALL
from millstream.cli.output import show_note
from millstream.cli.session import Session, subcommands


def register(app: typer.Typer) -> None:
    subcommands(app, "bridge", "Run many bridges at once.", run)


def run(
    session: Session, file: Annotated[Path, typer.Argument(metavar="FILE", help="A TOML file: [bridges.NAME].")]
) -> None:
    """Run all bridges of a file until Ctrl-C; each is a process of its own, and started again when it fails.

    A table of the file has the options of `millstream listen`, by their names.

    \b
    Example:
      millstream bridge run bridges.toml
    """
    import signal

    from millstream.bridges.fleet import Fleet, read_fleet

    fleet = Fleet(read_fleet(file), session.existing(), show_note)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: fleet.stop())
    fleet.run()
    if fleet.given_up:
        raise typer.Exit(NOT_FOR_ALL)
