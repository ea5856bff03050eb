"""The root command: registers all commands and the options they share."""

from __future__ import annotations

from typing import Annotated

import typer

from millstream.cli.bridge_commands import bridge, capture, follow, listen
from millstream.cli.failures import EXIT_CODES, Root
from millstream.cli.job_commands import accounts, alerts, bench, init, jobs, metrics, pack, run, table, up
from millstream.cli.session import AsJson, LogAddress, Session
from millstream.cli.topic_commands import consume, groups, produce, queues, switch, tail, topics
from millstream.cli.why_commands import dead_letters, provenance, trace, why

EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())

# Plain help: it reads the same on a terminal and in a pipe, and renders instantly.
app = typer.Typer(
    cls=Root,
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


for module in (
    *(init, run, up, jobs, accounts, metrics, why, trace, provenance, dead_letters, alerts, table),
    *(topics, produce, consume, tail, groups, queues, switch, listen, bridge, capture, follow, pack, bench),
):
    module.register(app)
