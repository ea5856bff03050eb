"""`millstream why` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import millstream as ms
from millstream.cli.app import app
from millstream.plan.parameters import VARIABLE
from provenance.recorded import SCHEMA, Batch, record, score

FLOW = f"""
import millstream as ms

flow = ms.Flow("totals")
scores = flow.read("scores", "{SCHEMA}", event_time="at", watermark=ms.bounded("10 seconds"), name="scores")
points = ms.param("points", 0)
totals = scores.where(f"score > {{points}}").key_by("team").window(ms.fixed("1 minute")).agg(total=ms.sum("score"))
totals.write("totals")
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MILLSTREAM_BROKER", str(tmp_path / "log"))
    monkeypatch.setenv(VARIABLE, "{}")
    (tmp_path / "flow.py").write_text(FLOW)
    with ms.connect(tmp_path / "log") as log:
        log.create_topic("scores", partitions=1, schema=SCHEMA)
    batches = [
        Batch(1, {0: [score("red", 1, 1), score("red", 2, 5)]}),
        Batch(9, {0: [score("blue", 1, 90)]}),
        Batch(12, {0: [score("red", 1, 7)]}),
    ]
    record(tmp_path / "log", "totals", "scores", "scores", batches)
    return tmp_path


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_pane_is_explained_as_text_and_as_json(project: Path) -> None:
    asked = ["why", "totals", "--pane", "team=red", "window=2026-01-31T12:00:00Z", "--file", project / "flow.py"]
    text = run(*asked)
    assert "total:" in text
    assert "over the end" in text
    assert "scores 0 2 with event time 2026-01-31 12:01:30" in text
    answer = json.loads(run(*asked, "--json"))
    assert [row["offset"] for row in answer["rows"]] == [0, 1]
    assert answer["pane"]["total"] == 3
    other = json.loads(run(*asked, "--json", "--param", "points=1"))
    assert [row["offset"] for row in other["rows"]] == [1]


def test_a_late_record_and_a_bound_are_explained(project: Path) -> None:
    text = run("why", "totals", "--late", "scores", 0, 3, "--file", project / "flow.py")
    assert "expired" in text
    assert "instead of 10 seconds" in text
    text = run("why", "totals", "--bound", "2 minutes", "--file", project / "flow.py")
    assert "25.00%" in text
    assert "0.00%" in text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["team=red", "--file", "flow.py"], "belongs to no question"),
        (["--file", "flow.py"], "one question"),
        (["--pane", "team", "--file", "flow.py"], "is not a parameter"),
        (["--bound", "1 second"], "--file"),
        (["--bound", "1 second", "--file", "none.py"], "no file"),
    ],
)
def test_what_is_missing_is_said(
    project: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: str
) -> None:
    monkeypatch.chdir(project)
    done = CliRunner().invoke(app, ["why", "totals", *arguments])
    assert done.exit_code in (2, 3)
    assert expected in done.stderr
