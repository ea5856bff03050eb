"""Rules that change: the operator finds what the reference finds, and cuts into bundles make no difference."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from cutting import cut
from millstream.testing import Add, Watermark, play
from properties import examples
from times import t

pytestmark = pytest.mark.timeout(900)
SCHEMAS = {
    "events": "key string, name string, n int, at timestamp",
    "rules": "id string, version int, filter string, pattern string, since timestamp",
}
TIMES = {"events": "at", "rules": "since"}
PATTERNS = ("A B", "A B+", "A+ B?", "A+? C", "A X*? B", "(A | B) C*", "A{2}", "PERMUTE(A, B)", "A [^B]", "A {- C* -} B")
conditions = st.sampled_from(
    ["name = 'a'", "name = 'b'", "name in ('a', 'c')", "n > 1", "n > prev(n)", "n >= prev(n, 2)", "prev(n) is null"]
)
of_path = st.sampled_from(["n > first(A.n)", "sum(A.n) < 4", "n >= A.n and name = 'a'"])
filters = st.sampled_from([None, None, "n > 0", "name <> 'd'", "key = 'x'"])
skips = st.sampled_from(["past last row", "to next row", "to last A", "to first A"])


@st.composite
def texts(draw: Any) -> str:
    pattern = draw(st.sampled_from(PATTERNS))
    names = [name for name in "ABC" if name in pattern.replace("PERMUTE", "")]
    defined = [f"{name} as {draw(conditions if name == 'A' else st.one_of(conditions, of_path))}" for name in names]
    if pattern.startswith(("(", "PERMUTE")):  # a condition must not look ahead
        defined = [f"{name} as {draw(conditions)}" for name in names]
    within = draw(st.integers(1, 6))
    skip = draw(skips)
    return f"after match skip {skip} pattern ({pattern}) within {within} seconds define {', '.join(defined)}"


@st.composite
def changes(draw: Any, *, later: bool) -> list[dict[str, Any]]:
    """Rows of the table of rules; later ones take effect while rows come."""
    made = []
    for number in range(draw(st.integers(1, 4))):
        is_gone = later and number > 0 and draw(st.integers(0, 3)) == 0
        row = {"id": draw(st.sampled_from("rst")), "since": t(draw(st.integers(0, 14)) if later else 0)}
        empty = {"version": None, "filter": None, "pattern": None}
        full = {"version": number, "filter": draw(filters), "pattern": draw(texts())}
        made.append({**row, **(empty if is_gone else full)})
    return made


@st.composite
def rows(draw: Any) -> list[dict[str, Any]]:
    made, at = [], 0
    for _ in range(draw(st.integers(1, 12))):
        at += draw(st.integers(0, 3))
        key, name, n = draw(st.tuples(st.sampled_from("xy"), st.sampled_from("aabbcd"), st.integers(0, 3)))
        made.append({"key": key, "name": name, "n": n, "at": t(at)})
    return made


def played(steps: list[Any], on: str, history: str | None) -> Any:
    def build(events: Any, rules: Any) -> Any:
        made = events.key_by("key").match(rules=rules.to_table(key="id"), history=history)
        counts = made.key_by("key").window(ms.fixed("5 seconds")).agg(n=ms.count())
        return {"sent": made, "counts": counts, "late": counts.late}

    return play(build, steps, schema=SCHEMAS, event_time=TIMES, on=on)


def sent(out: Any) -> list[str]:
    assert not [row for step in out for row in step["late"]]  # no match is late for the next step
    return sorted(repr(row) for step in out for row in step["sent"])


histories = st.sampled_from([None, "2 seconds", "20 seconds"])
cutting = st.lists(st.integers(0, 20), max_size=5)


def check(rules: list[dict[str, Any]], made: list[dict[str, Any]], cuts: list[int], history: str | None) -> None:
    known = [Add(rules, to="rules")]
    steps = [*known, *cut(made, cuts, "events")]
    expected = played(steps, "reference", history)
    assert played(steps, "local", history) == expected
    whole = played([*known, Add(made, to="events"), Watermark(None)], "local", history)
    assert sent(whole) == sent(expected)


@given(changes(later=False), rows(), cutting, histories)
@examples(60)
def test_cuts_make_no_difference_while_rules_stay(
    rules: list[dict[str, Any]], made: list[dict[str, Any]], cuts: list[int], history: str | None
) -> None:
    check(rules, made, cuts, history)


@pytest.mark.more
@given(changes(later=True), rows(), cutting, histories)
@examples(100)
def test_cuts_make_no_difference_when_rules_change_in_event_time(
    rules: list[dict[str, Any]], made: list[dict[str, Any]], cuts: list[int], history: str | None
) -> None:
    check(rules, made, cuts, history)


@pytest.mark.more
@given(changes(later=True), rows(), cutting, histories, st.integers(0, 5))
@examples(80)
def test_changes_that_come_late_are_treated_alike(
    rules: list[dict[str, Any]], made: list[dict[str, Any]], cuts: list[int], history: str | None, place: int
) -> None:
    steps = cut(made, cuts, "events")
    steps.insert(min(place, len(steps) - 1), Add(rules, to="rules"))
    assert played(steps, "local", history) == played(steps, "reference", history)


@pytest.mark.more
def test_a_thousand_rules_of_which_some_change() -> None:
    """Goal: among many rules each change reaches its own rule, from its own time on.

    Method: every rule watches one number. Then half of them watch another one, and a quarter are removed.
    """

    def watching(number: int) -> str:
        return f"pattern (A B) within 5 seconds define A as name = 'a' and n = {number}, B as name = 'b'"

    def changed(rules: Any, at: int, version: int) -> Add:
        rows = [
            {"id": f"r{id}", "version": version, "filter": None, "pattern": text, "since": t(at)} for id, text in rules
        ]
        return Add(rows, to="rules")

    def seen(start: int) -> Add:
        rows = [
            {"key": f"k{n}", "name": name, "n": n, "at": t(start + second)}
            for n in range(1000)
            for second, name in enumerate("ab")
        ]
        return Add(rows, to="events")

    def build(events: Any, rules: Any) -> Any:
        made = events.key_by("key").match(rules=rules.to_table(key="id", deleted="pattern is null"))
        return made.select("rule", "version", "key")

    steps = [
        changed([(id, watching(id)) for id in range(1000)], 0, 1),
        seen(10),
        Watermark(t(20)),
        changed([(id, watching(999 - id)) for id in range(500)], 20, 2),
        changed([(id, None) for id in range(500, 750)], 20, 3),
        seen(30),
        Watermark(None),
    ]
    out = play(build, steps, schema=SCHEMAS, event_time=TIMES, on="local")
    rows = [sorted((row["rule"], row["version"], row["key"]) for row in step) for step in out]
    assert rows[2] == sorted((f"r{id}", 1, f"k{id}") for id in range(1000))
    changes = [(f"r{id}", 2, f"k{999 - id}") for id in range(500)]
    assert rows[-1] == sorted([*changes, *((f"r{id}", 1, f"k{id}") for id in range(750, 1000))])
    assert sum(map(len, rows)) == 1750
