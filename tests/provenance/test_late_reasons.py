"""Why a record was late, and what another bound would have meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.errors import InvalidInput, NotFound
from provenance.recorded import SCHEMA, Batch, at, record, score


def flow_with(log: Path, bound: str = "10 seconds", lateness: str = "5 seconds", trigger: Any = None) -> ms.Flow:
    flow = ms.Flow("totals", log=log)
    scores = flow.read("scores", SCHEMA, event_time="at", watermark=ms.bounded(bound), name="scores")
    panes = (
        scores.where("score > 0")
        .key_by("team")
        .window(ms.fixed("1 minute"), allowed_lateness=lateness)
        .trigger(trigger or ms.repeatedly(ms.after_watermark()))
        .agg(total=ms.sum("score"), name="totals")
    )
    panes.write("totals")
    return flow


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path / "log"
    with ms.connect(folder) as log:
        log.create_topic("scores", partitions=2, schema=SCHEMA)
    batches = [
        Batch(1, {0: [score("red", 1, 1)], 1: [score("red", 1, 2)]}),
        Batch(20, {0: [score("red", 1, 90)], 1: [score("blue", 1, 70), score("blue", 1, 81), score("blue", 1, 82)]}),
        Batch(30, {0: [score("red", 5, 59), score("red", 0, 58)], 1: [score("red", 7, 71)]}),
        Batch(60, {0: [score("red", 1, 150)], 1: [score("red", 1, 150)]}),
    ]
    record(folder, "totals", "scores", "scores", batches, partitions=2)
    return folder


def test_a_late_record_names_what_passed_it_and_what_would_have_kept_it(log: Path) -> None:
    """Goal: bound and lateness of the answer are the smallest that keep the row. Method: replay with them."""
    answer = ms.why(flow_with(log), late=("scores", 0, 2))
    (step,) = answer["steps"]
    (window,) = step["windows"]
    assert (step["late"], window["reason"]) == (True, "expired")
    assert step["watermark"] == at(72)
    (record_,) = [each for each in window["passed_by"]["records"] if each["partition"] == 1]
    assert (record_["offset"], record_["event_time"]) == (2, at(81))
    assert (window["bound"], window["lateness"]) == (["10 seconds"], "5 seconds")
    for changed in (
        flow_with(log, bound=window["bound_needed"]),
        flow_with(log, lateness=window["lateness_needed"]),
    ):
        assert ms.why(changed, late=("scores", 0, 2))["steps"][0]["late"] is False
    for short in (flow_with(log, bound="17 seconds"), flow_with(log, lateness="12 seconds")):
        assert ms.why(short, late=("scores", 0, 2))["steps"][0]["late"] is True


def test_a_trigger_that_finishes_closes_the_window_before_it_expires(log: Path) -> None:
    """Goal: no advice that does not help: lateness does not open a closed window. Method: replay with the bound."""
    (window,) = ms.why(flow_with(log, trigger=ms.after_watermark()), late=("scores", 0, 2))["steps"][0]["windows"]
    assert (window["bound_needed"], window["lateness_needed"]) == ("22 seconds 1 microsecond", None)
    changed = flow_with(log, trigger=ms.after_watermark(), bound=window["bound_needed"])
    assert ms.why(changed, late=("scores", 0, 2))["steps"][0]["late"] is False
    (window,) = ms.why(flow_with(log, trigger=ms.after_count(1)), late=("scores", 0, 2))["steps"][0]["windows"]
    assert window["bound_needed"] is None


def test_a_record_in_time_or_filtered_out_is_not_late(log: Path) -> None:
    assert ms.why(flow_with(log), late=("scores", 1, 4))["steps"][0]["late"] is False
    assert ms.why(flow_with(log), late=("scores", 0, 3))["reached"] == []


def test_a_record_that_no_batch_has_read_is_reported(log: Path) -> None:
    with pytest.raises(NotFound, match="has read offset 99"):
        ms.why(flow_with(log), late=("scores", 0, 99))
    with pytest.raises(NotFound, match="of 'others'"):
        ms.why(flow_with(log), late=("others", 0, 0))


def test_another_bound_means_fewer_late_rows_and_later_results(log: Path) -> None:
    """Goal: both sides of the trade. Method: a bound that keeps the late row, and closes the window a batch later."""
    (step,) = ms.why(flow_with(log), bound="30 seconds")["steps"]
    assert (step["now"]["rows"], step["now"]["late"], step["now"]["bound"]) == (10, 1, "10 seconds")
    assert (step["then"]["late"], step["then"]["late_share"]) == (0, 0.0)
    delay = step["added_delay"]
    assert (delay["max_s"], delay["windows"], delay["still_open"]) == (40.0, 3, 0)


def test_a_bound_that_is_no_duration_and_two_questions_are_refused(log: Path) -> None:
    with pytest.raises(InvalidInput, match="bound"):
        ms.why(flow_with(log), bound="soon")
    with pytest.raises(InvalidInput, match="one question"):
        ms.why(flow_with(log), bound="1 second", late=("scores", 0, 1))
