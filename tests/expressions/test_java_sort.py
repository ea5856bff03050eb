"""Items in the order that Java's sort gives them, also where comparisons contradict one another."""

from __future__ import annotations

from functools import cmp_to_key

from hypothesis import given
from hypothesis import strategies as st

from millstream.expressions.java_sort import CONTRADICTION, NULL_COMPARISON, sorted_places


def compared(items: list[int]) -> list[list[int]]:
    return [[(one > other) - (one < other) for other in items] for one in items]


def firsts(items: list[int]) -> list[int]:
    return [items.index(item) + 1 for item in items]


@given(st.lists(st.integers(0, 9), max_size=70))
def test_equal_items_keep_their_order(items: list[int]) -> None:
    expected = sorted(range(len(items)), key=cmp_to_key(lambda one, other: items[one] - items[other]))
    assert sorted_places(compared(items), firsts(items)) == [place + 1 for place in expected]


def test_a_null_counts_only_if_java_makes_the_comparison() -> None:
    signs: list[list[int | None]] = [list(row) for row in compared([1, 2, 3])]
    signs[0][2] = signs[2][0] = signs[0][0] = None  # a run that ascends compares neighbours only
    assert sorted_places(signs, [1, 2, 3]) == [1, 2, 3]
    signs[1][0] = None
    assert sorted_places(signs, [1, 2, 3]) == [NULL_COMPARISON]


def test_a_comparator_that_contradicts_itself() -> None:
    """Up to 31 items are in Java's order; with more, items that are not equal are refused."""
    always_less = [[-1] * 5 for _ in range(5)]
    assert sorted_places(always_less, [1, 2, 3, 4, 5]) == [5, 4, 3, 2, 1]
    many = [[-1] * 40 for _ in range(40)]
    assert sorted_places(many, list(range(1, 41))) == [CONTRADICTION]
    assert sorted(sorted_places(many, [1] * 40)) == list(range(1, 41))
