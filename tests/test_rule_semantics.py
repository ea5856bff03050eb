"""Rules that change while a job runs, on every runner: which version decides about which rows."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.testing import Add, Watermark
from times import t
from transcripts import play

pytestmark = pytest.mark.transcripts("reference", "local", "spark")
SCHEMAS = {
    "events": "key string, name string, n int, at timestamp",
    "rules": "id string, version int, filter string, pattern string, since timestamp",
}
AB = "pattern (A B) within 10 seconds define A as name = 'a', B as name = 'b'"
AC = "pattern (A C) within 10 seconds define A as name = 'a', C as name = 'c'"
RISE = "pattern (A UP+) within 10 seconds define UP as n > prev(n)"
SILENCE = "pattern (A [^B]) within 5 seconds define A as name = 'a', B as name = 'b'"


def events(names: str, start: int = 0, key: str = "x") -> Add:
    """One row a second, named by a letter."""
    rows = [
        {"key": key, "name": name, "n": second, "at": t(second)}
        for second, name in enumerate(names, start)
        if name != " "
    ]
    return Add(rows, to="events")


def rule(name: str, text: str | None, since: int = 0, version: int | None = 1, where: str | None = None) -> Add:
    row = {"id": name, "version": version, "filter": where, "pattern": text, "since": t(since)}
    return Add([row], to="rules")


def removed(name: str, since: int) -> Add:
    return rule(name, None, since, None)


def found(steps: list[Any], history: str | None = None, *, timed: bool = True) -> list[list[str]]:
    """What each step emits: the rule, its version, the number of the match, the key, and the letters it took."""

    def build(events: Any, rules: Any) -> Any:
        return events.key_by("key").match(rules=rules.to_table(key="id", deleted="pattern is null"), history=history)

    times = {"events": "at", "rules": "since"} if timed else {"events": "at"}
    out = play(build, steps, schema=SCHEMAS, event_time=times)
    return [[shown(row) for row in step] for step in out]


def shown(row: dict[str, Any]) -> str:
    letters = "".join(each["name"] for each in row["rows"])
    return f"{row['rule']}{row['version']} #{row['match']} {row['key']} {letters}"


@pytest.mark.on_spark("more")
def test_rules_are_added_changed_and_removed_while_rows_come() -> None:
    steps = [
        rule("r", AB),
        events("abab"),
        Watermark(t(3)),
        rule("s", AC, since=4),
        rule("r", AC, since=6, version=2),
        events("abacac", start=4),
        Watermark(t(9)),
        removed("s", since=10),
        events("acac", start=10),
        events("ac", start=10, key="y"),
        Watermark(None),
    ]
    assert [each for each in found(steps) if each] == [
        ["r1 #1 x ab", "r1 #2 x ab"],
        ["r1 #3 x ab", "r2 #1 x ac", "r2 #2 x ac", "s1 #1 x ac", "s1 #2 x ac"],
        ["r2 #3 x ac", "r2 #4 x ac", "r2 #1 y ac"],
    ]


@pytest.mark.on_spark("more")
def test_a_new_rule_sees_the_rows_of_the_history() -> None:
    steps = [rule("r", AB, since=0), events("aba"), Watermark(t(2)), rule("r", AB, since=3, version=2)]
    steps += [events("b", start=3), Watermark(None)]
    assert found(steps)[-1] == []
    assert found(steps, history="10 seconds")[-1] == ["r2 #1 x ab"]
    # What was decided before the version was in force is not emitted again.
    assert found(steps, history="10 seconds")[2] == ["r1 #1 x ab"]


def test_rows_older_than_the_history_are_not_seen() -> None:
    steps = [events("a  b"), Watermark(t(3)), rule("r", "pattern (A X* B) within 1 minute define A as name = 'a', "
             "B as name = 'b'", since=4), events("b", start=4), Watermark(None)]  # fmt: skip
    assert found(steps, history="2 seconds")[-1] == []
    assert found(steps, history="4 seconds")[-1] == ["r1 #1 x abb"]


def test_a_version_that_ends_drops_what_is_not_decided() -> None:
    greedy = "pattern (A+) within 1 minute define A as name = 'a'"
    steps = [rule("r", greedy), events("aa"), Watermark(t(1)), removed("r", since=2), Watermark(None)]
    assert found(steps) == [[], [], [], [], []]
    steps = [rule("r", greedy), events("aab"), Watermark(t(2)), removed("r", since=3), Watermark(None)]
    assert found(steps)[2] == ["r1 #1 x aa"]


@pytest.mark.on_spark("more")
def test_an_absence_is_found_by_a_rule_that_came_after_its_first_row() -> None:
    steps = [events("a"), events("ab", key="y"), Watermark(t(2)), rule("r", SILENCE, since=3), Watermark(t(5))]
    steps += [Watermark(t(6))]
    assert found(steps, history="1 minute") == [[], [], [], [], [], ["r1 #1 x a"]]


def test_a_filter_hides_rows_from_a_rule() -> None:
    steps = [
        rule("all", AB),
        rule("some", AB, where="name <> 'c'"),
        rule("rise", RISE, where="n % 2 = 0"),
        events("acbab"),
        Watermark(None),
    ]
    assert found(steps)[-1] == ["all1 #1 x ab", "rise1 #1 x abb", "some1 #1 x ab", "some1 #2 x ab"]


def test_a_filter_may_choose_keys() -> None:
    steps = [rule("r", AB, where="key = 'y'"), events("ab"), events("ab", key="y"), Watermark(None)]
    assert found(steps)[-1] == ["r1 #1 y ab"]


def test_a_rule_that_looks_back_does_not_see_rows_before_the_history() -> None:
    fell = "pattern (A) within 1 second define A as n < 10 and prev(n) = 1"
    steps = [rule("r", fell), events("abc"), Watermark(t(2)), rule("s", fell, since=3), events("d", start=3)]
    assert found([*steps, Watermark(None)])[2] == ["r1 #1 x c"]
    again = [events("ab"), Watermark(t(1)), rule("s", fell, since=2), events("c", start=2), Watermark(None)]
    assert found(again)[-1] == []
    assert found(again, history="1 second")[-1] == ["s1 #1 x c"]


def test_rules_without_event_time_apply_from_the_batch_they_come_in() -> None:
    steps = [rule("r", AB), events("ab"), Watermark(t(1)), rule("r", AC, version=2), events("abac", start=2)]
    steps += [Watermark(t(5)), removed("r", since=0), events("ac", start=6), Watermark(None)]
    assert found(steps, timed=False) == [[], [], ["r1 #1 x ab"], [], [], ["r2 #1 x ac"], [], [], []]


def test_a_change_behind_the_watermark_applies_from_there_on() -> None:
    steps = [events("ab"), Watermark(t(4)), rule("r", AB, since=0), events("ab", start=5), Watermark(None)]
    assert found(steps, history="1 minute")[-1] == ["r1 #1 x ab"]


@pytest.mark.on_spark("more")
def test_wrong_rules_are_dead_letters_and_the_others_go_on() -> None:
    def build(events: Any, rules: Any) -> Any:
        made = events.key_by("key").match(rules=rules.to_table(key="id"), name="watch")
        return {"matches": made, "dead": made.dead, "late": made.late}

    wrong = {
        "clause": "pattern (A B) within 1 second",
        "column": "pattern (A)\nwithin 1 second\ndefine A as names = 'a'",
        "limit": "pattern (A B) define A as name = 'a'",
        "shape": "pattern ((A?)*) within 1 second define A as name = 'a'",
        "word": "patern (A B)",
        "measures": "measures A.n as n pattern (A) within 1 second define A as n > 1",
        "ahead": "pattern (A B) within 1 second define A as n > B.n",
    }
    steps = [rule("good", AB), *(rule(name, text) for name, text in wrong.items())]
    steps += [rule("filter", AB, where="nam = 'a'"), removed("column", since=1), events("ab"), Watermark(None)]
    out = play(build, steps, schema=SCHEMAS, event_time={"events": "at", "rules": "since"})
    assert [row["rule"] for step in out for row in step["matches"]] == ["good"]
    reasons = [row["reason"] for step in out for row in step["dead"]]
    places = ["line 1, column 30", "line 3, column 13", "line 1, column 9", "line 1, column 9", "line 1, column 1"]
    places += ["line 1, column 27", "line 1, column 43", "the filter: there is no column"]
    assert len(reasons) == len(places)
    for reason, place in zip(reasons, places, strict=True):
        assert place in reason, reason
        assert reason.startswith("watch.rules: InvalidPattern: ")
    assert "rule 'column', version 1" in reasons[1]
    assert "columns that exist" in reasons[1]
