"""Patterns are checked where they are written: the error names the line, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millstream as ms
from millstream.errors import InvalidExpression, InvalidPattern, InvalidPlan
from millstream.plan.patterns import terms
from millstream.plan.patterns.rules import Rules
from millstream.testing import Add, Watermark, play
from times import t

SCHEMA = "key string, name string, n int, at timestamp"
A = ms.pattern("a", "name = 'a'")


def match(pattern: Any, **options: Any) -> Any:
    stream = ms.Flow("test").read("rows", SCHEMA, event_time="at")
    return stream.key_by("key").match(pattern, **options)


def combined(pattern: Any, **options: Any) -> Any:
    """A flow with an output, checked as when it is run."""
    found = match(pattern, **options)
    found.write("found")
    return found.flow.check()


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: match(A.followed_by("b", "n > c.n")), "there is no variable 'c'"),
        (lambda: match(A.followed_by("b", "n > prise")), "there is no column 'prise'"),
        (lambda: match(ms.pattern("a", "n > b.n").followed_by("b")), "looks ahead: 'b' does not come before it"),
        (lambda: match(ms.pattern("a", "n > next(n)"), early=True), "looks ahead: with early=True"),
        (lambda: match(A.one_or_more().until("classifier() = 'a'")), "plays no variable here"),
        (lambda: match(A).select(n="classifier(a)"), "is for conditions"),
        (lambda: match(A.not_followed_by("x").next("b", "n > x.n")), "which must not occur"),
        (lambda: match(A.one_or_more().until("n > b.n").next("b")), "until looks ahead: 'b' does not come before it"),
        (lambda: match(A.not_followed_by("b")), "no limit of time"),
        (lambda: match(ms.alternatives(A.not_followed_by("b"), ms.pattern("c"))), "no limit of time"),
        (lambda: match(A.not_followed_by("b").followed_by("c").optional()), "may end with the absence of 'b'"),
        (lambda: match(A).select(n="prev(a.n)"), "is for conditions"),
        (lambda: combined(A.one_or_more().combinations().followed_by("b")), "without a limit of time"),
        (lambda: combined(ms.pattern(A.next("b")).times_or_more(2).combinations()), "without a limit of time"),
        (lambda: match(ms.pattern("a", "false")), "no row can be 'a'"),
        (lambda: match(A.one_or_more().reluctant()), "for the preferred match"),
        (lambda: match(A, skip="past the last"), "is unknown"),
        (lambda: match(A, skip="to first b"), "no variable 'b' to skip to"),
        (lambda: match(A, matches="all"), "matches='all' is unknown"),
        (lambda: match(A, rows="every"), "rows='every' is unknown"),
        (lambda: match("a b"), "match takes a pattern"),
        (lambda: match(ms.pattern("key")), "two columns named 'key'"),
        (lambda: match(A.followed_by("b", "sum(a.name) > 1")), "sum needs a number, but 'name' is string"),
        (lambda: match(A.followed_by("b", "avg(a.at) < 1")), "avg needs a number, but 'at' is timestamp"),
        (lambda: match(A.followed_by("b", "max(array(a.n)) is null")), "max needs an orderable type.* is array"),
        (lambda: match(A).select(total="sum(a.name)"), "sum needs a number, but 'name' is string"),
        (lambda: match(A).select("b.n"), "there is no variable 'b'"),
        (lambda: match(A.followed_by("b")).select("a.n", "b.n"), "two columns are named 'n'"),
        (lambda: match(A).timed_out, "only if the pattern has a limit"),
        (lambda: ms.pattern("a b"), "is not a name"),
        (lambda: ms.pattern("a", ""), "a condition is Spark SQL text"),
        (lambda: A.followed_by("a", "name = 'b'"), "two stages are named 'a'"),
        (lambda: A.times(3, 2), "can never happen"),
        (lambda: A.times(-1), "a whole number from 0"),
        (lambda: A.times(2).one_or_more(), "already has a number of times"),
        (lambda: A.not_next("b").optional(), "cannot be repeated or optional"),
        (lambda: A.until("n > 1"), "until ends a repetition"),
        (lambda: A.within("0 seconds"), "longer than 0"),
        (lambda: A.followed_by(ms.pattern("b").within("1 minute")), "no limit of time of its own"),
        (lambda: ms.any_order(A), "at least two patterns"),
    ],
)
def test_a_mistake_is_refused_where_it_is_written(build: Callable[[], Any], says: str) -> None:
    with pytest.raises((InvalidPattern, InvalidPlan, InvalidExpression), match=says) as raised:
        build()
    assert __file__ in str(raised.value.where)
    assert raised.value.next_step


def test_rows_need_event_time() -> None:
    stream = ms.Flow("test").read("rows", SCHEMA)
    with pytest.raises(InvalidPlan, match="match needs event time"):
        stream.key_by("key").match(A)


@pytest.mark.parametrize(
    ("pattern", "options"),
    [
        (A.one_or_more().combinations().within("1 minute"), {}),
        (A.one_or_more().combinations().within("1 minute", between="neighbours"), {}),
        (A.one_or_more().combinations(), {"matches": "preferred"}),
        (A.times(2, 4).combinations(), {}),
    ],
)
def test_combinations_with_a_limit_can_run(pattern: ms.Pattern, options: dict[str, Any]) -> None:
    assert combined(pattern, **options)


def rules(term: Any, **conditions: str) -> Rules:
    return Rules(term, conditions)


def sequence(*parts: Any) -> terms.Sequence:
    return terms.Sequence(tuple(terms.Link(terms.Contiguity.NEXT, term) for term in parts))


def greedy(name: str, low: int, high: int | None) -> terms.Repeat:
    return terms.Repeat(terms.Variable(name), low, high, terms.Greed.GREEDY)


@pytest.mark.parametrize("on", ["reference", "local"])
@pytest.mark.parametrize(
    ("made", "names", "found"),
    [
        (sequence(greedy("a", 1, None), terms.Variable("b")), "aab", ["a0 a1 b2"]),
        (sequence(terms.Repeat(terms.Variable("a"), 1, None, terms.Greed.RELUCTANT)), "aa", ["a0", "a1"]),
        (terms.Alternatives((terms.Variable("b"), terms.Variable("a"))), "ab", ["a0", "b1"]),
        (terms.AnyOrder((terms.Variable("a"), terms.Variable("b"))), "ba", ["b0 a1"]),
        (sequence(terms.Variable("a"), terms.Excluded(greedy("x", 0, None)), terms.Variable("b")), "acb", ["a0 b2"]),
        (sequence(terms.Anchor(terms.Edge.START), terms.Variable("a")), "aa", ["a0"]),
        (sequence(terms.Variable("a"), terms.Anchor(terms.Edge.END)), "aaba", ["a3"]),
    ],
)
def test_terms_of_sql(made: Any, names: str, found: list[str], on: str) -> None:
    """What MATCH_RECOGNIZE can say: the preferred match, written with terms."""
    where = {name: f"name = '{name}'" for name in "ab"}

    def build(stream: Any) -> Any:
        return stream.key_by("key").match(rules(made, **where), matches="preferred", rows="all")

    rows = [{"key": "k", "name": name, "n": n, "at": t(n)} for n, name in enumerate(names)]
    steps = [Add(rows[:1]), Watermark(t(0)), Add(rows[1:]), Watermark(None)]
    out = play(build, steps, schema=SCHEMA, event_time="at", on=on)
    sent: dict[int, list[str]] = {}
    for row in [row for step in out for row in step]:
        sent.setdefault(row["match"], []).append(f"{row['variable']}{row['n']}")
    assert [" ".join(each) for each in sent.values()] == found
