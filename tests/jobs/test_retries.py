"""How long a job waits for a sink that is unavailable, and how often it starts a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.errors import InvalidInput, InvalidPlan, SinkFailed, SinkUnavailable
from millstream.log import EmbeddedLog
from millstream.plan.run_settings import RunSettings
from waiting import until

from .support import CAUGHT_UP, SCHEMA, put, scores


@pytest.mark.more
@pytest.mark.usefixtures("spark")
def test_a_job_stops_when_a_sink_is_down_for_too_long_and_loses_nothing(tmp_path: Path) -> None:
    is_down = True
    seen: list[Any] = []

    def store(rows: Any, batch: int) -> None:
        if is_down:
            raise SinkUnavailable("no connection")
        seen.extend(rows.column("n").to_pylist())

    def flow() -> ms.Flow:
        made = ms.Flow("stores")
        scores(made).write(ms.foreach_batch(store), name="store", retry=ms.retry(at_most="1 second"))
        return made

    with EmbeddedLog(tmp_path / "log", upkeep=False) as log:
        log.create_topic("scores", schema=SCHEMA)
        put(log, "scores", [("ann", 1, 0), ("bob", 2, 1)])
        with pytest.raises(SinkFailed, match="the policy is to retry for 1 second: no connection") as stopped:
            flow().run(broker=log.path, until=CAUGHT_UP)
        assert "nothing is lost" in str(stopped.value.next_step)
        put(log, "scores", [("cid", 3, 2)])
        is_down = False
        flow().run(broker=log.path, until=CAUGHT_UP)
    assert seen == [1, 2, 3]


@pytest.mark.usefixtures("spark")
def test_a_job_that_starts_a_batch_at_intervals_reads_everything(tmp_path: Path) -> None:
    with EmbeddedLog(tmp_path / "log", upkeep=False) as log:
        log.create_topic("scores", schema=SCHEMA)
        put(log, "scores", [("ann", 1, 0)])
        flow = ms.Flow("often")
        scores(flow).write(ms.discard(), name="out")
        job = flow.start(broker=log.path, every="300 milliseconds")
        try:
            until(lambda: job.progress.written.get("out") == 1, "the first batch")
            put(log, "scores", [("bob", 2, 1)])
            until(lambda: job.progress.written.get("out") == 2, "the second batch")
        finally:
            job.stop()


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"every": "0 seconds"}, "at least a millisecond"),
        ({"every": "soon"}, "soon"),
        ({"every": "1 second", "until": "caught up"}, "every is for a job that keeps running"),
        ({"every": "1 second", "batch": True}, "every is for a job that keeps running"),
    ],
)
def test_an_interval_that_makes_no_sense_is_refused(given: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidInput, match=what):
        RunSettings.of(given)


def test_a_policy_that_is_none_is_refused() -> None:
    rows = ms.Flow("f").read("in", "n int")
    with pytest.raises(InvalidPlan, match="'10 minutes' is not a retry policy"):
        rows.write("out", retry="10 minutes")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="at_most"):
        ms.retry(at_most=5)  # type: ignore[arg-type]
    assert rows.write("out", retry=ms.retry(at_most="1 minute")).node.label == "write out, retry for 1 minute"
