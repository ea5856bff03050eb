"""`process` on Spark sends what it sends elsewhere: state of every kind, timers in both times, and dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from millstream.testing import Add, Clock, Watermark, play
from times import t

SCHEMA = "device string, value int, at timestamp"
MADE = "device string, what string, n int"


def watch(row: dict[str, Any], key: Any) -> Iterator[dict[str, Any]]:
    """Counts, keeps the last values, and expects a sign of life within ten seconds and within a minute of the clock."""
    if row["value"] < 0:
        raise ValueError("a negative value")
    key.state["n"] = key.state.get("n", 0) + 1
    key.list("last").append(row["value"])
    key.map("seen")[str(row["value"])] = key.state["n"]
    key.at_event_time(row["at"] + timedelta(seconds=10), "silent")
    key.at_processing_time(key.now + timedelta(minutes=1), "clock")
    if key.state["n"] % 2 == 0:
        yield {"device": row["device"], "what": ",".join(map(str, key.list("last"))), "n": len(key.map("seen"))}


def rings(tag: str, time: datetime, key: Any) -> dict[str, Any]:
    return {"device": key["device"], "what": tag, "n": key.state["n"]}


def build(stream: Any) -> dict[str, Any]:
    made = stream.where("value <> 7").key_by("device").process(watch, MADE, on_timer=rings)
    return {"made": made, "dead": made.dead}


STEPS = [
    Add([{"device": "a", "value": 1, "at": t(1)}, {"device": "b", "value": 2, "at": t(2)}]),
    Add([{"device": "a", "value": 3, "at": t(3)}, {"device": "a", "value": -1, "at": t(4)}]),
    Watermark(t(12.5)),
    Clock(t(70)),
    Add([{"device": "b", "value": 7, "at": t(14)}, {"device": "b", "value": 5, "at": t(15)}]),
    Watermark(None),
]


@pytest.mark.more
def test_process_sends_on_spark_what_the_reference_sends(spark: SparkSession) -> None:
    sent = {on: play(build, STEPS, schema=SCHEMA, event_time="at", on=on) for on in ("reference", "spark")}
    assert sent["spark"] == sent["reference"]
    assert [row["what"] for step in sent["spark"] for row in step["made"]].count("silent") == 3
    assert sum(len(step["dead"]) for step in sent["spark"]) == 1
