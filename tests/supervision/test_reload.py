"""Flows of a submitted app are added and removed while it runs: the others are not restarted, and lose no row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.errors import InvalidInput
from millstream.log import EmbeddedLog
from millstream.supervision.client import Jobs
from millstream.supervision.store import Observed
from millstream.supervision.supervisor import Supervisor
from waiting import until

from .test_supervisor import SLEEPS, USER, file, seen, submit, supervisor
from .test_up import Up, produced, up

__all__ = ["supervisor", "up"]

APP = """
import millstream as ms

def times(factor):
    flow = ms.Flow(f"times{factor}")
    flow.read("in").select(n=f"n * {factor}").write(f"out{factor}")
    return flow

app = ms.app([times(factor) for factor in FACTORS], name="factors")
"""


def written(log: Path, topic: str) -> list[int]:
    with EmbeddedLog(log) as opened:
        if topic not in opened.topics():
            return []
        with opened.consumer(topic) as consumer:
            return [record.value["n"] for record in consumer.until_caught_up()]


def flows(jobs: Jobs) -> dict[str, Any]:
    return {each["name"]: each for each in jobs.show("factors")["flows"]}


@pytest.mark.more
@pytest.mark.own_processes
@pytest.mark.timeout(600)
def test_a_running_app_takes_the_flows_of_its_file(up: Up, tmp_path: Path) -> None:
    jobs = up.start()
    with ms.connect(up.log) as log:
        log.create_topic("in", schema="n int", partitions=1)
    path = tmp_path / "app.py"
    path.write_text(f"FACTORS = [2, 3]\n{APP}")
    jobs.submit(path, options=["--master", "local[1]"])
    produced(up.log, range(10))
    until(lambda: len(written(up.log, "out2")) == len(written(up.log, "out3")) == 10, "the first rows")
    before, driver = flows(jobs), jobs.show("factors")["processes"][0]
    path.write_text(f"FACTORS = [2, 5]\n{APP}")
    assert jobs.reload("factors") == {"name": "factors", "added": ["times5"], "removed": ["times3"], "changed": []}
    produced(up.log, range(10, 20))
    until(lambda: len(written(up.log, "out2")) == 20 and max(written(up.log, "out5"), default=0) == 95, "later rows")
    after, shown = flows(jobs), jobs.show("factors")
    assert (shown["runs"], shown["processes"][0]["pid"]) == (1, driver["pid"])
    assert set(after) == {"times2", "times5"}
    assert after["times2"] == before["times2"]
    assert written(up.log, "out2") == [2 * n for n in range(20)]
    assert written(up.log, "out3") == [3 * n for n in range(10)]
    path.write_text("1 / 0\n")
    with pytest.raises(InvalidInput, match="ZeroDivisionError"):
        jobs.reload("factors")
    assert flows(jobs) == after
    assert [each["action"] for each in jobs.audit()] == ["reload", "submit"]


def test_only_a_running_job_is_reloaded(supervisor: Supervisor, tmp_path: Path) -> None:
    submit(supervisor, file(tmp_path, "a", SLEEPS), schedule="0 3 * * *")
    with pytest.raises(InvalidInput, match="does not run: it is scheduled"):
        supervisor.reload("a", USER)
    supervisor.stop("a", USER)
    seen(supervisor, "a", Observed.STOPPED)
    with pytest.raises(InvalidInput, match="does not run: it is stopped"):
        supervisor.reload("a", USER)
