"""Rules as rows of a table: what is refused when the flow is built, and from when until when a version is in force."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.errors import InvalidPattern, InvalidPlan
from millstream.plan.patterns.rule_text import RuleInput, rule_of
from millstream.plan.patterns.rule_versions import revised
from millstream.plan.stored.versions import Change, Version, next_change
from millstream.plan.time.bundles import BEGINNING
from millstream.records import Schema

EVENTS = "key string, n int, at timestamp"
RULES = "id string, version int, filter string, pattern string, since timestamp"
R, S = ("r", 1, None, "…"), ("r", 2, None, "…")


def built(rules: str = RULES, key: str | None = "id", events: str = EVENTS, keys: str = "key", **options: Any) -> Any:
    flow = ms.Flow("watch")
    stream = flow.read("events", events, "at", ms.ascending())
    table = flow.read("rules", rules).to_table(key=key)
    return stream.key_by(keys).match(**{"rules": table, **options})


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"key": None}, "has the key 'id'"),
        ({"key": "version"}, "has the key 'id'"),
        ({"rules": "id string, version int, filter string"}, "needs a column pattern"),
        ({"rules": "id double, version int, filter string, pattern string"}, "id of rules is double"),
        ({"rules": "id int, version int, filter boolean, pattern string"}, "filter of rules is boolean"),
        ({"skip": "none", "early": True}, "skip, early cannot be set besides rules"),
        ({"pattern": ms.pattern("a")}, "pattern cannot be set besides rules"),
        ({"rules": None}, "match needs a pattern, or a table of rules"),
        ({"rules": None, "pattern": ms.pattern("a"), "history": "1 hour"}, "history is for rules"),
        ({"events": "rule string, at timestamp", "keys": "rule"}, "two columns named 'rule'"),
        ({"events": "key string, variable int, at timestamp"}, "matched rows get a column 'variable'"),
        ({"history": "an hour"}, "an hour"),
    ],
)
def test_what_cannot_be_is_refused_at_the_users_line(given: dict[str, Any], what: str) -> None:
    if given.get("rules", "") is None:
        flow = ms.Flow("watch")
        stream = flow.read("events", EVENTS, "at", ms.ascending())
        call: Any = lambda: stream.key_by("key").match(**given)  # noqa: E731
    else:
        call = lambda: built(**given)  # noqa: E731
    with pytest.raises(ms.errors.InvalidInput) as refused:
        call()
    assert what in str(refused.value)
    assert "test_rules.py" in (refused.value.where or "")


def test_a_stream_is_no_table_of_rules() -> None:
    flow = ms.Flow("watch")
    stream = flow.read("events", EVENTS, "at", ms.ascending())
    with pytest.raises(InvalidPlan, match="rules is a table, not Stream") as refused:
        stream.key_by("key").match(rules=flow.read("rules", RULES))  # type: ignore[call-overload]
    assert "to_table(key='id')" in (refused.value.next_step or "")
    other = ms.Flow("other").read("rules", RULES).to_table(key="id")
    with pytest.raises(InvalidPlan, match="of another flow"):
        stream.key_by("key").match(rules=other)


def test_the_rules_and_their_result_are_explained() -> None:
    made = built(history="1 hour")
    assert made.node.label == "match rules per key, history 1 hour"
    assert made.schema.names == ("rule", "version", "key", "match", "match_start", "match_end", "rows")
    assert made.node.awaited_inputs == 1  # the rules have no event time


def test_a_version_is_in_force_until_the_next() -> None:
    known = revised([], [Change(R, 10, 1)], BEGINNING)
    assert known == [Version(R, 10, None)]
    known = revised(known, [Change(R, 20, -1), Change(S, 20, 1), Change(S, 30, -1)], 5)
    assert known == [Version(R, 10, 20), Version(S, 20, 30)]
    assert next_change(known, 10) == 20
    # One in between that comes later: the first now ends with it.
    between = ("r", 3, None, "…")
    more = [Change(R, 15, -1), Change(between, 15, 1), Change(R, 20, 1), Change(between, 20, -1)]
    assert revised(known, more, 12) == [Version(R, 10, 15), Version(S, 20, 30), Version(between, 15, 20)]


def test_a_change_behind_the_watermark_or_without_time_takes_effect_behind_it() -> None:
    assert revised([], [Change(R, 10, 1)], 50) == [Version(R, 51, None)]
    assert revised([], [Change(R, None, 1)], 50) == [Version(R, 51, None)]
    assert revised([Version(R, 51, None)], [Change(R, 60, -1)], 70) == [Version(R, 51, 71)]
    assert revised([], [Change(R, 10, 1), Change(R, 20, -1)], 50) == []


def test_a_version_decides_while_it_is_in_force() -> None:
    version = Version(R, 10, 20)
    assert [version.decides_until(watermark) for watermark in (15, 19, 20, 30)] == [15, 19, 19, 19]
    assert [version.is_over(watermark) for watermark in (18, 19, 20)] == [False, True, True]
    assert version.sees_from(within=5, history=100) == 5
    assert version.sees_from(within=5, history=2) == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pattern (A) within 1 hour define A as nowhere > prev(n)", "no column 'nowhere', in 'nowhere > prev(n)'"),
        ("pattern (A) within 1 hour define A as n > next(n)", "next(…) looks ahead: the rows of a rule are decided"),
        (f"pattern (A) within 1 hour define A as {' and '.join(['n > 1'] * 3000)}", "nested too deeply"),
    ],
)
def test_an_expression_that_cannot_be_read_is_an_error_of_the_rule(text: str, message: str) -> None:
    """Whatever it is, so that it goes to .dead and the other rules go on."""
    with pytest.raises(InvalidPattern) as refused:
        rule_of(RuleInput(Schema.of(EVENTS), ("key",), "at"), None, text)
    assert refused.value.what.startswith("line 1, column 39: ")
    assert message in refused.value.what
