"""Upgrades of a real job that fall behind or fail go back by themselves; a collector gets the metrics of both flows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import millstream as ms
from millstream.supervision.upgrades import LAG_RECORDS_MIN
from waiting import until

from .test_otlp import Receiver, receiver
from .test_up import Up, produced, written

__all__ = ["receiver"]

FLOW = """
import time
import millstream as ms

def passed(row):
    time.sleep(DELAY_S)
    if row["n"] == FAILS_ON:
        raise ValueError("no luck")
    return row

flow = ms.Flow("doubled")
rows = flow.read("in").select(n="n * 2")
rows.map(passed, schema=rows.schema).write("out")
"""
OPTIONS = ["--master", "local[1]"]
FIRST, LATER = 100, 2 * LAG_RECORDS_MIN
ROWS_IN = "millstream_step_rows_in"


@pytest.fixture
def up(tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Up]:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "500")
    made = Up(tmp_path, "--otlp", receiver.address)
    yield made
    made.close()


def flow(*, delay_s: float = 0, fails_on: int = -1) -> str:
    return FLOW.replace("DELAY_S", str(delay_s)).replace("FAILS_ON", str(fails_on))


def rows_in(receiver: Receiver) -> float:
    """Of the newest run of the job."""
    found = dict(receiver.points).items()
    return max((value for (name, job, _), value in found if (name, job) == (ROWS_IN, "doubled")), default=0)


@pytest.mark.more
@pytest.mark.own_processes
@pytest.mark.timeout(900)
def test_a_watched_upgrade_that_falls_behind_goes_back(up: Up, receiver: Receiver, tmp_path: Path) -> None:
    """Method: the new flow takes a while for each row, and there are more rows than it can read within the time."""
    jobs = up.start()
    with ms.connect(up.log) as log:
        log.create_topic("in", schema="n int", partitions=1)
    old, new = tmp_path / "old.py", tmp_path / "new.py"
    old.write_text(flow(delay_s=0))
    new.write_text(flow(delay_s=0.01))
    produced(up.log, range(FIRST))
    jobs.submit(old, options=[*OPTIONS, "--batch-rows", "1000"])
    until(lambda: len(written(up.log)) == FIRST, "the first rows")
    until(lambda: rows_in(receiver) == FIRST, "the collector has the metrics of the job")
    jobs.upgrade("doubled", new, watch="40 seconds")
    until(lambda: jobs.upgrades("doubled")[0]["phase"] == "watching", "the new flow is watched")
    produced(up.log, range(FIRST, FIRST + LATER))
    until(lambda: jobs.upgrades("doubled")[0]["phase"] == "went back", "the upgrade goes back")
    found = jobs.upgrades("doubled")[0]
    assert found["reason"].startswith("it falls behind: ")
    assert found["reason"].endswith(" records, and 0 before")
    assert jobs.show("doubled")["file"] == str(old)
    until(lambda: len(written(up.log)) >= FIRST + LATER, "the old flow has read all rows")
    assert sorted(written(up.log)) == [2 * number for number in range(FIRST + LATER)]
    until(lambda: rows_in(receiver) > FIRST, "the collector has the metrics of the next run")


@pytest.mark.more
@pytest.mark.own_processes
@pytest.mark.timeout(900)
def test_a_watched_upgrade_that_fails_goes_back(up: Up, tmp_path: Path) -> None:
    """Method: the new flow fails on a row that comes while it is watched; the old one then writes it."""
    jobs = up.start()
    with ms.connect(up.log) as log:
        log.create_topic("in", schema="n int", partitions=1)
    old, new = tmp_path / "old.py", tmp_path / "new.py"
    old.write_text(flow())
    new.write_text(flow(fails_on=2 * FIRST))
    produced(up.log, range(FIRST))
    jobs.submit(old, options=OPTIONS)
    until(lambda: len(written(up.log)) == FIRST, "the first rows")
    jobs.upgrade("doubled", new, watch="10 minutes")
    until(lambda: jobs.upgrades("doubled")[0]["phase"] == "watching", "the new flow is watched")
    produced(up.log, range(FIRST, 2 * FIRST))
    until(lambda: jobs.upgrades("doubled")[0]["phase"] == "went back", "the upgrade goes back")
    assert "no luck" in jobs.upgrades("doubled")[0]["reason"]
    assert jobs.show("doubled")["file"] == str(old)
    until(lambda: len(written(up.log)) >= 2 * FIRST, "the old flow has read all rows")
    assert sorted(written(up.log)) == [2 * number for number in range(2 * FIRST)]
