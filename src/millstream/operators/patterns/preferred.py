"""The preferred match of each first row, as in SQL, by backtracking that looks at no state twice for the same row.

If no condition depends on the rows of a match, what failed once fails again, also for later first rows: the search is
linear in the number of rows.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from millstream.operators.patterns.columns import Columns, PathRows
from millstream.operators.patterns.found import Found
from millstream.plan.bundles import END
from millstream.plan.patterns.automaton import Arc, Kind
from millstream.plan.patterns.checked import Search
from millstream.plan.patterns.found import Complete, Path, first_after
from millstream.plan.patterns.node import Skip, SkipTo

Rest = tuple[tuple[int, bool], ...]
Chain = tuple[tuple[int, str, bool], Any] | None
"""The rows of a partial match, from the last to the first."""
COMPLETE = -1


class Result(Enum):
    FAILED = "failed"
    UNDECIDED = "undecided"


class PreferredMatcher:
    def __init__(self, search: Search, skip: Skip, columns: Columns, times: list[int], step: str) -> None:
        self.search, self.skip, self.columns = search, skip, columns
        self.times, self.masks = times, columns.masks
        self.states = search.automaton.states
        self._remembers = not search.depends_on_path and search.between is None
        self._remembers_always = self._remembers and search.within is None
        self._arcs: dict[tuple[int, int], tuple[tuple[Arc, Rest], ...]] = {}

    def run(self, start: int, done: int, stop: int, may_begin: list[bool], before: int, watermark: int) -> Found:
        """Searches the rows from the first that may begin a match; all before were decided in earlier steps."""
        found = Found()
        first = next((place for place in range(start, done) if may_begin[place]), done)
        self._stop, self._watermark = stop, watermark
        self._failed: set[tuple[int, int]] = set()
        while first < stop:
            if not self.can_begin(self.masks[first]):
                first += 1
                continue
            self._seen: set[tuple[int, int]] = set()
            self._over: list[Complete] = []
            result = self._from(first)
            if result is Result.UNDECIDED:
                found.firsts = set(range(first, stop))
                found.hold = self.times[first]
                found.due = self._due(first)
                break
            found.timed_out += self._over
            if isinstance(result, Complete):
                found.matches.append(result)
                skips = self.skip.to is not SkipTo.NONE
                first = max(first_after(result.path, self.skip), first + 1) if skips else first + 1
            else:
                if self._remembers_always:
                    self._failed |= self._seen
                first += 1
        return found

    def _due(self, first: int) -> int:
        """When the search is to be tried again without a new row."""
        limits = [END]
        if self.search.within is not None:
            limits.append(self.times[first] + self.search.within + 1)
        if self.search.between is not None:
            limits += [time + self.search.between + 1 for time in self.times[first : self._stop]]
        return min(limit for limit in limits if limit > self._watermark or limit == END)

    def can_begin(self, mask: int) -> bool:
        """Whether a row with these bits may be the first of a match."""
        return any(arc.kind is Kind.TAKE for arc, _ in self._arcs_of(0, mask))

    def _from(self, first: int) -> Complete | Result:
        stack: list[tuple[int, int, Chain]] = [(0, first, None)]
        remembers, seen, failed = self._remembers, self._seen, self._failed
        while stack:
            state, place, chain = stack.pop()
            if state == COMPLETE:
                assert chain is not None
                return Complete(_path(chain), self.times[chain[0][0]])
            if remembers:
                if (state, place) in seen or (state, place) in failed:
                    continue
                seen.add((state, place))
            limit = self._limit(first, chain)
            has_row = place < self._stop
            is_over = limit < (self.times[place] if has_row else self._watermark)
            if is_over or not has_row:
                result = self._without_row(state, chain, limit, is_over=is_over)
                if result is not Result.FAILED:
                    return result
                continue
            self._push(stack, state, place, chain)
        return Result.FAILED

    def _push(self, stack: list[tuple[int, int, Chain]], state: int, place: int, chain: Chain) -> None:
        arcs = self._arcs_of(state, self.masks[place])
        path: PathRows | None = None
        chosen: list[tuple[int, int, Chain]] = []
        for arc, rest in arcs:
            if rest:
                path = PathRows(_path(chain)) if path is None else path
                if not self.columns.holds_on_path(rest, place, path):
                    continue
            if arc.kind is Kind.STOP:
                return
            if arc.kind is Kind.TAKE:
                chosen.append((arc.target, place + 1, ((place, arc.variable, arc.is_excluded), chain)))
            elif chain is not None:
                chosen.append((COMPLETE if arc.kind is Kind.END else arc.target, place + 1, chain))
        stack += reversed(chosen)

    def _without_row(self, state: int, chain: Chain, limit: int, *, is_over: bool) -> Complete | Result:
        """There is no next row: it is not there yet, or the time is over, or the input has ended."""
        here = self.states[state]
        has_ended = self._watermark >= END
        if not is_over and not has_ended:
            if chain is not None and here.arcs and here.arcs[0].kind is Kind.END and not here.arcs[0].test:
                return self._complete(chain)
            return Result.UNDECIDED
        if here.awaits_limit and is_over:
            return Complete(_path(chain), limit, True)
        if any(not test for test in here.ends) or (here.awaits_end and has_ended):
            return self._complete(chain)
        if is_over and chain is not None and any(arc.kind is not Kind.END for arc in here.arcs):
            over = Complete(_path(chain), limit, True)
            self._over += [] if over in self._over else [over]
        return Result.FAILED

    def _complete(self, chain: Chain) -> Complete | Result:
        return Result.FAILED if chain is None else Complete(_path(chain), self.times[chain[0][0]])

    def _limit(self, first: int, chain: Chain) -> int:
        if chain is None or not self.search.rules.has_limit:
            return END
        limit = self.search.deadline(self.times[first], self.times[chain[0][0]])
        return END if limit is None else limit

    def _arcs_of(self, state: int, mask: int) -> tuple[tuple[Arc, Rest], ...]:
        """The arcs that rows with certain bits can use; those that stop come first."""
        found = self._arcs.get((state, mask))
        if found is None:
            fits = []
            for arc in self.states[state].arcs:
                looked, wanted, rest = self.columns.compiled(arc.test)
                if mask & looked == wanted:
                    fits.append((arc, rest))
            found = tuple(sorted(fits, key=lambda fit: fit[0].kind is not Kind.STOP))
            self._arcs[state, mask] = found
        return found


def _path(chain: Chain) -> Path:
    path = []
    while chain is not None:
        path.append(chain[0])
        chain = chain[1]
    return tuple(reversed(path))
