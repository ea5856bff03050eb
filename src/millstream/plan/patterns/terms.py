"""The shape of a pattern: a tree of frozen terms. How it is written in SQL is in the docstring of this package."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class Contiguity(Enum):
    """Which rows may lie between two parts of a match."""

    NEXT = "next"
    """None."""
    FOLLOWED_BY = "followed_by"
    """Rows that do not satisfy the second part: it takes the first row that does."""
    FOLLOWED_BY_ANY = "followed_by_any"
    """Any rows: the second part may also skip rows that satisfy it."""


class Greed(Enum):
    """How many rows a repeated part prefers."""

    ANY = "any"
    """Among all matches, every number is one; if only the preferred match is wanted, as many as possible."""
    GREEDY = "greedy"
    RELUCTANT = "reluctant"


class Edge(Enum):
    """Where an anchor holds."""

    START = "^"
    END = "$"


@dataclass(frozen=True, slots=True)
class Term:
    """A part of a pattern."""

    def parts_inside(self) -> tuple[Term, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class Variable(Term):
    """One row, which satisfies the condition of the variable. A name may occur several times."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Absence(Term):
    """No row that satisfies a condition: the very next one (NEXT), or any until the following part (FOLLOWED_BY).

    At the end of a pattern, FOLLOWED_BY means none until the limit of time is over.
    """

    name: str
    contiguity: Contiguity

    def __str__(self) -> str:
        return f"[^{self.name}]"


@dataclass(frozen=True, slots=True)
class Link:
    """A part of a sequence, and what may lie between it and the part before."""

    contiguity: Contiguity
    term: Term


@dataclass(frozen=True, slots=True)
class Sequence(Term):
    """One part after another; without parts, the empty match. The contiguity of the first link comes from outside."""

    links: tuple[Link, ...]

    def parts_inside(self) -> tuple[Term, ...]:
        return tuple(link.term for link in self.links)

    def __str__(self) -> str:
        signs = {Contiguity.NEXT: " ", Contiguity.FOLLOWED_BY: " -> ", Contiguity.FOLLOWED_BY_ANY: " ->> "}
        first = "".join(str(link.term) for link in self.links[:1])
        return f"({first}{''.join(f'{signs[link.contiguity]}{link.term}' for link in self.links[1:])})"


@dataclass(frozen=True, slots=True)
class Alternatives(Term):
    """One of several parts; an earlier one is preferred."""

    parts: tuple[Term, ...]

    def parts_inside(self) -> tuple[Term, ...]:
        return self.parts

    def __str__(self) -> str:
        return f"({' | '.join(map(str, self.parts))})"


@dataclass(frozen=True, slots=True)
class AnyOrder(Term):
    """All parts, in any order; the order in which they are written is preferred."""

    parts: tuple[Term, ...]
    inner: Contiguity = Contiguity.NEXT

    def parts_inside(self) -> tuple[Term, ...]:
        return self.parts

    def __str__(self) -> str:
        return f"permute({', '.join(map(str, self.parts))})"


@dataclass(frozen=True, slots=True)
class Repeat(Term):
    """A part from `low` to `high` times, without an upper limit if `high` is None."""

    part: Term
    low: int
    high: int | None
    greed: Greed = Greed.ANY
    inner: Contiguity = Contiguity.NEXT
    """What may lie between two repetitions."""
    until: str | None = None
    """A condition; once a row satisfies it, the part is repeated no more."""

    def parts_inside(self) -> tuple[Term, ...]:
        return (self.part,)

    def __str__(self) -> str:
        counts = {(0, 1): "?", (0, None): "*", (1, None): "+"}
        count = counts.get((self.low, self.high), f"{{{self.low},{'' if self.high is None else self.high}}}")
        return f"{self.part}{count}{'?' if self.greed is Greed.RELUCTANT else ''}"


@dataclass(frozen=True, slots=True)
class Excluded(Term):
    """A part whose rows are left out when all rows of a match are emitted."""

    part: Term

    def parts_inside(self) -> tuple[Term, ...]:
        return (self.part,)

    def __str__(self) -> str:
        return f"{{- {self.part} -}}"


@dataclass(frozen=True, slots=True)
class Anchor(Term):
    """The match begins with the first row of the key, or ends with its last."""

    edge: Edge

    def __str__(self) -> str:
        return self.edge.value


def all_terms(term: Term) -> Iterator[Term]:
    """A term and all terms inside it, in the order they are written."""
    yield term
    for part in term.parts_inside():
        yield from all_terms(part)


def variables_of(term: Term) -> list[str]:
    """The names of the variables that can have rows, in the order they are written."""
    return list(dict.fromkeys(each.name for each in all_terms(term) if isinstance(each, Variable)))


def can_be_empty(term: Term) -> bool:
    """Whether a term matches without any row."""
    if isinstance(term, Variable):
        return False
    if isinstance(term, Repeat):
        return term.low == 0 or can_be_empty(term.part)
    if isinstance(term, Alternatives):
        return any(can_be_empty(part) for part in term.parts)
    return all(can_be_empty(part) for part in term.parts_inside())


def needed_variables(term: Term) -> frozenset[str]:
    """The variables without a row of which a term cannot match."""
    if isinstance(term, Variable):
        return frozenset({term.name})
    if isinstance(term, Repeat) and term.low == 0:
        return frozenset()
    parts = [needed_variables(part) for part in term.parts_inside()]
    if isinstance(term, Alternatives):
        return frozenset.intersection(*parts)
    return frozenset().union(*parts)
