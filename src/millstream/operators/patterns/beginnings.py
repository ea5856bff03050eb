"""Rules out rows that no match begins with: the automaton runs from all of them at once, a few rows far.

A set of states stands for every way that a partial match may have gone. A condition that depends on its rows is taken
to hold, so a row is ruled out only if neither a match nor a partial match that may time out begins with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from millstream.operators.patterns.columns import Columns, Flags, Places
from millstream.plan.patterns.automaton import Kind
from millstream.plan.patterns.checked import Search
from millstream.plan.time.bundles import END

ROWS_AHEAD = 16
SETS_MAX, MASKS_MAX = 64, 64
"""A pattern with more sets of states, or rows with more combinations of conditions, are left to the search itself."""
FEW_BITS = 0xFFFF
States = frozenset[int]
FIRST: States = frozenset({0})
"""Where a match begins; no arc leads back there."""
DEAD: States = frozenset()
OPEN: States = frozenset({-1})
"""There may be a match."""


@dataclass(frozen=True, slots=True)
class Masks:
    """The different masks of some rows, and by row the position of its own among them."""

    distinct: list[int]
    codes: Places

    @classmethod
    def of(cls, masks: Places) -> Masks:
        highest = int(masks.max(initial=0))
        if highest > FEW_BITS:
            distinct, codes = np.unique(masks, return_inverse=True)
            return cls(distinct.tolist(), codes)
        exists = np.zeros(highest + 1, np.bool_)  # without sorting
        exists[masks] = True
        return cls(np.flatnonzero(exists).tolist(), (np.cumsum(exists) - 1)[masks])


class Beginnings:
    """Keeps the moves from set to set, which are the same in every step."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._moves: dict[tuple[States, int], States] = {}

    def among(self, candidates: Places, columns: Columns, masks: Masks, times: Places, ends: Places) -> Flags:
        """With which candidates a match may begin; `ends` has, for each, the place behind the rows of its key."""
        search = self._search
        if search.between is not None or len(masks.distinct) > MASKS_MAX or not len(candidates):
            return np.ones(len(candidates), np.bool_)
        table, codes = self._table(columns, masks.distinct), masks.codes
        can_begin = np.ones(len(candidates), np.bool_)
        alive = np.arange(len(candidates))
        places, sets = candidates, np.full(len(candidates), 2)
        limits = np.full(len(candidates), END) if search.within is None else times[candidates] + search.within
        for _ in range(ROWS_AHEAD):
            sets = table[sets, codes[places]]
            can_begin[alive[sets == 0]] = False
            on = sets > 1
            places = places[on] + 1
            alive, sets, limits, ends = alive[on], sets[on], limits[on], ends[on]
            on = places < ends
            on[on] = times[places[on]] <= limits[on]
            alive, places, sets, limits, ends = alive[on], places[on], sets[on], limits[on], ends[on]
            if not len(alive):
                break
        return can_begin

    def _table(self, columns: Columns, masks: list[int]) -> Places:
        """By number of a set and of a mask, the number of the next set."""
        numbers = {DEAD: 0, OPEN: 1, FIRST: 2}
        rows = [[0] * len(masks), [1] * len(masks)]
        order = [FIRST]
        for states in order:
            found = [self._moved(states, mask, columns) for mask in masks]
            for each in found:
                if each not in numbers and len(numbers) < SETS_MAX:
                    numbers[each] = len(numbers)
                    order.append(each)
            rows.append([numbers.get(each, 1) for each in found])
        return np.array(rows, np.int64)

    def _moved(self, states: States, mask: int, columns: Columns) -> States:
        made = self._moves.get((states, mask))
        if made is None:
            made = self._moves[states, mask] = self._made(states, mask, columns)
        return made

    def _made(self, states: States, mask: int, columns: Columns) -> States:
        made: set[int] = set()
        for state in states:
            targets: set[int] = set()
            for arc in self._search.automaton.states[state].arcs:
                looked, wanted, rest = columns.compiled(arc.test)
                if mask & looked != wanted:
                    continue
                if arc.kind is Kind.STOP:
                    if not rest:
                        targets.clear()
                        break
                elif arc.kind is Kind.TAKE:
                    targets.add(arc.target)
                elif states != FIRST:  # a match does not begin with a row that is skipped
                    targets.add(-1 if arc.kind is Kind.END else arc.target)
            made |= targets
        return OPEN if -1 in made else frozenset(made)
