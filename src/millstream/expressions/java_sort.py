"""Java's sort by a comparator, which Spark uses: with one that contradicts itself, the order depends on the algorithm.

All comparisons are known beforehand: `signs[i][j]` compares the items at i and j. Null means that it failed or was
null, which is an error only if Java makes this comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cmp_to_key

MERGED_FROM = 32
"""Java merges runs from this length on; shorter arrays are sorted by binary insertion."""
NULL_COMPARISON, CONTRADICTION = 0, -1
"""Instead of positions: why items have no order."""
Signs = Sequence[Sequence[int | None]]


class NoSign(Exception):
    """A comparison is null or failed."""


def sorted_places(signs: Signs, same: Sequence[int]) -> list[int]:
    """The positions of the items in order, from 1; `same` has the first position of an equal item for each."""

    def compare(one: int, other: int) -> int:
        sign = signs[one][other]
        if sign is None:
            raise NoSign
        return sign

    try:
        if len(signs) < MERGED_FROM:
            return [place + 1 for place in _inserted(len(signs), compare)]
        places = sorted(range(len(signs)), key=cmp_to_key(compare))
        return [place + 1 for place in places] if _agrees(places, compare, same) else [CONTRADICTION]
    except NoSign:
        return [NULL_COMPARISON]


def _inserted(count: int, compare: Callable[[int, int], int]) -> list[int]:
    """As `java.util.TimSort`: finds the first run, reverses it if it descends, and inserts the rest one by one."""
    places = list(range(count))
    if count < 2:
        return places
    run = 2
    if compare(1, 0) < 0:
        while run < count and compare(run, run - 1) < 0:
            run += 1
        places[:run] = reversed(places[:run])
    else:
        while run < count and compare(run, run - 1) >= 0:
            run += 1
    for start in range(run, count):
        low, high = 0, start
        while low < high:
            middle = (low + high) // 2
            if compare(start, places[middle]) < 0:
                high = middle
            else:
                low = middle + 1
        places.insert(low, places.pop(start))
    return places


def _agrees(places: Sequence[int], compare: Callable[[int, int], int], same: Sequence[int]) -> bool:
    """Whether every algorithm gives this order: no comparison contradicts it, except of equal items."""
    for at, one in enumerate(places):
        for other in places[at + 1 :]:
            if same[one] == same[other]:
                continue
            sign = compare(one, other)
            if sign > 0 or (sign == 0) != (compare(other, one) == 0) or compare(other, one) < 0:
                return False
            if sign == 0 and one > other:
                return False
    return True
