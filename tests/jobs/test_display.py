"""Goal: without a terminal, a running job is seen in a log: a line when it starts, then one every ten seconds."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.errors import InvalidInput
from millstream.jobs.measuring.job_progress import Progress
from millstream.jobs.shown import display

ENDS_S = 31


def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], progress: str | bool) -> list[str]:
    """What is shown of half a minute, in which the display is updated twice a second."""
    now = 0.0
    monkeypatch.setattr(display, "time", SimpleNamespace(monotonic=lambda: now))
    found = Progress(batch=3, rows_read=1200, batch_seconds=1.0, batch_rows=100, rows_late=2, rows_dead=1)
    job: Any = SimpleNamespace(name="totals", progress=found, lag=lambda: 7, promise=None)
    with display.watched("totals", progress) as made:
        made.phase("checking the sources")
        while now < ENDS_S:
            now += 0.5
            made.update(job)
    return capsys.readouterr().err.splitlines()


def test_a_line_every_ten_seconds_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begin, *lines = shown(monkeypatch, capsys, "auto")
    assert begin == "totals: checking the sources"
    assert len(lines) == ENDS_S // 10
    for part in ("totals", "batch 3", "1,200 rows", "lag 7", "late 2", "dead 1"):
        assert all(part in line for line in lines)


def test_the_same_for_programs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    begin, *documents = map(json.loads, shown(monkeypatch, capsys, "json"))
    assert begin == {"job": "totals", "phase": "checking the sources"}
    assert [each["lag"] for each in documents] == [7] * (ENDS_S // 10)


@pytest.mark.parametrize("progress", ["none", False])
def test_nothing_is_shown_if_so_wished(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], progress: str | bool
) -> None:
    assert shown(monkeypatch, capsys, progress) == []


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(InvalidInput, match="progress='line' is unknown"):
        display.display_of("totals", "line")
