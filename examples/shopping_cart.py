"""A shopping cart as its events: an item that was considered and put back is still known after it left the cart."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from datetime import datetime
from operator import methodcaller
from pathlib import Path

from rich.console import Console
from rich.table import Table

import millstream as ms
from millstream.events import EventStore

# Each cart: what its owner did, in order.
VISITS: dict[str, list[tuple[str, str | None]]] = {
    "ann": [("add", "tea"), ("add", "honey"), ("put_back", "honey"), ("add", "milk"), ("check_out", None)],
    "bob": [("add", "honey"), ("put_back", "honey"), ("add", "jam")],
    "eve": [("add", "tea"), ("add", "jam"), ("put_back", "jam"), ("add", "honey"), ("check_out", None)],
}


class Cart(ms.Aggregate):
    def __init__(self) -> None:
        self.items: list[str] = []
        self.is_paid = False

    # Commands: they decide whether something happens.

    def add(self, item: str) -> None:
        if self.is_paid:
            raise ValueError("the cart is paid for")
        self.record("ItemAdded", item=item)

    def put_back(self, item: str) -> None:
        if item in self.items:
            self.record("ItemPutBack", item=item)

    def check_out(self, _: None = None) -> None:
        if self.items:
            self.record("CheckedOut", items=len(self.items))

    # Events: they change the cart, now and each time it is rebuilt.

    @ms.event("ItemAdded")
    def _added(self, item: str) -> None:
        self.items.append(item)

    @ms.event("ItemPutBack")
    def _put_back(self, item: str) -> None:
        self.items.remove(item)

    @ms.event("CheckedOut")
    def _checked_out(self, items: int) -> None:
        self.is_paid = True


def shop(store: EventStore) -> datetime:
    """All visits; returns when Bob had put the honey back."""
    for owner, actions in VISITS.items():
        for command, item in actions:
            store.execute(Cart, owner, methodcaller(command, item))
    return next(event.at for event in store.read("bob") if event.type == "ItemPutBack")


def sold(broker: str, database: Path) -> ms.Flow:
    """The first projection: how many of each item are in carts or sold."""
    flow = ms.Flow("sold", log=broker)
    events = flow.read("carts", event_time="at").where("type in ('ItemAdded', 'ItemPutBack')")
    changes = events.select(item="get_json_object(data, '$.item')", n="if(type = 'ItemAdded', 1, -1)")
    changes.group_by("item").agg(n=ms.sum("n")).write(ms.sqlite(database, "sold"))
    return flow


def regretted(broker: str, database: Path) -> ms.Flow:
    """A projection that was added later: which items were put back. It is built from the first event on."""
    flow = ms.Flow("regretted", log=broker)
    events = flow.read("carts", event_time="at").where("type = 'ItemPutBack'")
    items = events.select(item="get_json_object(data, '$.item')")
    items.group_by("item").agg(n=ms.count()).write(ms.sqlite(database, "regretted"))
    return flow


def show(title: str, database: Path, name: str) -> None:
    table = Table("item", "n", title=title, title_justify="left")
    with contextlib.closing(sqlite3.connect(database)) as connection:
        for item, n in connection.execute(f"SELECT item, n FROM {name} ORDER BY item"):
            table.add_row(item, str(n))
    Console().print(table)


def main(folder: str, address: str | None = None) -> None:
    """The events are in a log in the folder, or at an address; the projections are in the folder."""
    broker, database = address or folder, Path(folder, "projections.db")
    with ms.event_store(broker, "carts") as store:
        then = shop(store)
        sold(broker, database).run(until="caught up")
        show("in carts or sold", database, "sold")

        cart = store.load(Cart, "bob")
        print(f"Bob's cart now: {', '.join(cart.items)}")
        print(f"when he had put the honey back: {', '.join(store.load(Cart, 'bob', at=then).items) or 'empty'}")
        print(f"after his first step: {', '.join(store.load(Cart, 'bob', version=1).items)}")

        regretted(broker, database).run(until="caught up")
        show("considered and put back", database, "regretted")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        main(folder)
