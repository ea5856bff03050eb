"""What a time plane is sent for each batch: the watermarks of all partitions, and a fair sample of many rows."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import millstream as ms
from millstream.plan.time.bundles import micros
from millstream.provenance.history import History
from millstream.web_console.plane import ROWS_MAX, PlaneStep
from provenance.recorded import SCHEMA, Batch, at, record, score

ROWS = 4 * ROWS_MAX


def shown(flow: ms.Flow, log: Path) -> list[dict[str, Any]]:
    history = History(flow, broker=log)
    plane = PlaneStep.of(history, None)
    replay = history.replay(plane.observed)
    return [plane.batch(moment, replay) for moment in replay.moments()]


def ms_at(seconds: float) -> int:
    return micros(at(seconds)) // 1000


def test_partitions_of_several_sources_have_their_own_watermarks(tmp_path: Path) -> None:
    """Goal: partitions with the same number are told apart. Method: two topics whose partitions are equally many."""
    flow = ms.Flow("both")
    first, second = (
        flow.read(name, SCHEMA, event_time="at", watermark=ms.bounded("10 seconds"), name=name)
        for name in ("first", "second")
    )
    first.union(second).key_by("team").window(ms.fixed("1 minute")).agg(total=ms.sum("score")).write(ms.discard())
    with ms.connect(tmp_path) as log:
        for name in ("first", "second"):
            log.create_topic(name, partitions=2, schema=SCHEMA)
        with log.producer() as producer:
            producer.send("second", score("red", 1, 30), partition=0)
            producer.send("second", score("red", 1, 40), partition=1)
    batch = Batch(60, {0: [score("blue", 1, 50)], 1: [score("blue", 1, 20)]})
    record(tmp_path, "both", "first", "first", [batch], partitions=2)
    offsets = tmp_path / "jobs" / "both" / "checkpoint" / "offsets" / "0"
    *head, end = offsets.read_text().splitlines()
    ends = json.loads(end)
    ends["sources"]["second"] = {"0": 1, "1": 1}
    offsets.write_text("\n".join([*head, json.dumps(ends)]))
    [found] = shown(flow, tmp_path)
    assert found["partitions"] == {
        "first 0": ms_at(40),
        "first 1": ms_at(10),
        "second 0": ms_at(20),
        "second 1": ms_at(30),
    }
    assert found["watermark"] == ms_at(10)


def test_many_rows_are_sampled_fairly(tmp_path: Path) -> None:
    """Goal: each row is as likely as any other, whatever its key and place. Method: one row of ten has another key, and
    the sample of each batch, which is always the same, has about as many from each quarter of the batch."""
    flow = ms.Flow("many")
    scores = flow.read("scores", SCHEMA, event_time="at", watermark=ms.bounded("1 day"), name="scores")
    scores.key_by("team").window(ms.fixed("1 day")).agg(total=ms.sum("score")).write(ms.discard())
    with ms.connect(tmp_path) as log:
        log.create_topic("scores", partitions=1, schema=SCHEMA)
    rows = [score("rare" if number % 10 == 0 else "usual", 1, number) for number in range(ROWS)]
    record(tmp_path, "many", "scores", "scores", [Batch(ROWS, {0: rows}), Batch(2 * ROWS, {0: rows})])
    first, second = shown(flow, tmp_path)
    for batch in (first, second):
        assert (batch["count"], len(batch["rows"])) == (ROWS, ROWS_MAX)
        assert len({time for time, _ in batch["rows"]}) == ROWS_MAX
        of_key = Counter(key for _, [key] in batch["rows"])
        assert 30 <= of_key["rare"] <= 70
        quarters = Counter((time - ms_at(0)) * 4 // (ROWS * 1000) for time, _ in batch["rows"])
        assert len(quarters) == 4
        assert min(quarters.values()) >= 95
    assert first["rows"] != second["rows"]
    assert shown(flow, tmp_path)[0]["rows"] == first["rows"]
