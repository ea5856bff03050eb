"""Which rows of a bundle fire their windows if each row is its own bundle, without evaluating row by row.

As long as neither the watermark nor the clock moves, a trigger only sees that a row arrived. So its state determines
how many rows its next pane takes, and the state after that pane. Few states are reachable: they are followed until they
repeat, once for all windows in the same state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from millstream.operators.windows.triggers import MANY, TriggerColumns

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]
State = tuple[Any, ...]
FEW = 100
AT_END, NEEDS, FINISHES = "__at_end", "__needs", "__finishes"


@dataclass(frozen=True, slots=True)
class Fired:
    """For each window: how many panes it emits, how many rows it takes, whether it is then closed, and its trigger."""

    panes: Numbers
    sends: np.ndarray[tuple[int], np.dtype[np.bool_]]
    """Whether a row fires, for all rows of all windows."""
    taken: Numbers
    waiting: Numbers
    """How many of the rows taken arrived after the last pane."""
    closed: np.ndarray[tuple[int], np.dtype[np.bool_]]
    trigger: pl.DataFrame

    def of(self, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]], counts: Numbers) -> Fired:
        """For some of the windows, all of which have so many rows."""
        if chosen.all():
            return self
        return Fired(
            panes=self.panes[chosen],
            sends=self.sends[np.repeat(chosen, counts)],
            taken=self.taken[chosen],
            waiting=self.waiting[chosen],
            closed=self.closed[chosen],
            trigger=self.trigger.filter(chosen),
        )


class _Path(NamedTuple):
    """The panes of a window: after how many rows each fires, and the states before, between and after them."""

    places: Numbers
    states: list[int]
    cycle: int | None
    """The number of panes after which the states repeat."""
    closes: bool

    def sends_always(self, rows: int) -> bool:
        """Whether every one of so many rows fires."""
        return not self.closes and len(self.places) >= rows and int(self.places[rows - 1]) == rows

    def after(self, panes: Numbers) -> Numbers:
        """The state after so many panes."""
        if self.cycle is not None:
            length = len(self.states) - self.cycle
            panes = np.where(panes < len(self.states), panes, self.cycle + (panes - self.cycle) % length)
        return np.asarray(self.states)[panes]


def fired(trigger: TriggerColumns, windows: pl.DataFrame, counts: Numbers, clock: int) -> Fired:
    """The effect of so many rows on each of these windows, which have a trigger's columns and `__at_end`."""
    columns = [*trigger.schema(), AT_END]
    graph = _Graph(trigger, windows.select(columns), int(counts.max(initial=0)), clock)
    offsets = np.cumsum(counts) - counts
    panes, taken = np.zeros(len(counts), np.int64), counts.copy()
    waiting, last = counts.copy(), graph.starts.copy()
    closed = np.zeros(len(counts), np.bool_)
    sends = np.zeros(int(counts.sum()), np.bool_)
    for start, members in _alike(graph.starts):
        most = int(counts[members].max())
        path = graph.path(start, most)
        sent = np.searchsorted(path.places, counts[members], side="right")
        panes[members] = sent
        last[members] = path.after(sent)
        done = np.concatenate([[0], path.places])[sent]
        waiting[members] = counts[members] - done
        if path.closes:
            closes = sent == len(path.places)
            closed[members] = closes
            taken[members] = np.where(closes, done, counts[members])
            waiting[members] = np.where(closes, 0, waiting[members])
        if path.sends_always(most) and len(members) == len(counts):
            sends[:] = True
        elif len(members) * FEW < most:  # few windows with many rows: each is the beginning of the longest
            longest = np.zeros(most, np.bool_)
            longest[path.places[path.places <= most] - 1] = True
            for window in members:
                sends[offsets[window] : offsets[window] + counts[window]] = longest[: counts[window]]
        else:
            sends[path.places[ranges(sent)] - 1 + np.repeat(offsets[members], sent)] = True
    after = graph.nodes[last].with_columns(pl.Series(NEEDS, waiting))
    after = after.with_columns([made.alias(name) for name, made in trigger.add(pl.col(NEEDS), clock).items()])
    return Fired(panes, sends, taken, waiting, closed, after.select(list(trigger.schema())))


class _Moves:
    """What the next pane does to states: how many rows it takes, whether the trigger finishes, and the states after it.

    States are plain tuples: there are few of them, and polars takes longer to start than to compute so little.
    """

    def __init__(self, trigger: TriggerColumns, schema: pl.Schema, clock: int) -> None:
        at_end = pl.col(AT_END)
        changed, finishes = trigger.fire(at_end, clock)
        self._schema = schema
        self._steps = [
            [trigger.rows_needed(at_end, clock).cast(pl.Int64).alias(NEEDS)],
            [made.alias(name) for name, made in trigger.add(pl.col(NEEDS), clock).items()],
            [made.alias(name) for name, made in changed.items()]
            + [(finishes & (pl.col(NEEDS) < MANY)).alias(FINISHES)],
        ]

    def of(self, states: list[State]) -> Iterator[tuple[int, bool, State]]:
        frame = pl.DataFrame(states, schema=self._schema, orient="row").lazy()
        for step in self._steps:
            frame = frame.with_columns(step)
        moved = frame.select(NEEDS, FINISHES, *self._schema).collect(optimizations=pl.QueryOptFlags.none())
        for needs, finishes, *after in moved.iter_rows():
            yield needs, finishes, tuple(after)


class _Graph:
    """The states that windows can reach with at most so many rows, and the transitions between them."""

    def __init__(self, trigger: TriggerColumns, windows: pl.DataFrame, rows: int, clock: int) -> None:
        alike = windows.with_row_index("__window").group_by(windows.columns, maintain_order=True).agg("__window")
        self.starts: Numbers = np.zeros(len(windows), np.int64)
        members = alike["__window"].explode(empty_as_null=False).to_numpy()
        self.starts[members] = np.repeat(np.arange(len(alike)), alike["__window"].list.len().to_numpy())
        self.needs: list[int] = []
        self.finishes: list[bool] = []
        self.next: list[int] = []
        self._schema = windows.schema
        self._states: list[State] = alike.select(windows.columns).rows()
        self._grow(_Moves(trigger, windows.schema, clock), rows)

    @property
    def nodes(self) -> pl.DataFrame:
        return pl.DataFrame(self._states, schema=self._schema, orient="row")

    def _grow(self, moves: _Moves, rows: int) -> None:
        """Follows the states together, pane by pane, as far as so many rows go."""
        states, after = self._states, list[State]()
        numbers = {state: number for number, state in enumerate(states)}
        reach = [0] * len(states)  # the fewest rows after which a state is reached
        frontier = list(range(len(states)))
        while frontier:
            for needs, finishes, state in moves.of(states[len(after) :]) if len(after) < len(states) else ():
                self.needs.append(needs)
                self.finishes.append(finishes)
                self.next.append(-1)
                after.append(state)
            reached = []
            for node in frontier:
                arrives = reach[node] + self.needs[node]
                if self.finishes[node] or arrives > rows:
                    continue
                following = self.next[node] = numbers.setdefault(after[node], len(states))
                if following == len(states):
                    states.append(after[node])
                    reach.append(arrives)
                elif arrives >= reach[following]:
                    continue
                reach[following] = arrives
                reached.append(following)
            frontier = reached

    def path(self, start: int, rows: int) -> _Path:
        places: list[int] = []
        states, seen, node, total = [start], {start: 0}, start, 0
        while (total := total + self.needs[node]) <= rows:
            places.append(total)
            if self.finishes[node]:
                return _Path(np.array(places, np.int64), [*states, node], None, closes=True)
            node = self.next[node]
            if node in seen:
                return self._repeated(places, states, seen[node], rows)
            seen[node] = len(states)
            states.append(node)
        return _Path(np.array(places, np.int64), states, None, closes=False)

    @staticmethod
    def _repeated(places: list[int], states: list[int], first: int, rows: int) -> _Path:
        """Everything repeats from the state after this many panes."""
        found = np.array(places, np.int64)
        before, cycle = found[:first], found[first:]
        begins = int(before[-1]) if first else 0
        length = int(cycle[-1]) - begins
        times = max(1, -(-(rows - begins) // length))
        tiled = (cycle[None, :] + (np.arange(times) * length)[:, None]).reshape(-1)
        return _Path(np.concatenate([before, tiled]), states, first, closes=False)


def _alike(starts: Numbers) -> Iterator[tuple[int, Numbers]]:
    """Groups windows by initial state, in order."""
    order = np.argsort(starts, kind="stable")
    edges = np.flatnonzero(np.diff(starts[order])) + 1
    for members in np.split(order, edges):
        if len(members):
            yield int(starts[members[0]]), members


def ranges(lengths: Numbers) -> Numbers:
    """0, 1, 2 … for each length, concatenated."""
    return np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
