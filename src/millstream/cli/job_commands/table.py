"""`millstream table`: prints or serves over HTTP the current rows of tables that jobs write."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from millstream.cli.failures import warn
from millstream.cli.output import show_note, show_table
from millstream.cli.passwords import database_address
from millstream.cli.session import AllowedHosts, Session, subcommands
from millstream.terminal import escaped_bytes, is_terminal

TableName = Annotated[str, typer.Argument(metavar="NAME", help="The name of a topic or of a database table.")]
Address = Annotated[
    str | None,
    typer.Option("--at", metavar="ADDRESS", help="The address of the Postgres database, without a password."),
]
AddressVariable = Annotated[
    str | None,
    typer.Option(
        "--at-env", metavar="NAME", help="The environment variable with the whole address, including the password."
    ),
]
AddressFile = Annotated[
    Path | None,
    typer.Option("--at-file", metavar="FILE", help="The file with the whole address, including the password."),
]


def register(app: typer.Typer) -> None:
    subcommands(app, "table", "Look up the current row of a key in a table that a job writes.", list_tables, get, serve)


def list_tables(session: Session) -> None:
    """List the tables that jobs write, and compacted topics.

    \b
    Example:
      millstream table list
    """
    from millstream.serving import Tables

    known = {}
    if not session.missing_folder():
        with session.log() as log:
            known = Tables(log).known()
    show_table(
        session,
        ["table", "kind", "key", "job", "where"],
        [(name, table.kind, ", ".join(table.key), table.job, table.where) for name, table in known.items()],
        document=[
            {"name": name, "kind": table.kind, "key": table.key, "job": table.job, "where": table.where}
            for name, table in known.items()
        ],
        empty=session.nothing("tables"),
    )


def get(
    session: Session,
    name: TableName,
    key: Annotated[
        list[str], typer.Argument(metavar="KEY…", help="A value, COLUMN=VALUE for each column, or a JSON object.")
    ],
    at: Address = None,
    at_env: AddressVariable = None,
    at_file: AddressFile = None,
) -> None:
    """Print the current row of a key as JSON, on one line.

    This also returns the newest record of a key in any topic. The password of a Postgres database comes from
    PGPASSWORD, from ~/.pgpass, or with the whole address from --at-env or --at-file.

    \b
    Example:
      millstream table get totals red
      millstream table get places region=north rank=1
      millstream table get places '{"region": "north", "rank": 1}'
    """
    from millstream.cli.rendering import write_lines
    from millstream.serving import Tables

    address = database_address(session, at, at_env, at_file)
    with session.log() as log:
        tables = Tables(log, at=address, follows=False)
        try:
            asked = as_key(key, tables.open(name).key)
            row = tables.row(name, asked).json()
            write_lines([escaped_bytes(row) if is_terminal(sys.stdout) else row])
        finally:
            tables.close()


def as_key(given: Sequence[str], columns: Sequence[str]) -> Any:
    """Ambiguous text is an object or COLUMN=VALUE only if it names key columns."""
    if len(given) == 1:
        try:
            document = json.loads(given[0])
        except ValueError:
            document = None
        if isinstance(document, dict) and (len(columns) > 1 or list(document) == list(columns)):
            return document
    pairs = dict(text.partition("=")[::2] for text in given if "=" in text)
    if len(pairs) == len(given) and (len(columns) > 1 or list(pairs) == list(columns)):
        return pairs
    return given[0] if len(given) == 1 else list(given)


def serve(
    session: Session,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME…]", help="Serve only these; default: all tables of jobs.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on; a token is required unless it is loopback.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 8080,
    allowed_host: AllowedHosts = None,
    token_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="A file of mode 600 with the token that clients must send; default: $MILLSTREAM_TOKEN."
        ),
    ] = None,
    max_tables: Annotated[int, typer.Option(min=1, help="How many tables can be open at once.")] = 64,
    index_mb: Annotated[int, typer.Option(min=1, help="Total memory for the indexes of topics.")] = 1024,
    subscribe: Annotated[
        bool, typer.Option("--subscribe", help="Let clients read all rows of a table and follow its changes.")
    ] = False,
    at: Address = None,
    at_env: AddressVariable = None,
    at_file: AddressFile = None,
) -> None:
    """Serve the current rows of tables over HTTP until Ctrl-C.

    Needs: pip install 'millstream[serve]'

    \b
    Example:
      millstream table serve --port 8080
      curl http://127.0.0.1:8080/tables/totals/red
      millstream table serve totals --host 192.0.2.7 --token-file token
      millstream table serve totals --subscribe
      curl -N http://127.0.0.1:8080/changes/totals
    """
    from millstream.serving import Tables, http
    from millstream.serving.access import Access, ListenAddress, read_token
    from millstream.serving.served import Served

    http.check_installed()
    listen_address = ListenAddress.of(host, port)
    access = Access.at(listen_address, allowed_hosts=allowed_host or [], token=read_token(token_file, os.environ))
    address = database_address(session, at, at_env, at_file)
    with session.log() as log:
        served = Served(Tables(log, at=address), names or [], tables_max=max_tables, index_bytes_max=index_mb << 20)
        with http.listening(listen_address) as taken, closing(served):
            if not listen_address.is_local:
                warn(
                    "this is plain HTTP: anyone on the network path can read the token and the rows; put a TLS "
                    "proxy in front of it",
                    as_json=session.json,
                )
            shown = f"[{host}]" if ":" in host else host
            number = taken.getsockname()[1]
            show_note(f"tables are served at http://{shown}:{number}/tables until Ctrl-C")
            http.serve(served, taken, access, subscribe=subscribe)
