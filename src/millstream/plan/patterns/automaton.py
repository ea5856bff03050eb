"""A term as states and arcs, in order of preference. What a matcher walks; it does not know terms.

A partial match rests in a state. Each row is offered to the arcs of the state, in order: TAKE adds the row to the match
as a variable, IGNORE skips it, STOP ends the partial match with all that would have come of it, and END says that it is
complete without the row. An arc applies if its test holds: some conditions true, others false. A partial match none of
whose arcs applies is over.

Not following rows are conditions of the states that wait for the next row (`barred`); a repetition is a loop. If every
match is wanted, a greedy repetition bars the stage behind it from rows that it could take itself; for the preferred
match, the order of the arcs says that it takes them first, and it gives them back if nothing else matches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from millstream.plan.patterns.terms import (
    Absence,
    Alternatives,
    Anchor,
    AnyOrder,
    Contiguity,
    Edge,
    Excluded,
    Greed,
    Repeat,
    Sequence,
    Term,
    Variable,
)

IS_FIRST = -1
"""The number of the condition that a row is the first of its key."""
STATES_MAX = 20_000


class Kind(Enum):
    TAKE = "take"
    IGNORE = "ignore"
    STOP = "stop"
    END = "end"


Test = tuple[tuple[int, bool], ...]
"""Numbers of conditions, and whether each must hold."""
Numbers = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Arc:
    kind: Kind
    test: Test
    target: int
    variable: str = ""
    is_excluded: bool = False


@dataclass(frozen=True, slots=True)
class State:
    arcs: tuple[Arc, ...] = ()
    awaits_limit: bool = False
    """Whether a partial match that rests here is complete when its time is over."""
    awaits_end: bool = False
    """Whether a partial match that rests here is complete when the input has ended."""

    @property
    def ends(self) -> tuple[Test, ...]:
        """The tests under which a partial match that comes here is complete."""
        return tuple(arc.test for arc in self.arcs if arc.kind is Kind.END)


@dataclass(frozen=True, slots=True)
class Asked:
    """A condition of the automaton: of a variable or absence, or the `until` of a repetition."""

    name: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Automaton:
    states: tuple[State, ...]
    """The first is where a match begins."""
    asked: tuple[Asked, ...]


FINAL = 1
Rest = Callable[[Numbers], int]
"""The state that follows, given the conditions that are barred until its first row."""


@dataclass(slots=True)
class Draft:
    """A state under construction. Its arcs without a kind lead to another state that sees the same row."""

    arcs: list[tuple[Kind | None, Test, int, str, bool]] = field(default_factory=list)
    awaits_limit: bool = False
    awaits_end: bool = False
    is_open: bool = False


class TooLarge(Exception):
    """A pattern with more states than are reasonable."""


def compiled(term: Term, conditions: dict[str, str | None], *, every: bool) -> Automaton:
    return _Builder(conditions, every=every).automaton(term)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a term stands."""

    contiguity: Contiguity
    barred: Numbers = ()
    ahead: Numbers = ()
    """Conditions that are barred once the term is over: a repetition in progress must not meet them either."""
    until: Numbers = ()
    """Conditions that end the repetitions around it."""
    until_first: Numbers = ()
    """The same for skipped rows before its first row."""
    is_excluded: bool = False


class _Builder:
    def __init__(self, conditions: dict[str, str | None], *, every: bool) -> None:
        self.conditions, self.every = conditions, every
        self.asked: list[Asked] = []
        self.drafts = [Draft(), Draft()]

    def automaton(self, term: Term) -> Automaton:
        self.final: Rest = lambda barred: FINAL
        first = self.state(term, _Place(Contiguity.NEXT), self.final)
        self.drafts[0].arcs.append((None, (), first, "", False))
        return Automaton(tuple(self._reachable()), tuple(self.asked))

    def _number(self, asked: Asked) -> int:
        if asked not in self.asked:
            self.asked.append(asked)
        return self.asked.index(asked)

    def _condition(self, name: str) -> int | None:
        text = self.conditions.get(name)
        return None if text is None else self._number(Asked(name, text))

    def _new(self) -> int:
        if len(self.drafts) > STATES_MAX:
            raise TooLarge
        self.drafts.append(Draft())
        return len(self.drafts) - 1

    # ------------------------------------------------------------ one method per kind of term

    def state(self, term: Term, place: _Place, rest: Rest) -> int:
        """The state in which a term begins."""
        visit: Callable[[Term, _Place, Rest], int] = getattr(self, f"_{type(term).__name__.lower()}")
        return visit(term, place, rest)

    def _variable(self, term: Variable, place: _Place, rest: Rest) -> int:
        made = self._new()
        arcs = self.drafts[made].arcs
        number = self._condition(term.name)
        arcs += [(Kind.STOP, ((barred, True),), made, "", False) for barred in place.barred]
        takes: Test = () if number is None else ((number, True),)
        until = tuple((each, False) for each in place.until)
        arcs.append((Kind.TAKE, (*takes, *until), rest(()), term.name, place.is_excluded))
        skips = tuple((each, False) for each in place.until_first)
        if place.contiguity is Contiguity.FOLLOWED_BY_ANY:
            arcs.append((Kind.IGNORE, skips, made, "", False))
        elif place.contiguity is Contiguity.FOLLOWED_BY and number is not None:
            arcs.append((Kind.IGNORE, ((number, False), *skips), made, "", False))
        return made

    def _sequence(self, term: Sequence, place: _Place, rest: Rest) -> int:
        return self._from(term, 0, place, rest)(place.barred)

    def _from(self, term: Sequence, at: int, place: _Place, rest: Rest) -> Rest:
        """What follows from a link of a sequence on."""
        if at == len(term.links):
            return rest
        link, following = term.links[at], self._from(term, at + 1, place, rest)
        found: dict[Numbers, int] = {}

        def state(barred: Numbers) -> int:
            if barred not in found:
                contiguity = link.contiguity if at else place.contiguity
                until_first = place.until if at else place.until_first
                ahead = self._ahead(term, at + 1, place)
                here = _Place(contiguity, barred, ahead, place.until, until_first, place.is_excluded)
                if isinstance(link.term, Absence):
                    found[barred] = self._absent(link.term, here, following)
                else:
                    found[barred] = self.state(link.term, here, following)
            return found[barred]

        return state

    def _ahead(self, term: Sequence, at: int, place: _Place) -> Numbers:
        if at == len(term.links):
            return place.ahead
        following = term.links[at].term
        if not isinstance(following, Absence) or following.contiguity is Contiguity.NEXT:
            return ()
        return (*self._numbers(following), *self._ahead(term, at + 1, place))

    def _numbers(self, term: Absence) -> Numbers:
        number = self._condition(term.name)
        return (self._number(Asked(None, "true")),) if number is None else (number,)

    def _absence(self, term: Absence, place: _Place, rest: Rest) -> int:
        return self._absent(term, place, rest)

    def _absent(self, term: Absence, place: _Place, rest: Rest) -> int:
        (number,) = self._numbers(term)
        if term.contiguity is not Contiguity.NEXT and rest is not self.final:
            return rest((*place.barred, number))
        made = self._new()
        draft = self.drafts[made]
        draft.arcs += [(Kind.STOP, ((barred, True),), made, "", False) for barred in (*place.barred, number)]
        if term.contiguity is not Contiguity.NEXT:
            draft.awaits_limit = True
            draft.arcs.append((Kind.IGNORE, (), made, "", False))
        elif rest is self.final:  # the row is needed, but is not part of the match
            draft.arcs.append((Kind.IGNORE, ((number, False),), FINAL, "", False))
        else:
            draft.arcs.append((None, ((number, False),), rest(place.barred), "", False))
        return made

    def _alternatives(self, term: Alternatives, place: _Place, rest: Rest) -> int:
        made = self._new()
        for part in term.parts:
            self.drafts[made].arcs.append((None, (), self.state(part, place, rest), "", False))
        return made

    def _anyorder(self, term: AnyOrder, place: _Place, rest: Rest) -> int:
        found: dict[tuple[frozenset[int], Numbers], int] = {}

        def remaining(left: frozenset[int], barred: Numbers) -> int:
            if not left:
                return rest(barred)
            if (left, barred) not in found:
                is_first = len(left) == len(term.parts)
                here = _Place(
                    place.contiguity if is_first else term.inner,
                    barred,
                    place.ahead if len(left) == 1 else (),
                    place.until,
                    place.until_first if is_first else place.until,
                    place.is_excluded,
                )
                found[left, barred] = made = self._new()
                for each in sorted(left):
                    after = left - {each}
                    first = self.state(term.parts[each], here, lambda barred, after=after: remaining(after, barred))  # type: ignore[misc]
                    self.drafts[made].arcs.append((None, (), first, "", False))
            return found[left, barred]

        return remaining(frozenset(range(len(term.parts))), place.barred)

    def _excluded(self, term: Excluded, place: _Place, rest: Rest) -> int:
        here = _Place(place.contiguity, place.barred, place.ahead, place.until, place.until_first, True)
        return self.state(term.part, here, rest)

    def _anchor(self, term: Anchor, place: _Place, rest: Rest) -> int:
        made = self._new()
        if term.edge is Edge.START:
            self.drafts[made].arcs.append((None, ((IS_FIRST, True),), rest(place.barred), "", False))
        else:
            self.drafts[made].awaits_end = True
        return made

    def _repeat(self, term: Repeat, place: _Place, rest: Rest) -> int:
        return _Repetition(self, term, place, rest).after(0, place.barred)

    # ------------------------------------------------------------ greed

    def guarded(self, state: int, number: int, until: Numbers) -> int:
        """A copy of a state, and of those that see the same row, which rows with a condition cannot pass."""
        return self._guarded(state, number, until, {})

    def _guarded(self, state: int, number: int, until: Numbers, copies: dict[int, int]) -> int:
        if state == FINAL or self.drafts[state].is_open:
            return state
        if state not in copies:
            made = copies[state] = self._new()
            draft, copied = self.drafts[state], self.drafts[made]
            copied.awaits_limit, copied.awaits_end = draft.awaits_limit, draft.awaits_end
            for kind, test, target, variable, is_excluded in list(draft.arcs):
                if kind is None:
                    aim = self._guarded(target, number, until, copies)
                    copied.arcs.append((None, test, aim, variable, is_excluded))
                    continue
                aim = made if target == state else target
                goes_on = tuple((each, False) for each in until)
                copied.arcs.append((kind, (*test, (number, False), *goes_on), aim, variable, is_excluded))
                for each in until:  # the repetition has ended with this row, so this and later rows are free again
                    copied.arcs.append((kind, (*test, (each, True)), target, variable, is_excluded))
        return copies[state]

    # ------------------------------------------------------------ arcs through states that see the same row

    def _reachable(self) -> list[State]:
        numbers = {0: 0}
        order = [0]
        flat: dict[int, list[Arc]] = {}
        for state in order:
            flat[state] = self._arcs(state)
            for arc in flat[state]:
                if arc.kind in (Kind.TAKE, Kind.IGNORE) and arc.target not in numbers:
                    numbers[arc.target] = len(order)
                    order.append(arc.target)
        made = []
        for state in order:
            draft = self.drafts[state]
            waits = [self.drafts[each] for each in self._same_row(state)]
            arcs = tuple(
                Arc(arc.kind, arc.test, numbers.get(arc.target, 0), arc.variable, arc.is_excluded)
                for arc in flat[state]
            )
            if state == FINAL:
                arcs = (Arc(Kind.END, (), 0),)
            made.append(
                State(
                    arcs,
                    draft.awaits_limit or any(each.awaits_limit for each in waits),
                    draft.awaits_end or any(each.awaits_end for each in waits),
                )
            )
        return made

    def _same_row(self, state: int) -> list[int]:
        """The states that a partial match in this one also rests in, without a condition."""
        found = [state]
        for each in found:
            found += [
                target
                for kind, test, target, *_ in self.drafts[each].arcs
                if kind is None and not test and target not in found
            ]
        return found[1:]

    def _arcs(self, state: int) -> list[Arc]:
        found: dict[Arc, None] = {}
        seen: set[tuple[int, Test]] = set()

        def walk(at: int, test: Test) -> None:
            for kind, more, target, variable, is_excluded in self.drafts[at].arcs:
                both = _both(test, more)
                if both is None:
                    continue
                if kind is not None:
                    found.setdefault(Arc(kind, both, target, variable, is_excluded))
                elif target == FINAL:
                    found.setdefault(Arc(Kind.END, both, FINAL))
                elif (target, both) not in seen:
                    seen.add((target, both))
                    walk(target, both)

        walk(state, ())
        return list(found)


class _Repetition:
    """The states of a repeated part, by how often it has occurred."""

    def __init__(self, builder: _Builder, term: Repeat, place: _Place, rest: Rest) -> None:
        self.builder, self.term, self.place, self.rest = builder, term, place, rest
        own = () if term.until is None else (builder._number(Asked(_only(term.part), term.until)),)
        self.until = (*place.until, *own)
        self.own_until = own
        self.states: dict[tuple[int, Numbers], int] = {}
        self.last = term.high if term.high is not None else max(term.low, 1)
        for count in range(self.last, 0, -1):  # from the end, so that nothing is nested deeply
            self.after(count, ())

    def after(self, count: int, barred: Numbers) -> int:
        """The state after a number of repetitions."""
        term = self.term
        count = min(count, self.last)
        if (count, barred) in self.states:
            return self.states[count, barred]
        if count == term.high:
            return self._exit(barred)
        made = self.states[count, barred] = self.builder._new()
        draft = self.builder.drafts[made]
        draft.is_open = True
        ways = [self._again(count, barred)]
        if count >= term.low:
            leave = self._exit(barred)
            ways = [leave, *ways] if term.greed is Greed.RELUCTANT else [*ways, leave]
        draft.arcs += [(None, (), way, "", False) for way in ways]
        draft.is_open = False
        return made

    def _again(self, count: int, barred: Numbers) -> int:
        place, is_first = self.place, count == 0
        here = _Place(
            place.contiguity if is_first else self.term.inner,
            barred if is_first else (*barred, *place.ahead),
            place.ahead,
            self.until,
            place.until_first if is_first and isinstance(self.term.part, Variable) else self.until,
            place.is_excluded,
        )
        return self.builder.state(self.term.part, here, lambda barred: self.after(count + 1, barred))

    def _exit(self, barred: Numbers) -> int:
        term = self.term
        leave = self.rest(barred)
        name = _only(term.part)
        if term.greed is not Greed.GREEDY or name is None or not self.builder.every:
            return leave
        number = self.builder._condition(name)
        return leave if number is None else self.builder.guarded(leave, number, self.own_until)


def _only(term: Term) -> str | None:
    """The name of a term that is a variable, maybe a repeated one."""
    if isinstance(term, Repeat):
        return _only(term.part)
    return term.name if isinstance(term, Variable) else None


def _both(one: Test, other: Test) -> Test | None:
    """A test of two; None if it can never hold."""
    made = dict(one)
    for number, wanted in other:
        if made.setdefault(number, wanted) is not wanted:
            return None
    return tuple(made.items())
