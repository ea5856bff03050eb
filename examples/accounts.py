"""Accounts as functions with state that send money to one another: a flow that reads the messages it writes."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console

import millstream as ms

MESSAGES = "account string, kind string, other string, amount bigint"
"""To an account: "open" it with an amount, "send" an amount to the other account, or "receive" one from it."""
RESULTS = f"{MESSAGES}, balance bigint, sent bigint, refused bigint"
ACCOUNTS, TRANSFERS, OPENING = 200, 1_000, 100


def account(row: dict[str, Any], key: ms.Key) -> Iterator[dict[str, Any]]:
    """What an account does with a message: it changes its balance, and may send a message to another account."""
    held = {"balance": 0, "sent": 0, "refused": 0, **key.state}
    if row["kind"] == "send" and row["amount"] > held["balance"]:
        held["refused"] += 1
    elif row["kind"] == "send":
        held["balance"] -= row["amount"]
        held["sent"] += 1
        receive = {"account": row["other"], "kind": "receive", "other": row["account"], "amount": row["amount"]}
        yield {**receive, **dict.fromkeys(held)}
    else:
        held["balance"] += row["amount"]
    key.state.update(held)
    yield {"account": row["account"], "kind": "state", "other": None, "amount": None, **held}


def bank() -> ms.Flow:
    flow = ms.Flow("accounts")
    orders = flow.read("orders", MESSAGES)
    messages = flow.read("messages", MESSAGES, loop=True)
    results = orders.union(messages).key_by("account").process(account, RESULTS, order="arrival")
    results.where("kind = 'receive'").select("account", "kind", "other", "amount").write("messages")
    states = results.where("kind = 'state'").select("account", "balance", "sent", "refused")
    states.to_table(key="account").write("balances")
    return flow


def send_orders(broker: str, transfers: int, seed: int, accounts: int = ACCOUNTS) -> None:
    draw = random.Random(seed)
    names = [f"account {number}" for number in range(accounts)]
    with ms.connect(broker) as log, log.producer() as producer:
        for _ in range(transfers):
            one, other = draw.sample(names, 2)
            row = {"account": one, "kind": "send", "other": other, "amount": draw.randint(1, 80)}
            producer.send("orders", row, key=one)


def open_accounts(broker: str, accounts: int = ACCOUNTS) -> None:
    with ms.connect(broker) as log:
        log.create_topic("orders", schema=MESSAGES)
        log.create_topic("messages", schema=MESSAGES)
        with log.producer() as producer:
            for number in range(accounts):
                name = f"account {number}"
                producer.send("orders", {"account": name, "kind": "open", "other": None, "amount": OPENING}, key=name)


def balances(broker: str) -> dict[str, dict[str, Any]]:
    with ms.connect(broker) as log:
        if "balances" not in log.topics():
            return {}
        with log.consumer("balances") as consumer:
            return {record.value["account"]: record.value for record in consumer.until_caught_up()}


def total(held: dict[str, dict[str, Any]], *columns: str) -> int:
    return sum(row[column] for row in held.values() for column in columns)


def is_at_rest(held: dict[str, dict[str, Any]], orders: int, accounts: int = ACCOUNTS) -> bool:
    """Whether all orders are executed, and no money is on its way."""
    return total(held, "sent", "refused") == orders and total(held, "balance") == accounts * OPENING


def wait_for_rest(job: ms.Job, broker: str, orders: int) -> dict[str, dict[str, Any]]:
    while True:
        held = balances(broker)
        if is_at_rest(held, orders):
            return held
        if not job.is_running:
            job.wait()  # raises what has ended it
            raise SystemExit("the job has ended before all messages were delivered")
        time.sleep(0.2)


def main(broker: str) -> None:
    open_accounts(broker)
    for run in (1, 2):  # the second run continues with the messages and balances of the first
        send_orders(broker, TRANSFERS, seed=run)
        job = bank().start(broker=broker)
        try:
            held = wait_for_rest(job, broker, run * TRANSFERS)
        finally:
            job.stop()
        money, refused = total(held, "balance"), total(held, "refused")
        said = f"{ACCOUNTS} accounts hold {money:,} after {run * TRANSFERS:,} orders; {refused} were refused"
        Console(width=110).print(said, highlight=False)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        main(folder)
