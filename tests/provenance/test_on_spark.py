"""What a job on Spark has written is what its replay explains."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millstream as ms
from millstream.provenance.history import History
from millstream.provenance.windows import KeyHistory
from provenance.recorded import SCHEMA, score


def rows_of(log: ms.Broker, topic: str) -> list[dict[str, Any]]:
    with log.consumer(topic) as consumer:
        return [record.value for record in consumer.until_caught_up()]


def in_order_of(rows: list[dict[str, Any]]) -> list[str]:
    """Rows that can be compared: their order across keys is not defined."""
    return sorted(repr(sorted(row.items())) for row in rows)


@pytest.mark.more
@pytest.mark.parametrize("window", [ms.fixed("1 minute"), ms.sessions("20 seconds")], ids=["fixed", "sessions"])
def test_every_pane_and_late_row_of_a_job_is_explained(tmp_path: Path, spark: SparkSession, window: Any) -> None:
    """Goal: replay gives what Spark wrote. Method: small batches of two partitions, with rows out of order."""
    folder, chance = tmp_path / "log", random.Random(7)
    with ms.connect(folder) as log:
        log.create_topic("scores", partitions=2, schema=SCHEMA)
        with log.producer() as producer:
            for number in range(120):
                seconds = max(0.0, number * 3 - chance.choice([0, 5, 20, 90]))
                row = score(chance.choice(["red", "blue"]), number, seconds)
                producer.send("scores", row, partition=number % 2)
    flow = ms.Flow("totals", log=folder)
    scores = flow.read("scores", event_time="at", watermark=ms.bounded("10 seconds"), name="scores")
    panes = (
        scores.where("score % 10 > 0")
        .key_by("team")
        .window(window, allowed_lateness="20 seconds")
        .trigger(ms.after_watermark(early=ms.after_count(4), late=ms.each()))
        .retracting()
        .agg(total=ms.sum("score"), n=ms.count(), name="totals")
    )
    panes.write("totals")
    panes.late.write("late")
    flow.run(until="caught up", batch_rows=30)
    with ms.connect(folder) as log:
        sent = [row for row in rows_of(log, "totals") if row["weight"] == 1]
        late = rows_of(log, "late")
    history = History(flow)
    step = history.windowed_step("totals")
    explained = [
        KeyHistory(step, {"team": team}, history.replay([step.inputs[0]])) for team in ("red", "blue")
    ]  # as ms.why does, once per key
    panes_of = [pane for each in explained for pane in each.panes]
    assert len(sent) > 10
    assert in_order_of(sent) == in_order_of([pane.values for pane in panes_of])
    assert all(len(pane.fired.rows) == pane.values["n"] for pane in panes_of)
    assert late
    assert in_order_of(late) == in_order_of([row.values for each in explained for row in each.late])
    last = sent[-1]
    answer = ms.why(flow, pane={"team": last["team"], "window": last["window"], "index": last["pane"]["index"]})
    assert (answer["pane"], sum(each["row"]["score"] for each in answer["rows"])) == (last, last["total"])
