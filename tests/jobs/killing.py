"""A job in a process of its own, which is killed now and then, and what all of it should have written."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.parquet as pq

from millstream.errors import SparkFailed
from millstream.log import EmbeddedLog, connect
from waiting import exit_code, until

from .support import SCHEMA, Triple, counted, expected, offsets_of, put, read, sqlite_rows, table, unweighted

USERS = ("ann", "bob", "cid", "dee")
FEED_S = 5
MOMENT_S = 0.002
"""A file that is there for the time of a write must not be missed too often."""
KINDS_OF_KILLS = 5
"""Four moments, and a worker: fewer kills in `kill_often` would leave one out."""
FLOW = """
from pathlib import Path
import millstream as ms

here = Path(__file__).parent
flow = ms.Flow("killed")
scores = flow.read("{scores}", "{scores_schema}", event_time="at", watermark=ms.bounded("5 seconds"))
panes = (
    scores.key_by("user")
    .window(ms.fixed("10 seconds"), allowed_lateness="20 seconds")
    .trigger(ms.after_watermark(early=ms.after("1 second"), late=ms.each()))
    .retracting()
    .agg(total=ms.sum("n"), k=ms.count())
)
panes.write("{totals}")
panes.write(ms.sqlite(str(here / "totals.sqlite"), "totals"))
panes.write(ms.files(str(here / "files")))
panes.late.write("{late}")
"""


class Killed:
    """The job's process, the rows it is given, and what Spark has noted of its batches.

    `broker` is the address of a Kafka, on which its topics have names of their own; the default is a log in the folder.
    """

    flow = FLOW
    inputs: ClassVar[dict[str, str]] = {"scores": SCHEMA}
    """The topics that the job reads, each with its schema."""
    outputs: ClassVar[tuple[str, ...]] = ("totals", "late")

    def __init__(self, folder: Path, seed: int, batch_rows: int = 40, broker: str | None = None) -> None:
        self.folder = folder
        self.chance = random.Random(seed)
        self.log = connect(broker) if broker else EmbeddedLog(folder / "log", upkeep=False)
        self.broker = broker or str(folder / "log")
        beginning = f"killed-{uuid.uuid4().hex[:12]}." if broker else ""
        self.topics = {name: beginning + name for name in (*self.inputs, *self.outputs)}
        for name, schema in self.inputs.items():
            self.log.create_topic(self.topics[name], schema=schema, partitions=2)
        self.file = folder / "flow.py"
        self.file.write_text(
            self.flow.format(**self.topics, **{f"{name}_schema": each for name, each in self.inputs.items()})
        )
        self.job = folder / "log" / "jobs" / "killed"
        self.batches: dict[int, dict[str, Any]] = {}
        self._batch_rows = batch_rows
        self._second = 0.0
        self._fed = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._watching = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def _watch(self) -> None:
        """Spark forgets old batches."""
        while not self._watching.wait(0.5):
            self.batches |= offsets_of(self.job)

    # ------------------------------------------------------------ rows

    def feed(self, count: int) -> None:
        """Rows of both partitions: time advances, most arrive nearly in order, some late, some much too late."""
        for partition in (0, 1):
            rows: list[Triple] = []
            for _ in range(count):
                self._second += 0.1
                behind = self.chance.choice([0, 0, 0, 1, 3, 8, 25, 60])
                rows.append((self.chance.choice(USERS), self.chance.randrange(100), max(0.0, self._second - behind)))
            put(self.log, self.topics["scores"], rows, partition=partition)

    # ------------------------------------------------------------ the process

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "millstream.cli", "run", str(self.file), "--log", self.broker]
        environ = {**os.environ, "MILLSTREAM_MASTER": "local[2]", "MILLSTREAM_HOME": str(self.folder / "log")}
        with (self.folder / "err").open("ab") as err:
            self._process = subprocess.Popen(
                [*command, "--batch-rows", str(self._batch_rows), *more], stderr=err, env=environ
            )
        return self._process

    def newest(self) -> int:
        return max(offsets_of(self.job), default=-1)

    def run_and_kill(
        self, when: Callable[[], Any] | None = None, *, worker_first: bool = False, jvm_only: bool = False
    ) -> int:
        """Starts it, lets it start a batch and run for a moment, and kills it; its exit code.

        Spark may do without a worker that it did not need just then; else the job ends with an error of its own.
        """
        process = self._begun()
        if jvm_only:
            (jvm,) = (child for child in children(process.pid) if "PythonGatewayServer" in command_of(child))
            os.kill(jvm, signal.SIGKILL)
            return exit_code(process, "the job whose JVM was killed")
        if worker_first:
            os.kill(self.worker(), signal.SIGKILL)
            before = self.newest()
            until(lambda: process.poll() is not None or self.newest() > before + 1, "the job to go on or to end")
        elif when is None:
            time.sleep(self.chance.uniform(0, 2))
        else:
            moment = "the moment to kill"
            until(lambda: process.poll() is not None or when() or self._feed_now_and_then(), moment, MOMENT_S)
        if process.poll() is None:
            process.kill()
        return exit_code(process, "the killed job")

    def _feed_now_and_then(self) -> bool:
        """A short moment may be missed: it comes again with the next batch, for which there must be rows."""
        if time.monotonic() - self._fed > FEED_S:
            self._fed = time.monotonic()
            self.feed(10)
        return False

    def _begun(self) -> subprocess.Popen[bytes]:
        before = self.newest()
        process = self.start()
        until(lambda: process.poll() is not None or self.newest() > before, "a batch")
        self.feed(30)
        return process

    def worker(self) -> int:
        """One of the Python processes that Spark works with: a child of the daemon, which is a child of the JVM."""
        assert self._process is not None

        def found() -> int | None:
            assert self._process is not None
            for jvm in children(self._process.pid):
                for daemon in children(jvm):
                    if "pyspark" in command_of(daemon) and (workers := children(daemon)):
                        return workers[0]
            return None

        return int(until(found, "a worker"))

    def catch_up(self) -> None:
        process = self.start("--until", "caught up")
        code = exit_code(process, "the job that catches up")
        assert code == 0, (self.folder / "err").read_text()
        self._watching.set()
        self._watcher.join()
        self.batches |= offsets_of(self.job)

    def close(self) -> None:
        self._watching.set()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self.log.close()

    # ------------------------------------------------------------ what it wrote

    def check(self) -> None:
        """Every output has exactly what the reference sends for the same rows in the same batches."""
        numbers = sorted(self.batches)
        assert numbers == list(range(len(numbers)))
        rows: dict[str, list[dict[str, Any]]] = {"0": [], "1": []}
        with self.log.consumer(self.topics["scores"]) as consumer:
            for record in consumer.until_caught_up():
                rows[str(record.partition)].append(record.value)
        sent = expected(flow_of(self.file), [self.batches[number] for number in numbers], rows)
        panes = [pane for batch in sent for pane in batch[self.topics["totals"]]]
        late = [each for batch in sent for each in batch[self.topics["late"]]]
        assert panes
        assert late
        assert counted(read(self.log, self.topics["totals"])) == counted(panes)
        assert counted(unweighted(read(self.log, self.topics["late"]))) == counted(late)
        files = [pane for path in (self.folder / "files").glob("*.parquet") for pane in pq.read_table(path).to_pylist()]
        assert counted(files) == counted(panes)
        stored = sqlite_rows(self.folder / "totals.sqlite", "user, total, k")
        assert sorted(stored) == sorted((user, *sums) for (user, _), sums in table(panes).items())


# ---------------------------------------------------------------- what is done to it, whatever its broker is


def kill_once(killed: Killed) -> None:
    killed.feed(200)
    assert killed.run_and_kill() == -signal.SIGKILL
    killed.feed(30)
    killed.catch_up()
    killed.check()


def kill_a_few_times(killed: Killed) -> None:
    """Killed at any moment, then while a sink is being written, then one of its workers."""
    killed.feed(200)
    assert killed.run_and_kill() == -signal.SIGKILL
    journal = killed.folder / "totals.sqlite-journal"
    assert killed.run_and_kill(when=journal.exists) == -signal.SIGKILL
    assert killed.run_and_kill(worker_first=True) in (-signal.SIGKILL, SparkFailed.exit_code)
    killed.feed(30)
    killed.catch_up()
    killed.check()
    said = (killed.folder / "err").read_text()
    assert "Traceback" not in said
    assert "\tat " not in said  # as lines of a JVM's stack begin


def kill_often(killed: Killed, kills: int) -> None:
    killed.feed(200)
    drafts = killed.folder / "files"
    moments: list[Any] = [
        None,
        None,
        (killed.folder / "totals.sqlite-journal").exists,
        lambda: any(drafts.glob(".drafts-*/*.tmp")) if drafts.exists() else False,
    ]
    for number in range(kills):
        code = killed.run_and_kill(
            moments[number % len(moments)], worker_first=number % KINDS_OF_KILLS == KINDS_OF_KILLS - 1
        )
        print(f"kill {number + 1} of {kills}: exit code {code}, {len(killed.batches)} batches", flush=True)
    killed.catch_up()
    killed.check()


def flow_of(file: Path) -> Any:
    import runpy

    return runpy.run_path(str(file))["flow"]


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in task.read_text().split()]
        except OSError:  # it ended meanwhile
            continue
    return found


def descendants(pid: int) -> list[int]:
    found = children(pid)
    return [*found, *(each for child in found for each in descendants(child))]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""
