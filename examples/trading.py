"""Prices are watched and orders executed by rules that are changed while the job runs, without a restart."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console
from rich.table import Table

import millstream as ms
from millstream.plan.steps.process import Key

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
PRICES = "symbol string, price double, at timestamp"
RULES = "id string, version int, filter string, pattern string, since timestamp"
LOT = 10

FALLS = "pattern (START DOWN{3}) within 10 minutes define DOWN as price < prev(price)"
RISES = "pattern (START UP{3}) within 10 minutes define UP as price > prev(price)"
RECOVERS = """pattern (START DOWN{2} UP) within 10 minutes
              define DOWN as price < prev(price), UP as price > prev(price)"""
RISES_TWICE = "pattern (START UP{2}) within 10 minutes define UP as price > prev(price)"
# The minute from which a version is in force, the rule, the version, which rows it looks at, and its pattern.
FIRST_RULES: list[tuple[int, str, int, str | None, str]] = [
    (0, "buy a dip", 1, None, FALLS),
    (0, "sell a peak", 1, None, RISES),
]
# A dip must be over before anything is bought, and profits are taken earlier. The last rule has a mistake.
MORE_RULES: list[tuple[int, str, int, str | None, str]] = [
    (9, "buy a dip", 2, None, RECOVERS),
    (9, "sell a peak", 2, "symbol <> 'BOLT'", RISES_TWICE),
    (9, "buy a bargain", 1, None, "pattern (LOW) within 1 minute define LOW as prize < 20"),
]
# By symbol, one price a minute: from noon on, and from 12:10 on.
FIRST_PRICES = {"ACME": [50, 49, 48, 47, 48, 49, 50, 51], "BOLT": [30, 31, 32, 33, 32, 31, 30, 31]}
MORE_PRICES = {"ACME": [50, 49, 48, 49, 50, 51, 52, 53], "BOLT": [30, 29, 28, 29, 28, 27, 26, 27]}
CLOSING_MINUTE = 60


def trading() -> ms.Flow:
    flow = ms.Flow("trading")
    # Rules change rarely: a topic that is silent for a second does not hold back the prices.
    idle = ms.bounded("0 seconds", idle="1 second")
    rules = flow.read("rules", RULES, event_time="since", watermark=idle).to_table(key="id")
    prices = flow.read("prices", PRICES, event_time="at", watermark=ms.ascending())
    found = prices.key_by("symbol").match(rules=rules, history="10 minutes")
    found.dead.select("reason").write("wrong_rules")
    orders = found.select("rule", "version", "symbol", price="element_at(rows, -1).price", at="match_end")
    orders.write("orders")
    bought = orders.key_by("symbol").process(
        executed, "at timestamp, symbol string, what string, shares int, price double", order="event_time"
    )
    bought.write("executed")
    return flow


def executed(row: dict[str, Any], key: Key) -> Iterator[dict[str, Any]]:
    """A lot is bought; sold is all there is."""
    held = key.state.get("shares", 0)
    what, shares = ("bought", LOT) if row["rule"].startswith("buy") else ("sold", held)
    key.state["shares"] = held + LOT if what == "bought" else 0
    if shares:
        yield {"at": row["at"], "symbol": row["symbol"], "what": what, "shares": shares, "price": row["price"]}


def send_rules(broker: str, rules: list[tuple[int, str, int, str | None, str]]) -> None:
    with ms.connect(broker) as log, log.producer() as producer:
        for minute, name, version, where, pattern in rules:
            row = {"id": name, "version": version, "filter": where, "pattern": pattern}
            producer.send("rules", {**row, "since": NOON + timedelta(minutes=minute)}, key=name)


def send_prices(broker: str, prices: dict[str, list[int]], first: int) -> None:
    with ms.connect(broker) as log, log.producer() as producer:
        for minute, pair in enumerate(zip(*prices.values(), strict=True), first):
            for symbol, price in zip(prices, pair, strict=True):
                at = NOON + timedelta(minutes=minute)
                producer.send("prices", {"symbol": symbol, "price": float(price), "at": at}, key=symbol)


def rows_of(broker: str, topic: str) -> list[dict[str, Any]]:
    with ms.connect(broker) as log:
        if topic not in log.topics():
            return []
        with log.consumer(topic) as consumer:
            return [record.value for record in consumer.until_caught_up()]


def wait_for(job: ms.Job, broker: str, topic: str, count: int) -> None:
    while len(rows_of(broker, topic)) < count:
        if not job.is_running:
            job.wait()  # raises what has ended it
            raise SystemExit(f"the job has ended before {topic} had {count} rows")
        time.sleep(0.1)


def show(broker: str) -> None:
    orders = Table("at (UTC)", "symbol", "rule", "version", "price", title="orders", title_justify="left")
    for row in sorted(rows_of(broker, "orders"), key=lambda row: (row["at"], row["symbol"])):
        at, price = f"{row['at']:%H:%M}", f"{row['price']:.2f}"
        orders.add_row(at, row["symbol"], row["rule"], str(row["version"]), price)
    done = Table("at (UTC)", "symbol", "what", "shares", "price", title="executed", title_justify="left")
    for row in sorted(rows_of(broker, "executed"), key=lambda row: (row["at"], row["symbol"])):
        at, price = f"{row['at']:%H:%M}", f"{row['price']:.2f}"
        done.add_row(at, row["symbol"], row["what"], str(row["shares"]), price)
    for each in (orders, done):
        Console().print(each)
    for row in rows_of(broker, "wrong_rules"):
        Console(width=110).print("wrong rule:", row["reason"], markup=False)


def main(broker: str) -> None:
    with ms.connect(broker) as log:
        log.create_topic("rules", schema=RULES)
        log.create_topic("prices", schema=PRICES)
    send_rules(broker, FIRST_RULES)
    send_prices(broker, FIRST_PRICES, 0)
    job = trading().start(broker=broker)
    try:
        wait_for(job, broker, "orders", 4)
        send_rules(broker, MORE_RULES)
        send_prices(broker, MORE_PRICES, 10)
        wait_for(job, broker, "orders", 9)
        send_prices(broker, {symbol: prices[-1:] for symbol, prices in MORE_PRICES.items()}, CLOSING_MINUTE)
        wait_for(job, broker, "executed", 7)
    finally:
        job.stop()
    show(broker)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        main(folder)
