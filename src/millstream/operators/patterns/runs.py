"""Where a row can go one way only, what begins with it is found by following that way, for all first rows at once.

This decides most first rows of patterns whose variables exclude each other. What has a choice, may time out, or goes on
for too many rows is left to the search itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np

from millstream.operators.patterns.beginnings import Masks
from millstream.operators.patterns.columns import Flags, Places
from millstream.plan.patterns.automaton import Arc, Kind, State
from millstream.plan.patterns.found import PathRow
from millstream.plan.time.bundles import END

ROWS_MAX = 256
STATES_MAX, MASKS_MAX = 64, 64
"""A pattern with more states, or rows with more combinations of conditions, are left to the search itself."""
LEFT, FAILED, OPEN = -1, -2, -3
"""In place of the last row of a match: not decided here; there is no match; rows to come decide."""
ENDED = -4
"""In place of a state: the match is complete before this row."""
SKIPPED = -1
Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Fitting = Callable[[int, int], Sequence[tuple[Arc, object]]]
"""The arcs that rows with a mask can use in a state, those that stop first, and what else each depends on."""


@dataclass(frozen=True, slots=True)
class Moves:
    """By state and by position of a mask: the state after such a row, and what the row plays."""

    targets: Table
    plays: Table
    is_final: Flags
    """By state, whether a match is complete there, whatever follows."""
    is_complete: Flags
    """By state, whether a match is complete there as long as no row follows."""
    roles: list[tuple[str, bool]]
    """What rows may play: a variable, and whether it is excluded."""

    @classmethod
    def of(cls, states: Sequence[State], masks: Sequence[int], fitting: Fitting) -> Moves | None:
        if len(states) > STATES_MAX or len(masks) > MASKS_MAX:
            return None
        roles: dict[tuple[str, bool], int] = {}
        targets = np.full((len(states), len(masks)), LEFT, np.int64)
        plays = np.full(targets.shape, SKIPPED, np.int64)
        for state in range(len(states)):
            for number, mask in enumerate(masks):
                arcs = fitting(state, mask)
                if arcs and (arcs[0][1] or (len(arcs) > 1 and arcs[0][0].kind is not Kind.STOP)):
                    continue
                arc = arcs[0][0] if arcs else None
                if arc is None or arc.kind is Kind.STOP or (state == 0 and arc.kind is not Kind.TAKE):
                    targets[state, number] = FAILED
                elif arc.kind is Kind.END:
                    targets[state, number] = ENDED
                else:
                    targets[state, number] = arc.target
                if arc is not None and arc.kind is Kind.TAKE:
                    plays[state, number] = roles.setdefault((arc.variable, arc.is_excluded), len(roles))
        ends = [bool(each.arcs) and each.arcs[0].kind is Kind.END and not each.arcs[0].test for each in states]
        waits = [len(each.arcs) > 1 or each.awaits_limit or each.awaits_end for each in states]
        is_final = [end and not more for end, more in zip(ends, waits, strict=True)]
        return cls(targets, plays, np.array(is_final), np.array(ends), list(roles))


class Runs:
    """The ways from first rows of some keys. `codes` has the position of each row's mask."""

    def __init__(self, moves: Moves, masks: Masks, times: Places, within: int | None) -> None:
        self._moves, self._codes, self._times, self._within = moves, masks.codes, times, within
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def lasts(self, firsts: Places, ends: Places, watermark: int) -> Places:
        """By first row, the last row of its match, or LEFT, FAILED or OPEN.

        `ends` has, for each, the place behind the rows of its key.
        """
        moves, codes, times = self._moves, self._codes, self._times
        found = np.full(len(firsts), LEFT)
        alive, places, lasts = np.arange(len(firsts)), firsts, firsts
        states = np.zeros(len(firsts), np.int64)
        limits = np.full(len(firsts), END) if self._within is None else times[firsts] + self._within
        for _ in range(ROWS_MAX):
            seen = codes[places]
            moved, takes = moves.targets[states, seen], moves.plays[states, seen] != SKIPPED
            found[alive[moved == FAILED]] = FAILED
            is_end = moved == ENDED
            found[alive[is_end]] = lasts[is_end]
            lasts = np.where(takes, places, lasts)
            on = moved >= 0
            is_end = on & moves.is_final[np.maximum(moved, 0)]
            found[alive[is_end]] = lasts[is_end]
            on &= ~is_end
            alive, places, lasts, states, limits, ends = (
                each[on] for each in (alive, places + 1, lasts, moved, limits, ends)
            )
            on = places < ends
            is_open = ~on & (limits >= watermark) & ~moves.is_complete[states]
            if watermark < END:
                found[alive[is_open]] = OPEN
            on[on] = times[places[on]] <= limits[on]
            alive, places, lasts, states, limits, ends = (
                each[on] for each in (alive, places, lasts, states, limits, ends)
            )
            if not len(alive):
                break
        return found

    def add(self, first: int, last: int) -> None:
        """A match that was found; no two of them have a row in common."""
        self._firsts.append(first)
        self._lasts.append(last)

    def run(self, first: int) -> Run:
        """The match that begins with a row."""
        return Run(self, first, int(self.last_of[first]))

    @cached_property
    def last_of(self) -> Places:
        """By the first row of a match, its last one. Asked for when all matches are known."""
        found = np.full(len(self._codes), LEFT)
        found[np.array(self._firsts, np.int64)] = self._lasts
        return found

    @property
    def roles(self) -> list[tuple[str, bool]]:
        return self._moves.roles

    @cached_property
    def plays(self) -> Places:
        """By row, the number of its role in the match that it is part of. Asked for when all matches are known."""
        moves, codes = self._moves, self._codes
        plays = np.full(len(codes), SKIPPED)
        places, lasts = np.array(self._firsts, np.int64), np.array(self._lasts, np.int64)
        states = np.zeros(len(places), np.int64)
        while len(places):
            seen = codes[places]
            plays[places] = moves.plays[states, seen]
            on = places < lasts
            states, places, lasts = moves.targets[states, seen][on], places[on] + 1, lasts[on]
        return plays


class Run(Sequence[PathRow]):
    """The rows of a match: all from the first to the last, except those that were skipped."""

    __slots__ = ("first", "last", "runs")

    def __init__(self, runs: Runs, first: int, last: int) -> None:
        self.runs, self.first, self.last = runs, first, last

    def __iter__(self) -> Iterator[PathRow]:
        roles = self.runs.roles
        for place, role in enumerate(self.runs.plays[self.first : self.last + 1].tolist(), self.first):
            if role != SKIPPED:
                yield (place, *roles[role])

    def __len__(self) -> int:
        return int(np.count_nonzero(self.runs.plays[self.first : self.last + 1] != SKIPPED))

    @overload
    def __getitem__(self, at: int) -> PathRow: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[PathRow]: ...

    def __getitem__(self, at: int | slice) -> PathRow | Sequence[PathRow]:
        if at in (0, -1):  # neither is skipped
            place = self.last if at else self.first
            return (place, *self.runs.roles[int(self.runs.plays[place])])
        return tuple(self)[at]
