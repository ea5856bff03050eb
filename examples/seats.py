"""Many customers want the same seats at once: a command becomes an event only if the seat is still free.

usage: seats.py

Every customer is a thread that reserves one seat after the other until it has one. Two customers may see the same free
seat; the store records the first, and the other decides again on what it finds then. No lock is held in between.
"""

from __future__ import annotations

import random
import tempfile
import threading
from collections import Counter

import millstream as ms
from millstream.events import EventStore

SEATS = 20
CUSTOMERS = 40


class Taken(Exception):
    """The command is refused: nothing has happened."""


class Seat(ms.Aggregate):
    def __init__(self) -> None:
        self.owner: str | None = None

    def reserve(self, customer: str) -> None:
        if self.owner is not None:
            raise Taken(self.owner)
        self.record("SeatReserved", customer=customer)

    @ms.event("SeatReserved")
    def _reserved(self, customer: str) -> None:
        self.owner = customer


def buy(store: EventStore, customer: str, tries: Counter[str]) -> None:
    chance = random.Random(customer)
    for number in chance.sample(range(SEATS), SEATS):
        tries["commands"] += 1
        try:
            store.execute(Seat, f"seat-{number}", lambda seat: seat.reserve(customer))
            return
        except Taken:
            tries["refused"] += 1


def main(broker: str) -> None:
    with ms.event_store(broker, "seats") as store:
        tries: Counter[str] = Counter()
        customers = [f"customer-{number}" for number in range(CUSTOMERS)]
        threads = [threading.Thread(target=buy, args=(store, customer, tries)) for customer in customers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        owners = [store.load(Seat, f"seat-{number}").owner for number in range(SEATS)]
        events = [event for event in store.read_all() if event.type == "SeatReserved"]
        print(f"{tries['commands']} commands by {CUSTOMERS} customers, {tries['refused']} refused")
        print(f"{len(events)} reservations of {len({event.stream for event in events})} seats")
        print(f"{len(set(owners))} customers have a seat, {CUSTOMERS - len(set(owners))} have none")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        main(folder)
