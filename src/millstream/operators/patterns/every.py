"""Every match of a pattern, over the rows of one key after another.

Partial matches that began with the same row and rest in the same state behave alike, unless a condition depends on
their rows: they are followed as one, and enumerated only when they are complete. So the work for a row depends on the
number of states, not on the number of partial matches.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.operators.patterns.columns import Columns, PathRows
from millstream.operators.patterns.found import Found, Node, paths_to
from millstream.plan.patterns.automaton import Arc, Kind
from millstream.plan.patterns.checked import Search
from millstream.plan.patterns.found import Complete, first_after, lacks_target
from millstream.plan.patterns.node import Skip, SkipTo
from millstream.plan.time.bundles import END

Rest = tuple[tuple[int, bool], ...]


@dataclass(slots=True)
class Partial:
    """Partial matches with the same first row, in the same state."""

    state: int
    first: int
    last: int
    """The last row; of several partial matches, any of them."""
    nodes: list[Node]
    rows: PathRows | None = None
    """Its rows, once a condition has asked for them."""


@dataclass(frozen=True, slots=True)
class Move:
    """An arc that rows with certain bits can use."""

    arc: Arc
    rest: Rest
    """What depends on the rows of the partial match."""
    ends: tuple[Rest, ...]
    """Under which further conditions a match is complete with it."""


@dataclass(frozen=True, slots=True)
class Moves:
    """What rows with certain bits can do in a state."""

    stops: tuple[Rest, ...]
    moves: tuple[Move, ...]
    stays: bool
    """Whether partial matches just stay where they are."""


class EveryMatcher:
    def __init__(self, search: Search, skip: Skip, columns: Columns, times: list[int], step: str) -> None:
        self.search, self.skip, self.columns, self.step_name = search, skip, columns, step
        self.times, self.masks = times, columns.masks
        self.states = search.automaton.states
        self._can_go_on = [any(arc.kind is not Kind.END for arc in state.arcs) for state in self.states]
        self._moves: dict[tuple[int, int], Moves] = {}
        self._inert: dict[int, bool] = {}
        self._merges = not search.depends_on_path
        self._has_limit = search.rules.has_limit

    # ------------------------------------------------------------ one key

    def run(self, start: int, done: int, stop: int, may_begin: list[bool], before: int, watermark: int) -> Found:
        """Searches the rows from `start` to `stop`; those before `done` were searched in earlier steps."""
        self.partials: list[Partial] = []
        self.waiting: list[Complete] = []
        self.found = Found()
        for place in range(start, done):
            self._take(place, may_begin=may_begin[place])
        self._advance(before)
        self.found = Found()
        for place in range(done, stop):
            self._take(place, may_begin=True)
        self._advance(watermark)
        if watermark >= END:
            self._finish()
        found = self.found
        found.firsts = {each.first for each in self.partials} | {each.first for each in self.waiting}
        found.hold = min((match.end for match in self.waiting), default=None)
        limits = [limit + 1 for each in self.partials if (limit := self._limit(each)) is not None]
        if self.waiting or any(self.states[each.state].awaits_end for each in self.partials):
            limits.append(END)
        found.due = min(limits, default=None)
        return found

    def can_begin(self, mask: int) -> bool:
        """Whether a row with these bits may be the first of a match."""
        return bool(self._moves_of(0, mask).moves)

    def _take(self, place: int, *, may_begin: bool) -> None:
        mask = self.masks[place]
        if self._has_limit:
            self._advance(self.times[place])
        begins = may_begin and bool(self._moves_of(0, mask).moves)
        if not begins and (not self.partials or self._is_inert(mask)):
            return
        before, self.partials = self.partials, []
        ended: list[Node] = []
        merged: dict[tuple[int, int, int], Partial] = {}
        for partial in before:
            moves = self._moves_of(partial.state, mask)
            if moves.stays:
                self._add(partial, merged)
            else:
                self._offer(partial, moves, place, ended, merged)
        if begins:
            self._offer(Partial(0, place, place, []), self._moves_of(0, mask), place, ended, merged)
        if ended:
            ends = [Complete(path, self.times[path[-1][0]]) for path in paths_to(ended, self.step_name)]
            self.waiting += ends
            self._emit()
        elif self.waiting:
            self._emit()

    def _offer(
        self,
        partial: Partial,
        moves: Moves,
        place: int,
        ended: list[Node],
        merged: dict[tuple[int, int, int], Partial],
    ) -> None:
        if any(not rest or self._holds(rest, place, partial) for rest in moves.stops):
            return
        for move in moves.moves:
            if move.rest and not self._holds(move.rest, place, partial):
                continue
            arc, nodes, last = move.arc, partial.nodes, partial.last
            if arc.kind is Kind.TAKE:
                nodes, last = [(place, arc.variable, arc.is_excluded, partial.nodes)], place
            elif not nodes:  # a match does not begin with a row that is skipped
                continue
            if any(not rest or self._holds(rest, place, partial) for rest in move.ends):
                ended += nodes
            if arc.kind is Kind.IGNORE and arc.target == partial.state:
                self._add(partial, merged)
            elif self._can_go_on[arc.target] or self.states[arc.target].awaits_end:
                self._add(Partial(arc.target, partial.first, last, nodes), merged)

    def _add(self, partial: Partial, merged: dict[tuple[int, int, int], Partial]) -> None:
        if not self._merges:
            self.partials.append(partial)
            return
        name = (partial.first, partial.state, partial.last if self.search.between is not None else 0)
        same = merged.get(name)
        if same is None:
            merged[name] = partial
            self.partials.append(partial)
        elif partial.nodes is not same.nodes:
            known = {id(node) for node in same.nodes}
            same.nodes = [*same.nodes, *(node for node in partial.nodes if id(node) not in known)]

    def _holds(self, rest: Rest, place: int, partial: Partial) -> bool:
        if partial.rows is None:
            (path,) = paths_to(partial.nodes, self.step_name) if partial.nodes else [()]
            partial.rows = PathRows(path)
        return self.columns.holds_on_path(rest, place, partial.rows)

    # ------------------------------------------------------------ time and results

    def _limit(self, partial: Partial) -> int | None:
        return self.search.deadline(self.times[partial.first], self.times[partial.last])

    def _advance(self, time: int) -> None:
        """Ends the partial matches whose limit is before a time, in order of their limits."""
        while self._has_limit and self.partials:
            if self.search.between is None and (self._limit(self.partials[0]) or 0) >= time:
                return  # they are in the order of their first rows, and so of their limits
            limits = [self._limit(each) or 0 for each in self.partials]
            limit = min(limits)
            if limit >= time:
                return
            due = [each for each, own in zip(self.partials, limits, strict=True) if own == limit]
            self.partials = [each for each, own in zip(self.partials, limits, strict=True) if own != limit]
            self._end(due, limit)
            self._emit()

    def _end(self, due: list[Partial], limit: int) -> None:
        waited = [node for each in due if self.states[each.state].awaits_limit for node in each.nodes]
        self.waiting += [Complete(path, limit, True) for path in paths_to(waited, self.step_name)]
        over = [
            node
            for each in due
            if not self.states[each.state].awaits_limit and self._can_go_on[each.state]
            for node in each.nodes
        ]
        self.found.timed_out += [Complete(path, limit, True) for path in paths_to(over, self.step_name)]

    def _finish(self) -> None:
        """The input has ended."""
        nodes = [node for each in self.partials if self.states[each.state].awaits_end for node in each.nodes]
        self.waiting += [Complete(path, self.times[path[-1][0]]) for path in paths_to(nodes, self.step_name)]
        self.partials = []
        self._emit()

    def _emit(self) -> None:
        """Emits the complete matches that no earlier partial match holds back."""
        if self.skip.to is SkipTo.NONE:
            self.found.matches += self.waiting
            self.waiting = []
            return
        self.waiting.sort(key=lambda match: match.first)
        while self.waiting:
            match = self.waiting[0]
            alive = next((each.first for each in self.partials if self._can_go_on[each.state]), None)
            if alive is not None and alive < match.first:
                return
            self.found.matches.append(match)
            self.found.without_target += lacks_target(match.path, self.skip)
            first = first_after(match.path, self.skip)
            self.waiting = [each for each in self.waiting[1:] if each.first >= first]
            self.partials = [each for each in self.partials if each.first >= first]

    # ------------------------------------------------------------ what rows with certain bits can do

    def _moves_of(self, state: int, mask: int) -> Moves:
        found = self._moves.get((state, mask))
        if found is None:
            found = self._moves[state, mask] = self._made_moves(state, mask)
        return found

    def _made_moves(self, state: int, mask: int) -> Moves:
        stops: list[Rest] = []
        moves: list[Move] = []
        for arc in self.states[state].arcs:
            looked, wanted, rest = self.columns.compiled(arc.test)
            if mask & looked != wanted or arc.kind is Kind.END or (state == 0 and arc.kind is Kind.IGNORE):
                continue
            if arc.kind is Kind.STOP:
                stops.append(rest)
                continue
            ends = [self.columns.compiled(test) for test in self.states[arc.target].ends]
            moves.append(Move(arc, rest, tuple(more for bits, value, more in ends if mask & bits == value)))
        if () in stops:
            return Moves(((),), (), False)
        stays = (
            not stops
            and len(moves) == 1
            and moves[0].arc.kind is Kind.IGNORE
            and moves[0].arc.target == state
            and not moves[0].rest
            and not moves[0].ends
        )
        return Moves(tuple(stops), tuple(moves), stays)

    def _is_inert(self, mask: int) -> bool:
        """Whether a row with these bits changes nothing, wherever partial matches are."""
        found = self._inert.get(mask)
        if found is None:
            states = range(1, len(self.states))
            found = self._inert[mask] = all(
                self._moves_of(state, mask).stays for state in states if self._can_go_on[state]
            )
        return found
