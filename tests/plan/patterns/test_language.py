"""MATCH_RECOGNIZE as text: what each construct becomes, and where a mistake is reported."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from millstream.errors import InvalidPattern
from millstream.plan.patterns.language import parsed


def pattern(text: str, more: str = "") -> str:
    return str(parsed(f"pattern ({text}) {more} define A as price > 1").rules.term)


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("A", "A"),
        ("A B C", "(A B C)"),
        ("A | B C", "(A | (B C))"),
        ("A (B | C) D", "(A (B | C) D)"),
        ("A? B* C+", "(A? B* C+)"),
        ("A?? B*? C+?", "(A?? B*? C+?)"),
        ("A{3} B{2,} C{,4} D{1,2}?", "(A{3,3} B{2,} C{0,4} D{1,2}?)"),
        ("(A B)+", "(A B)+"),
        ("A {- B+ -} C", "(A {- B+ -} C)"),
        ("PERMUTE(A, B C, D)", "permute(A, (B C), D)"),
        ("PERMUTE(A | B, C)", "permute((A | B), C)"),
        ("A{,} B{,2}?", "(A* B{0,2}?)"),
        ("^ A B $", "(^ A B $)"),
        ("A ()", "(A ())"),
        ('A "my row" `other`', "(A my row other)"),
    ],
)
def test_patterns(text: str, term: str) -> None:
    assert pattern(text) == term


def test_every_clause() -> None:
    found = parsed(
        """match_recognize (
            partition by account, region  -- the keys
            order by at asc
            measures first(A.price) as start_price, /* the last one */ running last(B.price, 1) as "end",
                     case when count(B.price) > 2 then 'long' else 'short' end as kind
            all rows per match
            after match skip to first b
            pattern (A B+ C) within interval '30' minutes
            subset AB = (A, b)
            define B as price < prev(price) and running sum(AB.price) < 100, c as price in (1, 2)
            show timeout matches
        )"""
    )
    assert found.partition_by == ("account", "region")
    assert found.order_by == ("at",)
    assert found.measures == (
        ("start_price", "first(A.price)"),
        ("end", "last(B.price, 1)"),
        ("kind", "case when count(B.price) > 2 then 'long' else 'short' end"),
    )
    assert found.all_rows
    assert found.skip == "to first B"
    assert found.timeouts
    assert str(found.rules.term) == "(A B+ C)"
    assert found.rules.within == timedelta(minutes=30)
    assert found.rules.subsets == {"AB": ("A", "B")}
    assert found.rules.conditions == {"B": "price < prev(price) and sum(AB.price) < 100", "C": "price in (1, 2)"}


@pytest.mark.parametrize(
    ("clause", "skip"),
    [
        ("", "past last"),
        ("after match skip past last row", "past last"),
        ("after match skip to next row", "to next"),
        ("after match skip to first B", "to first B"),
        ("after match skip to last B", "to last B"),
        ("after match skip to B", "to last B"),
    ],
)
def test_where_the_search_goes_on(clause: str, skip: str) -> None:
    assert parsed(f"{clause} pattern (A B) define A as x > 1").skip == skip


@pytest.mark.parametrize("limit", ["interval '1' hour", "interval 1 hour", "'1 hour'", "60 minutes"])
def test_limits(limit: str) -> None:
    assert parsed(f"pattern (A B) within {limit} define A as x > 1").rules.within == timedelta(hours=1)


def test_absence_at_the_end() -> None:
    found = parsed("pattern (A [^B]) within 1 hour define A as x = 1, B as x = 2 show timeout matches")
    assert str(found.rules.term) == "(A [^B])"


MISTAKES = """
pattern A define A as x  ::  9  ::  ( is expected here, not 'A'  ::  PATTERN (A B+ C)
pattern (A B define A as x  ::  14  ::  ) is expected here, not 'define'  ::  -
pattern (A B)  ::  14  ::  DEFINE is expected here, but the text ends  ::  DEFINE A AS
define A as x  ::  1  ::  PATTERN is expected here  ::  in this order
pattern (A{0}) define A as x  ::  11  ::  the upper number is at least 1  ::  A{3}
pattern (A{3,2}) define A as x  ::  11  ::  the upper number is at least 1  ::  A{3}
pattern (A{x}) define A as x  ::  12  ::  a number is expected here, not 'x'  ::  A{3}
pattern (A{20000}) define A as x  ::  11  ::  at most 10,000 repetitions  ::  A+
pattern (^+ A) define A as x  ::  10  ::  ^ cannot be repeated  ::  a group
pattern (A [^B]) define B as x  ::  9  ::  [^B] at the end needs a limit  ::  WITHIN
pattern ([^B] A) within 1 hour define B as x  ::  9  ::  stands at the end  ::  N*
pattern (A [^B]) within 1 hour define A as x  ::  45  ::  [^B] needs a condition  ::  DEFINE B
pattern (A) within soon define A as x  ::  20  ::  a length of time is expected  ::  HOUR
pattern (A) within 3 apples define A as x  ::  20  ::  apples  ::  HOUR
pattern (A) define A as x > (1  ::  25  ::  the expression is not closed  ::  missing
pattern (A) define A as  ::  24  ::  an expression is expected here  ::  PREV
pattern (A) define A as x, A as y  ::  28  ::  'A' is defined twice  ::  AND
pattern (A) define A as final last(A.x) > 1  ::  25  ::  only the rows so far  ::  MEASURES
pattern (A) define A as x)   ::  26  ::  ')' does not belong here  ::  in this order
order by at desc pattern (A) define A as x  ::  13  ::  ascending  ::  remove desc
measures x pattern (A) define A as x  ::  -  ::  AS is expected here  ::  MEASURES A.price
measures x as a, y as a pattern (A) define A as x  ::  18  ::  two measures named 'a'  ::  -
all rows per match with unmatched rows pattern (A) define A as x  ::  -  ::  rows without a match  ::  remove
after match skip to first Q pattern (A) define A as x  ::  1  ::  no variable 'Q'  ::  A
pattern (A) subset A = (A) define A as x  ::  20  ::  already a variable  ::  another name
pattern (A) subset S = (Q) define A as x  ::  25  ::  no variable 'Q'  ::  A
pattern (A B) subset S = (A, B) define S as x  ::  40  ::  'S' is a subset  ::  stands for
pattern (A) define A as x show timeout matches  ::  9  ::  needs a limit  ::  WITHIN
match_recognize (pattern (A) define A as x  ::  43  ::  ) is expected here  ::  close
pattern (permute(A,B,C,D,E,F,G,H,I)) define A as x  ::  10  ::  at most 8 parts  ::  -
pattern (permute(A,)) define A as x  ::  20  ::  a part of a pattern is expected here  ::  ()
pattern (A | ) define A as x  ::  14  ::  a part of a pattern is expected here  ::  ()
pattern () define A as x  ::  10  ::  a part of a pattern is expected here  ::  a variable
pattern (()) define A as x  ::  9  ::  matches no row  ::  PATTERN (A B+ C)
pattern (A{}) define A as x  ::  12  ::  a number is expected here, not '}'  ::  A{,4}
pattern (A++) define A as x  ::  12  ::  a part of a pattern is expected here, not '+'  ::  -
pattern (A) within 0 seconds define A as x  ::  20  ::  longer than 0  ::  HOUR
partition by upper(id) pattern (A) define A as x  ::  19  ::  takes names of columns  ::  -
order by at + 1 pattern (A) define A as x  ::  13  ::  takes names of columns  ::  -
measure x as y pattern (A) define A as x  ::  1  ::  not 'measure'  ::  MEASURES
pattern (A) define A as x within 1 hour  ::  27  ::  'within' does not belong  ::  WITHIN, SUBSET
pattern (A) define A as x subset S = (A)  ::  27  ::  'subset' does not belong  ::  WITHIN, SUBSET
pattern (A) define A as x after match skip to A  ::  27  ::  'after' does not belong  ::  AFTER
pattern (A) define A as x measures x as y  ::  27  ::  'measures' does not belong  ::  MEASURES
pattern (A) define A as x;  ::  26  ::  ';' does not belong here  ::  -
pattern (A B) define A as x B as y  ::  29  ::  a comma is missing before 'B'  ::  DEFINE A AS
pattern (A) define A as x = 'it  ::  29  ::  this text is not closed  ::  add '
pattern (A) define A as x /* why  ::  27  ::  this comment is not closed  ::  add */
pattern (A) define A as match_number() > 1  ::  25  ::  no number before  ::  MEASURES
measures x as a, y as A pattern (A) define A as x  ::  18  ::  two measures named 'A'  ::  -
all rows per match show empty matches pattern (A) define A as x  ::  20  ::  without rows  ::  -
"""
"""A text, the column of its mistake, a part of the message, and a part of the next step; -: whatever they are."""


@pytest.mark.parametrize("mistake", MISTAKES.strip().splitlines())
def test_mistakes_name_their_place(mistake: str) -> None:
    text, column, message, next_step = mistake.split("  ::  ")
    with pytest.raises(InvalidPattern, match=re.escape(message)) as caught:
        parsed(text)
    assert column == "-" or f"line 1, column {column} of MATCH_RECOGNIZE" in str(caught.value)
    assert next_step == "-" or next_step in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message", "next_step"),
    [
        ("pattern (A B)\ndefine C as x > 1", "line 2, column 8 of MATCH_RECOGNIZE: there is no variable 'C'", "A, B"),
        (
            f"pattern ({'(' * 60}A{')' * 60}) define A as x",
            "line 1, column 60 of MATCH_RECOGNIZE: at most 50 groups",
            "parentheses",
        ),
    ],
)
def test_mistakes_in_a_later_line_and_deep_inside(text: str, message: str, next_step: str) -> None:
    with pytest.raises(InvalidPattern) as caught:
        parsed(text)
    assert message in str(caught.value)
    assert next_step in str(caught.value)
