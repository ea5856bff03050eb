"""The rules of patterns as small transcripts, each played on every runner."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.errors import ExpressionFailed
from millstream.testing import Add, Watermark
from times import t
from transcripts import play

pytestmark = pytest.mark.transcripts("reference", "local", "spark")
SCHEMA = "key string, name string, n int, at timestamp"


def add(*names: str, since: int = 0, key: str = "k") -> Add:
    """Rows such as "a1": the kind a, the number 1, a second apart."""
    numbers = [int(name[1:] or 0) for name in names]
    return Add(
        [
            {"key": key, "name": name[0], "n": n, "at": t(since + at)}
            for at, (name, n) in enumerate(zip(names, numbers, strict=True))
        ]
    )


def stage(name: str) -> tuple[str, str]:
    return name, f"name = '{name}'"


def matches(rows: list[dict[str, Any]]) -> list[str]:
    """Each match as the variables and numbers of its rows."""
    found: dict[Any, list[str]] = {}
    for row in rows:
        name = (row["key"], row["match"], row.get("weight"))
        found.setdefault(name, []).append(f"{row['variable']}{row['n']}")
    return [("-" if name[2] == -1 else "") + " ".join(each) for name, each in found.items()]


def run(pattern: ms.Pattern, *steps: Any, **options: Any) -> list[list[str]]:
    def build(rows: Any) -> Any:
        return rows.key_by("key").match(pattern, rows="all", name="step", **options)

    return [matches(step) for step in play(build, list(steps), schema=SCHEMA, event_time="at")]


@pytest.mark.on_spark
def test_rows_wait_for_the_watermark_and_are_matched_by_event_time() -> None:
    pattern = ms.pattern(*stage("a")).followed_by(*stage("b"))
    out = run(
        pattern,
        add("b2", since=2),
        add("a1", since=1),
        Watermark(t(1)),
        Watermark(t(2)),
        Add([{"key": "k", "name": "a", "n": 0, "at": t(1)}]),
        Watermark(None),
    )
    assert out == [[], [], [], ["a1 b2"], [], []]


@pytest.mark.parametrize(
    ("how", "found"),
    [("next", []), ("followed_by", ["a1 b3"]), ("followed_by_any", ["a1 b3", "a1 b4"])],
)
def test_contiguity(how: str, found: list[str]) -> None:
    pattern = getattr(ms.pattern(*stage("a")), how)(*stage("b"))
    assert run(pattern, add("a1", "c2", "b3", "b4"), Watermark(None), skip="none") == [[], found]


@pytest.mark.parametrize(
    ("skip", "found"),
    [
        ("none", ["b1 b2 b3 c4", "b2 b3 c4", "b3 c4"]),
        ("to next", ["b1 b2 b3 c4", "b2 b3 c4", "b3 c4"]),
        ("past last", ["b1 b2 b3 c4"]),
        ("to first b", ["b1 b2 b3 c4", "b2 b3 c4", "b3 c4"]),
        ("to last b", ["b1 b2 b3 c4", "b3 c4"]),
    ],
)
def test_skip_strategies(skip: str, found: list[str]) -> None:
    pattern = ms.pattern(*stage("b")).one_or_more().greedy().consecutive().next(*stage("c"))
    assert run(pattern, add("b1", "b2", "b3", "c4"), Watermark(None), skip=skip) == [[], found]


def test_until_ends_a_repetition() -> None:
    pattern = ms.pattern(*stage("a")).one_or_more().until("name = 'b'")
    out = run(pattern, add("a1", "c2", "a3", "b4", "a5"), Watermark(None), skip="none")
    assert out == [[], ["a1", "a1 a3", "a3", "a5"]]


def test_a_greedy_repetition_that_has_ended_bars_nothing() -> None:
    """b3 ends the repetition, so a4 is a row like any other for what began before."""
    pattern = ms.pattern(*stage("a")).one_or_more().greedy().until("name = 'b'").followed_by(*stage("c"))
    out = run(pattern, add("a1", "a2", "b3", "a4", "c5"), Watermark(None), skip="none")
    assert out == [[], ["a1 a2 c5", "a2 c5", "a4 c5"]]


def test_a_match_waits_for_one_that_began_earlier() -> None:
    pattern = ms.pattern(*stage("a")).followed_by(*stage("c")).followed_by("b", "name = 'b' and n = a.n")
    steps = [add("a1", "c0", "a2", "c0", "b2"), Watermark(t(4)), add("b1", since=5), Watermark(None)]
    assert run(pattern, *steps, skip="none") == [[], ["a2 c0 b2"], [], ["a1 c0 b1"]]
    assert run(pattern, *steps, skip="past last") == [[], [], [], ["a1 c0 b1"]]
    assert run(pattern, *steps[:2], Watermark(None), skip="past last") == [[], [], ["a2 c0 b2"]]


@pytest.mark.on_spark("more")
def test_absence_at_the_end_is_reported_by_the_watermark() -> None:
    pattern = ms.pattern(*stage("a")).not_followed_by("b", "name = 'b' and n >= a.n").within("10 seconds")

    def build(rows: Any) -> Any:
        return rows.key_by("key").match(pattern, name="step").select("key", "a.n", at="match_end")

    steps = [
        add("a1", key="x"),
        add("a2", key="y"),
        Add([{"key": "x", "name": "b", "n": 1, "at": t(10)}, {"key": "y", "name": "b", "n": 1, "at": t(10)}]),
        Watermark(t(10)),
        Watermark(t(10.5)),
        Watermark(None),
    ]
    out = play(build, steps, schema=SCHEMA, event_time="at")
    assert out == [[], [], [], [], [{"key": "y", "n": 2, "at": t(10)}], []]


@pytest.mark.on_spark("more")
def test_measures_late_rows_and_partial_matches_that_timed_out() -> None:
    pattern = ms.pattern(*stage("a")).followed_by(*stage("b")).one_or_more().followed_by(*stage("c"))

    def build(rows: Any) -> Any:
        made = rows.key_by("key").match(pattern.within("10 seconds"), name="step")
        measures = made.select("match", "c.n", first="first(b.n)", total="sum(b.n)", size="count(b)", at="match_start")
        over = made.timed_out.select("key", rows="cast(size(a) + size(b) + size(c) as int)", at="match_end")
        return {"sent": measures, "over": over, "late": made.late.select("name", "reason")}

    steps = [add("a1", "b2", "b3", "c4", "a5", "b6"), Watermark(t(6)), add("x7", since=1), Watermark(None)]
    out = play(build, steps, schema=SCHEMA, event_time="at")
    match = {"match": 1, "n": 4, "first": 2, "total": 5, "size": 2, "at": t(0)}
    assert [step["sent"] for step in out] == [[], [match], [], []]
    assert [step["late"] for step in out] == [[], [], [{"name": "x", "reason": "expired"}], []]
    assert [step["over"] for step in out] == [[], [], [], [{"key": "k", "rows": 2, "at": t(14)}]]


@pytest.mark.on_spark("more")
def test_a_condition_on_the_next_row_waits_for_it() -> None:
    """Meanwhile no limit of its key ends, and no match of a row that is not there yet is lost."""
    falls = ms.pattern("a", "name = 'a' and n > next(n)").followed_by("b", "next(name) = 'x'").within("3 seconds")

    def build(rows: Any) -> Any:
        made = rows.key_by("key").match(falls, name="step")
        found = made.select("key", a="a.n", b="b.n")
        return {"sent": found, "over": made.timed_out.select("key", a="element_at(a, 1).n", at="match_end")}

    steps = [
        add("a5", "c4", "b3"),  # after b3 comes x1, but not before 9 seconds
        add("a5", "c6", key="other"),  # not followed by less
        add("a5", "c4", key="over"),
        Watermark(t(8)),
        add("x1", since=9),
        Watermark(t(9)),
        Watermark(None),
    ]
    out = play(build, steps, schema=SCHEMA, event_time="at")
    match, over = {"key": "k", "a": 5, "b": 3}, {"key": "over", "a": 5, "at": t(3)}
    assert [step["sent"] for step in out] == [[], [], [], [], [], [match], []]
    assert [step["over"] for step in out] == [[], [], [], [], [], [], [over]]


@pytest.mark.on_spark("more")
def test_an_early_match_is_retracted_by_a_row_between() -> None:
    pattern = ms.pattern(*stage("a")).next(*stage("b"))
    steps = [add("a1"), add("b2", since=5), add("c3", since=3), add("a4", "b5", since=6), Watermark(None)]
    out = run(pattern, *steps, early=True)
    assert out == [[], ["a1 b2"], ["-a1 b2"], ["a4 b5"], []]


@pytest.mark.parametrize("early", [False, True])
def test_what_timed_out_is_reported_once_its_first_row_is_decided(early: bool) -> None:
    """Another way from the same first row is still open at the first watermark."""
    pattern = ms.pattern("p").one_or_more().next("q", "name = 'a'").followed_by("r", "name = 'a'")

    def build(rows: Any) -> Any:
        limited = pattern.within("3 seconds", between="neighbours")
        made = rows.key_by("key").match(limited, skip="none", matches="preferred", early=early, name="step")
        return made.timed_out.select(p="cast(size(p) as int)", q="cast(size(q) as int)", at="match_end")

    rows = [{"key": "k", "name": name, "n": 0, "at": t(at)} for name, at in (("a", 1), ("a", 1), ("b", 2), ("a", 5))]
    out = play(build, [Add(rows), Watermark(t(5)), Watermark(None)], schema=SCHEMA, event_time="at")
    assert [len(step) for step in out] == [0, 0, 8]
    assert {"p": 1, "q": 1, "at": t(4)} in out[-1]


def test_the_preferred_match() -> None:
    """A V: the longest fall, then the longest rise. It is final when a row does not continue it."""
    pattern = (
        ms.pattern("start")
        .next("down", "n < prev(n)")
        .one_or_more()
        .consecutive()
        .next("up", "n > prev(n)")
        .one_or_more()
        .consecutive()
    )
    steps = [add("p9", "p7", "p5", "p6", "p8", "p7", "p3", "p4"), Watermark(t(4)), Watermark(t(5)), Watermark(None)]
    out = run(pattern, *steps, matches="preferred")
    assert out == [[], [], ["start9 down7 down5 up6 up8"], ["start7 down3 up4"]]


@pytest.mark.parametrize(("greed", "found"), [("greedy", ["a1 a2 b3 a4 b5"]), ("reluctant", ["a1 a2 b3", "a4 b5"])])
def test_greedy_and_reluctant(greed: str, found: list[str]) -> None:
    group = ms.pattern(*stage("a")).one_or_more().consecutive().next(*stage("b"))
    pattern = getattr(ms.pattern(group).one_or_more().consecutive(), greed)()
    assert run(pattern, add("a1", "a2", "b3", "a4", "b5"), Watermark(None), matches="preferred") == [[], found]


def test_the_greedy_part_of_a_preferred_match_gives_rows_back() -> None:
    pattern = ms.pattern("a", "n > 0").one_or_more().greedy().consecutive().next("b", "n > 2")
    assert run(pattern, add("x1", "x2", "x3", "x1"), Watermark(None), matches="preferred") == [[], ["a1 a2 b3"]]


def test_conditions_on_the_rows_before() -> None:
    """Of the row itself, and of the rows that play a variable."""
    fall = ms.pattern("d", "d.n < prev(d.n)").one_or_more().consecutive()
    assert run(fall, add("x5", "x4", "x3", "x9"), Watermark(None), matches="preferred") == [[], ["d4 d3"]]
    above = ms.pattern(*stage("a")).followed_by("b", "name = 'b' and n > prev(a.n) and n > prev(first(a.n), 2)")
    assert run(above, add("x7", "x5", "a1", "b6", "b8"), Watermark(None)) == [[], ["a1 b8"]]


def test_alternatives_and_any_order() -> None:
    either = ms.pattern(*stage("a")).followed_by(ms.alternatives(ms.pattern(*stage("b")), ms.pattern(*stage("c"))))
    assert run(either, add("a1", "c2", "b3"), Watermark(None), skip="none") == [[], ["a1 c2", "a1 b3"]]
    assert run(either, add("a1", "c2", "b3"), Watermark(None)) == [[], ["a1 c2"]]
    parts = [ms.pattern(*stage(name)) for name in "bcd"]
    order = ms.pattern(*stage("a")).followed_by(ms.any_order(*parts))
    assert run(order, add("a1", "d2", "x3", "b4", "c5"), Watermark(None)) == [[], ["a1 d2 b4 c5"]]


@pytest.mark.on_spark("more")
def test_conditions_look_into_the_arrays_and_structs_of_other_rows() -> None:
    grown = ms.pattern("a", "array_contains(tags, 'new')").followed_by(
        "b", "size(tags) > size(a.tags) and place.x > a.place.x"
    )

    def build(rows: Any) -> Any:
        found = rows.key_by("key").match(grown, name="step")
        return found.select("key", tags="b.tags", x="last(b.place).x", at="match_end")

    given = [(["new"], 1), (None, None), (["old", "new"], 1), (["x", "y"], 2)]
    places = [None if x is None else {"x": x} for _, x in given]
    rows = [
        {"key": "k", "tags": tags, "place": place, "at": t(at)}
        for at, ((tags, _), place) in enumerate(zip(given, places, strict=True))
    ]
    schema = "key string, tags array<string>, place struct<x: int>, at timestamp"
    out = play(build, [Add(rows), Watermark(None)], schema=schema, event_time="at")
    assert out == [[], [{"key": "k", "tags": ["x", "y"], "x": 2, "at": t(3)}]]


@pytest.mark.on_spark("more")
def test_the_largest_of_some_numbers_is_nan_wherever_it_stands() -> None:
    pattern = ms.pattern("a", "x < 9 or isnan(x)").times(2).next("b", "x > 9 and isnan(max(a.x)) and min(a.x) = 1")

    def build(rows: Any) -> Any:
        found = rows.key_by("key").match(pattern, name="step")
        return found.select("key", largest_is_nan="isnan(max(a.x))", smallest="min(a.x)")

    nan = float("nan")
    rows = [
        {"key": key, "x": x, "at": t(at)}
        for key, values in (("k", [nan, 1.0, 10.0]), ("l", [1.0, nan, 10.0]), ("m", [1.0, 2.0, 10.0]))
        for at, x in enumerate(values)
    ]
    out = play(build, [Add(rows), Watermark(None)], schema="key string, x double, at timestamp", event_time="at")
    assert out == [[], [{"key": key, "largest_is_nan": True, "smallest": 1.0} for key in "kl"]]


def test_a_sum_that_does_not_fit_is_an_error() -> None:
    def build(rows: Any) -> Any:
        return rows.match_recognize(
            "partition by key measures sum(A.n) as total pattern (A A B) define B as sum(A.n) > 0", name="step"
        )

    rows = [{"key": "k", "n": n, "at": t(at)} for at, n in enumerate((9223372036854775807, 1, 1))]
    with pytest.raises(ExpressionFailed, match="does not fit bigint"):
        play(build, [Add(rows), Watermark(None)], schema="key string, n bigint, at timestamp", event_time="at")
