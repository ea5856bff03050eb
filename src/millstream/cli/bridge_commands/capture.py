"""`millstream capture`: the rows of database tables, and every change of them, into topics."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.output import count_text, show_done, show_note, show_table
from millstream.cli.progress import ImportProgress
from millstream.cli.session import Session, subcommands
from millstream.errors import InvalidInput

if TYPE_CHECKING:
    from pyarrow import DataType

    from millstream.capture.capturing import Capture
    from millstream.capture.ports import Removable
    from millstream.log import Broker

Tables = Annotated[
    list[str] | None,
    typer.Option("--table", metavar="TABLE[=TOPIC]", help="A table, and its topic; default: its name. Repeatable."),
]
TablesOrAll = Annotated[
    list[str] | None,
    typer.Option(
        "--table",
        metavar="TABLE[=TOPIC]",
        help="A table, and its topic; default: its name. Repeatable. Without any: all tables.",
    ),
]
Into = Annotated[str | None, typer.Option("--into", metavar="ADDRESS", help="The log with the topics; like --log.")]
Name = Annotated[
    str | None, typer.Option(help="Identifies the capture, which continues under its name; default: by the database.")
]
Partitions = Annotated[int, typer.Option(min=1, help="Of new topics; changes of a key are in the same one.")]
UntilCaughtUp = Annotated[
    bool, typer.Option("--until-caught-up", help="Stop when everything that is in the database now is captured.")
]
Remove = Annotated[
    bool, typer.Option("--remove", help="Remove what the capture has created in the database; its topics stay.")
]
ColumnTypes = Annotated[
    list[str] | None,
    typer.Option("--type", metavar="TABLE.COLUMN=TYPE", help="The type of a column in its topic. Repeatable."),
]


def register(app: typer.Typer) -> None:
    subcommands(
        app,
        "capture",
        "Capture the rows of database tables, and every change of them.",
        sqlite_tables,
        postgres_tables,
        mariadb_tables,
        add_to_captures,
        outbox_events,
        slots_of_captures,
    )


def sqlite_tables(
    session: Session,
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The database.")],
    table: TablesOrAll = None,
    into: Into = None,
    name: Name = None,
    partitions: Partitions = 1,
    type: ColumnTypes = None,
    until_caught_up: UntilCaughtUp = False,
    remove: Remove = False,
) -> None:
    """Capture tables of a SQLite database into topics, until Ctrl-C.

    Each table becomes a topic: first all its rows, then every change. Triggers in the database record the changes, and
    are there until --remove: changes between two runs are captured, too.

    \b
    Example:
      millstream capture sqlite app.db
      millstream capture sqlite app.db --table orders --table customers=shop.customers
      millstream capture sqlite app.db --remove
    """
    from millstream.capture.sqlite.database import SqliteDatabase

    opened = partial(SqliteDatabase, path, types=_types(type))
    chosen = name or path.stem
    if remove:
        _remove(session, opened({}, chosen), chosen)
    else:
        _run(session, into, until_caught_up, _capturing(table, chosen, opened, partitions))


def postgres_tables(
    session: Session,
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="Of the database: postgresql://user@host/database.")
    ],
    table: TablesOrAll = None,
    into: Into = None,
    name: Name = None,
    partitions: Partitions = 1,
    type: ColumnTypes = None,
    messages: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="Capture logical messages (pg_logical_emit_message) into this topic, too."),
    ] = None,
    until_caught_up: UntilCaughtUp = False,
    remove: Remove = False,
) -> None:
    """Capture tables of a Postgres database into topics, until Ctrl-C.

    Each table becomes a topic: first all its rows, then every change, by logical replication. A replication slot keeps
    changes between two runs on the server, and uses its disk, until --remove.

    Needs: pip install 'millstream[postgres]'. A password is better in PGPASSWORD or a .pgpass file.

    \b
    Example:
      millstream capture postgres postgresql://shop@db/shop --table orders --table sales.items=items
      millstream capture postgres postgresql://shop@db/shop --remove
    """
    from millstream.capture.postgres.connections import database_name
    from millstream.capture.postgres.database import PostgresDatabase
    from millstream.connectors.databases.endpoints import checked_address

    dsn = checked_address(address, "postgresql://user@host/database")
    opened = partial(PostgresDatabase, dsn, types=_types(type), messages=messages)
    chosen = name or database_name(dsn)
    if remove:
        _remove(session, opened({}, chosen), chosen)
    else:
        _run(session, into, until_caught_up, _capturing(table, chosen, opened, partitions))


def mariadb_tables(
    session: Session,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="Of the database: mariadb://user@host/database.")],
    table: TablesOrAll = None,
    into: Into = None,
    name: Name = None,
    partitions: Partitions = 1,
    type: ColumnTypes = None,
    until_caught_up: UntilCaughtUp = False,
) -> None:
    """Capture tables of a MariaDB database into topics, until Ctrl-C.

    Each table becomes a topic: first all its rows, then every change, by the binary log of the server. Nothing is
    created in the database; the server keeps its binary log for as long as it is configured to.

    Needs: pip install 'millstream[mariadb]'. A password is better in MYSQL_PWD.

    \b
    Example:
      millstream capture mariadb mariadb://shop@db/shop --table orders --table sales.items=items
    """
    from millstream.capture.mariadb.address import parsed
    from millstream.capture.mariadb.database import MariadbDatabase

    chosen = name or parsed(address).database
    opened = partial(MariadbDatabase, address, types=_types(type))
    _run(session, into, until_caught_up, _capturing(table, chosen, opened, partitions))


def add_to_captures(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the capture: --name, or that of the database.")],
    table: Tables = None,
    into: Into = None,
    wait: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="For the answer of the capture.")] = 10.0,
) -> None:
    """Add tables to a capture while it runs.

    It reads their rows beside the changes of the others, and has them from then on. If it does not run, it adds them
    when it is started again.

    \b
    Example:
      millstream capture add shop --table items --table sales.refunds=refunds
    """
    from millstream.capture.adding import add_to_capture

    tables = _tables(table)
    session = replace(session, address=into or session.address)
    with session.log() as log:
        is_added = add_to_capture(log, name, tables, wait_s=wait)
    listed = ", ".join(tables)
    said = f"capture '{name}' has {listed} now" if is_added else f"capture '{name}' will add {listed} when it runs"
    show_done(session, said, document={"capture": name, "tables": list(tables), "added": is_added})


def outbox_events(
    session: Session,
    address: Annotated[
        str,
        typer.Argument(metavar="ADDRESS", help="postgresql://user@host/database, or a SQLite file."),
    ],
    table: Annotated[str, typer.Option(help="The outbox.")] = "outbox",
    keep: Annotated[bool, typer.Option("--keep", help="Leave the rows of events that were sent in the table.")] = False,
    into: Into = None,
    name: Name = None,
    partitions: Partitions = 1,
    until_caught_up: UntilCaughtUp = False,
    remove: Remove = False,
) -> None:
    """Send the events of an outbox to the topics that they name, each once, until Ctrl-C.

    An application inserts events in its own transactions, with ms.outbox(…).put; create() makes the table. Events that
    were sent are deleted from it.

    \b
    Example:
      millstream capture outbox postgresql://shop@db/shop
      millstream capture outbox shop.db --until-caught-up
    """
    from millstream.capture.outbox import OutboxCapture, outbox

    box = outbox(address, table=table, keep=keep)
    chosen = name or box.default_name
    if remove:
        _remove(session, box.store.opener()(chosen), chosen)
    else:
        _run(session, into, until_caught_up, partial(OutboxCapture, box, name=chosen, partitions=partitions))


def slots_of_captures(
    session: Session,
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="Of the database: postgresql://user@host/database.")
    ],
    limit: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Fail if the server keeps more for a slot, such as 10GB."),
    ] = None,
) -> None:
    """Show what a Postgres server keeps for captures: how much of its change log, and how far each is behind.

    With --limit the exit code says whether something must be done, for a monitoring system or cron.

    \b
    Example:
      millstream capture slots postgresql://shop@db/shop --limit 10GB
    """
    from dataclasses import asdict

    from millstream.capture.postgres.slots import check, slots
    from millstream.connectors.databases.endpoints import checked_address
    from millstream.records import size_bytes

    dsn = checked_address(address, "postgresql://user@host/database")
    limit_bytes = None if limit is None else size_bytes(limit)
    found = slots(dsn)
    rows = [
        (slot.name, "yes" if slot.is_active else "no", slot.status, f"{slot.retained_bytes:,}", f"{slot.lag_bytes:,}")
        for slot in found
    ]
    columns = ["slot", "is read", "status", "retained bytes", "lag bytes"]
    document = [asdict(slot) for slot in found]
    show_table(session, columns, rows, document=document, empty="no capture has a slot in this database")
    if limit_bytes is not None:
        check(dsn, found, limit_bytes)


def _capturing(
    table: list[str] | None, name: str, opened: Callable[..., Removable], partitions: int
) -> Callable[[Broker], Capture]:
    """Captures the named tables, or without any, all of them."""
    from millstream.capture.capturing import Capture

    tables = _tables(table) if table else {}
    return partial(Capture, name=name, opened=partial(opened, tables), partitions=partitions, every_table=not table)


def _remove(session: Session, database: Removable, name: str) -> None:
    try:
        found = database.remove()
    finally:
        database.close()
    what = f"removed capture '{name}' from" if found else f"there is no capture '{name}' in"
    show_done(session, f"{what} {database.where}", document={"capture": name, "removed": found})


def _run(session: Session, into: str | None, until_caught_up: bool, capturing: Callable[[Broker], Capture]) -> None:
    session = replace(session, address=into or session.address)
    with session.log(create=True) as log, capturing(log) as capture, stopping() as stop:
        if capture.has_every_table:
            show_note(f"tables: {', '.join(capture.tables)}")
        shown = SnapshotProgress(capture)
        try:
            if until_caught_up:
                capture.catch_up(stop, shown.show)
            else:
                show_note(f"capturing {capture.database.where} until Ctrl-C; the next run continues there")
                capture.run(stop, shown.show)
        finally:
            shown.close()
        said = f"captured {count_text(capture.changes, 'change')}"
        show_done(session, said, document={"capture": capture.name, "changes": capture.changes})


class SnapshotProgress:
    """How much of a table was captured, while its snapshot is being read."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._table: str | None = None
        self._bar: ImportProgress | None = None

    def show(self) -> None:
        """Called after each step."""
        found = self._capture.database.progress(self._capture.position)
        if (found and found.table) != self._table:
            self.close()
            self._table = found and found.table
            self._bar = (
                None if found is None else ImportProgress(f"snapshot of {found.table}", found.total, unit="rows")
            )
        if found is not None and self._bar is not None:
            self._bar.show(found.rows, found.rows)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM end the capture after its current step."""
    stop = threading.Event()
    before = {each: signal.signal(each, lambda *_: stop.set()) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _tables(given: list[str] | None) -> dict[str, str]:
    if not given:
        raise InvalidInput("no table is named", next_step="add --table TABLE, once for each")
    return {table: topic or table for table, topic in _pairs(given, "TABLE[=TOPIC]", optional=True)}


def _types(given: list[str] | None) -> dict[tuple[str, str], DataType]:
    from millstream.capture.endpoints import column_types

    return column_types(dict(_pairs(given or [], "TABLE.COLUMN=TYPE")))


def _pairs(given: list[str], form: str, *, optional: bool = False) -> Iterator[tuple[str, str]]:
    for text in given:
        left, separator, right = text.partition("=")
        if not left or (separator and not right) or not (separator or optional):
            raise InvalidInput(f"{text!r} is not {form}")
        yield left, right
