"""Goal: a queue that makes its writer wait loses and repeats nothing, whichever of its two jobs is killed, and when.

Method: both jobs in processes of their own, killed in turn while the queue is full and while it moves. A queue inside a
flow, and one that is read by priority, are killed at any moment, and between the plan of a batch and the batch.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from millstream.log import EmbeddedLog
from waiting import exit_code, until

pytestmark = [pytest.mark.more, pytest.mark.timeout(1200)]
AT_MOST = 40
ROWS = 300
FLOW = """
import millstream as ms

queue = ms.queue("q", at_most=40, when_full="wait")
flow = ms.Flow("{name}")
flow.read({source}, "n int").write({sink})
"""
INNER = """
import millstream as ms

flow = ms.Flow("inner")
rows = flow.read("numbers", "n int", name="rows").queue("slow", at_most=40, at_once=10, when_full="wait"{priority})
rows.write("out", name="out")
"""
URGENT = """
import millstream as ms

flow = ms.Flow("urgent")
flow.read(ms.queue("numbers", priority="n % 7", at_once=10), "n int", name="rows").write("out", name="out")
"""
KILLS, ROWS_OF_A_RUN = 3, 50


class Processes:
    """Jobs in processes of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = EmbeddedLog(folder / "log", upkeep=False)
        self.log.create_topic("numbers", schema="n int", partitions=2)
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def put(self, first: int, end: int) -> None:
        with self.log.producer() as producer:
            for n in range(first, end):
                producer.send("numbers", {"n": n}, partition=n % 2)

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", "millstream.cli", "run", str(self.folder / f"{name}.py")]
        environ = {**os.environ, "MILLSTREAM_MASTER": "local[1]", "MILLSTREAM_HOME": str(self.folder / "log")}
        with (self.folder / "err").open("ab") as err:
            self.running[name] = subprocess.Popen(
                [*command, "--log", str(self.folder / "log"), "--batch-rows", "15"], stderr=err, env=environ
            )

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        if process.poll() is None:
            process.kill()
        exit_code(process, f"the killed job {name}")

    def read(self, topic: str) -> list[int]:
        if topic not in self.log.topics():
            return []
        with self.log.consumer(topic) as consumer:
            return [record.value["n"] for record in consumer.until_caught_up()]

    def close(self) -> None:
        for name in list(self.running):
            self.kill(name)
        self.log.close()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path)
    yield made
    made.close()


@pytest.fixture
def pair(processes: Processes) -> Processes:
    """A job that fills a queue, and one that drains it."""
    processes.log.create_topic("q", schema="n int", partitions=2)
    for name, source, sink in (("filling", '"numbers"', "queue"), ("draining", "queue", '"out"')):
        (processes.folder / f"{name}.py").write_text(FLOW.format(name=name, source=source, sink=sink))
    return processes


def test_every_row_passes_once(pair: Processes) -> None:
    chance = random.Random(24)
    pair.put(0, ROWS)
    pair.start("filling")
    until(lambda: len(pair.read("q")) >= AT_MOST, "a full queue")
    pair.kill("filling")
    pair.start("filling")
    pair.start("draining")
    for name in ("draining", "filling"):
        before = len(pair.read("out"))
        until(lambda before=before: len(pair.read("out")) > before, "rows to pass")  # type: ignore[misc]
        time.sleep(chance.uniform(0, 1))
        pair.kill(name)
        pair.start(name)
        assert len(pair.read("q")) - len(pair.read("out")) <= AT_MOST + 1, "it waits while it is killed"
    until(lambda: len(pair.read("out")) >= ROWS, "all rows")
    assert sorted(pair.read("out")) == sorted(pair.read("q")) == list(range(ROWS))
    assert "Traceback" not in (pair.folder / "err").read_text()


@pytest.mark.parametrize(
    ("name", "flow"),
    [
        ("inner", INNER.format(priority=', priority="n % 7"')),
        ("urgent", URGENT),
    ],
    ids=["inner by priority", "by priority"],
)
def test_a_queue_is_killed(processes: Processes, name: str, flow: str) -> None:
    """Every second time right after the order of a batch is stored, or rows are in the queue, if that is seen."""
    chance = random.Random(2024)
    (processes.folder / f"{name}.py").write_text(flow)
    order = (
        processes.folder / "log" / "jobs" / name / "sources" / ("slow" if name == "inner" else "rows") / "taken.json"
    )
    for kill in range(KILLS):
        processes.put(kill * ROWS_OF_A_RUN, (kill + 1) * ROWS_OF_A_RUN)
        before, known = len(processes.read("out")), changed_at(order)
        processes.start(name)
        until(lambda before=before: len(processes.read("out")) > before, "rows to pass")  # type: ignore[misc]
        if kill % 2 and known:
            known = changed_at(order)
            rows = (kill + 1) * ROWS_OF_A_RUN
            until(partial(is_planned, processes, order, known, rows), "an order", 0.001)
        else:
            time.sleep(chance.uniform(0, 1))
        processes.kill(name)
    processes.start(name)
    until(lambda: len(processes.read("out")) >= KILLS * ROWS_OF_A_RUN, "all rows")
    time.sleep(1)  # what is repeated would follow
    assert sorted(processes.read("out")) == list(range(KILLS * ROWS_OF_A_RUN))
    if name == "inner":
        assert sorted(processes.read("inner.slow")) == list(range(KILLS * ROWS_OF_A_RUN))
    assert "Traceback" not in (processes.folder / "err").read_text()


def changed_at(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def is_planned(processes: Processes, order: Path, known: int, rows: int) -> bool:
    return changed_at(order) != known or len(processes.read("out")) >= rows
