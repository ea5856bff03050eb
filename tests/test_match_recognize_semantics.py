"""MATCH_RECOGNIZE by construct, on every runner: the results are worked out by hand from the rules of the standard."""

from __future__ import annotations

from typing import Any

import pytest

import millstream as ms
from millstream.testing import Add, Watermark
from recognizing import SCHEMA, letters, rows, run
from times import t
from transcripts import play

pytestmark = pytest.mark.transcripts("reference", "local", "spark")


@pytest.mark.on_spark("more")
def test_a_price_that_falls_and_rises() -> None:
    text = """
        partition by id order by at
        measures start.price as top, last(down.price) as bottom, last(up.price) as recovered, count(down) as steps,
                 match_number() as n, classifier() as ends_with, price as last_price, avg(down.price) as mean
        one row per match
        after match skip to last up
        pattern (start down+ up+)
        define down as price < prev(price), up as price > prev(price)
    """
    prices = [12, 17, 14, 11, 15, 16, 20, 13, 18]
    expected = [
        {
            "id": "a", "top": 17, "bottom": 11, "recovered": 20, "steps": 2,
            "n": 1, "ends_with": "up", "last_price": 20, "mean": 12.5,
        },
        {
            "id": "a", "top": 20, "bottom": 13, "recovered": 18, "steps": 1,
            "n": 2, "ends_with": "up", "last_price": 18, "mean": 13.0,
        },
    ]  # fmt: skip
    assert run(text, rows(prices)) == expected
    assert run(text, rows(prices), cut=4) == expected


@pytest.mark.parametrize(
    ("pattern", "given", "found"),
    [
        ("A B", "abcab", ["ab", "ab"]),
        ("A B C", "abbcabc", ["abc"]),
        ("A+", "aabaa", ["aa", "aa"]),
        ("A+?", "aab", ["a", "a"]),
        ("A B*", "abbab", ["abb", "ab"]),
        ("A B*? C", "abbc", ["abbc"]),
        ("A B?? ", "ab", ["a"]),
        ("A B?", "ab", ["ab"]),
        ("A{2}", "aaaaa", ["aa", "aa"]),
        ("A{2,}", "aaaaab", ["aaaaa"]),
        ("A{1,2}", "aaa", ["aa", "a"]),
        ("A{1,2}?", "aaa", ["a", "a", "a"]),
        ("A | B C", "abca", ["a", "bc", "a"]),
        ("(A | A B) C", "abcac", ["abc", "ac"]),
        ("(A B)+", "ababcab", ["abab", "ab"]),
        ("(A B)+ C", "ababc", ["ababc"]),
        ("PERMUTE(A, B)", "baab", ["ba", "ab"]),
        ("PERMUTE(A, B, C)", "cabacb", ["cab", "acb"]),
        ("A {- B+ -} C", "abbc", ["ac"]),
        ("^ A", "aa", ["a"]),
        ("A+ $", "aabaa", ["aa"]),
    ],
)
def test_patterns(pattern: str, given: str, found: list[str]) -> None:
    assert letters(pattern, given) == found
    assert letters(pattern, given, cut=1) == found


def test_followed_by_is_a_reluctant_variable_that_takes_any_row() -> None:
    text = """measures first(A.price) as a, last(C.price) as c pattern (A X*? C)
              define A as kind = 'a', C as kind = 'c'"""
    assert run(text, rows("abbcac")) == [{"a": 0, "c": 3}, {"a": 4, "c": 5}]


@pytest.mark.parametrize(
    ("skip", "found"),
    [
        ("", ["bbbc"]),
        ("after match skip past last row", ["bbbc"]),
        ("after match skip to next row", ["bbbc", "bbc", "bc"]),
        ("after match skip to first C", ["bbbc"]),
        ("after match skip to last B", ["bbbc", "bc"]),
        ("after match skip to B", ["bbbc", "bc"]),
    ],
)
def test_where_the_search_goes_on(skip: str, found: list[str]) -> None:
    assert letters("B+ C", "bbbc", skip) == found


def test_all_rows_have_running_and_final_measures() -> None:
    text = """
        partition by id order by at
        measures sum(price) as so_far, final sum(price) as whole, running count(B) as bs, last(A.price) as a,
                 classifier() as plays, final last(price) as ends
        all rows per match
        pattern (A {- X -} B+)
        define A as price = 1, X as price = 2, B as price > prev(price)
    """
    found = run(text, rows([5, 1, 2, 3, 4]))
    columns = ("price", "so_far", "whole", "bs", "a", "plays", "ends")
    assert [tuple(row[column] for column in columns) for row in found] == [
        (1, 1, 10, 0, 1, "A", 4),
        (3, 6, 10, 1, 1, "B", 4),
        (4, 10, 10, 2, 1, "B", 4),
    ]  # fmt: skip


def test_conditions_see_the_row_in_question_and_those_before() -> None:
    text = """measures first(A.price) as low, last(A.price) as high pattern (A+)
              define A as sum(A.price) <= 10 and (prev(price) is null or price >= first(A.price))"""
    assert run(text, rows([3, 4, 5, 2, 9])) == [
        {"low": 3, "high": 4},
        {"low": 5, "high": 5},
        {"low": 2, "high": 2},
        {"low": 9, "high": 9},
    ]


def test_a_subset_stands_for_several_variables() -> None:
    text = """measures avg(moves.price) as mean, first(moves.price) as first_move, count(moves) as n
              pattern (start up+ down+) subset moves = (up, down)
              define up as price > prev(price), down as price < prev(price)"""
    assert run(text, rows([1, 3, 5, 4])) == [{"mean": 4.0, "first_move": 3, "n": 3}]


def test_a_limit_of_time_and_partial_matches() -> None:
    text = """measures match_number() as n, A.price as a, count(B) as bs pattern (A B+ C) within 2 seconds
              define A as kind = 'a', B as kind = 'b', C as kind = 'c'"""
    assert run(text, rows("abbcabc")) == [{"n": 1, "a": 4, "bs": 1}]
    found = run(f"{text} show timeout matches", rows("abbcabc"))
    assert sorted(found, key=lambda row: row["a"]) == [
        {"n": None, "a": 0, "bs": 2},
        {"n": 1, "a": 4, "bs": 1},
    ]


def test_absence_at_the_end() -> None:
    text = """partition by id measures A.price as ordered pattern (A [^B]) within 2 seconds
              define A as kind = 'a', B as kind = 'b'"""
    assert run(text, rows("abacccb")) == [{"id": "a", "ordered": 2}]


def test_keys_are_matched_by_themselves() -> None:
    text = "partition by id order by at measures B.price as b pattern (A B) define A as price = 0, B as price = 1"
    mixed = [row for pair in zip(rows([0, 1]), rows([0, 2], key="b"), strict=True) for row in pair]
    assert run(text, mixed) == [{"id": "a", "b": 1}]


def test_measures_of_expressions() -> None:
    text = """measures max(A.price * 2) - min(A.price * 2) as spread, upper(last(A.id)) as name,
              case when count(*) > 2 then 'many' else 'few' end as size
              pattern (A+) define A as price > 0"""
    assert run(text, rows([1, 4, 2])) == [{"spread": 6, "name": "A", "size": "many"}]


VALLEY = "pattern (start down+ up) define down as price < prev(price), up as price > prev(price)"


@pytest.mark.parametrize("cut", [None, 1, 3, 4, 5])
def test_rows_before_and_after_in_measures(cut: int | None) -> None:
    """The match is 9 7 4 6: 5 comes before it and 8 after it, and there is no second row after it."""
    text = f"""measures prev(start.price) as before, prev(price) as last_but_one, prev(first(down.price)) as top,
               prev(last(down.price, 1), 2) as two_before, next(down.price) as up, next(price) as after,
               next(up.price, 2) as none, prev(start.price * 2 + 1) as computed, prev(price, 0) as itself,
               count(*) as n, classifier() as ends_with {VALLEY}"""
    expected = {"before": 5, "last_but_one": 4, "top": 9, "two_before": 5, "up": 6, "after": 8, "none": None}
    more = {"computed": 11, "itself": 6, "n": 4, "ends_with": "up"}
    assert run(text, rows([5, 9, 7, 4, 6, 8]), cut=cut) == [expected | more]


@pytest.mark.parametrize("cut", [None, 2, 4])
def test_rows_before_and_after_each_row_of_a_match(cut: int | None) -> None:
    text = f"""partition by id measures prev(price) as before, next(price) as after, final next(down.price) as up
               all rows per match {VALLEY}"""
    mixed = sorted([*rows([1, 2], key="b"), *rows([9, 7, 4, 6])], key=lambda row: row["at"])
    found = run(text, mixed, cut=cut)
    assert [(row["price"], row["before"], row["after"], row["up"]) for row in found] == [
        (9, None, 7, 6),
        (7, 9, 4, 6),
        (4, 7, 6, 6),
        (6, 4, None, 6),
    ]


@pytest.mark.on_spark("more")
def test_a_match_waits_for_the_rows_after_it() -> None:
    """Nor do results of later steps come late: the watermark that the step passes on waits as well."""
    text = "partition by id measures A.price as a, next(A.price, 2) as later pattern (A) define A as kind = 'a'"

    def build(stream: Any) -> Any:
        found = stream.match_recognize(text)
        counts = found.key_by("id").window(ms.fixed("1 second")).agg(n=ms.count())
        return {"found": found, "late": counts.late}

    steps: list[Any] = [step for row in rows("axxa") for step in (Add([row]), Watermark(row["at"]))]
    out = play(build, [*steps, Watermark(None)], schema=SCHEMA, event_time="at")
    found = [[(row["a"], row["later"]) for row in step["found"]] for step in out]
    assert found == [[], [], [], [], [], [(0, 2)], [], [], [(3, None)]]
    assert not any(step["late"] for step in out)


def test_a_partial_match_that_timed_out_sees_the_rows_before_it() -> None:
    text = """measures prev(first(A.price)) as before, next(A.price) as after, match_number() as n
              pattern (A B) within 2 seconds define A as price = 1, B as price = 2 show timeout matches"""
    given = rows([7, 1])
    later = [{**row, "at": t(10 + second)} for second, row in enumerate(rows([2, 0]))]
    assert run(text, [*given, *later]) == [{"before": 7, "after": None, "n": None}]


def test_late_rows() -> None:
    def build(stream: Any) -> Any:
        found = stream.match_recognize("partition by id measures A.price as a pattern (A) define A as price > 0")
        return {"found": found, "late": found.late}

    out = play(
        build,
        [Add(rows([1, 2])[1:]), Watermark(t(1)), Add(rows([5]))],
        schema=SCHEMA,
        event_time="at",
        watermark=ms.bounded("0 seconds"),
    )
    assert [row["price"] for row in out[2]["late"]] == [5]
