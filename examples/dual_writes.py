"""Two programs write prices to a database and to an index, which then disagree; and again, with a capture in between.

No write fails here, and neither program has a bug that a test of it alone would find: two writes have another order in
the other place. A program that dies between its two writes would have the same result.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from threading import Event, Thread

from rich.console import Console
from rich.table import Table

import millstream as ms

Prices = dict[str, float]


class Shop:
    """A database, which is the truth, and an index, which is a copy of it."""

    def __init__(self, folder: Path) -> None:
        self.database = folder / "shop.db"
        self.index: Prices = {}
        with closing(sqlite3.connect(self.database)) as db, db:
            db.execute("CREATE TABLE prices (item TEXT PRIMARY KEY, price REAL)")
            db.execute("INSERT INTO prices VALUES ('tea', 3), ('milk', 1)")

    def set_price(self, item: str, price: float) -> None:
        with closing(sqlite3.connect(self.database)) as db, db:
            db.execute("UPDATE prices SET price = ? WHERE item = ?", (price, item))

    def prices(self) -> Prices:
        with closing(sqlite3.connect(self.database)) as db:
            return dict(db.execute("SELECT item, price FROM prices ORDER BY item").fetchall())


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


def follow(shop: Shop, log: Path) -> None:
    """Puts what the database has committed into a topic, and the topic into the index."""
    capture = [sys.executable, "-m", "millstream.cli", "capture", "sqlite", str(shop.database), "--table", "prices"]
    subprocess.run([*capture, "--into", str(log), "--until-caught-up"], check=True, capture_output=True)
    with ms.connect(str(log)) as opened, opened.consumer("prices", group="index") as consumer:
        while changes := consumer.poll(timeout=0.5):
            for change in (record.value for record in changes):
                if change["op"] == "delete":
                    shop.index.pop(change["key"], None)
                else:
                    shop.index[change["key"]] = change["after"]["price"]


def main(folder: str) -> None:
    shop = Shop(Path(folder))
    table = Table("", "database", "index", "")
    table.title, table.title_justify = "prices of tea and milk", "left"

    def show(what: str) -> None:
        prices, index = shop.prices(), dict(sorted(shop.index.items()))
        table.add_row(what, json.dumps(prices), json.dumps(index), "equal" if prices == index else "they disagree")

    write_twice(shop)
    show("two writes")
    shop.index.clear()  # a copy can always be made again from the log
    follow(shop, Path(folder) / "log")
    show("captured")
    shop.set_price("tea", 6)
    shop.set_price("milk", 2)
    follow(shop, Path(folder) / "log")
    show("captured, later")
    Console(width=120).print(table)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
