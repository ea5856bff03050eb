"""State survives what lies beside the executor: its runs may vanish or be damaged between two batches."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from jobs.killing import command_of, descendants
from jobs.support import CAUGHT_UP, SCHEMA, START, per_user, put, read, scores, t, table
from millstream.jobs.job_folder import runs_of as folder_of_runs
from millstream.log import EmbeddedLog
from waiting import exit_code, until

ROWS = [(f"u{second % 5}", second % 7, float(second)) for second in range(200)]
END = [("end", 0, 100_000.0)]  # brings the watermark past every window


def flow() -> ms.Flow:
    made = ms.Flow("kept")
    per_user(scores(made), mode="retracting", trigger=ms.after_watermark(early=ms.after_count(3))).write("totals")
    return made


def total_of_each() -> dict[Any, tuple[int, int]]:
    found: dict[Any, tuple[int, int]] = {}
    for user, n, second in ROWS:
        total, count = found.get((user, second // 10), (0, 0))
        found[user, second // 10] = (total + n, count + 1)
    return found


def runs_of(job: Any) -> Path:
    return folder_of_runs(job.folder.description().identity)


def lose(folder: Path) -> None:
    shutil.rmtree(folder)


def damage(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            path.write_bytes(b"damaged" + path.read_bytes()[7:])


@pytest.mark.more
@pytest.mark.parametrize("harm", [lose, damage])
def test_missing_or_damaged_runs_are_rebuilt(spark: SparkSession, tmp_path: Path, harm: Any) -> None:
    with EmbeddedLog(tmp_path / "log") as log:
        log.create_topic("scores", schema=SCHEMA)
        for part in (ROWS[:70], ROWS[70:140], [*ROWS[140:], *END]):
            put(log, "scores", part)
            job = flow().run(broker=log.path, until=CAUGHT_UP, progress="none")
            folder = runs_of(job)
            assert any(folder.rglob("*"))
            harm(folder)
        panes = [pane for pane in read(log, "totals") if pane["user"] != "end"]
    found = {(user, (start - START).total_seconds() // 10): value for (user, start), value in table(panes).items()}
    assert found == total_of_each()


def test_forgetting_a_job_also_removes_its_runs(spark: SparkSession, tmp_path: Path) -> None:
    with EmbeddedLog(tmp_path / "log") as log:
        log.create_topic("scores", schema=SCHEMA)
        put(log, "scores", ROWS[:20])
        job = flow().run(broker=log.path, until=CAUGHT_UP, progress="none")
        folder = runs_of(job)
        assert folder.exists()
        job.folder.remove()
        assert not folder.exists()


CLUSTER = """
import sys
import millstream as ms
flow = ms.Flow("kept")
scores = flow.read("scores", "user string, n int, at timestamp", event_time="at", watermark=ms.bounded("5 seconds"))
windows = scores.key_by("user").window(ms.fixed("10 seconds")).trigger(ms.after_watermark(early=ms.after_count(3)))
windows.retracting().agg(total=ms.sum("n"), k=ms.count()).write("totals")
flow.run(master="local-cluster[2,1,1024]", batch_rows=10, progress="none")
"""


@pytest.mark.soak
def test_a_killed_executor_changes_nothing(tmp_path: Path) -> None:
    """Executors are processes of their own here; the state of one that dies is rebuilt in another."""
    file = tmp_path / "flow.py"
    file.write_text(CLUSTER)
    with EmbeddedLog(tmp_path / "log") as log:
        log.create_topic("scores", schema=SCHEMA)
        put(log, "scores", [*ROWS, *END])
        command = [sys.executable, "-m", "millstream.cli", "--log", str(log.path), "run", str(file)]
        err = tmp_path / "err"
        with err.open("wb") as opened:
            process = subprocess.Popen(command, stderr=opened)

        def sent(*, last: bool = False) -> bool:
            assert process.poll() is None, err.read_text()
            panes = read(log, "totals")
            return any(pane["window"]["start"] >= t(190) for pane in panes) if last else len(panes) > 10

        try:
            until(sent, "the first panes")
            executor = next(
                each for each in descendants(process.pid) if "CoarseGrainedExecutorBackend" in command_of(each)
            )
            os.kill(executor, signal.SIGKILL)
            until(lambda: sent(last=True), "the last panes")
        finally:
            process.terminate()
            exit_code(process, "the job that was told to stop")
        panes = [pane for pane in read(log, "totals") if pane["user"] != "end"]
    found = {(user, (start - START).total_seconds() // 10): value for (user, start), value in table(panes).items()}
    assert found == total_of_each()
