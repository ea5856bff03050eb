"""The state of a step by key: after the newest batch, and what each of the batches before changed."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millstream as ms
from millstream.errors import InvalidInput
from millstream.jobs.job_folder import JobFolder
from millstream.jobs.versions.state_rows import state_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def changes(found: dict[str, Any]) -> list[list[tuple[str, int | None, int | None]]]:
    """Of each batch, the newest first: what became of each row, and its sum before and after."""
    return [
        [
            (row["what"], *(None if row[side] is None else row[side]["fold.total.sum"] for side in ("old", "new")))
            for row in batch["tables"].get("windows", {"rows": []})["rows"]
        ]
        for batch in found["batches"]
    ]


@pytest.mark.more
def test_what_each_batch_changed(tmp_path: Path, spark: SparkSession) -> None:
    with ms.connect(tmp_path / "log") as log:
        log.create_topic("scores", partitions=1, schema="user string, n int, at timestamp")
        flow = ms.Flow("totals", log=log.path)
        scores = flow.read("scores", event_time="at", watermark=ms.bounded("1 second"))
        panes = scores.key_by("user").window(ms.fixed("1 hour")).agg(total=ms.sum("n"))
        panes.write(ms.memory("totals"))
        for rows in ([("a", 1), ("b", 10)], [("a", 2)], [("b", 20)]):
            with log.producer() as producer:
                for user, n in rows:
                    producer.send("scores", {"user": user, "n": n, "at": NOON})
            flow.run(broker=log.path, until="caught up", progress="none")
    job = JobFolder(tmp_path / "log" / "jobs" / "totals", "totals")
    step = panes.node.name
    found = state_of(job, step, {"user": "a"}, batches=3)
    assert [row["fold.total.sum"] for row in found["tables"]["windows"]] == [3]
    assert [batch["batch"] for batch in found["batches"]] == list(range(found["batch"], found["batch"] - 3, -1))
    assert [each for each in changes(state_of(job, step, {"user": "a"}, batches=20)) if each] == [
        [("changed", 1, 3)],
        [("only new", None, 1)],
    ]
    whole = [each for each in changes(state_of(job, step, {}, batches=20)) if each]
    assert whole[:2] == [[("changed", 10, 30)], [("changed", 1, 3)]]
    assert sorted(whole[2]) == [("only new", None, 1), ("only new", None, 10)]
    assert "batches" not in state_of(job, step, {})
    with pytest.raises(InvalidInput, match="batches=21 is not a count up to 20"):
        state_of(job, step, {}, batches=21)
