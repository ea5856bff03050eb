"""A pane, a late row and dead letters of a job as tests, which run in a process of their own without the log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import millstream as ms
from millstream.cli.app import app
from millstream.plan.parameters import VARIABLE
from provenance.recorded import Batch, record

FLOW = """
import millstream as ms

flow = ms.Flow("points")
read = flow.read("games", "team string, points string, at timestamp", event_time="at",
                 watermark=ms.bounded("10 seconds"), name="games")
read.dead.write("games.dead")


def to_number(row):
    return {"team": row["team"], "points": int(row["points"]), "at": row["at"]}


numbers = read.map(to_number, schema="team string, points int, at timestamp", name="numbers")
numbers.dead.write("numbers.dead")
totals = numbers.key_by("team").window(WINDOW).trigger(TRIGGER).MODE().agg(total=ms.sum("points"), name="totals")
totals.write("totals")
totals.late.write("late")
"""


def value(team: str, points: object, second: int) -> bytes:
    at = f"2026-01-31T12:{second // 60:02}:{second % 60:02}Z"
    return json.dumps({"team": team, "points": str(points), "at": at}).encode()


BATCHES = [
    Batch(1, {0: [value("red", 1, 1), value("blue", 1, 2)], 1: [value("red", 2, 4), b"{broken"]}),
    Batch(2, {0: [value("red", 4, 30), value("red", "many", 31)]}),
    Batch(3, {0: [value("red", 8, 75)], 1: [value("blue", 1, 80)]}),
    Batch(4, {0: [value("red", 16, 50)]}),
]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MILLSTREAM_BROKER", str(tmp_path / "log"))
    monkeypatch.setenv(VARIABLE, "{}")
    with ms.connect(tmp_path / "log") as log:
        log.create_topic("games", partitions=2)
    record(tmp_path / "log", "points", "games", "games", BATCHES, partitions=2)
    return tmp_path


def write_flow(path: Path, window: str, trigger: str, mode: str = "accumulating") -> None:
    path.write_text(FLOW.replace("WINDOW", window).replace("TRIGGER", trigger).replace("MODE", mode))


def write_test(flow: Path, name: str, *asked: object) -> None:
    command = ["why", "points", *asked, "--file", flow, "--as-test", flow.parent / "tests" / name]
    done = CliRunner().invoke(app, [str(each) for each in command])
    assert done.exit_code == 0, done.output


def run_tests(project: Path) -> subprocess.CompletedProcess[str]:
    kept = {name: text for name, text in os.environ.items() if name not in ("MILLSTREAM_BROKER", VARIABLE)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "tests"]
    return subprocess.run(command, cwd=project, env=kept, capture_output=True, text=True)


@pytest.mark.more
def test_written_tests_pass_with_the_flow_and_fail_with_another(project: Path) -> None:
    """Goal: a test repeats what the job did, and nothing else. Method: run it, then change the flow and run it again.

    The log is deleted before, so the rows are in the tests.
    """
    flow, sessions = project / "flow.py", project / "sessions.py"
    write_flow(flow, 'ms.fixed("1 minute")', "ms.after_watermark(early=ms.after_count(2))")
    pane = ("--pane", "team=red", "window=2026-01-31T12:00:00Z")
    write_test(flow, "test_on_time.py", *pane)
    write_test(flow, "test_early.py", *pane, "index=0")
    write_test(flow, "test_late.py", "--late", "games", 0, 5)
    write_test(flow, "test_dead_row.py", "--dead", "games", 0, 3)
    write_test(flow, "test_dead_bytes.py", "--dead", "games", 1, 1)
    write_flow(sessions, 'ms.sessions("30 seconds")', "ms.after_watermark(early=ms.after_count(1))", "retracting")
    write_test(sessions, "test_session.py", "--pane", "team=red", "window=2026-01-31T12:00:01Z")
    (project / "log").rename(project / "gone")
    done = run_tests(project)
    assert "6 passed" in done.stdout, done.stdout
    for path in (flow, sessions):
        text = path.read_text().replace("int(row", "len(row").replace("team string, points string", "points string")
        path.write_text(text.replace("ms.sum", "ms.max").replace('"1 minute"', '"3 minutes"'))
    assert "5 failed, 1 passed" in run_tests(project).stdout  # broken bytes are broken for every flow


def test_a_test_is_not_written_over_another_file(project: Path) -> None:
    write_flow(project / "flow.py", 'ms.fixed("1 minute")', "ms.after_watermark()")
    (project / "tests").mkdir()
    (project / "tests" / "test_case.py").write_text("mine")
    command = ["why", "points", "--late", "games", "0", "5", "--file", str(project / "flow.py")]
    done = CliRunner().invoke(app, [*command, "--as-test", str(project / "tests" / "test_case.py")])
    assert done.exit_code == 4
    assert (project / "tests" / "test_case.py").read_text() == "mine"


def test_a_bound_is_no_test(project: Path) -> None:
    write_flow(project / "flow.py", 'ms.fixed("1 minute")', "ms.after_watermark()")
    command = ["why", "points", "--bound", "1 second", "--file", str(project / "flow.py"), "--as-test", "t.py"]
    assert CliRunner().invoke(app, command).exit_code == 2
