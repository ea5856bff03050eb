"""A price in two places: written twice, captured, sent by an outbox, and committed in two phases.

No write fails in the first part, and neither program has a bug that a test of it alone would find: two writes have
another order in the other place. A program that dies between its two writes would have the same result.

    python examples/dual_writes.py
    python examples/dual_writes.py postgresql://user@here/shop postgresql://user@there/shop

The last part needs two Postgres databases, on servers with max_prepared_transactions > 0.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Event, Thread

import pyarrow as pa
from rich.console import Console
from rich.table import Table

import millstream as ms
from millstream.connectors.databases.two_phase import TwoPhaseTables
from millstream.connectors.opening import open_sink
from millstream.errors import MillstreamError
from millstream.records import Schema

Prices = dict[str, float]
COSTS = {
    "two writes": ("nothing", "agree after a crash, or with two writers"),
    "captured": ("a process that runs; the copy is behind by a moment", "tell why a row has changed"),
    "outbox": ("an insert and a deletion for each event", "have an event without a write to the database"),
    "two phases": (
        "two more round trips to each database; rows stay locked until all have voted",
        "go on while one of the databases is away; write to an index or a cache",
    ),
}


class Shop:
    """A database, which is the truth, and an index, which is a copy of it."""

    def __init__(self, folder: Path) -> None:
        self.database = folder / "shop.db"
        self.index: Prices = {}
        self.outbox = ms.outbox(self.database)
        self.outbox.create()
        with closing(sqlite3.connect(self.database)) as db, db:
            db.execute("CREATE TABLE prices (item TEXT PRIMARY KEY, price REAL)")
            db.execute("INSERT INTO prices VALUES ('tea', 3), ('milk', 1)")

    def set_price(self, item: str, price: float, *, with_event: bool = False) -> None:
        with closing(sqlite3.connect(self.database)) as db, db:
            db.execute("UPDATE prices SET price = ? WHERE item = ?", (price, item))
            if with_event:
                self.outbox.put(db, "price-changed", {"item": item, "price": price}, key=item)

    def prices(self) -> Prices:
        with closing(sqlite3.connect(self.database)) as db:
            return dict(db.execute("SELECT item, price FROM prices ORDER BY item").fetchall())


# ---------------------------------------------------------------- two writes


def write_twice(shop: Shop) -> None:
    """Both programs write to the database, then to the index; the first is slow in between."""
    shop.index |= shop.prices()
    is_written, is_done = Event(), Event()

    def slow() -> None:
        shop.set_price("tea", 4)
        is_written.set()
        is_done.wait()
        shop.index["tea"] = 4

    def quick() -> None:
        is_written.wait()
        shop.set_price("tea", 5)
        shop.index["tea"] = 5
        is_done.set()

    programs = [Thread(target=slow), Thread(target=quick)]
    for program in programs:
        program.start()
    for program in programs:
        program.join()


# ---------------------------------------------------------------- one write, and the rest follows


def follow(shop: Shop, log: Path) -> None:
    """Puts what the database has committed into a topic, and the topic into the index."""
    _capture(log, "sqlite", str(shop.database), "--table", "prices")
    with ms.connect(str(log)) as opened, opened.consumer("prices", group="index") as consumer:
        while changes := consumer.poll(timeout=0.5):
            for change in (record.value for record in changes):
                if change["op"] == "delete":
                    shop.index.pop(change["key"], None)
                else:
                    shop.index[change["key"]] = change["after"]["price"]


def follow_events(shop: Shop, log: Path) -> None:
    """Puts the events of the outbox into their topic, and the topic into the index."""
    _capture(log, "outbox", str(shop.database))
    with ms.connect(str(log)) as opened, opened.consumer("price-changed", group="index") as consumer:
        while events := consumer.poll(timeout=0.5):
            for event in (json.loads(record.value) for record in events):
                shop.index[event["item"]] = event["price"]


def _capture(log: Path, *what: str) -> None:
    command = [sys.executable, "-m", "millstream.cli", "capture", *what, "--into", str(log), "--until-caught-up"]
    subprocess.run(command, check=True, capture_output=True)


# ---------------------------------------------------------------- two databases, all or none

SCHEMA = Schema.of("item string, price double")
PRICES = [{"item": "tea", "price": 7.0}, {"item": "milk", "price": 3.0}]


def opened(folder: Path, databases: list[str]) -> TwoPhaseTables:
    """The sink of a flow that writes to `ms.two_phase(…)`, opened as a job opens it."""
    endpoint = ms.two_phase(*(ms.postgres(database, "prices", key="item") for database in databases))
    sink = open_sink(endpoint, SCHEMA, job="prices", step="write_prices", broker=folder / "log", folder=folder / "job")
    assert isinstance(sink, TwoPhaseTables)
    return sink


def coordinate(folder: str, *databases: str) -> None:
    """A coordinator that is killed when all databases have voted and the verdict is recorded."""
    try:
        sink = opened(Path(folder), list(databases))
        sink.prepare(0, 0, pa.Table.from_pylist(PRICES, SCHEMA.arrow), None)
        sink.decide(0)
    except MillstreamError as error:
        sys.exit(str(error))
    os.kill(os.getpid(), signal.SIGKILL)


def commit_twice(folder: Path, databases: list[str]) -> list[Prices]:
    """Has a coordinator killed, then starts it again, which finishes what is in doubt."""
    command = [sys.executable, __file__, "--coordinator", str(folder), *databases]
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if ended.returncode != -signal.SIGKILL:  # before the votes, for a reason that it gives
        sys.exit(ended.stderr)
    opened(folder, databases).close()
    return [_prices_of(database) for database in databases]


def _prices_of(database: str) -> Prices:
    import psycopg

    with psycopg.connect(database) as db:
        return dict(db.execute("SELECT item, price FROM prices ORDER BY item").fetchall())


# ---------------------------------------------------------------- all of them


def main(folder: str, *databases: str) -> None:
    shop, log = Shop(Path(folder)), Path(folder) / "log"
    table = Table("", "one place", "the other", "")
    table.title, table.title_justify = "prices of tea and milk", "left"

    def show(what: str, one: Prices, other: Prices) -> None:
        other = dict(sorted(other.items()))
        table.add_row(what, json.dumps(one), json.dumps(other), "equal" if one == other else "they disagree")

    def follows(what: str, way: Callable[[Shop, Path], None], *, with_event: bool) -> None:
        shop.set_price("tea", 6, with_event=with_event)
        shop.set_price("milk", 2, with_event=with_event)
        way(shop, log)
        show(what, shop.prices(), shop.index)

    write_twice(shop)
    show("two writes", shop.prices(), shop.index)
    shop.index.clear()  # a copy can always be made again from the log
    follows("captured", follow, with_event=False)
    shop.index.clear()
    follows("outbox", follow_events, with_event=True)
    if databases:
        show("two phases", *commit_twice(Path(folder), list(databases)))
    console = Console(width=120)
    console.print(table)
    costs = Table("", "what it costs", "what it cannot do")
    for name, texts in COSTS.items():
        costs.add_row(name, *texts)
    console.print(costs)


if __name__ == "__main__":
    if "--coordinator" in sys.argv:
        coordinate(*sys.argv[2:])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(folder, *sys.argv[1:])
