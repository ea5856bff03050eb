"""When a rule on metrics fires, when it is over, and what cannot be a rule."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from millstream.alerts.message import Message, together
from millstream.alerts.quiet import QuietHours
from millstream.alerts.rules import Condition, JobView, Rule, described, judged
from millstream.errors import InvalidInput
from millstream.metrics.samples import Sample, StepSample


def view(state: str = "running", **metrics: Any) -> JobView:
    steps = {
        "read": StepSample(lag_s=metrics.get("lag_s")),
        "agg": StepSample(state_rows=7),
        "top": StepSample(state_rows=9),
    }
    return JobView("scores", state, 2, Sample(1.0, **metrics, steps=steps))


def test_a_rule_fires_once_it_has_held_long_enough() -> None:
    rule = Rule.parse("lag_seconds > 60 for 5 minutes to ops, chat")
    assert (rule.metric, rule.threshold, rule.held_s, rule.to) == ("lag_s", 60.0, 300.0, ("ops", "chat"))
    held, event = judged(rule, view(lag_s=61.0), None, 1000.0)
    assert (held, event) == (Condition(1000.0), None)
    held, event = judged(rule, view(lag_s=80.0), held, 1299.0)
    assert event is None
    held, event = judged(rule, view(lag_s=80.0), held, 1300.0)
    assert (held, event) == (Condition(1000.0, 1300.0), "firing")
    assert judged(rule, view(lag_s=90.0), held, 9000.0) == (held, None), "it was sent"
    assert judged(rule, view(lag_s=60.0), held, 9001.0) == (None, "resolved")
    assert judged(rule, view(lag_s=60.0), Condition(1000.0), 1100.0) == (None, None), "nobody knew of it"


def test_a_rule_that_repeats() -> None:
    rule = Rule("lag_s > 1", "lag_s", ">", 1.0, repeat_s=100.0)
    held, event = judged(rule, view(lag_s=2.0), None, 0.0)
    assert event == "firing"
    assert judged(rule, view(lag_s=2.0), held, 99.0)[1] is None
    assert judged(rule, view(lag_s=2.0), held, 100.0) == (Condition(0.0, 100.0), "firing")


def test_a_value_that_is_not_known_changes_nothing() -> None:
    rule, held = Rule.parse("lag_seconds > 60"), Condition(0.0, 1.0)
    assert judged(rule, view(lag_s=None), held, 5.0) == (held, None)
    assert judged(rule, JobView("scores", "waiting"), held, 5.0) == (held, None)
    assert judged(rule, JobView("scores", "stopped"), held, 5.0) == (None, "resolved"), "it has ended"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("state == failed", "running"),
        ("failures >= 3", 2.0),
        ("agg.state_rows > 1e6", 7.0),
        ("state_rows > 1,000", 9.0),
        ("rows_per_second < 1", None),
        ("nowhere.state_rows > 1", None),
    ],
)
def test_values(text: str, value: float | str | None) -> None:
    assert view().value(Rule.parse(text)) == value


def test_what_is_sent() -> None:
    rule = Rule.parse("lag_seconds > 60 for 5 minutes")
    title, text = described(rule, view(lag_s=75.0), "firing")
    assert title == "scores: lag_s > 60.0"
    assert "is 75. The rule: lag_s > 60.0 for 5 minutes." in text
    assert described(rule, view(lag_s=3.0), "resolved")[0].startswith("Resolved: ")
    messages = [Message("firing", f"alert\n{number}", "text", 1.0) for number in range(3)]
    assert together(messages, 5).title == "alert 0 (and 2 more)"
    assert "5 older alerts were dropped" in together(messages, 5).text


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "not a rule"),
        ("lag", "not a rule"),
        ("lagg_s > 1", "no metric 'lagg_s'"),
        ("lag_s > many", "not a number"),
        ("lag_s > 1 for ever", "time of a rule"),
        ("state > 3", "compared with == or !="),
        ("state == broken", "compared with == or !="),
    ],
)
def test_what_is_no_rule(text: str, what: str) -> None:
    with pytest.raises(InvalidInput, match=what):
        Rule.parse(text)


@pytest.mark.parametrize(
    ("hour", "ends"), [(21, None), (22, 7), (3, 7), (6, 7), (7, None)], ids=lambda value: str(value)
)
def test_quiet_hours(hour: int, ends: int | None) -> None:
    quiet = QuietHours.parse("22:00-07:00")
    now = datetime(2026, 3, 1, hour, 30 if hour != 7 else 0, tzinfo=UTC)
    found = quiet.ends_after(now.timestamp())
    assert (found is None) == (ends is None)
    if found is not None and ends is not None:
        end = datetime.fromtimestamp(found, UTC)
        assert (end.hour, end > now, (end - now).total_seconds() < 86_400) == (ends, True, True)


def test_quiet_hours_in_a_time_zone() -> None:
    quiet = QuietHours.parse("12:00-13:00 Asia/Tokyo")
    assert quiet.ends_after(datetime(2026, 3, 1, 3, 30, tzinfo=UTC).timestamp()) is not None
    assert quiet.ends_after(datetime(2026, 3, 1, 12, 30, tzinfo=UTC).timestamp()) is None
    for wrong in ("at night", "25:00-26:00", "22:00-07:00 Mars"):
        with pytest.raises(InvalidInput, match="not quiet hours"):
            QuietHours.parse(wrong)
