"""Why a pane was sent: its rows, its trigger and the pane it replaced, from the recorded batches of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

import millstream as ms
from millstream.errors import InvalidInput, NeedsSpark, NotFound
from millstream.plan.on_spark.needs_spark import SparkFunction
from millstream.plan.stream import Stream
from millstream.plan.walking import in_order
from millstream.provenance.replaying import check_here
from provenance.recorded import SCHEMA, Batch, at, record, score


def scores_flow(log: Path, **window: object) -> ms.Flow:
    flow = ms.Flow("totals", log=log)
    scores = flow.read("scores", SCHEMA, event_time="at", watermark=ms.bounded("10 seconds"), name="scores")
    panes = (
        scores.where("score > 0")
        .key_by("team")
        .window(ms.fixed("1 minute"), allowed_lateness="1 minute")
        .trigger(ms.after_watermark(early=ms.after_count(2), late=ms.each()))
        .accumulating()
        .agg(total=ms.sum("score"), n=ms.count(), name="totals")
    )
    panes.write("totals")
    panes.late.write("scores.late")
    return flow


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path / "log"
    with ms.connect(folder) as log:
        log.create_topic("scores", partitions=2, schema=SCHEMA)
    batches = [
        Batch(1, {0: [score("red", 1, 1), score("blue", 9, 2)], 1: [score("red", 0, 3), score("red", 2, 4)]}),
        Batch(2, {0: [score("red", 4, 30)]}),
        Batch(3, {0: [score("blue", 1, 75)], 1: [score("blue", 1, 69), score("green", 1, 71)]}),
        Batch(4, {1: [score("red", 8, 59)]}),
        Batch(5, {0: [score("red", 3, 200), score("pale", 1, 201)], 1: [score("red", 3, 200)]}),
        Batch(6, {0: [score("red", 5, 58)]}),
    ]
    record(folder, "totals", "scores", "scores", batches, partitions=2)
    return folder


def test_a_pane_names_its_rows_its_trigger_and_what_moved_the_watermark(log: Path) -> None:
    """Goal: all three parts of an answer. Method: the on-time pane of a window with an early one before it."""
    answer = ms.why(scores_flow(log), pane={"team": "red", "window": at(0), "index": 1})
    assert [(row["topic"], row["partition"], row["offset"], row["new"]) for row in answer["rows"]] == [
        ("scores", 0, 0, False),
        ("scores", 1, 1, False),
        ("scores", 0, 2, True),
    ]
    assert answer["pane"]["total"] == 7
    assert answer["pane"]["pane"]["timing"] == "on_time"
    assert answer["batch"] == 2
    assert "over the end" in answer["fired"][0]["why"]
    (moved,) = answer["moved_by"]["records"][1:]
    assert (moved["partition"], moved["offset"], moved["event_time"]) == (1, 3, at(71))
    assert answer["replaced"]["batch"] == 0
    assert answer["replaced"]["changed"]["total"] == {"before": 3, "after": 7}
    assert answer["notes"] == []


def test_the_newest_pane_of_a_window_is_meant_by_default(log: Path) -> None:
    """Goal: a late pane with the trigger part that sent it; key= names the only key."""
    answer = ms.why(scores_flow(log), pane={"key": "red", "window": "2026-01-31T12:00:00Z"})
    assert answer["pane"]["total"] == 15
    assert answer["fired"] == [{"trigger": "late=each()", "why": "a row arrived"}]
    assert [row["offset"] for row in answer["rows"] if row["new"]] == [4]
    assert answer["moved_by"] is None


def test_an_early_pane_says_how_many_rows_it_had_waited_for(log: Path) -> None:
    answer = ms.why(scores_flow(log), pane={"team": "red", "window": at(0), "index": 0})
    assert answer["fired"][0]["trigger"] == "early=after_count(2)"
    assert answer["fired"][0]["why"].startswith("2 rows had arrived")
    assert answer["replaced"] is None


def test_batches_that_are_no_longer_recorded_are_noted(log: Path) -> None:
    """Goal: an answer from what is left is marked. Method: Spark's record of the first batches is removed."""
    for number in (0, 1):
        (log / "jobs/totals/checkpoint/offsets" / str(number)).unlink()
    answer = ms.why(scores_flow(log), pane={"team": "red", "window": at(0)})
    assert answer["pane"]["total"] == 15
    assert "no longer recorded" in answer["notes"][0]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"team": "red"}, "has a window"),
        ({"window": at(0)}, "no 'team'"),
        ({"team": "red", "window": at(0), "user": "u"}, "not a key"),
        ({"team": "red", "window": "yesterday"}, "not a time"),
        ({"team": "red", "window": "2026-01-31T12:00:00"}, "no time zone"),
        ({"team": "red", "window": at(0), "index": "first"}, "index"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(log: Path, asked: dict[str, object], expected: str) -> None:
    with pytest.raises(InvalidInput, match=expected):
        ms.why(scores_flow(log), pane=asked)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"team": "pink", "window": at(0)}, "no row with team='pink'"),
        ({"team": "pale", "window": at(180)}, "no pane was sent yet"),
        ({"team": "red", "window": at(-60)}, "sent no such pane"),
    ],
)
def test_a_pane_that_was_never_sent_is_reported(log: Path, asked: dict[str, object], expected: str) -> None:
    with pytest.raises(NotFound, match=expected):
        ms.why(scores_flow(log), pane=asked)


def test_a_job_that_has_not_run_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="has not run"):
        ms.why(scores_flow(tmp_path / "empty"), pane={"team": "red", "window": at(0)})


def test_rows_behind_a_step_with_state_are_its_results(log: Path) -> None:
    """Goal: no wrong origin. Method: a window over the panes of another one."""
    flow = scores_flow(log)
    panes = Stream(flow, next(node for node in in_order(flow.outputs) if node.name == "totals"))
    hours = panes.select("total").window(ms.fixed("1 hour")).trigger(ms.repeatedly(ms.after_count(1)))
    hours.agg(most=ms.max("total"), name="most").write("most")
    with pytest.raises(InvalidInput, match="several windowed steps"):
        ms.why(flow, pane={"window": at(0)})
    answer = ms.why(flow, pane={"window": at(0)}, step="most")
    assert answer["pane"]["most"] == 15
    assert all("offset" not in row for row in answer["rows"])


def test_a_step_that_only_spark_can_run_is_named(log: Path) -> None:
    """Goal: no wrong answer about a flow that this process cannot run."""
    read = scores_flow(log).outputs[0]
    step = SparkFunction("checked", read.schema, (read,), None, "a function", cast(Any, None))
    with pytest.raises(NeedsSpark, match="'checked' only runs on Spark"):
        check_here([step])


def test_records_that_have_expired_are_noted(tmp_path: Path) -> None:
    """Goal: an answer without them says so. Method: retention deletes the first segments of the topic."""
    folder = tmp_path / "log"
    with ms.connect(folder) as log:
        log.create_topic("scores", partitions=1, schema=SCHEMA, segment_bytes=4096, retention_bytes=8192)
    batches = [Batch(number, {0: [score("red", 1, number)] * 100}) for number in range(10)]
    batches.append(Batch(99, {0: [score("red", 1, 90)]}))
    record(folder, "totals", "scores", "scores", batches)
    with ms.connect(folder) as log:
        log.clean("scores")
        assert log.describe_topic("scores").partitions[0].start_offset > 0
    answer = ms.why(scores_flow(folder), pane={"team": "red", "window": at(0)})
    assert "have expired" in answer["notes"][0]
