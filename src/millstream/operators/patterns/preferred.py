"""The preferred match of each first row, as in SQL, by backtracking that looks at no state twice for the same row.

If no condition depends on the rows of a match, what failed once fails again, also for later first rows: the search is
linear in the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from millstream.operators.patterns.columns import Columns, PathRows
from millstream.operators.patterns.found import Found
from millstream.operators.patterns.runs import OPEN, Runs
from millstream.plan.patterns.automaton import Arc, Kind
from millstream.plan.patterns.checked import Search
from millstream.plan.patterns.found import Complete, Path, first_after, lacks_target
from millstream.plan.patterns.node import Skip, SkipTo
from millstream.plan.time.bundles import END

Rest = tuple[tuple[int, bool], ...]
Chain = tuple[tuple[int, str, bool], Any] | None
"""The rows of a partial match, from the last to the first."""
COMPLETE = -1


Fit = tuple[Arc, Rest]
"""An arc that a row can use, and what depends on the rows of the partial match."""


@dataclass(frozen=True, slots=True)
class Fits:
    """What rows with certain bits can do in a state."""

    arcs: tuple[Fit, ...]
    step: tuple[int, str, bool] | None
    """If all they can do is to be taken: the next state, the variable, and whether they are excluded."""
    is_end: bool
    """Whether a match is complete before such a row, and there is nothing else to try."""


class Result(Enum):
    FAILED = "failed"
    UNDECIDED = "undecided"
    EMPTY = "empty"
    """A match without rows: nothing is emitted, and what is less preferred is not tried."""


class PreferredMatcher:
    def __init__(self, search: Search, skip: Skip, columns: Columns, times: list[int], after: int) -> None:
        """`after` is the number of rows that must follow a match before it is emitted."""
        self.search, self.skip, self.columns, self.after = search, skip, columns, after
        self.times, self.masks = times, columns.masks
        self.states = search.automaton.states
        self._remembers = not search.depends_on_path and search.between is None
        self._remembers_always = self._remembers and search.within is None
        self._fits: list[dict[int, Fits]] = [{} for _ in self.states]
        self._runs: Runs | None = None
        self._lasts: dict[int, int] = {}

    def know(self, runs: Runs, lasts: dict[int, int]) -> None:
        """By first row, what is known of its match: its last row, or OPEN. The search goes on behind a match."""
        self._runs, self._lasts = runs, lasts

    def run(self, start: int, done: int, stop: int, may_begin: list[bool], before: int, watermark: int) -> Found:
        """Searches the rows from the first that may begin a match; all before were decided in earlier steps."""
        found = Found()
        first = start
        self._stop, self._watermark = stop, watermark
        self._failed: set[int] = set()
        """Rows and states from which there is no match, as numbers."""
        while (first := _next_true(may_begin, first, stop)) < stop:
            known = self._lasts.get(first)
            if known is not None and self._runs is not None and known != OPEN and not self._awaits_rows(known):
                self._runs.add(first, known)
                found.runs.append(first)
                first = known + 1
                continue
            self._seen: set[int] = set()
            self._over: list[Complete] = []
            result = self._from(first) if known is None else Result.UNDECIDED
            if result is Result.UNDECIDED or (isinstance(result, Complete) and self._awaits_rows(result.path[-1][0])):
                found.firsts = set(range(first, stop))
                found.hold = self.times[first]
                found.due = self._due(first)
                break
            found.timed_out += self._over
            if isinstance(result, Complete):
                found.matches.append(result)
                found.without_target += lacks_target(result.path, self.skip)
                skips = self.skip.to is not SkipTo.NONE
                first = max(first_after(result.path, self.skip), first + 1) if skips else first + 1
            else:
                if self._remembers_always and result is Result.FAILED:
                    self._failed |= self._seen
                first += 1
        return found

    def _awaits_rows(self, last: int) -> bool:
        return self._watermark < END and last + self.after >= self._stop

    def _due(self, first: int) -> int:
        """When the search is to be tried again without a new row."""
        limits = [] if self.search.within is None else [self.times[first] + self.search.within + 1]
        if self.search.between is not None:
            limits += [time + self.search.between + 1 for time in self.times[first : self._stop]]
        return min((limit for limit in limits if limit > self._watermark), default=END)

    def can_begin(self, mask: int) -> bool:
        """Whether a row with these bits may be the first of a match."""
        return any(arc.kind is Kind.TAKE for arc, _ in self._fitting(0, mask).arcs)

    def fitting(self, state: int, mask: int) -> tuple[Fit, ...]:
        """The arcs that rows with these bits can use."""
        return self._fitting(state, mask).arcs

    def _from(self, first: int) -> Complete | Result:
        """The preferred match that begins with a row. Ways that are tried later wait on a stack."""
        times, masks, stop, watermark = self.times, self.masks, self._stop, self._watermark
        remembers, seen, failed, states = self._remembers, self._seen, self._failed, len(self.states)
        within, between, fits_of = self.search.within, self.search.between, self._fits
        limit_of_first = END if within is None else times[first] + within
        stack: list[tuple[int, int, Chain]] = [(0, first, None)]
        while stack:
            state, place, chain = stack.pop()
            while True:  # one way, as far as it goes
                if state == COMPLETE:
                    return self._complete(chain)
                if remembers:
                    here = place * states + state
                    if here in seen or here in failed:
                        break
                    seen.add(here)
                limit = limit_of_first if chain is not None else END
                if chain is not None and between is not None:
                    limit = min(limit, times[chain[0][0]] + between)
                is_over = limit < (times[place] if place < stop else watermark)
                if is_over or place >= stop:
                    result = self._without_row(state, chain, limit, is_over=is_over)
                    if result is not Result.FAILED:
                        return result
                    break
                fits = fits_of[state].get(masks[place])
                if fits is None:
                    fits = self._fitting(state, masks[place])
                if fits.is_end and chain is not None:
                    return Complete(_path(chain), times[chain[0][0]])
                if fits.step is None:
                    self._push(stack, fits.arcs, place, chain)
                    break
                state, variable, is_excluded = fits.step
                chain, place = ((place, variable, is_excluded), chain), place + 1
        return Result.FAILED

    def _push(self, stack: list[tuple[int, int, Chain]], arcs: tuple[Fit, ...], place: int, chain: Chain) -> None:
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
            elif arc.kind is Kind.END:
                chosen.append((COMPLETE, place + 1, chain))
            elif chain is not None:
                chosen.append((arc.target, place + 1, chain))
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
        return Result.EMPTY if chain is None else Complete(_path(chain), self.times[chain[0][0]])

    def _fitting(self, state: int, mask: int) -> Fits:
        """What rows with certain bits can do in a state; arcs that stop come first."""
        found = self._fits[state].get(mask)
        if found is None:
            fits = []
            for arc in self.states[state].arcs:
                looked, wanted, rest = self.columns.compiled(arc.test)
                if mask & looked == wanted:
                    fits.append((arc, rest))
            arcs = tuple(sorted(fits, key=lambda fit: fit[0].kind is not Kind.STOP))
            is_plain = len(arcs) == 1 and arcs[0][0].kind is Kind.TAKE and not arcs[0][1]
            step = (arcs[0][0].target, arcs[0][0].variable, arcs[0][0].is_excluded) if is_plain else None
            is_end = len(arcs) == 1 and arcs[0][0].kind is Kind.END and not arcs[0][1]
            found = self._fits[state][mask] = Fits(arcs, step, is_end)
        return found


def _next_true(flags: list[bool], start: int, stop: int) -> int:
    """The first place from `start` on whose flag is set; `stop` if there is none."""
    try:
        return flags.index(True, start, stop)
    except ValueError:
        return stop


def _path(chain: Chain) -> Path:
    path = []
    while chain is not None:
        path.append(chain[0])
        chain = chain[1]
    return tuple(reversed(path))
