"""Payments far above the average of their card. The average changes, and wrong reports are withdrawn."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console
from rich.table import Table

import millstream as ms

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SCHEMA = "payment int, card string, amount double, at timestamp"
FACTOR, PAYMENTS = 3, 5
# The payment's number, its card and amount, in the order of arrival, a minute apart.
FIRST: list[tuple[int, str, float | None]] = [
    *((1, "ann", 20.0), (2, "ann", 25.0), (3, "bob", 900.0), (4, "ann", 30.0), (5, "ann", 22.0), (6, "bob", 1100.0)),
    *((7, "cid", 10.0), (8, "cid", 12.0), (9, "ann", 400.0), (10, "bob", 800.0), (11, "cid", 11.0), (12, "cid", 9.0)),
    *((13, "cid", 8.0), (14, "bob", 1300.0), (15, "cid", 60.0), (16, "bob", 1000.0), (17, "cid", 300.0)),
]
# Ann's 400 was a slip of the till: it was 40. Cid gets the 300 back, so that his 60 stands out where it did not before.
MORE: list[tuple[int, str, float | None]] = [(9, "ann", 40.0), (17, "cid", None), (18, "bob", 9000.0)]


def send(broker: str, payments: list[tuple[int, str, float | None]], since: datetime) -> None:
    with ms.connect(broker) as log, log.producer() as producer:
        if "payments" not in log.topics():
            log.create_topic("payments", schema=SCHEMA)
        for minute, (payment, card, amount) in enumerate(payments):
            at = since + timedelta(minutes=minute)
            producer.send("payments", {"payment": payment, "card": card, "amount": amount, "at": at}, key=card)


def reports() -> ms.Flow:
    flow = ms.Flow("fraud")
    # Tables all the way. A second row about a payment takes the place of the first, one without an amount deletes it.
    payments = flow.read("payments", SCHEMA, event_time="at").to_table(key="payment", deleted="amount is null")
    cards = payments.group_by("card").agg(average=ms.mean("amount"), payments=ms.count())
    # With each payment the average of its card changes, and so does what is far above it.
    compared = payments.join(cards, on="card")
    high = compared.where(f"payments >= {PAYMENTS} and amount > {FACTOR} * average")
    high.select("payment", "card", "amount").write("reports")
    return flow


def show(title: str, reported: list[dict[str, Any]]) -> None:
    table = Table("payment", "card", "amount", "", title=title, title_justify="left")
    for row in sorted(reported, key=lambda row: row["payment"]):
        what = "reported" if row["weight"] == 1 else "withdrawn"
        table.add_row(str(row["payment"]), row["card"], f"{row['amount']:,.2f}", what)
    Console().print(table)


def main(broker: str) -> None:
    send(broker, FIRST, NOON)
    reports().run(until="caught up", broker=broker)
    # The topic has the changes of the table: a row of weight -1 takes one back.
    with ms.connect(broker) as log, log.consumer("reports") as consumer:
        show("after 17 payments", [record.value for record in consumer.until_caught_up()])

        send(broker, MORE, NOON + timedelta(hours=1))
        reports().run(until="caught up", broker=broker)
        show("after 3 more rows", [record.value for record in consumer.until_caught_up()])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        main(folder)
