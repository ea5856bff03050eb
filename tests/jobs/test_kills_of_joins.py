"""Joins and timers lose and double nothing when the driver, the JVM or a worker is killed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millstream.errors import SparkFailed

from .killing_joins import KilledJoins

KILLS_OF_A_SOAK = 6
pytestmark = [pytest.mark.soak, pytest.mark.own_processes]


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[KilledJoins]:
    made = KilledJoins(tmp_path, seed=2028)
    yield made
    made.close()


@pytest.mark.timeout(3600)
def test_joins_and_timers_under_kills(killed: KilledJoins, rounds: Callable[[int, int], int]) -> None:
    killed.feed(100)
    kills = rounds(KILLS_OF_A_SOAK, 3)  # one of each kind
    for number in range(kills):
        match number % 3:
            case 0:
                assert killed.run_and_kill() == -signal.SIGKILL
            case 1:
                assert killed.run_and_kill(jvm_only=True) == SparkFailed.exit_code
            case 2:
                assert killed.run_and_kill(worker_first=True) in (-signal.SIGKILL, SparkFailed.exit_code)
        print(f"kill {number + 1} of {kills}, {len(killed.batches)} batches", flush=True)
    killed.end()
    killed.catch_up()
    killed.check()
    assert "Traceback" not in (killed.folder / "err").read_text()
