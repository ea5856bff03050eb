"""Nothing is lost and nothing is doubled, whatever dies: the process, a worker of Spark, or a sink."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.errors import OutputMismatch, SparkFailed
from millstream.log import EmbeddedLog
from postgres_server import Server
from waiting import PATIENCE_S, until

from .killing import KINDS_OF_KILLS, Killed, kill_a_few_times, kill_often, kill_once
from .support import CAUGHT_UP, SCHEMA, put

KILLS_OF_A_SOAK = 50


@pytest.fixture
def killed(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Killed]:
    made = Killed(tmp_path, seed=2026)
    yield made
    made.close()


# ---------------------------------------------------------------- the process, and its workers


@pytest.mark.more
@pytest.mark.own_processes
@pytest.mark.timeout(600)
def test_a_kill_loses_and_duplicates_nothing(killed: Killed) -> None:
    kill_once(killed)


@pytest.mark.soak
@pytest.mark.own_processes
@pytest.mark.timeout(600)
def test_kills_lose_and_duplicate_nothing(killed: Killed) -> None:
    kill_a_few_times(killed)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_jvm_that_dies_raises_a_readable_error(killed: Killed) -> None:
    """The Python process survives and reports it, and the next run resumes."""
    killed.feed(20)
    assert killed.run_and_kill(jvm_only=True) == SparkFailed.exit_code
    *_, what, where, following = (killed.folder / "err").read_text().splitlines()
    assert what.startswith("error: Spark's JVM has died")
    assert Path(where.partition("where: ")[2]).read_text()
    assert "Traceback" not in (killed.folder / "err").read_text()
    assert "next:" in following
    killed.feed(300)
    killed.catch_up()
    killed.check()


@pytest.mark.soak
@pytest.mark.timeout(14400)
def test_fifty_kills(killed: Killed, rounds: Callable[[int, int], int]) -> None:
    kill_often(killed, rounds(KILLS_OF_A_SOAK, KINDS_OF_KILLS))


# ---------------------------------------------------------------- a sink that is down


def copied(dsn: str, name: str) -> ms.Flow:
    flow = ms.Flow(name)
    scores = flow.read("scores", SCHEMA)
    scores.write(ms.postgres(dsn, "scores"))
    scores.write("copy")
    return flow


def stored(dsn: str) -> list[int]:
    with psycopg.connect(dsn) as db:
        return sorted(n for (n,) in db.execute("select n from scores"))


@pytest.mark.more
def test_a_sink_that_is_down_holds_the_job_back(spark: SparkSession, tmp_path: Path, server: Server) -> None:
    dsn = server.new_database()
    with EmbeddedLog(tmp_path / "log", upkeep=False) as log:
        log.create_topic("scores", schema=SCHEMA)
        put(log, "scores", [("a", n, n) for n in range(10)])
        job = copied(dsn, "down").start(broker=log.path, batch_rows=10)
        until(lambda: job.progress.batch >= 0 and job.lag() == 0 and len(stored(dsn)) == 10, "the first batch")
        server.stop()
        put(log, "scores", [("a", n, n) for n in range(10, 60)])
        until(lambda: job.progress.waits_for, "the job to wait")
        assert "write" in str(job.progress.waits_for)
        assert job.is_running
        server.start()
        until(lambda: len(stored(dsn)) >= 60, "the rows")
        assert job.progress.waits_for is None
        job.stop()
        assert stored(dsn) == list(range(60))


@pytest.mark.more
def test_a_job_that_waits_can_be_stopped(spark: SparkSession, tmp_path: Path, server: Server) -> None:
    """The batch that waited is written at the next start, once."""
    dsn = server.new_database()
    with EmbeddedLog(tmp_path / "log", upkeep=False) as log:
        log.create_topic("scores", schema=SCHEMA)
        put(log, "scores", [("a", n, n) for n in range(10)])
        copied(dsn, "stopped").run(broker=log.path, until=CAUGHT_UP)
        server.stop()
        try:
            put(log, "scores", [("a", n, n) for n in range(10, 20)])
            job = copied(dsn, "stopped").start(broker=log.path)
            until(lambda: job.progress.waits_for, "the job to wait")
            job.stop()
            assert not job.is_running
        finally:
            server.start()
        put(log, "scores", [("a", 20, 20)])
        copied(dsn, "stopped").run(broker=log.path, until=CAUGHT_UP)
        assert stored(dsn) == list(range(21))
        with log.consumer("copy") as consumer:
            assert sorted(record.value["n"] for record in consumer.until_caught_up()) == list(range(21))


@pytest.mark.more
def test_an_output_that_was_down_at_the_start_is_looked_at_before_its_first_batch(
    spark: SparkSession, tmp_path: Path, server: Server
) -> None:
    """Another run of the job has written it, which nobody can know before the database is back."""
    dsn = server.new_database()
    with EmbeddedLog(tmp_path / "log", upkeep=False) as log:
        log.create_topic("scores", schema=SCHEMA)
        put(log, "scores", [("a", n, n) for n in range(10)])

        def flow() -> ms.Flow:
            made = ms.Flow("late")
            made.read("scores", SCHEMA).write(ms.postgres(dsn, "scores"))
            return made

        flow().run(broker=log.path, until=CAUGHT_UP)
        server.stop()
        try:
            job = flow().start(broker=log.path, folder=tmp_path / "other")
            until(lambda: job.progress.waits_for, "the job to wait")
        finally:
            server.start()
        with pytest.raises(OutputMismatch, match="another run of the job"):
            job.wait(PATIENCE_S)
        assert stored(dsn) == list(range(10))


@pytest.mark.more
@pytest.mark.own_processes
@pytest.mark.timeout(600)
def test_ctrl_c_while_a_sink_is_down(tmp_path: Path) -> None:
    """A sink that can never be written: a file stands where a folder of the path should be."""
    (tmp_path / "blocked").touch()
    file = tmp_path / "flow.py"
    file.write_text(
        "import millstream as ms\nflow = ms.Flow('waits')\n"
        f"flow.read('scores', '{SCHEMA}').write(ms.files({str(tmp_path / 'blocked' / 'out')!r}, 'json'))\n"
    )
    with EmbeddedLog(tmp_path / "log", upkeep=False) as log:
        log.create_topic("scores", schema=SCHEMA)
        put(log, "scores", [("a", 1, 0)])
        command = [sys.executable, "-m", "millstream.cli", "run", str(file), "--log", str(log.path)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True) as process:
            commits = log.path / "jobs" / "waits" / "checkpoint" / "offsets" / "0"
            until(commits.exists, "a batch")
            time.sleep(2)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: every process hears it
            _, err = process.communicate(timeout=60)
        assert process.returncode == 130, err.decode()
        assert b"Traceback" not in err
        (tmp_path / "blocked").unlink()
        done = subprocess.run([*command, "--until", "caught up"], capture_output=True, timeout=200)
        assert done.returncode == 0, done.stderr.decode()
        written = [path.read_text() for path in (tmp_path / "blocked" / "out").glob("*.json")]
        assert len(written) == 1
        assert written[0].count('"n":1') == 1
