"""A price in two places: written twice, captured, sent by an outbox, and committed in two phases.

Two processes change prices in a database and in a search index. No write fails in the first part, and neither process
has a bug that a test of it alone would find: two writes have another order in the other place. A process that dies
between its two writes would have the same result.

    pip install 'millstream[index]'
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
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import tantivy
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
    """A database, which is the truth."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "shop.db"
        self.outbox = ms.outbox(self.database)

    def create(self) -> None:
        self.outbox.create()
        with closing(sqlite3.connect(self.database)) as db, db:
            db.execute("CREATE TABLE prices (item TEXT PRIMARY KEY, price REAL)")
            db.execute("INSERT INTO prices VALUES ('tea', 3), ('milk', 1)")

    def set_prices(self, prices: Prices, *, with_events: bool) -> None:
        with closing(sqlite3.connect(self.database)) as db, db:
            for item, price in prices.items():
                db.execute("UPDATE prices SET price = ? WHERE item = ?", (price, item))
                if with_events:
                    self.outbox.put(db, "price-changed", {"item": item, "price": price}, key=item)

    def prices(self) -> Prices:
        with closing(sqlite3.connect(self.database)) as db:
            return dict(db.execute("SELECT item, price FROM prices ORDER BY item").fetchall())


class Index:
    """A search index, which the programs write to themselves."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        schema = tantivy.SchemaBuilder()
        schema.add_text_field("item", stored=True)
        schema.add_float_field("price", stored=True)
        self._index = tantivy.Index(schema.build(), path=str(folder))

    def set_prices(self, prices: Prices) -> None:
        writer = self._index.writer(num_threads=1)
        for item, price in prices.items():
            writer.delete_documents_by_term("item", item)
            writer.add_document(tantivy.Document(item=item, price=price))
        writer.commit()
        writer.wait_merging_threads()

    def prices(self) -> Prices:
        self._index.reload()
        searcher = self._index.searcher()
        hits = searcher.search(tantivy.Query.all_query(), 100).hits
        found = [searcher.doc(address).to_dict() for _, address in hits]
        return {document["item"][0]: document["price"][0] for document in found}


# ---------------------------------------------------------------- two programs


def program(way: str, folder: str, *given: str) -> None:
    """A process that changes prices. In between it says so, and goes on when it gets a line, or no more."""
    shop, prices = Shop(Path(folder)), {item: float(price) for item, price in (text.split("=") for text in given)}
    shop.set_prices(prices, with_events=way == "outbox")
    print("written", flush=True)
    sys.stdin.readline()
    if way == "two writes":
        Index(shop.folder / "index").set_prices(prices)


def run_both(way: str, shop: Shop, slow: Prices, quick: Prices) -> None:
    """Two processes at once: one writes to the database first, and is slow after that."""

    def started(prices: Prices) -> subprocess.Popen[bytes]:
        given = [f"{item}={price}" for item, price in prices.items()]
        command = [sys.executable, __file__, "--program", way, str(shop.folder), *given]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        if process.stdout.readline() != b"written\n":
            sys.exit("a program failed")
        return process

    for process in reversed([started(slow), started(quick)]):
        process.communicate(b"\n")
        if process.returncode:
            sys.exit("a program failed")


# ---------------------------------------------------------------- one write, and the rest follows


def captured(shop: Shop, log: Path) -> Prices:
    """What the database has committed goes into a topic, and the topic into an index."""
    _millstream(log, "capture", "sqlite", str(shop.database), "--table", "prices", "--until-caught-up")
    return _followed(log, "prices", shop.folder / "captured")


def events_sent(shop: Shop, log: Path) -> Prices:
    """The events of the outbox go into their topic, and the topic into an index."""
    _millstream(log, "capture", "outbox", str(shop.database), "--until-caught-up")
    return _followed(log, "price-changed", shop.folder / "sent")


def _followed(log: Path, topic: str, index: Path) -> Prices:
    _millstream(log, "follow", topic, f"index:{index}", "--text", "item", "--until-caught-up")
    return {row["item"]: row["price"] for row in ms.search_index(index, text="item").search("*", limit=100)}


def _millstream(log: Path, *command: str) -> None:
    program = [sys.executable, "-m", "millstream.cli", "--log", str(log)]
    subprocess.run([*program, *command], check=True, capture_output=True)


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
    shop, index, log = Shop(Path(folder)), Index(Path(folder) / "index"), Path(folder) / "log"
    shop.create()
    index.set_prices(shop.prices())
    table = Table("", "one place", "the other", "")
    table.title, table.title_justify = "prices of tea and milk", "left"

    def show(what: str, one: Prices, other: Prices) -> None:
        other = dict(sorted(other.items()))
        table.add_row(what, json.dumps(one), json.dumps(other), "equal" if one == other else "they disagree")

    run_both("two writes", shop, {"tea": 4}, {"tea": 5})
    show("two writes", shop.prices(), index.prices())
    run_both("captured", shop, {"tea": 6}, {"tea": 7, "milk": 2})
    show("captured", shop.prices(), captured(shop, log))
    run_both("outbox", shop, {"tea": 8, "milk": 3}, {"tea": 9})
    show("outbox", shop.prices(), events_sent(shop, log))
    if databases:
        show("two phases", *commit_twice(Path(folder), list(databases)))
    console = Console(width=120)
    console.print(table)
    costs = Table("", "what it costs", "what it cannot do")
    for name, texts in COSTS.items():
        costs.add_row(name, *texts)
    console.print(costs)


if __name__ == "__main__":
    if "--program" in sys.argv:
        program(*sys.argv[2:])
    elif "--coordinator" in sys.argv:
        coordinate(*sys.argv[2:])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(folder, *sys.argv[1:])
