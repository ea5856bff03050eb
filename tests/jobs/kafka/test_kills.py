"""Nothing is lost or duplicated on Kafka either: the same job, killed in the same ways."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobs.killing import KINDS_OF_KILLS, Killed, kill_a_few_times, kill_often
from kafka_cluster import KafkaCluster

KILLS_OF_A_SOAK = 20
pytestmark = pytest.mark.xdist_group("kafka")


@pytest.fixture
def killed(tmp_path: Path, kafka: KafkaCluster) -> Iterator[Killed]:
    made = Killed(tmp_path, seed=2027, broker=f"kafka://{kafka.bootstrap}")
    yield made
    made.close()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_kills_lose_and_duplicate_nothing(killed: Killed) -> None:
    kill_a_few_times(killed)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_broker_that_hangs_holds_a_job_up_and_nothing_else(killed: Killed, kafka: KafkaCluster) -> None:
    """Three times, for a few seconds, while batches are read and written."""
    killed.feed(100)

    def hang() -> None:
        for _ in range(3):
            time.sleep(4)
            os.killpg(kafka.pid(1), signal.SIGSTOP)
            time.sleep(3)
            os.killpg(kafka.pid(1), signal.SIGCONT)

    assert killed.run_and_kill() == -signal.SIGKILL
    killed.feed(300)  # enough for late rows, however they are divided into batches
    hanging = threading.Thread(target=hang)
    hanging.start()
    killed.catch_up()
    hanging.join()
    killed.check()


@pytest.mark.soak
@pytest.mark.timeout(14400)
def test_many_kills(killed: Killed, rounds: Callable[[int, int], int]) -> None:
    kill_often(killed, rounds(KILLS_OF_A_SOAK, KINDS_OF_KILLS))
