"""A card whose use changes: small payments, then a large one in another country, all within an hour."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console
from rich.table import Table

import millstream as ms

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SCHEMA = "payment int, card string, country string, amount double, at timestamp"
SMALL, LARGE = 10.0, 500.0
# The payment's number, its card, country and amount, and the minute it was made: not in this order.
PAYMENTS: list[tuple[int, str, str, float, int]] = [
    *((1, "ann", "FR", 4.0, 0), (2, "bob", "DE", 700.0, 1), (4, "ann", "FR", 2.0, 12), (3, "ann", "FR", 6.0, 5)),
    *((5, "cid", "ES", 3.0, 14), (6, "cid", "ES", 5.0, 18), (7, "ann", "BR", 900.0, 40), (8, "cid", "ES", 800.0, 30)),
    *((9, "bob", "DE", 3.0, 50), (10, "bob", "DE", 5.0, 55), (11, "bob", "US", 600.0, 130)),
]
TESTED = (
    ms.pattern("small", f"amount < {SMALL}")
    .times_or_more(2)
    .greedy()
    .followed_by("large", f"amount > {LARGE} and country <> last(small.country)")
    .within("1 hour")
)


def send(broker: str) -> None:
    with ms.connect(broker) as log, log.producer() as producer:
        log.create_topic("payments", schema=SCHEMA)
        for payment, card, country, amount, minute in PAYMENTS:
            row = {"payment": payment, "card": card, "country": country, "amount": amount}
            producer.send("payments", {**row, "at": NOON + timedelta(minutes=minute)}, key=card)


def alarms() -> ms.Flow:
    flow = ms.Flow("fraud-pattern")
    payments = flow.read("payments", SCHEMA, event_time="at", watermark=ms.bounded("30 minutes"))
    found = payments.key_by("card").match(TESTED)
    found.select("card", "large.payment", "large.country", "large.amount", tests="count(small)").write("alarms")
    return flow


def show(found: list[dict[str, Any]]) -> None:
    table = Table("card", "payment", "country", "amount", "small payments before", title="alarms", title_justify="left")
    for row in sorted(found, key=lambda row: row["payment"]):
        table.add_row(row["card"], str(row["payment"]), row["country"], f"{row['amount']:,.2f}", str(row["tests"]))
    Console().print(table)


def main(broker: str) -> None:
    send(broker)
    alarms().run(batch=True, broker=broker)
    with ms.connect(broker) as log, log.consumer("alarms") as consumer:
        show([record.value for record in consumer.until_caught_up()])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        main(folder)
