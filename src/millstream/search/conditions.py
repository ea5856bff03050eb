"""A checked query: whether a document satisfies it, how well, and by which of its words.

Scores are those of BM25 in an index of this one document (k1 = 1.2), multiplied by the boosts; a condition that is not
about a whole term has the score 1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import polars as pl

from millstream.search.fields import Document, Field, Kind

RARITY = math.log(1 + 0.5 / 1.5)
"""BM25's weight of a term that is in one document of one."""
SATURATION = 1.2
PREFIX_CHARACTERS = 3
CHOICES_MAX = 10_000
"""A phrase that repeats a word many times could be found in endless ways."""
Place = tuple[Field, int]
"""A word of a text field that satisfies a condition, by its position."""
Key = tuple[str, str]
"""A field and a term that a document must have; a prefix ends with PREFIX_MARK."""
PREFIX_MARK = "\0"


class Condition(Protocol):
    def matches(self, document: Document) -> bool: ...

    def score(self, document: Document) -> float:
        """The score of a document that matches."""

    def places(self, document: Document) -> Iterable[Place]:
        """The words because of which it matches."""

    def keys(self) -> frozenset[Key] | None:
        """A document that matches has one of these terms. None: nothing is known of it."""


class Plain:
    """A condition that is satisfied or not."""

    def score(self, document: Document) -> float:
        return 1.0

    def places(self, document: Document) -> Iterable[Place]:
        return ()

    def keys(self) -> frozenset[Key] | None:
        return None


def _saturated(count: float) -> float:
    return count * (1 + SATURATION) / (count + SATURATION)


@dataclass(frozen=True, slots=True)
class HasTerm:
    field: Field
    term: str

    def matches(self, document: Document) -> bool:
        return self.term in document.terms(self.field)

    def score(self, document: Document) -> float:
        return RARITY * _saturated(len(document.places(self.field)[self.term]))

    def places(self, document: Document) -> Iterable[Place]:
        return ((self.field, place) for place in document.places(self.field).get(self.term, ()))

    def keys(self) -> frozenset[Key] | None:
        return frozenset([(self.field.name, self.term)])


@dataclass(frozen=True, slots=True)
class HasPhrase:
    """Terms one after the other, moved by at most `slop` positions in all."""

    field: Field
    terms: tuple[str, ...]
    slop: int

    def matches(self, document: Document) -> bool:
        known = document.terms(self.field)
        return all(term in known for term in self.terms) and next(self._found(document), None) is not None

    def score(self, document: Document) -> float:
        weights = (1 / (1 + width) for width, _ in self._found(document))
        return RARITY * len(self.terms) * _saturated(sum(weights))

    def places(self, document: Document) -> Iterable[Place]:
        return ((self.field, place) for _, found in self._found(document) for place in found)

    def keys(self) -> frozenset[Key] | None:
        return frozenset([(self.field.name, max(self.terms, key=lambda term: (len(term), term)))])

    def _found(self, document: Document) -> Iterator[tuple[int, tuple[int, ...]]]:
        """For each place of the first term where it matches, how far the terms are moved, and the places of all."""
        places = document.places(self.field)
        rows = [places.get(term, []) for term in self.terms]
        if not self.slop:
            others = [frozenset(row) for row in rows[1:]]
            for start in rows[0]:
                if all(start + offset in row for offset, row in enumerate(others, 1)):
                    yield 0, tuple(range(start, start + len(rows)))
            return
        for start in rows[0]:
            found = self._nearest(rows, start)
            if found is not None:
                yield found

    def _nearest(self, rows: list[list[int]], start: int) -> tuple[int, tuple[int, ...]] | None:
        """The narrowest choice of a place for each term that begins with this place of the first one."""
        repeats = len(set(self.terms)) < len(self.terms)
        choices: dict[Any, tuple[int, int, tuple[int, ...]]] = {0: (start, start, (start,))}
        for offset, row in enumerate(rows[1:], 1):
            extended: dict[Any, tuple[int, int, tuple[int, ...]]] = {}
            for low, high, taken in choices.values():
                for place in row:
                    least, most = min(low, place - offset), max(high, place - offset)
                    if most - least <= self.slop and place not in taken:
                        # Only if a term is repeated does it matter which places are taken.
                        made = (*taken, place)
                        extended[(least, most, made) if repeats else (least, most)] = (least, most, made)
                if len(extended) > CHOICES_MAX:
                    break
            choices = extended
        found = ((high - low, taken) for low, high, taken in choices.values())
        return min(found, default=None)


@dataclass(frozen=True, slots=True)
class TermLike(Plain):
    """A term of a text field, or a whole string, that fits a pattern."""

    field: Field
    source: str
    pattern: re.Pattern[str] | None = None
    """The same, if it needs no automaton: this is faster."""
    prefix: str = ""
    """What every fitting term begins with."""

    def matches(self, document: Document) -> bool:
        return bool(self.fitting(_strings(document, self.field)))

    def fitting(self, strings: Iterable[str]) -> list[str]:
        if self.pattern is not None:
            return list(filter(self.pattern.fullmatch, strings))
        given = pl.Series(list(strings), dtype=pl.String)
        return given.filter(given.str.contains(rf"(?s)\A(?:{self.source})\z")).to_list()

    def places(self, document: Document) -> Iterable[Place]:
        if self.field.kind is Kind.TEXT:
            places = document.places(self.field)
            yield from ((self.field, place) for term in self.fitting(places) for place in places[term])

    def keys(self) -> frozenset[Key] | None:
        if self.field.kind is not Kind.TEXT or len(self.prefix) < PREFIX_CHARACTERS:
            return None
        return frozenset([(self.field.name, self.prefix[:PREFIX_CHARACTERS] + PREFIX_MARK)])


@dataclass(frozen=True, slots=True)
class TermNear(Plain):
    """A term that is at most some edits away: insertions, deletions, changes, swaps of neighbours."""

    field: Field
    term: str
    edits: int

    def matches(self, document: Document) -> bool:
        return any(self._fits(each) for each in _strings(document, self.field))

    def places(self, document: Document) -> Iterable[Place]:
        if self.field.kind is not Kind.TEXT:
            return
        for term, places in document.places(self.field).items():
            if self._fits(term):
                yield from ((self.field, place) for place in places)

    def _fits(self, other: str) -> bool:
        return abs(len(other) - len(self.term)) <= self.edits and distance(self.term, other) <= self.edits


def _strings(document: Document, field: Field) -> Iterable[str]:
    return document.terms(field) if field.kind is Kind.TEXT else document.values(field)


@lru_cache(100_000)
def distance(one: str, other: str) -> int:
    """The optimal string alignment distance: no substring is edited twice."""
    before: list[int] = []
    line = list(range(len(other) + 1))
    for row, left in enumerate(one, 1):
        above, before, line = before, line, [row]
        for column, right in enumerate(other, 1):
            cost = min(before[column] + 1, line[column - 1] + 1, before[column - 1] + (left != right))
            if row > 1 and column > 1 and left == other[column - 2] and one[row - 2] == right:
                cost = min(cost, above[column - 2] + 1)
            line.append(cost)
    return line[-1]


@dataclass(frozen=True, slots=True)
class HasValue(Plain):
    field: Field
    value: Any

    def matches(self, document: Document) -> bool:
        return self.value in document.values(self.field)

    def keys(self) -> frozenset[Key] | None:
        return frozenset([(self.field.name, self.value)]) if self.field.kind is Kind.KEYWORD else None


@dataclass(frozen=True, slots=True)
class InRange(Plain):
    field: Field
    low: Any
    high: Any
    includes_low: bool
    includes_high: bool

    def matches(self, document: Document) -> bool:
        given = document.terms(self.field) if self.field.kind is Kind.TEXT else document.values(self.field)
        return any(map(self._holds, given))

    def _holds(self, value: Any) -> bool:
        if self.low is not None and not (value > self.low or (self.includes_low and value == self.low)):
            return False
        return self.high is None or value < self.high or (self.includes_high and value == self.high)


@dataclass(frozen=True, slots=True)
class HasField(Plain):
    field: Field

    def matches(self, document: Document) -> bool:
        return bool(document.terms(self.field) if self.field.kind is Kind.TEXT else document.values(self.field))


@dataclass(frozen=True, slots=True)
class Anything(Plain):
    def matches(self, document: Document) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Nothing(Plain):
    """A clause whose text has no terms, such as punctuation alone."""

    def matches(self, document: Document) -> bool:
        return False

    def keys(self) -> frozenset[Key] | None:
        return frozenset()


@dataclass(frozen=True, slots=True)
class Weighted:
    condition: Condition
    factor: float

    def matches(self, document: Document) -> bool:
        return self.condition.matches(document)

    def score(self, document: Document) -> float:
        return self.factor * self.condition.score(document)

    def places(self, document: Document) -> Iterable[Place]:
        return self.condition.places(document)

    def keys(self) -> frozenset[Key] | None:
        return self.condition.keys()


@dataclass(frozen=True, slots=True)
class Combined:
    """Matches if every `must` does and no `must_not` does; without a `must`, one `should` has to match, too.

    With `must_not` alone, it matches all other documents.
    """

    must: tuple[Condition, ...] = ()
    should: tuple[Condition, ...] = ()
    must_not: tuple[Condition, ...] = field(default=())

    def matches(self, document: Document) -> bool:
        for each in self.must:
            if not each.matches(document):
                return False
        if self.should and not self.must and not any(each.matches(document) for each in self.should):
            return False
        return not any(each.matches(document) for each in self.must_not)

    def score(self, document: Document) -> float:
        if not self.must and not self.should:
            return 1.0
        asked = [*self.must, *(each for each in self.should if each.matches(document))]
        return sum(each.score(document) for each in asked)

    def places(self, document: Document) -> Iterable[Place]:
        for each in (*self.must, *(each for each in self.should if each.matches(document))):
            yield from each.places(document)

    def keys(self) -> frozenset[Key] | None:
        if self.must:
            known = [keys for each in self.must if (keys := each.keys()) is not None]
            return max(known, key=_selectivity, default=None)
        if not self.should:
            return None
        found: set[Key] = set()
        for each in self.should:
            keys = each.keys()
            if keys is None:
                return None
            found |= keys
        return frozenset(found)


def _selectivity(keys: frozenset[Key]) -> tuple[int, int]:
    """Long terms are rare; few keys are better than many."""
    return min((len(term) for _, term in keys), default=1 << 30), -len(keys)
