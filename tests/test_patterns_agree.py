"""Patterns: the operator finds what the reference finds, and how rows were cut into bundles makes no difference."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream as ms
from millstream.testing import Add, Watermark, play
from properties import examples
from times import t

pytestmark = pytest.mark.timeout(900)
SCHEMA = "key string, name string, n int, at timestamp"
HOW = ("next", "followed_by", "followed_by_any")
LIMITS = st.sampled_from([None, "3 seconds", "6 seconds"])
AHEAD = ("n > next(n)", "name = 'a' and next(n, 2) >= n")
wheres = st.sampled_from(["name = 'a'", "name = 'b'", "name in ('a', 'c')", "n > 1", "n > prev(n)", None, *AHEAD])
of_path = st.sampled_from(
    [
        "n > first(p0.n)",
        "n >= p0.n and name = 'a'",
        "sum(p0.n) < 4 or n = 2",
        "n >= prev(p0.n)",
        "n > prev(first(p0.n), 2) or n = 0",
        "n >= next(first(p0.n))",
        "n = 0 and next(n, 2) > sum(p0.n)",
        "last(classifier(), 1) = 'p0'",
    ]
)


@st.composite
def patterns(draw: Any, *, every: bool) -> ms.Pattern:
    pattern = ms.pattern("p0", draw(wheres))
    pattern = shaped(draw, pattern, every=every)
    for number in range(1, draw(st.integers(1, 3))):
        where = draw(st.one_of(wheres, of_path))
        kind = (
            draw(st.sampled_from([*HOW, "not_next", "not_followed_by"])) if number == 1 else draw(st.sampled_from(HOW))
        )
        pattern = getattr(pattern, kind)(f"p{number}", where)
        if kind in HOW:
            pattern = shaped(draw, pattern, every=every)
    pattern = getattr(pattern, draw(st.sampled_from(HOW)))("last", draw(wheres))
    if draw(st.booleans()):
        pattern = pattern.not_followed_by("absent", "name = 'd'").within("4 seconds")
    limit = draw(LIMITS)
    if limit is not None:
        between = draw(st.sampled_from(["first and last", "neighbours"]))
        pattern = pattern.within(limit, between=between)
    return pattern


def shaped(draw: Any, pattern: ms.Pattern, *, every: bool) -> ms.Pattern:
    shape = draw(st.sampled_from(["", "", "one_or_more", "times"]))
    if shape == "one_or_more":
        pattern = pattern.one_or_more()
    elif shape == "times":
        pattern = pattern.times(draw(st.integers(1, 2)), 2)
    if shape and draw(st.booleans()):
        pattern = getattr(pattern, draw(st.sampled_from(["consecutive", "combinations"])))()
    if draw(st.booleans()) and draw(st.booleans()):
        pattern = pattern.optional()
    greeds = ["", "", "greedy"] if every else ["", "greedy", "reluctant"]
    if greed := draw(st.sampled_from(greeds)):
        pattern = getattr(pattern, greed)()
    return pattern


@st.composite
def rows(draw: Any) -> list[dict[str, Any]]:
    count = draw(st.integers(1, 9))
    made, at = [], 0
    for _ in range(count):
        at += draw(st.integers(0, 3))
        key, name, n = draw(st.tuples(st.sampled_from("xy"), st.sampled_from("abcd"), st.integers(0, 3)))
        made.append({"key": key, "name": name, "n": n, "at": t(at)})
    return made


skips = st.sampled_from(["none", "to next", "past last", "to first last", "to last p0"])


def played(pattern: ms.Pattern, steps: list[Any], on: str, options: dict[str, Any]) -> Any:
    def build(stream: Any) -> Any:
        made = stream.key_by("key").match(pattern, **options)
        found = {"sent": made}
        if pattern.rules.has_limit:
            found["over"] = made.timed_out
        if not options["early"]:  # no match may be late for the next step
            counts = made.key_by("key").window(ms.fixed("5 seconds")).agg(n=ms.count())
            found |= {"counts": counts, "late": counts.late}
        return found

    return play(build, steps, schema=SCHEMA, event_time="at", on=on)


def cut(made: list[dict[str, Any]], cuts: list[int]) -> list[Any]:
    """Bundles of rows, each with the watermark of its last row behind it or not."""
    places = sorted({0, len(made), *(each % (len(made) + 1) for each in cuts)})
    steps: list[Any] = []
    for number, (start, stop) in enumerate(pairwise(places)):
        steps.append(Add(made[start:stop]))
        if number % 2 or number == len(places) - 2:  # so that the end comes with no row
            steps.append(Watermark(made[stop - 1]["at"]))
    return [*steps, Watermark(None)]


@st.composite
def cases(draw: Any) -> tuple[Any, ...]:
    every = draw(st.booleans())
    options = {
        "matches": "every" if every else "preferred",
        "skip": draw(skips),
        "rows": draw(st.sampled_from(["one", "all"])),
        "early": draw(st.sampled_from([False, False, True])),
    }
    pattern = draw(patterns(every=every))
    if "next(" in repr(pattern.rules.conditions):  # early matches cannot wait for the next row
        options["early"] = False
    return pattern, draw(rows()), draw(st.lists(st.integers(0, 20), max_size=4)), options


def check(case: tuple[Any, ...]) -> None:
    pattern, made, cuts, options = case
    steps = cut(made, cuts)
    expected = played(pattern, steps, "reference", options)
    assert played(pattern, steps, "local", options) == expected
    whole = played(pattern, [Add(made), Watermark(None)], "local", options)
    assert added(expected) == added(whole)


def added(steps: Any) -> dict[str, list[str]]:
    """All rows of a run, each as often as its weights add up to."""
    found: dict[str, dict[str, int]] = {"sent": {}, "over": {}}
    for step in steps:
        assert not step.get("late")
        for name, rows_ in ((name, step.get(name, [])) for name in found):
            for row in rows_:
                values = repr(sorted((column, value) for column, value in row.items() if column != "weight"))
                found[name][values] = found[name].get(values, 0) + (row.get("weight") or 1)
    return {name: sorted(each for each, count in rows_.items() for _ in range(count)) for name, rows_ in found.items()}


@examples(300)
@given(cases())
def test_reference_and_operator_agree(case: tuple[Any, ...]) -> None:
    check(case)
