"""MATCH_RECOGNIZE on random patterns: its matches are those of Python's regular expressions, which prefer alike.

A row is a letter, and a variable takes a set of letters, so that several variables may take the same row. Regular
expressions find where a match ends; which variable a row plays comes from a search that tries one way after another.
DuckDB is no oracle: neither 2.0.0 nor 2.0.1.dev2610211350, the newest on PyPI in November 2026, parses MATCH_RECOGNIZE.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.testing import Add, Watermark, play
from properties import examples
from times import t

pytestmark = pytest.mark.timeout(900)
SCHEMA = "kind string, at timestamp"
COUNTS = {"": (1, 1), "?": (0, 1), "*": (0, 99), "+": (1, 99), "{2}": (2, 2), "{2,}": (2, 99), "{,2}": (0, 2)}
Taken = tuple[str, ...]
"""The variables of the rows so far."""


@dataclass(frozen=True)
class Variable:
    name: str
    letters: str

    @property
    def sql(self) -> str:
        return self.name

    @property
    def regex(self) -> str:
        return f"[{self.letters}]"

    def ways(self, text: str, at: int) -> Iterator[Taken]:
        """What it may take from a place on, the preferred way first."""
        if at < len(text) and text[at] in self.letters:
            yield (self.name,)


@dataclass(frozen=True)
class Group:
    """Parts in parentheses; what stands between them differs."""

    parts: tuple[Any, ...]
    between_sql: ClassVar[str] = " "
    between_regex: ClassVar[str] = ""

    @property
    def sql(self) -> str:
        return f"({self.between_sql.join(part.sql for part in self.parts)})"

    @property
    def regex(self) -> str:
        return f"(?:{self.between_regex.join(part.regex for part in self.parts)})"


class Sequence(Group):
    def ways(self, text: str, at: int) -> Iterator[Taken]:
        if not self.parts:
            yield ()
            return
        for first in self.parts[0].ways(text, at):
            for rest in Sequence(self.parts[1:]).ways(text, at + len(first)):
                yield first + rest


class Alternatives(Group):
    between_sql = " | "
    between_regex = "|"

    def ways(self, text: str, at: int) -> Iterator[Taken]:
        for part in self.parts:
            yield from part.ways(text, at)


@dataclass(frozen=True)
class Permuted:
    parts: tuple[Any, ...]

    @property
    def sql(self) -> str:
        return f"PERMUTE({', '.join(part.sql for part in self.parts)})"

    @property
    def orders(self) -> Alternatives:
        return Alternatives(tuple(Sequence(order) for order in permutations(self.parts)))

    @property
    def regex(self) -> str:
        return self.orders.regex

    def ways(self, text: str, at: int) -> Iterator[Taken]:
        yield from self.orders.ways(text, at)


@dataclass(frozen=True)
class Repeated:
    part: Any
    count: str
    is_reluctant: bool

    @property
    def quantifier(self) -> str:
        return self.count + ("?" if self.is_reluctant else "")

    @property
    def sql(self) -> str:
        return f"{self.part.sql}{self.quantifier}"

    @property
    def regex(self) -> str:
        return f"{self.part.regex}{self.quantifier}"

    def ways(self, text: str, at: int) -> Iterator[Taken]:
        low, high = COUNTS[self.count]
        yield from self._ways(text, at, low, high)

    def _ways(self, text: str, at: int, low: int, high: int) -> Iterator[Taken]:
        if self.is_reluctant and low <= 0:
            yield ()
        if high > 0:
            for first in self.part.ways(text, at):
                for rest in self._ways(text, at + len(first), low - 1, high - 1):
                    yield first + rest
        if not self.is_reluctant and low <= 0:
            yield ()


@st.composite
def variables(draw: Any) -> list[Variable]:
    letters = st.sampled_from(["a", "b", "c", "ab", "bc", "ac", "abc"])
    return [Variable(name, draw(letters)) for name in "ABC"]


@st.composite
def patterns(draw: Any, known: list[Variable], depth: int = 2) -> Any:
    """What is repeated is never empty, for a part that can be empty must not be repeated without end."""
    shape = draw(st.sampled_from(["variable", "variable", "repeated", "sequence", "alternatives", "permuted"]))
    if shape == "variable" or not depth:
        return draw(st.sampled_from(known))
    inside = patterns(known, depth - 1)
    if shape == "repeated":
        part = draw(inside.filter(lambda part: not re.fullmatch(part.regex, "")))
        count = draw(st.sampled_from([count for count in COUNTS if count]))
        return Repeated(Sequence((part,)), count, draw(st.booleans()))
    parts = tuple(draw(st.lists(inside, min_size=2, max_size=3)))
    return {"sequence": Sequence, "alternatives": Alternatives, "permuted": Permuted}[shape](parts)


def expected(pattern: Any, text: str, *, overlaps: bool) -> list[tuple[int, Taken]]:
    """The first row of each match, and what its rows play."""
    compiled = re.compile(pattern.regex)
    found, at = [], 0
    while at < len(text):
        taken = next(pattern.ways(text, at), None)
        match = compiled.match(text, at)
        assert (None if taken is None else at + len(taken)) == (None if match is None else match.end())
        if taken:
            found.append((at, taken))
        at += len(taken) if taken and not overlaps else 1
    return found


@st.composite
def cases(draw: Any) -> tuple[Any, ...]:
    known = draw(variables())
    text = draw(st.text("abc", min_size=1, max_size=12))
    return known, draw(patterns(known)), text, draw(st.booleans()), draw(st.integers(0, len(text)))


@pytest.mark.parametrize("on", ["reference", "local"])
@examples(150)
@given(case=cases())
def test_matches_are_those_of_regular_expressions(case: tuple[Any, ...], on: str) -> None:
    known, pattern, text, overlaps, cut = case
    names = set(re.findall("[ABC]", pattern.sql.replace("PERMUTE", "")))
    defined = [f"{each.name} as kind in ({', '.join(map(repr, each.letters))})" for each in known if each.name in names]
    statement = f"""measures match_number() as n, classifier() as plays all rows per match
                    after match skip {"to next row" if overlaps else "past last row"}
                    pattern ({pattern.sql}) define {", ".join(defined)}"""
    rows = [{"kind": letter, "at": t(second)} for second, letter in enumerate(text)]
    steps: list[Any] = [Add(rows[:cut]), Watermark(t(cut - 1)), Add(rows[cut:]), Watermark(None)]
    out = play(lambda stream: stream.match_recognize(statement), steps, schema=SCHEMA, event_time="at", on=on)
    found: dict[int, list[dict[str, Any]]] = {}
    for row in [row for step in out for row in step]:
        found.setdefault(row["n"], []).append(row)
    seconds = {row["at"]: second for second, row in enumerate(rows)}
    matches = [(seconds[each[0]["at"]], tuple(row["plays"] for row in each)) for each in found.values()]
    assert matches == expected(pattern, text, overlaps=overlaps), statement
