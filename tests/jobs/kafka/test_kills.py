"""Nothing is lost or duplicated on Kafka either: the same job, killed in the same ways."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jobs.killing import KINDS_OF_KILLS, Killed, kill_a_few_times, kill_often
from kafka_cluster import KafkaCluster
from waiting import until

KILLS_OF_A_SOAK = 20
HANGS, HANGS_S = 3, 3
pytestmark = pytest.mark.soak


@pytest.fixture
def killed(tmp_path: Path, kafka: KafkaCluster) -> Iterator[Killed]:
    made = Killed(tmp_path, seed=2027, broker=f"kafka://{kafka.bootstrap}")
    yield made
    made.close()


@pytest.mark.timeout(600)
def test_kills_lose_and_duplicate_nothing(killed: Killed) -> None:
    kill_a_few_times(killed)


@pytest.mark.timeout(600)
def test_a_broker_that_hangs_holds_a_job_up_and_nothing_else(killed: Killed, kafka: KafkaCluster) -> None:
    """Three times, for a few seconds, each time after another batch has begun."""
    killed.feed(100)
    over = threading.Event()

    def hang() -> int:
        for number in range(HANGS):
            before = killed.newest()
            until(lambda before=before: over.is_set() or killed.newest() > before, "a batch to begin")
            if over.is_set():
                return number
            os.killpg(kafka.pid(1), signal.SIGSTOP)
            try:
                time.sleep(HANGS_S)
            finally:
                os.killpg(kafka.pid(1), signal.SIGCONT)
        return HANGS

    assert killed.run_and_kill() == -signal.SIGKILL
    killed.feed(300)  # enough for late rows, however they are divided into batches
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(hang)
        try:
            killed.catch_up()
        finally:
            over.set()
        assert hanging.result() > 0
    killed.check()


@pytest.mark.xdist_group("spark")  # which is done sooner than that of Kafka alone
@pytest.mark.timeout(14400)
def test_many_kills(killed: Killed, rounds: Callable[[int, int], int]) -> None:
    kill_often(killed, rounds(KILLS_OF_A_SOAK, KINDS_OF_KILLS))
