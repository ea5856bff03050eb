"""Two signs of fraud: a card whose use changes, found by a pattern, and payments far above the average of their card.

The average changes with every payment, and reports that turn out to be wrong are withdrawn.
"""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console
from rich.table import Table

import millstream as ms

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SCHEMA = "payment int, card string, country string, amount double, at timestamp"
Payment = tuple[int, str, str, float | None]
SMALL, LARGE = 15.0, 200.0
FACTOR, PAYMENTS = 3, 5
# The payment's number, its card, country and amount, in the order of arrival, a minute apart.
FIRST: list[Payment] = [
    *((1, "ann", "FR", 20.0), (2, "ann", "FR", 25.0), (3, "bob", "DE", 900.0), (4, "ann", "FR", 30.0)),
    *((5, "ann", "FR", 22.0), (6, "bob", "DE", 1100.0), (7, "cid", "ES", 10.0), (8, "cid", "ES", 12.0)),
    *((9, "ann", "FR", 400.0), (10, "bob", "DE", 800.0), (11, "cid", "ES", 11.0), (12, "cid", "ES", 9.0)),
    *((13, "cid", "ES", 8.0), (14, "bob", "DE", 1300.0), (15, "cid", "ES", 60.0), (16, "bob", "DE", 1000.0)),
    *((17, "cid", "BR", 300.0), (18, "dan", "IT", 5.0), (19, "dan", "IT", 3.0), (20, "dan", "IT", 250.0)),
    *((21, "eve", "IT", 4.0), (22, "eve", "IT", 6.0)),
]
# Ann's 400 was a slip of the till: it was 40. Cid gets the 300 back, so that his 60 stands out where it did not before.
# Eve's payment is large and in another country, but more than an hour has passed.
MORE: list[Payment] = [(9, "ann", "FR", 40.0), (17, "cid", "BR", None), (23, "bob", "DE", 9000.0)]
LATER: list[Payment] = [(24, "eve", "US", 500.0)]

# Someone tries a stolen card with small amounts, and then uses it.
TESTED = (
    ms.pattern("small", f"amount < {SMALL}")
    .times_or_more(2)
    .greedy()
    .followed_by("large", f"amount > {LARGE} and country <> last(small.country)")
    .within("1 hour")
)


def send(broker: str, payments: list[Payment], since: datetime) -> None:
    with ms.connect(broker) as log, log.producer() as producer:
        if "payments" not in log.topics():
            log.create_topic("payments", schema=SCHEMA)
        for minute, (payment, card, country, amount) in enumerate(payments):
            row = {"payment": payment, "card": card, "country": country, "amount": amount}
            producer.send("payments", {**row, "at": since + timedelta(minutes=minute)}, key=card)


def reports() -> ms.Flow:
    flow = ms.Flow("fraud")
    rows = flow.read("payments", SCHEMA, event_time="at")
    # The first row about a payment says how the card was used.
    found = rows.distinct("payment", within="1 day").key_by("card").match(TESTED)
    found.select("card", "large.payment", "large.country", "large.amount", tests="count(small)").write("alarms")

    # Tables all the way. A second row about a payment takes the place of the first, one without an amount deletes it.
    payments = rows.to_table(key="payment", deleted="amount is null")
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


def show_alarms(alarms: list[dict[str, Any]]) -> None:
    table = Table("card", "payment", "country", "amount", "small payments before", title="alarms", title_justify="left")
    for row in alarms:
        table.add_row(row["card"], str(row["payment"]), row["country"], f"{row['amount']:,.2f}", str(row["tests"]))
    Console().print(table)


def main(broker: str) -> None:
    send(broker, FIRST, NOON)
    reports().run(until="caught up", broker=broker)
    # The topic has the changes of the table: a row of weight -1 takes one back.
    with ms.connect(broker) as log, log.consumer("reports") as consumer:
        show(f"after {len(FIRST)} payments", [record.value for record in consumer.until_caught_up()])

        send(broker, MORE, NOON + timedelta(hours=1))
        send(broker, LATER, NOON + timedelta(hours=2))
        reports().run(until="caught up", broker=broker)
        show(f"after {len(MORE + LATER)} more rows", [record.value for record in consumer.until_caught_up()])

        with log.consumer("alarms") as alarms:
            show_alarms([record.value for record in alarms.until_caught_up()])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        main(folder)
