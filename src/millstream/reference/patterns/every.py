"""Every match of a pattern: all partial matches are followed, and each row is offered to all of them.

With a skip strategy, a complete match waits until no partial match that began earlier is left; when it is emitted, the
partial matches that it skips are dropped, by their first row.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.plan.patterns.automaton import Kind
from millstream.plan.patterns.checked import Search
from millstream.plan.patterns.found import Complete, Path, first_after
from millstream.plan.patterns.node import Skip, SkipTo
from millstream.plan.time.bundles import END
from millstream.reference.event_order import time_of
from millstream.reference.patterns.conditions import Conditions


@dataclass(frozen=True)
class Partial:
    """A partial match: the state it rests in, and its rows."""

    state: int
    path: Path

    @property
    def first(self) -> int:
        return self.path[0][0]


class EveryMatcher:
    """The partial matches of one key."""

    def __init__(self, search: Search, skip: Skip, conditions: Conditions) -> None:
        self.search, self.skip, self.conditions = search, skip, conditions
        self.partials: list[Partial] = []
        """In the order of their first rows."""
        self.waiting: list[Complete] = []
        """Complete, but not emitted yet."""
        self.matches: list[Complete] = []
        """To be emitted."""
        self.timed_out: list[Complete] = []
        self._new: list[Complete] = []
        """Complete with the row that is looked at."""

    def take(self, place: int) -> None:
        """Offers a row to all partial matches, and begins a new one with it."""
        self.advance(time_of(self.conditions.rows[place]))
        before, self.partials, self._new = self.partials, [], []
        for partial in before:
            self._offer(partial.state, partial.path, place)
        self._offer(0, (), place)
        self.partials = list(dict.fromkeys(self.partials))
        self.waiting += sorted(dict.fromkeys(self._new), key=lambda match: tuple(match.path))
        self._emit()

    def _offer(self, state: int, path: Path, place: int) -> None:
        """What becomes of one partial match."""
        arcs = self.search.automaton.states[state].arcs
        chosen = [arc for arc in arcs if self.conditions.hold(arc.test, place, path)]
        if any(arc.kind is Kind.STOP for arc in chosen):
            return
        for arc in chosen:
            if arc.kind is Kind.END or (arc.kind is Kind.IGNORE and not path):
                continue
            taken = ((place, arc.variable, arc.is_excluded),) if arc.kind is Kind.TAKE else ()
            target = self.search.automaton.states[arc.target]
            if any(self.conditions.hold(test, place, path) for test in target.ends):
                self._new.append(Complete((*path, *taken), self._time((*path, *taken)[-1][0])))
            self.partials.append(Partial(arc.target, (*path, *taken)))

    def _time(self, place: int) -> int:
        return time_of(self.conditions.rows[place])

    def advance(self, time: int) -> None:
        """Ends the partial matches whose limit is before a time, in order of their limits."""
        while (limit := min(map(self._limit, self.partials), default=END)) < time:
            due = [each for each in self.partials if self._limit(each) == limit]
            self.partials = [each for each in self.partials if each not in due]
            for partial in sorted(due, key=lambda each: each.path):
                over = Complete(partial.path, limit, at_limit=True)
                if self.search.automaton.states[partial.state].awaits_limit:
                    self.waiting.append(over)
                elif over not in self.timed_out and self._can_go_on(partial):
                    self.timed_out.append(over)
            self._emit()

    def _can_go_on(self, partial: Partial) -> bool:
        return any(arc.kind is not Kind.END for arc in self.search.automaton.states[partial.state].arcs)

    def _limit(self, partial: Partial) -> int:
        limit = self.search.deadline(self._time(partial.first), self._time(partial.path[-1][0]))
        return END if limit is None else limit

    def finish(self) -> None:
        """The input has ended: limits of time are over, and there are no more rows."""
        self.advance(END)
        for partial in sorted(self.partials, key=lambda each: each.path):
            if self.search.automaton.states[partial.state].awaits_end:
                self.waiting.append(Complete(partial.path, self._time(partial.path[-1][0])))
        self.partials = []
        self._emit()

    def _emit(self) -> None:
        """Emits the complete matches that no earlier partial match holds back."""
        if self.skip.to is SkipTo.NONE:
            self.matches += self.waiting
            self.waiting = []
            return
        self.waiting.sort(key=lambda match: match.first)
        while self.waiting and all(self.waiting[0].first <= partial.first for partial in self._alive()):
            match = self.waiting.pop(0)
            self.matches.append(match)
            first = first_after(match.path, self.skip)
            self.partials = [each for each in self.partials if each.first >= first]
            self.waiting = [each for each in self.waiting if each.first >= first]

    def _alive(self) -> list[Partial]:
        """Partial matches that can still become something: those that are just complete cannot."""
        return [each for each in self.partials if self._can_go_on(each)]

    def hold(self) -> int:
        """The earliest event time that is still to be emitted."""
        return min((match.end for match in self.waiting), default=END)
