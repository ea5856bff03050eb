"""Money that accounts send to one another stays the same in all, however often the job is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pytest

from test_examples import EXAMPLES, load
from waiting import exit_code, until

KILLS_OF_A_SOAK = 5
TRANSFERS = 3_000
MANY_ACCOUNTS, ACCOUNTS_LEAST = 1_000_000, 100_000
pytestmark = [pytest.mark.soak, pytest.mark.own_processes]
FLOW = f"""
import sys
sys.path.insert(0, {str(EXAMPLES)!r})
from accounts import bank
flow = bank()
"""


def started(folder: Path, broker: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "millstream.cli", "run", str(folder / "flow.py"), "--log", broker]
    with (folder / "err").open("ab") as err:
        return subprocess.Popen(command, stderr=err, env={**os.environ, "MILLSTREAM_MASTER": "local[2]"})


def batches(broker: str) -> int:
    folder = Path(broker) / "jobs" / "accounts" / "checkpoint" / "commits"
    return sum(entry.name.isdigit() for entry in folder.iterdir()) if folder.is_dir() else 0


@pytest.mark.timeout(7000)
@pytest.mark.parametrize("accounts", [500, MANY_ACCOUNTS])
def test_the_sum_stays_under_kills(accounts: int, tmp_path: Path, rounds: Callable[[int, int], int]) -> None:
    accounts = rounds(accounts, ACCOUNTS_LEAST) if accounts == MANY_ACCOUNTS else accounts
    example: ModuleType = load("accounts")
    chance, broker = random.Random(accounts), str(tmp_path / "log")
    (tmp_path / "flow.py").write_text(FLOW)
    example.open_accounts(broker, accounts)
    kills = rounds(KILLS_OF_A_SOAK, 2)
    for number in range(kills):
        example.send_orders(broker, TRANSFERS, seed=number, accounts=accounts)
        before = batches(broker)
        process = started(tmp_path, broker)
        until(lambda process=process, before=before: process.poll() is not None or batches(broker) > before, "a batch")
        time.sleep(chance.uniform(0, 3))
        process.kill()
        assert exit_code(process, "the killed job") == -signal.SIGKILL
        print(f"kill {number + 1} of {kills}, {batches(broker)} batches", flush=True)
    process = started(tmp_path, broker)
    with closing(example.Balances(broker, accounts)) as held:
        try:

            def is_at_rest() -> bool:
                assert process.poll() is None, (tmp_path / "err").read_text()
                held.read()
                return bool(held.is_at_rest(kills * TRANSFERS))

            until(is_at_rest, "all orders are executed", 2.0)
        finally:
            process.terminate()
            exit_code(process, "the job that was told to stop")
        assert len(held.of) == accounts
        assert all(balance >= 0 for balance, _, _ in held.of.values())
