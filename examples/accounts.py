"""Accounts as functions with state that send money to one another: a flow that reads the messages it writes.

`python examples/accounts.py --accounts 1000000` has a million of them, which takes a few minutes.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import polars as pl
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
    with ms.connect(broker) as log, log.producer() as producer:
        for _ in range(transfers):
            one, other = (f"account {number}" for number in draw.sample(range(accounts), 2))
            row = {"account": one, "kind": "send", "other": other, "amount": draw.randint(1, 80)}
            producer.send("orders", row, key=one)


def open_accounts(broker: str, accounts: int = ACCOUNTS) -> None:
    with ms.connect(broker) as log:
        log.create_topic("orders", schema=MESSAGES)
        log.create_topic("messages", schema=MESSAGES)
        rows = pl.select(
            pl.format("account {}", pl.int_range(accounts)).alias("account"),
            pl.lit("open").alias("kind"),
            pl.lit(None, pl.String).alias("other"),
            pl.lit(OPENING, pl.Int64).alias("amount"),
        )
        with log.producer() as producer:
            for some in rows.iter_slices(100_000):
                producer.send_batch("orders", some, key="account")


class Balances:
    """The table of balances, read as far as it is written, and the sums over all accounts."""

    def __init__(self, broker: str, accounts: int = ACCOUNTS) -> None:
        self.accounts = accounts
        self.of: dict[str, tuple[int, int, int]] = {}
        """By account: its balance, and how many orders it has executed and refused."""
        self.money = self.orders = self.refused = 0
        self._log = ms.connect(broker)
        self._consumer: Any = None

    def read(self) -> None:
        if self._consumer is None:
            if "balances" not in self._log.topics():
                return
            self._consumer = self._log.consumer("balances")
        while batches := self._consumer.poll_batches(0.2):
            for batch in batches:
                for account, *row in batch.to_polars().select("account", "balance", "sent", "refused").rows():
                    self._change(account, tuple(row))

    def _change(self, account: str, row: tuple[int, int, int]) -> None:
        before = self.of.get(account, (0, 0, 0))
        self.of[account] = row
        self.money += row[0] - before[0]
        self.orders += row[1] + row[2] - before[1] - before[2]
        self.refused += row[2] - before[2]

    def is_at_rest(self, orders: int) -> bool:
        """Whether all orders are executed or refused, and no money is on its way."""
        return self.orders == orders and self.money == self.accounts * OPENING

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self._log.close()


def wait_for_rest(job: ms.Job, held: Balances, orders: int) -> None:
    while not held.is_at_rest(orders):
        if not job.is_running:
            job.wait()  # raises what has ended it
            raise SystemExit("the job has ended before all messages were delivered")
        held.read()


def main(broker: str, accounts: int = ACCOUNTS) -> None:
    open_accounts(broker, accounts)
    with closing(Balances(broker, accounts)) as held:
        for run in (1, 2):  # the second run continues with the messages and balances of the first
            send_orders(broker, TRANSFERS, run, accounts)
            job = bank().start(broker=broker)
            try:
                wait_for_rest(job, held, run * TRANSFERS)
            finally:
                job.stop()
            orders = f"{run * TRANSFERS:,} orders; {held.refused} were refused"
            Console(width=110).print(f"{accounts:,} accounts hold {held.money:,} after {orders}", highlight=False)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--accounts", type=int, default=ACCOUNTS)
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        main(folder, options.parse_args().accounts)
