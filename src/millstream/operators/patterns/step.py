"""The step that finds matches. Its state is rows: those that wait, and those from which a match may still be made.

A step searches the rows of a key again from the first that may begin a match; what it found in earlier steps is not
emitted again. A row remembers whether a match may begin with it: matches that were emitted may have ruled it out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from millstream.operators import elementwise, lateness
from millstream.operators.aggregates.accumulators import ORDER, ROW, TIME
from millstream.operators.clock import Clock, Frames
from millstream.operators.event_order import late_rows
from millstream.operators.keyed_rows import NUMBER, numbered
from millstream.operators.ordering import in_order
from millstream.operators.patterns.beginnings import Beginnings, Masks
from millstream.operators.patterns.columns import Columns, Flags, Places, RowColumns
from millstream.operators.patterns.every import EveryMatcher
from millstream.operators.patterns.found import Found
from millstream.operators.patterns.preferred import PreferredMatcher
from millstream.operators.patterns.results import Listed, Results
from millstream.operators.patterns.runs import LEFT, OPEN, Moves, Runs
from millstream.operators.process import ALL_ROWS
from millstream.operators.stateful import INPUTS, LATE, NOTE, NOTES, SENT, TIMED_OUT, PlainStep
from millstream.plan.patterns.found import Complete
from millstream.plan.patterns.node import Match, Matches, SkipTo, timed_out_schema
from millstream.plan.time.bundles import END
from millstream.state.tables import Marks

ROWS = "rows"
INT64_BITS = 63
DONE, BEGINS, FIRST_ROW, DUE, HOLD, COUNT = "done", "begins", "first", "due", "hold", "count"
"""Whether a row was searched, whether a match may begin with it, whether it is the first of its key; when its key is to
be searched again; the earliest event time still to be emitted; and, in a row without a time, how many matches its key
has had."""


@dataclass(slots=True)
class Searched:
    """The rows of some keys, sorted, and what was found in them."""

    rows: pl.DataFrame
    starts: list[int]
    """By key, the place of its first row, and at the end their number."""
    numbers: list[int]
    """By key, its number."""
    found: dict[int, Found]
    """By position of the key."""
    ends: Places
    """By key, the place behind the last row that was searched."""
    runs: Runs | None = None


class MatchStep(PlainStep):
    def __init__(self, node: Match) -> None:
        self.node = node
        self.keys = [f"key.{name}" for name in node.keys] or [ALL_ROWS]
        self.nothing = {INPUTS[0]: self.fed(elementwise.frame_of([], node.inputs[0]), 0)}
        self.results = Results(node, timed_out_schema(node))
        self.beginnings = Beginnings(node.search)
        self.is_anchored = node.is_anchored

    def _matcher(self, columns: Columns, times: list[int]) -> EveryMatcher | PreferredMatcher:
        node = self.node
        if node.matches is Matches.EVERY:
            return EveryMatcher(node.search, node.skip, columns, times, f"step '{node.name}'")
        return PreferredMatcher(node.search, node.skip, columns, times, node.after)

    def tables(self) -> Frames:
        return {ROWS: _noted(self.nothing[INPUTS[0]])}

    def fed(self, rows: pl.DataFrame, first: int, side: int = 0) -> pl.DataFrame:
        """The whole row, its keys, its time, and its position in order of arrival."""
        order = pl.int_range(first, first + len(rows), eager=True, dtype=pl.Int64).alias(ORDER)
        keys = [rows[name].alias(f"key.{name}") for name in self.node.keys] or [(order >= 0).alias(ALL_ROWS)]
        return pl.DataFrame([rows.select(self.node.inputs[0].schema.names).to_struct(ROW), *keys, rows[TIME], order])

    def asked(self, inputs: Frames) -> Frames:
        return {ROWS: inputs[INPUTS[0]]}

    def marks(self, clock: Clock) -> dict[str, Marks]:
        hold = None if self.node.early else pl.col(HOLD)
        return {ROWS: Marks(pl.col(DUE), pl.lit(None, pl.Int64), hold)}

    # ------------------------------------------------------------ one step

    def step(self, held: Frames, inputs: Frames, clock: Clock) -> tuple[Frames, Frames]:
        new = inputs[INPUTS[0]]
        in_time = new.select(lateness.is_in_time(clock)).to_series()
        late = new.filter(~in_time)
        new = _noted(new.filter(in_time) if len(late) else new)
        kept = held[ROWS].select(new.columns)
        records, rows, new = numbered(
            self.keys, kept.filter(pl.col(TIME).is_null()), kept.filter(pl.col(TIME).is_not_null()), new
        )
        is_active = self._active(rows, new, clock)
        after = pl.concat([rows, new])
        before, after, asleep = _of(rows, is_active), _of(after, is_active), _of(after, ~is_active)
        counts = dict(zip(records[NUMBER].to_list(), records[COUNT].to_list(), strict=True))
        searched = self._searched(after, counts, clock, clock.watermark)
        sent = self._early(before, after, searched, counts, clock) if self.node.early else self._sent(searched, counts)
        over = self._timed_out(searched)
        for at, found in searched.found.items():
            number = searched.numbers[at]
            counts[number] = counts.get(number, 0) + found.count
        state = [self._records(records, searched, counts), self._kept(searched, clock)]
        waiting = pl.when(pl.col(DONE)).then(DUE).otherwise(pl.coalesce(DUE, TIME)).alias(DUE)
        changes = pl.concat([*state, asleep.with_columns(waiting)]).drop(NUMBER)
        notes = pl.DataFrame({NOTE: self._notes(searched)}, schema={NOTE: pl.String})
        return {ROWS: changes}, {SENT: sent, LATE: late_rows(late), TIMED_OUT: over, NOTES: notes}

    def _active(self, rows: pl.DataFrame, new: pl.DataFrame, clock: Clock) -> Flags:
        """By number of a key, whether it has something to do."""
        ready = ~pl.col(DONE) & (pl.coalesce(DUE, TIME) <= clock.watermark)
        due = pl.col(DONE) & (pl.col(DUE) <= clock.watermark)
        wanted = pl.lit(True) if self.node.early or clock.watermark >= END else ready
        numbers = [rows.filter(wanted | ready | due.fill_null(False))[NUMBER], new.filter(wanted)[NUMBER]]
        all_numbers = [each[NUMBER].to_numpy() for each in (rows, new)]
        active: Flags = np.zeros(int(np.concatenate(all_numbers).max(initial=0)) + 1, np.bool_)
        active[pl.concat(numbers).to_numpy()] = True
        return active

    def _searched(self, rows: pl.DataFrame, counts: dict[int, int], clock: Clock, until: int) -> Searched:
        """Searches the rows of some keys, those up to a time. Rows that wait stay behind the others of their key."""
        rows = _in_order(rows)
        numbers = rows[NUMBER].to_numpy().astype(np.int64)
        starts = np.flatnonzero(np.diff(numbers, prepend=-1)) if len(rows) else np.zeros(0, np.int64)
        rows = self._with_first(rows, numbers, starts, counts)
        searched = (rows[TIME] <= until).to_numpy()
        done = rows[DONE].to_numpy()
        given = RowColumns(self.node.inputs[0].schema, rows, numbers)
        given.prepare(self.node.search.conditions)
        columns = Columns(self.node.search, given)
        masks = columns.bits(slice(None), rows[FIRST_ROW].to_numpy())
        columns.masks = masks.tolist()
        bounds = [*starts.tolist(), len(rows)]
        if not len(rows):
            return Searched(rows, bounds, [], {}, starts)
        ends = np.add.reduceat(searched, starts) + starts
        if self.node.search.lookahead and until < END:
            ends = given.decided(self.node.search.conditions, starts, ends)
            searched = np.arange(len(rows)) < np.repeat(ends, np.diff(bounds))
        made = Searched(rows, bounds, numbers[starts].tolist(), {}, ends)
        times = rows[TIME].to_list()
        matcher = self._matcher(columns, times)
        bits = Masks.of(masks)
        can_begin = np.array([matcher.can_begin(mask) for mask in bits.distinct], np.bool_)[bits.codes]
        candidates = np.flatnonzero(np.where(done, rows[BEGINS].to_numpy(), searched & can_begin))
        keys = np.searchsorted(starts, candidates, side="right") - 1
        if isinstance(matcher, PreferredMatcher):
            may_begin, made.runs = self._may_begin(
                matcher, candidates, columns, bits, rows[TIME].to_numpy(), ends[keys], clock.watermark
            )
            candidates, keys = candidates[may_begin], keys[may_begin]
        begins = np.zeros(len(rows), np.bool_)
        begins[candidates] = True
        listed, dones = begins.tolist(), np.add.reduceat(done, starts) + starts
        firsts = np.flatnonzero(np.diff(keys, prepend=-1))
        keys = keys[firsts]
        for at, start in zip(keys.tolist(), candidates[firsts].tolist(), strict=True):
            done_to, end = max(int(dones[at]), start), int(ends[at])
            # Where rows wait for those after them, time stands still for their key.
            before, now = clock.watermark_before, clock.watermark
            if done_to < bounds[at + 1]:
                before = min(before, times[done_to])
            if end < bounds[at + 1]:
                now = min(now, times[end])
            made.found[at] = matcher.run(start, done_to, end, listed, before, now)
        return made

    def _may_begin(
        self,
        matcher: PreferredMatcher,
        firsts: Places,
        columns: Columns,
        masks: Masks,
        times: Places,
        ends: Places,
        watermark: int,
    ) -> tuple[Flags, Runs | None]:
        """With which rows a match may begin. Of most of them the matcher then knows the match, too."""
        search = self.node.search
        moves = None
        if self.node.skip.to is SkipTo.PAST_LAST and search.between is None and not search.lookahead:
            moves = Moves.of(search.automaton.states, masks.distinct, matcher.fitting)
        if moves is None:
            return self.beginnings.among(firsts, columns, masks, times, ends), None
        runs = Runs(moves, masks, times, search.within)
        lasts = runs.lasts(firsts, ends, watermark)
        is_known: Flags = (lasts >= 0) | (lasts == OPEN)
        matcher.know(runs, dict(zip(firsts[is_known].tolist(), lasts[is_known].tolist(), strict=True)))
        left = np.flatnonzero(lasts == LEFT)
        is_known[left] = self.beginnings.among(firsts[left], columns, masks, times, ends[left])
        return is_known, runs

    def _with_first(self, rows: pl.DataFrame, numbers: Places, starts: Places, counts: dict[int, int]) -> pl.DataFrame:
        if not self.is_anchored or not len(rows):
            return rows
        is_first = rows[FIRST_ROW].to_numpy().copy()
        done = rows[DONE].to_numpy()
        for start in starts.tolist():
            is_first[start] |= int(numbers[start]) not in counts and not done[start]
        return rows.with_columns(pl.Series(FIRST_ROW, is_first))

    # ------------------------------------------------------------ results

    def _in_order(self, searched: Searched, wanted: Callable[[Found], bool]) -> list[int]:
        """The keys with results, in order."""
        found = [at for at, each in searched.found.items() if wanted(each)]
        firsts = searched.rows[[searched.starts[at] for at in found]] if found else searched.rows.clear()
        sorted_keys = firsts.select(self.keys).with_columns(pl.Series("__at", found, pl.Int64))
        order: list[int] = sorted_keys.sort(self.keys, nulls_last=False)["__at"].to_list()
        return order

    def _listed(self, searched: Searched, counts: dict[int, int]) -> tuple[Listed, list[int]]:
        """The matches of all keys, in order, and for each the number of its key."""
        listed, keys = Listed([], [], searched.runs), []
        for at in self._in_order(searched, lambda found: bool(found.count)):
            found, number = searched.found[at], searched.numbers[at]
            before = counts.get(number, 0)
            listed.matches.extend(found.in_order())
            listed.numbers.extend(range(before + 1, before + found.count + 1))
            keys += [number] * found.count
        return listed, keys

    def _sent(self, searched: Searched, counts: dict[int, int]) -> pl.DataFrame:
        return self.results.sent(self._listed(searched, counts)[0], searched.rows)

    def _timed_out(self, searched: Searched) -> pl.DataFrame:
        order = self._in_order(searched, lambda found: bool(found.timed_out))
        over: list[Complete | int] = [each for at in order for each in searched.found[at].timed_out]
        return self.results.timed_out(Listed(over, [None] * len(over)), searched.rows)

    def _early(
        self, before: pl.DataFrame, after: pl.DataFrame, final: Searched, counts: dict[int, int], clock: Clock
    ) -> pl.DataFrame:
        """What has changed among the matches of all rows, also of those that the watermark has not reached."""
        past = Clock(clock.watermark_before, clock.watermark_before, clock.now_before, clock.now)
        views = [
            self._searched(before, counts, past, END),
            self._searched(after, counts, clock, END),
        ]
        listed, places = [], []
        for view, watermark in zip(views, (clock.watermark_before, clock.watermark), strict=True):
            for each in view.found.values():
                each.matches = [match for match in each.matches if not match.at_limit or match.end < watermark]
            matches, keys = self._listed(view, counts)
            listed.append(matches)
            places.append({name: at for at, name in enumerate(self._identities(matches, keys, view.rows))})
        gone = listed[0].some(at for name, at in places[0].items() if name not in places[1])
        come = listed[1].some(at for name, at in places[1].items() if name not in places[0])
        return pl.concat([self.results.sent(gone, views[0].rows, -1), self.results.sent(come, views[1].rows)])

    @staticmethod
    def _identities(listed: Listed, keys: list[int], rows: pl.DataFrame) -> list[Any]:
        orders, ends = rows[ORDER].to_list(), listed.ends(rows)
        paths = [tuple((orders[place], variable) for place, variable, _ in path) for path in listed.paths()]
        return list(zip(keys, listed.numbers, ends.tolist(), paths, strict=True))

    def _notes(self, searched: Searched) -> list[str]:
        """What the owner of the job should know. An error would come back with every restart."""
        if not any(found.without_target for found in searched.found.values()):
            return []
        names = " or ".join(f"'{name}'" for name in self.node.skip.variables)
        return [
            f"matches of the step '{self.node.name}' have no row of {names} to skip to, so the search goes on after "
            "their first row. Skip to a variable that every match has, or use skip='to next'"
        ]

    # ------------------------------------------------------------ state

    def _records(self, records: pl.DataFrame, searched: Searched, counts: dict[int, int]) -> pl.DataFrame:
        """One row without a time for each key that has had matches."""
        known = (
            records.with_columns(pl.col(NUMBER).replace_strict(counts, return_dtype=pl.Int64).alias(COUNT))
            if len(records)
            else records
        )
        fresh = set(records[NUMBER].to_list())
        new = [
            at
            for at, number in enumerate(searched.numbers)
            if number not in fresh and (self.is_anchored or counts.get(number, 0))
        ]
        if not new:
            return known
        rows = searched.rows[[searched.starts[at] for at in new]]
        empty = [pl.lit(None, rows.schema[name]).alias(name) for name in (ROW, TIME, ORDER, DUE, HOLD)]
        made = rows.with_columns(
            *empty,
            pl.lit(True).alias(DONE),
            pl.lit(False).alias(BEGINS),
            pl.lit(False).alias(FIRST_ROW),
            pl.Series(COUNT, [counts.get(searched.numbers[at], 0) for at in new], pl.Int64),
        )
        return pl.concat([known, made])

    def _kept(self, searched: Searched, clock: Clock) -> pl.DataFrame:
        """The rows that are still needed: those that wait, those of partial matches, and those to look back at."""
        rows, times = searched.rows, searched.rows[TIME].to_numpy()
        done = np.arange(len(rows)) < np.repeat(searched.ends, np.diff(searched.starts))
        keep = ~done
        begins = np.zeros(len(rows), np.bool_)
        waits = ~done & (times <= clock.watermark)
        due = np.where(done, END + 1, np.where(waits, END, times))
        hold = np.where(waits, times, END + 1)
        lookback = self.node.lookback
        if clock.watermark < END and len(rows):
            starts = searched.starts[:-1]
            ends = searched.ends.tolist()
            for at, found in searched.found.items():
                if found.firsts:
                    first = min(found.firsts)
                    keep[max(first - lookback, starts[at]) : ends[at]] = True
                    begins[list(found.firsts)] = True
                    awaits_row = ends[at] < len(rows) and waits[ends[at]] and ends[at] < searched.starts[at + 1]
                    due[first] = END if awaits_row else END + 1 if found.due is None else found.due
                    hold[first] = END + 1 if found.hold is None else found.hold
            if lookback:
                for start, end in zip(starts, ends, strict=True):
                    keep[max(start, end - lookback) : end] = True
        noted = rows.with_columns(
            pl.Series(DONE, done),
            pl.Series(BEGINS, begins),
            pl.Series(DUE, due).replace(END + 1, None),
            pl.Series(HOLD, hold).replace(END + 1, None),
        )
        return noted.filter(pl.Series(keep))


def _of(rows: pl.DataFrame, chosen: Flags) -> pl.DataFrame:
    """The rows of some keys."""
    return rows.filter(pl.Series(chosen[rows[NUMBER].to_numpy()]))


def _in_order(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows by key, then by event time, then in order of arrival."""
    if not len(rows):
        return rows
    numbers, times = rows[NUMBER].to_numpy().astype(np.int64), rows[TIME].to_numpy()
    first = times.min()
    bits = int(times.max() - first).bit_length()
    if bits + int(numbers.max()).bit_length() < INT64_BITS:  # sorting by one number takes a fifth of the time
        both = numbers << bits | times - first
        order = in_order(numbers)  # often the rows of a key are in order of time already
        if not _is_ascending(both[order]):
            order = np.argsort(both)
        if _is_ascending(both[order]):
            return rows[order]
    return rows.sort(NUMBER, TIME, ORDER)


def _is_ascending(numbers: Places) -> bool:
    return bool((numbers[1:] > numbers[:-1]).all())


def _noted(rows: pl.DataFrame) -> pl.DataFrame:
    """New rows with the columns of the state."""
    return rows.with_columns(
        pl.lit(False).alias(DONE),
        pl.lit(False).alias(BEGINS),
        pl.lit(False).alias(FIRST_ROW),
        pl.lit(None, pl.Int64).alias(DUE),
        pl.lit(None, pl.Int64).alias(HOLD),
        pl.lit(None, pl.Int64).alias(COUNT),
    )
