"""The preferred match that begins at a row, as in SQL: alternatives are tried in order, with backtracking.

While a preferred way depends on a row that is not there yet, nothing is decided. After a match the search goes on where
the skip strategy says, and after a row without a match at the next one.
"""

from __future__ import annotations

from enum import Enum

from millstream.plan.patterns.automaton import Kind
from millstream.plan.patterns.checked import Search
from millstream.plan.patterns.found import Complete, Path, first_after
from millstream.plan.patterns.node import Skip, SkipTo
from millstream.plan.time.bundles import BEGINNING, END
from millstream.reference.event_order import time_of
from millstream.reference.patterns.conditions import Conditions


class Result(Enum):
    FAILED = "failed"
    UNDECIDED = "undecided"
    EMPTY = "empty"
    """A match without rows: nothing is emitted, and what is less preferred is not tried."""


class PreferredMatcher:
    """The search in the rows of one key."""

    def __init__(self, search: Search, skip: Skip, conditions: Conditions, after: int) -> None:
        """`after` is the number of rows that must follow a match before it is emitted."""
        self.search, self.skip, self.conditions, self.after = search, skip, conditions, after
        self.first = 0
        """The row at which the next match may begin."""
        self.watermark = BEGINNING
        self.matches: list[Complete] = []
        self.timed_out: list[Complete] = []
        self._held = END

    def take(self, place: int) -> None:
        """Rows are looked at in `advance`, when all rows up to a time are there."""

    def advance(self, time: int) -> None:
        self.watermark = time
        self._held = END
        while self.first < self.conditions.count:
            self._failed: set[tuple[int, int]] = set()
            self._over: list[Complete] = []
            found = self._tried(0, self.first, ())
            if found is Result.UNDECIDED or (isinstance(found, Complete) and self._awaits_rows(found)):
                self._held = time_of(self.conditions.rows[self.first])
                break
            self.timed_out += self._over
            if isinstance(found, Complete):
                self.matches.append(found)
                skips = self.skip.to is not SkipTo.NONE
                self.first = max(first_after(found.path, self.skip), self.first + 1) if skips else self.first + 1
            else:
                self.first += 1

    def _awaits_rows(self, match: Complete) -> bool:
        return self.watermark < END and match.path[-1][0] + self.after >= self.conditions.count

    def finish(self) -> None:
        self.advance(END)

    def hold(self) -> int:
        return self._held

    def _tried(self, state: int, place: int, path: Path) -> Complete | Result:
        """The preferred match from a state on, if the next row is the one at a place."""
        if (state, place) in self._failed:
            return Result.FAILED
        found = self._tried_arcs(state, place, path)
        if found is Result.FAILED and not self.search.depends_on_path and self.search.between is None:
            self._failed.add((state, place))
        return found

    def _tried_arcs(self, state: int, place: int, path: Path) -> Complete | Result:
        here = self.search.automaton.states[state]
        limit = self._limit(path)
        has_row = place < self.conditions.count
        is_over = limit < (time_of(self.conditions.rows[place]) if has_row else self.watermark)
        if is_over or not has_row:
            return self._without_row(state, path, limit, is_over=is_over)
        if any(arc.kind is Kind.STOP and self.conditions.hold(arc.test, place, path) for arc in here.arcs):
            return Result.FAILED
        for arc in here.arcs:
            if arc.kind is Kind.STOP or not self.conditions.hold(arc.test, place, path):
                continue
            found: Complete | Result = Result.FAILED
            if arc.kind is Kind.END:
                found = self._complete(path)
            elif arc.kind is Kind.TAKE:
                found = self._tried(arc.target, place + 1, (*path, (place, arc.variable, arc.is_excluded)))
            elif path:
                found = self._tried(arc.target, place + 1, path)
            if found is not Result.FAILED:
                return found
        return Result.FAILED

    def _without_row(self, state: int, path: Path, limit: int, *, is_over: bool) -> Complete | Result:
        """There is no next row: it is not there yet, or the time is over, or the input has ended."""
        here = self.search.automaton.states[state]
        has_ended = self.watermark >= END
        if not is_over and not has_ended:
            if path and here.arcs and here.arcs[0].kind is Kind.END and not here.arcs[0].test:
                return self._complete(path)
            return Result.UNDECIDED
        if here.awaits_limit and is_over:
            return Complete(path, limit, at_limit=True)
        if any(not test for test in here.ends) or (here.awaits_end and has_ended):
            return self._complete(path)
        if is_over and path and any(arc.kind is not Kind.END for arc in here.arcs):
            over = Complete(path, limit, at_limit=True)
            self._over += [] if over in self._over else [over]
        return Result.FAILED

    def _complete(self, path: Path) -> Complete | Result:
        return Complete(path, time_of(self.conditions.rows[path[-1][0]])) if path else Result.EMPTY

    def _limit(self, path: Path) -> int:
        if not path:
            return END
        first, last = (time_of(self.conditions.rows[place]) for place in (path[0][0], path[-1][0]))
        limit = self.search.deadline(first, last)
        return END if limit is None else limit
