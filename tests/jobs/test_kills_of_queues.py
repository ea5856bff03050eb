"""Goal: a queue that makes its writer wait loses and repeats nothing, whichever of its two jobs is killed, and when.

Method: both jobs in processes of their own, killed in turn while the queue is full and while it moves.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
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


class Pair:
    """A job that fills a queue, and one that drains it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = EmbeddedLog(folder / "log", upkeep=False)
        self.log.create_topic("numbers", schema="n int", partitions=2)
        self.log.create_topic("q", schema="n int", partitions=2)
        for name, source, sink in (("filling", '"numbers"', "queue"), ("draining", "queue", '"out"')):
            (folder / f"{name}.py").write_text(FLOW.format(name=name, source=source, sink=sink))
        self.running: dict[str, subprocess.Popen[bytes]] = {}

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
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


def test_every_row_passes_once(pair: Pair) -> None:
    chance = random.Random(24)
    with pair.log.producer() as producer:
        for n in range(ROWS):
            producer.send("numbers", {"n": n}, partition=n % 2)
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
