"""Every construct of MATCH_RECOGNIZE, on every runner: the results are worked out by hand from the standard's rules.

`test_match_recognize_semantics.py` has the common ones; here are the other forms of each, and how they combine.
"""

from __future__ import annotations

from typing import Any

import pytest

from recognizing import lettered, letters, matched, rows, run, run_together
from times import t

pytestmark = pytest.mark.transcripts("reference", "local", "spark")
ALONE = pytest.mark.transcripts("reference", "local")
"""For tests of one statement each: on Spark, many statements are steps of one flow."""
LETTERS = "A as kind = 'a', B as kind = 'b', C as kind = 'c'"


QUANTIFIERS: list[Any] = [
    # From the first a, two more rows would be needed before b.
    ("A{,2} B", "aaabbab", ["aab", "b", "ab"]),
    ("B A{,2}", "baaab", ["baa", "b"]),
    ("B A{,2}?", "baaab", ["b", "b"]),
    ("A{,2}? B", "aab", ["aab"]),
    ("A{,}", "aaba", ["aa", "a"]),
    ("A{2}?", "aaaaa", ["aa", "aa"]),
    ("A{2,}?", "aaaaa", ["aa", "aa"]),
    ("A{2,}? B", "aaab", ["aaab"]),
    ("A{1,2}? B", "aab", ["aab"]),
    ("A{1,3} A B", "aaab", ["aaab"]),  # one row is given back
    ("A*", "abaa", ["a", "aa"]),
    ("A*? B", "aab", ["aab"]),
    ("A?", "aba", ["a", "a"]),
    ("A? A B", "aab", ["aab"]),
    ("A?? A B", "aab", ["aab"]),  # taking none fails, so one is taken
    ("A+? B?", "aab", ["a", "ab"]),
    ("A*?", "aaa", []),  # the preferred match is always the empty one
]


@ALONE
@pytest.mark.parametrize(("pattern", "given", "found"), QUANTIFIERS)
def test_quantifiers(pattern: str, given: str, found: list[str]) -> None:
    assert letters(pattern, given) == found
    assert letters(pattern, given, cut=2) == found


GROUPS: list[Any] = [
    ("A B A", "abab", ["aba"]),
    ("A X", "abac", ["ab", "ac"]),
    ("A | A B", "ab", ["a"]),
    ("A B | A", "aab", ["a", "ab"]),
    ("A | B | C", "cab", ["c", "a", "b"]),
    ("(A | B)+?", "ab", ["a", "b"]),
    ("(A | B){,2} C", "abcc", ["abc", "c"]),
    ("(A B){2}", "ababab", ["abab"]),
    ("(A B?)+", "abaab", ["abaab"]),
    ("(A B?)+? C", "abac", ["abac"]),
    ("((A | B) C)+", "acbca", ["acbc"]),
    ("A (() | B)", "ab", ["a"]),
    ("A (B | ())", "aab", ["a", "ab"]),
    ("() | A", "aa", []),  # the empty match is preferred everywhere
]


@ALONE
@pytest.mark.parametrize(("pattern", "given", "found"), GROUPS)
def test_groups_and_alternatives(pattern: str, given: str, found: list[str]) -> None:
    assert letters(pattern, given) == found
    assert letters(pattern, given, cut=1) == found


SPECIAL: list[Any] = [
    ("PERMUTE(A B, C)", "cabcab", ["cab", "cab"]),
    ("PERMUTE(A, B C)", "bcabca", ["bca", "bca"]),
    ("PERMUTE(A, B)+", "abbaa", ["abba"]),
    ("PERMUTE(A, B?)", "baac", ["ba", "a"]),
    ("PERMUTE(A | B, C)", "cbac", ["cb", "ac"]),
    ("PERMUTE(A, B) C", "bacabc", ["bac", "abc"]),
    ("A {- B -}", "ab", ["a"]),
    ("{- A -} B", "ab", ["b"]),
    ("(A {- B -})+ C", "ababc", ["aac"]),
    ("A {- B C? -} A", "abca", ["aa"]),
    ("{- A+ -}", "aa", []),
    ("^ A+ $", "aa", ["aa"]),
    ("^ A+ $", "aab", []),
    ("^ (A | B)", "ba", ["b"]),
    ("^ A | B", "abab", ["a", "b", "b"]),
    ("(A | B $)", "bab", ["a", "b"]),
]


@ALONE
@pytest.mark.parametrize(("pattern", "given", "found"), SPECIAL)
def test_permutations_exclusions_and_anchors(pattern: str, given: str, found: list[str]) -> None:
    assert letters(pattern, given) == found
    assert letters(pattern, given, cut=1) == found


def test_the_order_as_written_is_preferred() -> None:
    """All rows fit both variables."""
    text = """measures classifier() as plays all rows per match pattern (PERMUTE(A, B) C)
              define A as price > 0, B as price > 0, C as price > 1"""
    assert [row["plays"] for row in run(text, rows([1, 2, 3]))] == ["A", "B", "C"]


@pytest.mark.parametrize(
    ("skip", "found"),
    [
        ("past last row", ["abbc"]),
        ("to next row", ["abbc", "bbc", "bc"]),
        ("to first B", ["abbc", "bbc", "bc"]),  # B is the first row of the second match: the search moves on by one
        ("to last B", ["abbc", "bc"]),
        ("to first S", ["abbc", "bbc", "bc"]),
        ("to last S", ["abbc"]),
        ("to S", ["abbc"]),
    ],
)
def test_where_the_search_goes_on(skip: str, found: list[str]) -> None:
    text = f"""measures match_number() as n all rows per match after match skip {skip}
               pattern (A B+ C | B+ C) subset S = (B, C) define {LETTERS}"""
    matches: dict[int, str] = {}
    for row in run(text, rows("abbc")):
        matches[row["n"]] = matches.get(row["n"], "") + row["kind"]
    assert list(matches.values()) == found


def test_a_row_to_skip_to_that_is_missing() -> None:
    """In the standard an error: here the search moves on by a row, so that no data can stop a job."""
    assert letters("A B? C", "acabc", "after match skip to last B") == ["ac", "abc"]


def test_matches_without_rows_are_neither_emitted_nor_counted() -> None:
    text = "measures match_number() as n, count(*) as size, first(A.price) as a {} pattern (A*) define A as kind = 'a'"
    one = run(text.format("one row per match"), rows("bbab"))
    assert one == [{"n": 1, "size": 1, "a": 2}]
    for clause in ("all rows per match", "all rows per match omit empty matches"):
        assert [(row["n"], row["kind"]) for row in run(text.format(clause), rows("bbab"))] == [(1, "a")]


CONDITIONS: list[Any] = [
    ("price > prev(price)", [1, 2, 4, 9]),
    ("A.price > prev(A.price)", [1, 2, 4, 9]),
    ("price < prev(price, 2) + 3", [1, 2]),  # 2 < 3 + 3, but 4 = 1 + 3
    ("prev(start.price) = 3", [1, 2, 4, 9, 5]),
    ("price < prev(first(A.price)) * 5", [1, 2, 4]),  # the row before the first of A is 1
    ("coalesce(prev(last(A.price, 1)), 2) < 4", [1, 2, 4, 9]),  # null, 1, 2: for 5 it is 4
    ("price < running first(A.price) + 3", [1, 2, 4]),
    ("price <= first(A.price, 1) or count(A) = 1", [1, 2, 4]),  # from the second row on, at most that one
    ("price > last(A.price, 1) or last(A.price, 1) is null", [1, 2, 4, 9]),
    ("running sum(A.price) <= 6", [1, 2, 4]),
    ("avg(A.price) <= 5", [1, 2, 4, 9, 5]),
    ("avg(A.price) < 5", [1, 2, 4]),
    ("max(A.price) - min(A.price) <= 2", [1, 2, 4]),
    ("count(A) <= 2", [1, 2, 4]),
    ("count(*) <= 2", [1, 2]),  # start is a row of the match as well
    ("count(A.kind) = 0", [1, 2, 4, 9, 5]),  # all kinds are null
    ("sum(S.price) < 8", [1, 2, 4]),  # 1 + 2 + 4 = 7
    ("first(S.price) = 1 and last(S.price, 1) < 9", [1, 2, 4, 9]),
    ("price > start.price and price < 9", [1, 2, 4]),
    ("price < next(price)", [1, 2, 4]),  # 9 is followed by 5
    ("next(price, 2) > 4", [1, 2, 4]),  # two rows after 9 there is none: null
    ("next(A.price) is not null", [1, 2, 4, 9]),
    ("price <= next(start.price, 2)", [1, 2, 4]),
    ("price < next(first(A.price)) + 5", [1, 2, 4]),  # the row after the first of A is 4
    ("next(last(A.price, 1)) = price or count(A) = 1", [1, 2, 4, 9, 5]),  # after the row of A before is this one
    ("classifier() = 'A' and price < 9", [1, 2, 4]),
    ("last(classifier(), 1) = 'start' or price = 4", [1, 2, 4]),
    ("classifier(start) = 'start' and price <> 5", [1, 2, 4, 9]),
    ("classifier(S) = 'A' and price < 9", [1, 2, 4]),  # the row in question is the last one of S
    ("first(classifier(S)) = 'start' and price < 9", [1, 2, 4]),
]


AS_LONG_AS = "all rows per match pattern (start A+) subset S = (start, A) define start as price = 1, A as {}"


@ALONE
@pytest.mark.parametrize(("condition", "found"), CONDITIONS)
@pytest.mark.parametrize("cut", [None, 3])
def test_conditions(condition: str, found: list[int], cut: int | None) -> None:
    """Over 3 1 2 4 9 5: a match begins with 1, and A takes rows as long as its condition holds."""
    text = AS_LONG_AS.format(condition)
    assert [row["price"] for row in run(text, rows([3, 1, 2, 4, 9, 5]), cut=cut)] == found


@pytest.mark.on_spark("more")
def test_conditions_on_rows_before_those_of_a_variable() -> None:
    """B is a row above what came before A, whatever lies between them."""
    text = """partition by id measures A.price as a, B.price as b pattern (A X*? B)
              define A as A.price < prev(A.price), B as B.price > prev(A.price)"""
    given = [*rows([5, 3, 4, 6, 7]), *rows([1, 2, 1, 2, 3], key="b")]
    expected = [{"id": "a", "a": 3, "b": 6}, {"id": "b", "a": 1, "b": 3}]
    assert sorted(run(text, given), key=lambda row: row["id"]) == expected


MEASURES: list[Any] = [
    ("price", 4, [1, 2, 4]),
    ("A.price", 4, [None, 2, 4]),
    ("first(price)", 1, [1, 1, 1]),
    ("first(price, 1)", 2, [None, 2, 2]),
    ("first(A.price, 5)", None, [None, None, None]),
    ("last(A.price, 1)", 2, [None, None, 2]),
    ("running last(A.price)", 4, [None, 2, 4]),
    ("final first(A.price)", 2, [2, 2, 2]),
    ("final last(price, 1)", 2, [2, 2, 2]),
    ("sum(price)", 7, [1, 3, 7]),
    ("final sum(A.price)", 6, [6, 6, 6]),
    ("avg(A.price)", 3.0, [None, 2.0, 3.0]),
    ("final avg(S.price)", 7 / 3, [7 / 3] * 3),
    ("min(A.price)", 2, [None, 2, 2]),
    ("running max(S.price)", 4, [1, 2, 4]),
    ("count(A)", 2, [0, 1, 2]),
    ("final count(*)", 3, [3, 3, 3]),
    ("count(A.kind)", 0, [0, 0, 0]),
    ("prev(price)", 2, [3, 1, 2]),
    ("next(price)", 0, [2, 4, 0]),
    ("prev(first(A.price))", 1, [None, 1, 1]),
    ("prev(last(A.price, 1), 2)", 3, [None, None, 3]),
    ("next(start.price, 3)", 0, [0, 0, 0]),
    ("classifier()", "A", ["start", "A", "A"]),
    ("classifier(S)", "A", ["start", "A", "A"]),
    ("classifier(start)", "start", ["start", "start", "start"]),
    ("first(classifier())", "start", ["start", "start", "start"]),
    ("last(classifier(), 1)", "A", [None, "start", "A"]),
    ("running first(classifier(A))", "A", [None, "A", "A"]),
    ("final last(classifier(S))", "A", ["A", "A", "A"]),
    ("match_number()", 1, [1, 1, 1]),
    ("final last(price) - running last(price)", 0, [3, 2, 0]),
]


MEASURED = """measures {} as m {} pattern (start A+) subset S = (start, A)
              define start as price = 1, A as price > prev(price)"""


@ALONE
@pytest.mark.parametrize(("measure", "one", "each"), MEASURES)
def test_measures(measure: str, one: Any, each: list[Any]) -> None:
    """Over 3 1 2 4 0, the match is 1 2 4: of the match as a whole, and of each row."""
    given = rows([3, 1, 2, 4, 0])
    assert [row["m"] for row in run(MEASURED.format(measure, "one row per match"), given)] == [one]
    assert [row["m"] for row in run(MEASURED.format(measure, "all rows per match"), given)] == each


@pytest.mark.transcripts("spark")
@pytest.mark.on_spark("more")
@pytest.mark.parametrize("cases", [QUANTIFIERS, GROUPS, SPECIAL], ids=["quantifiers", "groups", "special"])
def test_patterns_in_one_flow(cases: list[Any]) -> None:
    statements = [(lettered(pattern), rows(given)) for pattern, given, _ in cases]
    assert [matched(found) for found in run_together(statements)] == [found for _, _, found in cases]


@pytest.mark.transcripts("spark")
@pytest.mark.on_spark("more")
def test_conditions_in_one_flow() -> None:
    given = rows([3, 1, 2, 4, 9, 5])
    out = run_together([(AS_LONG_AS.format(condition), given) for condition, _ in CONDITIONS])
    assert [[row["price"] for row in found] for found in out] == [found for _, found in CONDITIONS]


@pytest.mark.transcripts("spark")
@pytest.mark.on_spark("more")
def test_measures_in_one_flow() -> None:
    """All measures of one statement, so that they also see one another's references."""
    given = rows([3, 1, 2, 4, 0])
    listed = ", ".join(f"{measure} as m{number}" for number, (measure, *_) in enumerate(MEASURES))
    text = MEASURED.replace("{} as m", "{}")
    one, each = run_together([(text.format(listed, f"{rows_} per match"), given) for rows_ in ("one row", "all rows")])
    names = [f"m{number}" for number in range(len(MEASURES))]
    assert [[row[name] for row in one] for name in names] == [[found] for _, found, _ in MEASURES]
    assert [[row[name] for row in each] for name in names] == [found for *_, found in MEASURES]


@pytest.mark.parametrize("limit", ["interval '2' second", "interval 2 seconds", "'2 seconds'", "2 seconds"])
def test_the_exact_limit_is_within(limit: str) -> None:
    text = f"measures A.price as a, B.price as b pattern (A X*? B) within {limit} define {LETTERS.partition(', C')[0]}"
    assert run(text, rows("axbaxxb")) == [{"a": 0, "b": 2}]


def test_all_rows_of_partial_matches_that_timed_out() -> None:
    text = f"""measures match_number() as n, classifier() as plays all rows per match pattern (A B C) within 2 seconds
               define {LETTERS} show timeout matches"""
    given = [*rows("ab"), *({**row, "at": t(10 + row["price"])} for row in rows("abc"))]
    found = [(row["n"], row["plays"], row["at"]) for row in run(text, given)]
    whole = [(1, "A", t(10)), (1, "B", t(11)), (1, "C", t(12))]
    assert sorted(found, key=lambda row: row[2]) == [(None, "A", t(0)), (None, "B", t(1)), *whole]


@pytest.mark.parametrize(
    ("pattern", "given", "found"),
    [
        ("A [^B]", "axxb", [0]),  # b comes a second after the limit
        ("A [^B]", "axbx", []),  # b comes at the limit
        ("A C+ [^B]", "accxxx", [0]),
        ("(A | C) [^B]", "axxxbcxxx", [0, 5]),
        ("A? C [^B]", "accxxx", [0, 2]),
    ],
)
def test_absence(pattern: str, given: str, found: list[int]) -> None:
    text = f"measures first(price) as began pattern ({pattern}) within 2 seconds define {LETTERS.partition(', C')[0]}"
    more = ", C as kind = 'c'" if "C" in pattern else ""
    assert [row["began"] for row in run(text + more, rows(given))] == found


def test_absence_of_a_row_that_is_compared() -> None:
    text = """measures A.price as a all rows per match pattern (A [^B]) within 1 second
              define A as price > 4, B as B.price > prev(B.price) and B.price > A.price"""
    assert [row["price"] for row in run(text, rows([5, 6, 9, 8, 5]))] == [9, 8, 5]


@ALONE
@pytest.mark.parametrize(
    "order", ["", "order by at", "order by `at` asc", 'ORDER BY "at"', "/* by time */ Order By AT"]
)
@pytest.mark.parametrize("form", ["{}", "match_recognize ({})", "MATCH_RECOGNIZE ( -- a comment\n {} )"])
def test_forms_of_a_statement(order: str, form: str) -> None:
    text = f"{order} Measures b.PRICE As b Pattern (a B) Define B As Price > Prev(PRICE)"
    assert run(form.format(text), rows([2, 1, 3])) == [{"b": 3}]


@pytest.mark.on_spark("more")
def test_several_keys_and_numbers_for_each() -> None:
    text = """partition by id, kind order by at measures match_number() as n, a.price as p
              after match skip to next row pattern (a b) define b as price > prev(price)"""
    given = [*rows([1, 2, 3]), *rows([5, 4, 6], key="b")]
    expected = [{"kind": None, "id": "a", "n": 1, "p": 1}, {"kind": None, "id": "a", "n": 2, "p": 2}]
    found = sorted(run(text, given), key=lambda row: (row["id"], row["n"]))
    assert found == [*expected, {"kind": None, "id": "b", "n": 1, "p": 4}]


def test_rows_of_the_same_time_are_in_the_order_of_the_log() -> None:
    text = "measures A.price as a, B.price as b pattern (A B) define B as price < prev(price)"
    given = [{**row, "at": t(0)} for row in rows([1, 3, 2, 4])]
    assert run(text, given) == [{"a": 3, "b": 2}]
