"""The root command, and the options that all commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from millstream.cli.commands import Millstream
from millstream.cli.failures import EXIT_CODES
from millstream.cli.session import AsJson, LogAddress, Session

EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())

# Plain help: it reads the same on a terminal and in a pipe, and renders instantly.
app = typer.Typer(
    cls=Millstream,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=EPILOG,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"millstream {version('millstream')}")
        except PackageNotFoundError:
            typer.echo("millstream (not installed: run from its source)")
        raise typer.Exit


@app.callback()
def millstream(
    ctx: typer.Context,
    log: LogAddress = None,
    as_json: AsJson = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Run flows on Spark, and work with the topics, producers, consumers and queues of a Millstream log.

    \b
    Example:
      millstream topics create scores --schema "user string, team string, score int"
      cat events.jsonl | millstream produce scores --key team
      millstream consume scores | head -3
      millstream run flow.py
    """
    ctx.obj = Session(address=log, json=as_json)
