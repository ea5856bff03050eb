"""Traces of records, back and forward, through two jobs that are chained by a topic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import millstream as ms
from millstream.cli.app import app
from millstream.errors import NotFound
from millstream.plan.parameters import VARIABLE
from millstream.provenance.history import History
from millstream.provenance.tracing import Place, Tracer
from provenance.recorded import SCHEMA, Batch, at, record, score

DOUBLED = "team string, double int, at timestamp"
DOUBLE = f"""
import millstream as ms

flow = ms.Flow("double")
scores = flow.read("scores", "{SCHEMA}", event_time="at", name="scores")
scores.where("score > 0").select("team", "score * 2 as double", "at").write("doubled", name="doubled")
"""
TOTAL = f"""
import millstream as ms

flow = ms.Flow("total")
doubled = flow.read("doubled", "{DOUBLED}", event_time="at", watermark=ms.bounded("10 seconds"), name="doubled")
panes = doubled.key_by("team").window(ms.fixed("1 minute")).agg(total=ms.sum("double"), name="panes")
panes.write("totals", name="totals")
panes.late.write("late", name="late")
"""


def doubled(team: str, points: int, seconds: float) -> dict[str, Any]:
    return {"team": team, "double": points, "at": at(seconds)}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two jobs that have run: what Spark would have written is sent here."""
    folder = tmp_path / "log"
    monkeypatch.setenv("MILLSTREAM_BROKER", str(folder))
    monkeypatch.setenv(VARIABLE, "{}")
    (tmp_path / "double.py").write_text(DOUBLE)
    (tmp_path / "total.py").write_text(TOTAL)
    with ms.connect(folder) as log:
        log.create_topic("scores", partitions=1, schema=SCHEMA)
        log.create_topic("doubled", partitions=1, schema=DOUBLED)
        log.create_topic("totals", partitions=1)
        log.create_topic("late", partitions=1)
    scores = [score("red", 1, 1), score("red", 0, 2), score("red", 2, 5), score("blue", 1, 90), score("red", 9, 7)]
    record(folder, "double", "scores", "scores", [Batch(1, {0: scores[:3]}), Batch(2, {0: scores[3:]})])
    rows = [doubled("red", 2, 1), doubled("red", 4, 5), doubled("blue", 2, 90), doubled("red", 18, 7)]
    batches = [Batch(1, {0: rows[:2]}), Batch(2, {0: rows[2:3]}), Batch(3, {0: rows[3:]})]
    record(folder, "total", "doubled", "doubled", batches)
    span = {"start": at(0).isoformat(), "end": at(60).isoformat()}
    pane = {"timing": "on_time", "index": 0, "on_time_index": 0, "first": True, "last": True}
    total = {
        "team": "red",
        "window": span,
        "pane": pane,
        "weight": 1,
        "total": 6,
        "event_time": at(59.999999).isoformat(),
    }
    late = {"team": "red", "double": 18, "at": at(7).isoformat(), "window": span, "reason": "expired"}
    with ms.connect(folder) as log, log.producer() as producer:
        producer.send("totals", json.dumps(total).encode())
        producer.send("late", json.dumps(late).encode())
    return tmp_path


def tracer(project: Path) -> Tracer:
    import runpy

    return Tracer([History(runpy.run_path(str(project / name))["flow"]) for name in ("double.py", "total.py")])


def places(links: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(record_["topic"], record_["offset"]) for link in links for record_ in link["records"]]


def test_a_result_is_traced_back_through_both_jobs(project: Path) -> None:
    found = tracer(project).trace(Place("totals", 0, 0))
    assert places(found["from"]) == [("doubled", 0), ("doubled", 1)]
    assert [places(each["from"]) for each in found["from"][0]["records"]] == [[("scores", 0)], [("scores", 2)]]
    assert found["to"] == []


def test_a_record_is_traced_forward_through_both_jobs(project: Path) -> None:
    found = tracer(project).trace(Place("scores", 0, 2))
    assert found["from"] == []
    assert places(found["to"]) == [("doubled", 1)]
    assert places(found["to"][0]["records"][0]["to"]) == [("totals", 0)]
    late = tracer(project).trace(Place("scores", 0, 4))
    assert places(late["to"][0]["records"][0]["to"]) == [("late", 0)]
    dropped = tracer(project).trace(Place("scores", 0, 1))
    assert dropped["to"] == []


def test_what_has_expired_and_what_nobody_knows_is_said(project: Path) -> None:
    found = tracer(project).trace(Place("totals", 0, 7), forward=False)
    assert "expired" in found["from"][0]["notes"][0]
    with pytest.raises(NotFound, match="no known job"):
        tracer(project).trace(Place("other", 0, 0))


def test_the_command_prints_both_directions(project: Path) -> None:
    files = ["--file", str(project / "double.py"), "--file", str(project / "total.py")]
    done = CliRunner().invoke(app, ["trace", "doubled", "0", "1", *files])
    assert done.exit_code == 0, done.output
    assert "<- double, batch 0: doubled\n    scores 0 2" in done.stdout
    assert "-> total, batch 1: totals\n    totals 0 0" in done.stdout
    done = CliRunner().invoke(app, ["trace", "doubled", "0", "1", "--back", "--json", *files])
    assert "to" not in json.loads(done.stdout)
