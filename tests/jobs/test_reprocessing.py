"""Recomputed results: history as one batch, a replay beside a running job, and both read as one table."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.jobs.job_folder import OWNER, RUNS
from millstream.log import EmbeddedLog
from waiting import until

from .support import CAUGHT_UP, SCHEMA, last_panes, per_user, put, read, scores, seconds, t, table

pytestmark = pytest.mark.usefixtures("spark")
ROWS = [(f"u{n % 3}", n, float(n + (n * 7) % 5)) for n in range(60)]  # within the watermark's five seconds
LAST = [("end", 0, 10_000.0)]
CASES: dict[str, dict[str, Any]] = {
    "fixed": {"trigger": ms.at_expiry(), "allowed_lateness": "30 seconds"},
    "sessions": {"window": ms.sessions("4 seconds"), "mode": "retracting"},
    "sliding": {
        "window": ms.sliding("10 seconds", "5 seconds"),
        "trigger": ms.after_watermark(early=ms.after_count(3), late=ms.each()),
        "allowed_lateness": "1 minute",
    },
}


def all_cases(ending: str) -> ms.Flow:
    """Every case in one flow, from one reading."""
    flow = ms.Flow("cases")
    stream = scores(flow)
    for name, case in CASES.items():
        per_user(stream, **case).write(f"{name}.{ending}")
    return flow


@pytest.mark.more
def test_a_batch_run_ends_with_the_rows_of_streaming(log: EmbeddedLog) -> None:
    """Streamed rows get one more that closes their windows; in a batch run they close by themselves."""
    put(log, "scores", ROWS)
    job = all_cases("batch").run(broker=log.path, batch=True)
    assert (job.progress.rows_read, job.progress.batch) == (len(ROWS), 0)
    put(log, "scores", LAST)
    all_cases("live").run(broker=log.path, until=CAUGHT_UP, batch_rows=25)
    for name in CASES:
        in_batch = read(log, f"{name}.batch")
        live = [each for each in read(log, f"{name}.live") if each["user"] != "end"]
        assert last_panes(in_batch) == last_panes(live), name
        assert last_panes(in_batch)
        if CASES[name].get("mode") == "retracting":
            assert table(in_batch) == table(live), name
    plain = {(user, second): total for user, second, total in seconds(read(log, "fixed.batch"))}
    wanted: dict[Any, int] = {}
    for user, n, second in ROWS:
        wanted[user, second // 10 * 10] = wanted.get((user, second // 10 * 10), 0) + n
    assert plain == wanted


@pytest.mark.more
def test_a_batch_run_leaves_no_job_behind(log: EmbeddedLog) -> None:
    put(log, "scores", ROWS)
    flow = ms.Flow("once")
    per_user(scores(flow)).write("totals")
    flow.run(broker=log.path, batch=True)
    assert list((log.path / "jobs").iterdir()) == []
    for owner in Path(tempfile.gettempdir()).glob(f"{RUNS}*/{OWNER}"):
        with suppress(FileNotFoundError):  # other tests have runs, too
            assert not owner.read_text().startswith(str(log.path))


@pytest.mark.more
def test_a_batch_run_of_files_can_be_made_again(log: EmbeddedLog, tmp_path: Path) -> None:
    """A second one reads all files again, and new ones too."""
    (tmp_path / "in").mkdir()

    def run() -> list[int]:
        flow = ms.Flow("files")
        found: list[int] = []
        flow.read(ms.files(tmp_path / "in", "json"), "n int").write(
            ms.foreach_batch(lambda rows, batch: found.extend(rows["n"].to_pylist()))
        )
        flow.run(broker=log.path, batch=True)
        return sorted(found)

    (tmp_path / "in" / "b.json").write_text('{"n": 1}\n')
    assert run() == [1]
    (tmp_path / "in" / "a.json").write_text('{"n": 2}\n')
    os.utime(tmp_path / "in" / "a.json", (0, 0))  # so that it is now the first of them
    assert run() == [1, 2]


@pytest.mark.more
@pytest.mark.own_processes
@pytest.mark.timeout(600)
def test_a_batch_run_that_was_killed_continues(log: EmbeddedLog, tmp_path: Path) -> None:
    """It is killed between two of its outputs: the first has its rows then, and does not get them again."""
    put(log, "scores", ROWS)
    file = tmp_path / "flow.py"
    file.write_text(
        f"""
import os, signal, time
from pathlib import Path
import millstream as ms

def die_once(rows, batch):
    died = Path({str(tmp_path / "died")!r})
    if not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)

flow = ms.Flow("cut")
panes = (flow.read("scores", {SCHEMA!r}, event_time="at").key_by("user")
    .window(ms.fixed("10 seconds")).agg(total=ms.sum("n"), k=ms.count()))
panes.write("first")
panes.write(ms.foreach_batch(die_once))
panes.write("second")
"""
    )
    command = [sys.executable, "-m", "millstream.cli", "run", str(file), "--batch", "--log", str(log.path)]
    environ = {**os.environ, "MILLSTREAM_MASTER": "local[2]"}
    assert subprocess.run(command, env=environ, capture_output=True, timeout=200).returncode == -signal.SIGKILL
    first = read(log, "first")
    assert first
    assert read(log, "second") == []
    assert (log.path / "jobs" / "cut.batch").exists()
    put(log, "scores", LAST)  # which came later, and is not in it
    done = subprocess.run(command, env=environ, capture_output=True, timeout=200)
    assert done.returncode == 0, done.stderr.decode()
    assert read(log, "first") == first
    assert seconds(read(log, "second")) == seconds(first)
    assert list((log.path / "jobs").iterdir()) == []


# ---------------------------------------------------------------- beside a running job


def totals(factor: int = 1) -> ms.Flow:
    flow = ms.Flow("totals")
    panes = per_user(scores(flow).with_column("n", f"n * {factor}"))
    panes.write("totals")
    panes.late.write("late")
    return flow


@pytest.mark.more
def test_results_are_recomputed_next_to_a_running_job(log: EmbeddedLog) -> None:
    """Then readers of the old topic are moved over."""
    put(log, "scores", ROWS)
    job = totals().start(broker=log.path)
    until(lambda: len(read(log, "totals")) >= 15, "the first results")
    replayed = totals(factor=2).replay(broker=log.path, into="totals.v2")
    assert replayed.progress.rows_read == len(ROWS)
    assert job.is_running
    job.stop()
    old, new = seconds(read(log, "totals")), seconds(read(log, "totals.v2"))
    assert new == [(user, start, 2 * total) for user, start, total in old]
    assert "late.v2" in log.topics()
    log.switch("totals", "totals.v2")
    assert seconds(read(log, "totals")) == new


@pytest.mark.parametrize("since", [None, pytest.param("now", marks=pytest.mark.more)])
def test_a_replay_starts_at_a_time(log: EmbeddedLog, since: str | None) -> None:
    """The time is that at which records came to the log."""
    put(log, "scores", ROWS[:20])
    with log.consumer("scores") as consumer:
        newest = max(record.timestamp for record in consumer.until_caught_up())
    moment = until(lambda: (now := datetime.now(UTC)) > newest + timedelta(milliseconds=5) and now, "a moment later")
    put(log, "scores", ROWS[20:])
    settings = {} if since is None else {"since": moment.isoformat()}
    job = totals().replay(broker=log.path, into="totals.v2", **settings)
    assert job.progress.rows_read == (len(ROWS) if since is None else len(ROWS) - 20)


@pytest.mark.more
def test_a_batch_result_and_the_live_rest_are_one_table(log: EmbeddedLog, tmp_path: Path) -> None:
    """History as one batch into files, what comes after from a job that began there, and both as one table."""
    put(log, "scores", ROWS)

    def built(name: str, sink: Any) -> ms.Flow:
        flow = ms.Flow(name)
        per_user(scores(flow)).write(sink)
        return flow

    built("history", ms.files(tmp_path / "history")).run(broker=log.path, batch=True)
    put(log, "scores", [("u0", 100, 61.0), ("new", 1, 62.0), *LAST])
    built("live", "live").run(broker=log.path, until=CAUGHT_UP)
    view = ms.merged(tmp_path / "history", "live", log=log)
    held = {(each["user"], each["window"]["start"]): each["total"] for each in view.frame.to_dicts()}
    assert held["new", t(60)] == 1
    wanted = sum(n for user, n, second in ROWS if user == "u0" and second >= 60) + 100
    assert held["u0", t(60)] == wanted
    assert sum(held.values()) == sum(n for _, n, _ in ROWS) + 101
