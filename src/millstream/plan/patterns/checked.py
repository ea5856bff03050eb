"""A pattern for rows of a schema: its automaton, its conditions as expressions, and its mistakes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from millstream.errors import InvalidPattern
from millstream.expressions.expression import evaluate
from millstream.plan.patterns.automaton import Automaton, TooLarge, compiled
from millstream.plan.patterns.pattern import refused
from millstream.plan.patterns.references import Condition, Reader
from millstream.plan.patterns.rules import PATTERN, Rules
from millstream.plan.patterns.terms import (
    Absence,
    Alternatives,
    Anchor,
    AnyOrder,
    Contiguity,
    Edge,
    Greed,
    Repeat,
    Sequence,
    Term,
    Variable,
    all_terms,
    can_be_empty,
    variables_of,
)
from millstream.plan.time.windows import microseconds
from millstream.records import Schema


@dataclass(frozen=True)
class Search:
    """What a matcher looks for."""

    rules: Rules
    automaton: Automaton
    conditions: tuple[Condition, ...]
    """One for each condition of the automaton, in the same order."""

    @cached_property
    def variables(self) -> list[str]:
        return self.rules.variables

    @cached_property
    def depends_on_path(self) -> bool:
        """Whether what a partial match does next depends on the rows that it has, and not just on where it is."""
        return any(condition.depends_on_path for condition in self.conditions)

    @cached_property
    def lookback(self) -> int:
        """How many rows before a row its conditions may look at."""
        return max((condition.lookback for condition in self.conditions), default=0)

    @cached_property
    def lookahead(self) -> int:
        """How many rows after a row its conditions may look at: it is searched once they are there."""
        return max((condition.lookahead for condition in self.conditions), default=0)

    @cached_property
    def within(self) -> int | None:
        return None if self.rules.within is None else microseconds(self.rules.within)

    @cached_property
    def between(self) -> int | None:
        limit = self.rules.between_neighbours
        return None if limit is None else microseconds(limit)

    def deadline(self, first: int, last: int) -> int | None:
        """The last moment at which a partial match can take a row, given the times of its first and last row."""
        within, between = self.within, self.between  # asked for every row of every partial match
        if between is None:
            return None if within is None else first + within
        return last + between if within is None else min(first + within, last + between)


def refuse_lookahead(made: Search, why: str) -> None:
    """Refuses a search with NEXT in a condition, where it cannot wait for the next row."""
    for condition in made.conditions:
        if condition.lookahead:
            raise _refused(
                made.rules,
                f"next(…) looks ahead: {why}",
                "put the condition on the next stage, and compare with prev(…)",
                condition.name,
            )


def search(rules: Rules, schema: Schema, *, every: bool, reading: type[Reader] = Reader) -> Search:
    """Checks a pattern against the rows it is for. `reading` is how its conditions are read."""
    _check_shape(rules, every=every)
    try:
        automaton = compiled(rules.term, dict(rules.conditions), every=every)
    except (TooLarge, RecursionError):
        raise _refused(
            rules, "the pattern is too large", "repeat a part less often: times(…) up to some thousands"
        ) from None
    known = _visible(rules.term)
    names = [*rules.variables, *rules.subsets]
    conditions = []
    absent = {each.name for each in all_terms(rules.term) if isinstance(each, Absence)}
    for asked in automaton.asked:
        own = asked.name
        is_until = own is None or asked.text != rules.conditions.get(own)
        before = set(rules.variables) if own is None else known.get(own, set())
        reader = reading(
            schema,
            [*names, *absent],
            known=[*before, *(name for name, parts in rules.subsets.items() if before & set(parts))],
            line=rules.lines.get(own) if own else None,
            own=None if is_until else own,
            absent=absent,
            place=rules.places.get(own) if own else None,
        )
        condition = reader.condition(asked.text, counts_row=not is_until)
        if own in rules.variables and not is_until and _is_never_true(condition):
            raise _refused(rules, f"no row can be '{own}': its condition is never true", "remove the stage", own)
        conditions.append(condition)
    return Search(rules, automaton, tuple(conditions))


def _refused(rules: Rules, what: str, next_step: str, name: str | None = None) -> InvalidPattern:
    """Of a variable, if there is a name, else of the whole pattern."""
    place = rules.places.get(name or PATTERN) or rules.places.get(PATTERN)
    return refused(f"{place}: {what}" if place else what, next_step, rules.lines.get(name) if name else None)


def _check_shape(rules: Rules, *, every: bool) -> None:
    if not rules.variables:
        raise _refused(rules, "the pattern matches no row, at most the empty match", "add one that can occur")
    for last in _last_parts(rules.term):
        if isinstance(last, Absence) and last.contiguity is Contiguity.FOLLOWED_BY and not rules.has_limit:
            raise _refused(
                rules,
                f"the pattern may end with the absence of '{last.name}', but has no limit of time",
                "say how long to wait for it: within('30 minutes')",
                last.name,
            )
    first = _first_part(rules.term)
    if isinstance(first, Absence):
        raise _refused(
            rules,
            f"the pattern begins with the absence of '{first.name}'",
            "begin with a row that occurs: pattern('start', …).not_followed_by(…)",
            first.name,
        )
    _check_anchors(rules, rules.term, has_before=False, has_after=False)
    for each in all_terms(rules.term):
        if not isinstance(each, Repeat):
            continue
        if every and each.greed is Greed.RELUCTANT:
            raise _refused(rules, "reluctant() is for the preferred match", "use match(…, matches='preferred')")
        if every and each.greed is Greed.GREEDY and not isinstance(each.part, Variable | Repeat):
            raise _refused(
                rules, "a group cannot be greedy if every match is wanted", "use match(…, matches='preferred')"
            )
        if each.high is None and can_be_empty(each.part):
            raise _refused(
                rules, "a part that can be empty is repeated without end", "make the repetition optional instead"
            )


def _is_never_true(condition: Condition) -> bool:
    """Whether a condition that looks at no column is false or null."""
    made = condition.expression
    if made.columns or condition.references:
        return False
    found = evaluate({"holds": made.lowered}, pa.table({"row": [0]}))
    return found.column("holds")[0].as_py() is not True


def _first_part(term: Term) -> Term:
    while isinstance(term, Sequence) and term.links:
        term = term.links[0].term
    return term


def _last_parts(term: Term) -> Iterator[Term]:
    """The parts that a match may end with."""
    if not term.parts_inside():
        yield term
        return
    for part in reversed(term.parts_inside()):
        yield from _last_parts(part)
        if isinstance(term, Sequence) and (isinstance(part, Absence) or not can_be_empty(part)):
            return


def _check_anchors(rules: Rules, term: Term, *, has_before: bool, has_after: bool) -> None:
    """Refuses ^ behind a row and $ before one: no match could have both."""
    if isinstance(term, Anchor) and (has_before if term.edge is Edge.START else has_after):
        where = "before ^, the first row of a key" if term.edge is Edge.START else "after $, the last row of a key"
        raise _refused(rules, f"the pattern can never match: it has a row {where}", f"remove {term.edge.value}")
    repeats = isinstance(term, Repeat) and term.low > 1 and not can_be_empty(term.part)
    parts = term.parts_inside()
    in_order = isinstance(term, Sequence)
    for at, part in enumerate(parts):
        before, after = (parts[:at], parts[at + 1 :]) if in_order else ((), ())
        _check_anchors(
            rules,
            part,
            has_before=has_before or repeats or not all(map(can_be_empty, before)),
            has_after=has_after or repeats or not all(map(can_be_empty, after)),
        )


def _visible(term: Term) -> dict[str, set[str]]:
    """By name, the variables that may have rows when its condition is evaluated."""
    found: dict[str, set[str]] = {}
    _walk(term, frozenset(), found)
    return found


def _walk(term: Term, before: frozenset[str], found: dict[str, set[str]]) -> frozenset[str]:
    """Notes what each name of a term can see; returns what can have rows after the term."""
    if isinstance(term, Variable | Absence):
        found.setdefault(term.name, set()).update(before)
        return before | {term.name} if isinstance(term, Variable) else before
    if isinstance(term, Sequence):
        for link in term.links:
            before = _walk(link.term, before, found)
        return before
    if isinstance(term, Alternatives):
        return frozenset().union(*(_walk(part, before, found) for part in term.parts))
    own = frozenset(variables_of(term))
    if isinstance(term, AnyOrder) or (isinstance(term, Repeat) and term.high != 1):
        before = before | own
    for part in term.parts_inside():
        _walk(part, before, found)
    return before | own
