"""`millstream bench`: the project's benchmarks, which are in its repository next to the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.session import Session, subcommands
from millstream.errors import NotFound

NEXMARK = Path("benchmarks", "nexmark", "run.py")


def register(app: typer.Typer) -> None:
    subcommands(app, "bench", "Compare Millstream with others on this machine.", nexmark)


def nexmark(
    session: Session,
    query: Annotated[str | None, typer.Option(metavar="q4,q7", help="Only these queries.")] = None,
    events: Annotated[str | None, typer.Option(metavar="10m", help="Number of events; default: 10m.")] = None,
    peer: Annotated[
        str | None, typer.Option(metavar="spark,flink", help="The peers: spark, flink or none; default: both.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer queries and events, in under a minute.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Output folder for charts and figures.")] = None,
) -> None:
    """Run the Nexmark queries on Millstream, plain Spark and Flink SQL, and compare rows, speed and memory.

    The rows of every engine are compared with those of DuckDB. The last line is one JSON document.

    \b
    Example:
      millstream bench nexmark --quick
      millstream bench nexmark --query q4 --events 10m --peer spark,flink
    """
    given = {"--query": query, "--events": events, "--peer": peer, "--out": None if out is None else str(out)}
    options = [word for name, value in given.items() if value is not None for word in (name, value)]
    options += [name for name, wanted in (("--quick", quick), ("--json", session.json)) if wanted]
    done = subprocess.run([sys.executable, str(script(NEXMARK)), *options], check=False)
    if done.returncode:
        raise typer.Exit(done.returncode)


def script(place: Path) -> Path:
    """The path of a benchmark: in the working directory or above it, or in the checkout of the package."""
    here = Path.cwd()
    checkout = Path(__file__).resolve().parents[4]
    for root in (here, *here.parents, checkout):
        if (root / place).is_file():
            return root / place
    raise NotFound(
        "the benchmarks are not part of the installed package, and there is no checkout of it here",
        where=f"no {place} in '{here}' or above it",
        next_step="clone Millstream's repository and run the command there",
    )
