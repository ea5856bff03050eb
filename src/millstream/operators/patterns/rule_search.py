"""Searches the rows of some keys for the matches of all rules that are in force.

Conditions are computed over all rows first, each once however many rules have it. A rule is searched for only where a
row may begin a match and every condition that a match needs holds for some row of the key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from millstream.operators.aggregates.accumulators import ORDER, TIME
from millstream.operators.clock import Clock
from millstream.operators.keyed_rows import NUMBER
from millstream.operators.patterns.columns import Columns, Flags, PathRows, Places, RowColumns
from millstream.operators.patterns.preferred import PreferredMatcher
from millstream.operators.patterns.rule_results import RuleMatch
from millstream.plan.patterns.automaton import Arc, Kind
from millstream.plan.patterns.found import Complete, first_after
from millstream.plan.patterns.rule_text import Rule
from millstream.plan.stored.versions import Version
from millstream.plan.time.bundles import END
from millstream.records import Schema

Ruled = tuple[Version, Rule]


@dataclass(frozen=True, slots=True)
class Record:
    """Of a key and a version: the time and order from which its search goes on, and how many matches it has had."""

    time: int
    order: int
    count: int


@dataclass(frozen=True, slots=True)
class Kept:
    """The rows that are still needed."""

    places: Places
    due: Places
    hold: Places
    is_first_of_key: Flags


class HeldRows:
    """The rows of a step by key, in order of event time, then of arrival."""

    def __init__(self, rows: pl.DataFrame, schema: Schema) -> None:
        self.rows = rows.sort(NUMBER, TIME, ORDER)
        self.schema = schema
        self.numbers: Places = self.rows[NUMBER].to_numpy().astype(np.int64)
        self.times: Places = self.rows[TIME].to_numpy()
        self.orders: Places = self.rows[ORDER].to_numpy()

    @cached_property
    def whole(self) -> View:
        return View(self, None)

    def first_rows(self, numbers: list[int]) -> pl.DataFrame:
        """A row of each of some keys."""
        return self.rows[np.searchsorted(self.numbers, numbers)]


class View:
    """The rows that some rules look at."""

    def __init__(self, held: HeldRows, places: Places | None) -> None:
        self.places: Places = np.arange(len(held.rows)) if places is None else places
        chosen = slice(None) if places is None else places
        self.numbers, self.times, self.orders = held.numbers[chosen], held.times[chosen], held.orders[chosen]
        self.columns = RowColumns(held.schema, held.rows if places is None else held.rows[places], self.numbers)
        self.starts: Places = np.flatnonzero(np.diff(self.numbers, prepend=-1))
        self.stops: Places = np.append(self.starts[1:], len(self.numbers)) if len(self.starts) else self.starts
        self.masks = [0] * len(self.numbers)
        self.may_begin = [False] * len(self.numbers)
        """Set for the key that is searched, and only for as long."""
        """By row, the bits of the conditions of the rule that is searched for; others are of rules before."""
        self._stops: dict[int, Places] = {}
        self._places_with: dict[int, Places] = {}
        self._keys_with: dict[int, Places] = {}
        """By identity of the column of a condition, which the view holds as well."""

    @cached_property
    def times_listed(self) -> list[int]:
        found: list[int] = self.times.tolist()
        return found

    def first_from(self, key: int, record: Record) -> int:
        """The first row of a key from a time and order on."""
        start, stop = int(self.starts[key]), int(self.stops[key])
        place = start + int(np.searchsorted(self.times[start:stop], record.time))
        while place < stop and self.times[place] == record.time and self.orders[place] < record.order:
            place += 1
        return place

    def stops_at(self, time: int) -> Places:
        """By key, the place after its last row up to a time."""
        if time not in self._stops:
            self._stops[time] = self.starts + np.add.reduceat(self.times <= time, self.starts, dtype=np.int64)
        return self._stops[time]

    def places_with(self, held: Flags) -> Places:
        """The rows that satisfy a condition, which several rules may ask for."""
        if id(held) not in self._places_with:
            self._places_with[id(held)] = np.flatnonzero(held)
        return self._places_with[id(held)]

    def keys_of(self, places: Places) -> Places:
        """The keys of some rows, by position, each as often as it has rows."""
        return np.searchsorted(self.starts, places, side="right") - 1

    def keys_with(self, held: Flags) -> Places:
        """The keys that have a row which satisfies a condition."""
        if id(held) not in self._keys_with:
            self._keys_with[id(held)] = np.unique(self.keys_of(self.places_with(held)))
        return self._keys_with[id(held)]


class RuleSearch:
    """One step's search, and what it finds."""

    def __init__(self, held: HeldRows, clock: Clock, history: int, step: str) -> None:
        self.held, self.history, self.step = held, history, step
        self.before, self.watermark = clock.watermark_before, clock.watermark
        self.matches: list[RuleMatch] = []
        self.records: dict[tuple[int, str], Record] = {}
        """By number of a key and version, the records that are new or have changed."""
        self._begins: Flags = np.zeros(len(held.rows), np.bool_)
        self._due: Places = np.full(len(held.rows), END + 1, np.int64)
        self._views: dict[tuple[str | None, int | None], View] = {}
        self._rules: Sequence[Ruled] = ()

    def run(self, rules: Sequence[Ruled], records: Mapping[tuple[int, str], Record]) -> None:
        self._rules = rules
        if not len(self.held.rows):
            return
        live = [
            (version, rule)
            for version, rule in rules
            if version.start <= self.watermark and not version.is_over(self.before)
        ]
        self.held.whole.columns.compute(rule.filter for _, rule in rules if rule.filter is not None)
        views: dict[int, tuple[View, list[Rule]]] = {}
        for version, rule in live:
            view = self._view_of(version, rule)
            views.setdefault(id(view), (view, []))[1].append(rule)
        for view, own in views.values():
            view.columns.prepare(condition for rule in own for condition in rule.search.conditions)
        by_version: dict[str, dict[int, Record]] = {}
        for (number, token), record in records.items():
            by_version.setdefault(token, {})[number] = record
        for version, rule in live:
            _OneRule(self, version, rule, self._view_of(version, rule), by_version.get(version.token, {})).run()

    def _view_of(self, version: Version, rule: Rule) -> View:
        """The rows that pass its filter; to one that looks back, rows from before it sees any are hidden."""
        sees_from = version.sees_from(rule.within, self.history)
        return self._view(rule, sees_from if rule.lookback and sees_from > self.held.times.min() else None)

    def _view(self, rule: Rule, sees_from: int | None) -> View:
        name = (None if rule.filter is None else rule.filter.spark, sees_from)
        if name == (None, None):
            return self.held.whole
        if name not in self._views:
            chosen = np.ones(len(self.held.rows), np.bool_)
            if rule.filter is not None:
                chosen &= self.held.whole.columns.satisfying(rule.filter)
            if sees_from is not None:
                chosen &= self.held.times >= sees_from
            self._views[name] = View(self.held, np.flatnonzero(chosen))
        return self._views[name]

    def hold(self, places: Places, within: int) -> None:
        """Notes rows with which a match may begin that is not decided yet."""
        self._begins[places] = True
        self._due[places] = np.minimum(self._due[places], self.held.times[places] + within + 1)

    # ------------------------------------------------------------ what is kept

    def kept(self) -> Kept:
        """All rows from the first with which a match may begin, those of the history, and those to look back at."""
        times, numbers, watermark = self.held.times, self.held.numbers, self.watermark
        waits = times > watermark
        if watermark >= END or not len(times):
            return self._kept(np.zeros(len(times), np.bool_), waits)
        begun = np.cumsum(self._begins)
        starts = self.held.whole.starts
        before: Places = np.repeat(begun[starts] - self._begins[starts], np.diff(np.append(starts, len(times))))
        keep = waits | (begun > before)
        lasting = [(version, rule) for version, rule in self._rules if not version.is_over(watermark)]
        span = max([self.history, *(rule.within for _, rule in lasting if rule.lookback)])
        if span:
            recent = times >= watermark - span
            keep |= recent
            first = recent & ~waits & (np.diff(numbers, prepend=-1) != 0)
            first |= recent & ~waits & ~np.append(False, recent[:-1])
            self._due[first] = np.minimum(self._due[first], times[first] + span + 1)
        lookbacks: dict[str | None, Ruled] = {}
        for version, rule in lasting:
            name = None if rule.filter is None else rule.filter.spark
            if rule.lookback > (lookbacks[name][1].lookback if name in lookbacks else 0):
                lookbacks[name] = version, rule
        for _, rule in lookbacks.values():
            view = self._view(rule, None)
            if not len(view.times):
                continue
            is_old = view.times < watermark - span
            lengths = view.stops - view.starts
            old = np.repeat(np.add.reduceat(is_old, view.starts, dtype=np.int64), lengths)
            position = np.arange(len(is_old)) - np.repeat(view.starts, lengths)
            keep[view.places[is_old & (position >= old - rule.lookback)]] = True
        return self._kept(keep, waits)

    def _kept(self, keep: Flags, waits: Flags) -> Kept:
        places = np.flatnonzero(keep)
        times = self.held.times[places]
        due = np.where(waits[places], times, self._due[places])
        hold = np.where(self._begins[places], times, END + 1)
        return Kept(places, due, hold, np.diff(self.held.numbers[places], prepend=-1) != 0)


class _OneRule:
    """The search for the matches of one version."""

    def __init__(
        self, search: RuleSearch, version: Version, rule: Rule, view: View, records: Mapping[int, Record]
    ) -> None:
        self.search, self.version, self.rule, self.view = search, version, rule, view
        self.records = dict(records)
        self.until = version.decides_until(search.watermark)
        self.columns = Columns(rule.search, view.columns)
        self.columns.masks = view.masks

    def run(self) -> None:
        search, view, within = self.search, self.view, self.rule.within
        candidates = self._candidates()
        times = view.times[candidates]
        first = max(self.version.sees_from(within, search.history), search.before - within)
        is_open = (times >= first) & (times <= self.until)
        candidates, times = candidates[is_open], times[is_open]
        if not len(candidates):
            return
        self._find(candidates)
        if self.version.is_over(search.watermark):
            return
        held = candidates[times >= search.watermark - within]
        if self.records and len(held):
            keys = view.keys_of(held)
            is_free = [
                (record := self.records.get(int(view.numbers[place]))) is None or place >= view.first_from(key, record)
                for key, place in zip(keys.tolist(), held.tolist(), strict=True)
            ]
            held = held[np.array(is_free, np.bool_)]
        search.hold(view.places[held], within)

    # ------------------------------------------------------------ where a match may begin

    def _candidates(self) -> Places:
        arcs = [arc for arc in self.rule.search.automaton.states[0].arcs if arc.kind is Kind.TAKE]
        if len(arcs) == 1 and len(arcs[0].test) == 1:
            ((number, wanted),) = arcs[0].test
            held = self.view.columns.held(self.rule.search.conditions[number])
            if wanted and held is not None and number not in self.columns.on_path:
                return self.view.places_with(held)
        chosen: Flags = np.zeros(len(self.view.times), np.bool_)
        for arc in arcs:
            chosen |= self._fits(arc)
        found: Places = np.flatnonzero(chosen)
        if any(number in self.columns.on_path for arc in arcs for number, _ in arc.test):
            found = self._on_path(arcs, found)
        return found

    def _fits(self, arc: Arc) -> Flags:
        fits: Flags = np.ones(len(self.view.times), np.bool_)
        for number, wanted in arc.test:
            held = self.view.columns.held(self.rule.search.conditions[number])
            if number in self.columns.on_path and not wanted:
                continue
            if held is not None:
                fits &= held if wanted else ~held
        return fits

    def _on_path(self, arcs: list[Arc], places: Places) -> Places:
        """Those that also satisfy what is asked of the first row of a match."""
        masks = self.columns.bits(places).tolist()
        tests = [self.columns.compiled(arc.test) for arc in arcs]
        found = []
        for place, mask in zip(places.tolist(), masks, strict=True):
            self.view.masks[place] = mask
            nothing = PathRows(())
            if any(
                mask & looked == wanted and self.columns.holds_on_path(rest, place, nothing)
                for looked, wanted, rest in tests
            ):
                found.append(place)
        return np.array(found, np.int64)

    # ------------------------------------------------------------ matches

    def _find(self, candidates: Places) -> None:
        """Searches the keys in which a match may begin and every needed condition holds for some row."""
        view = self.view
        keys, at = np.unique(view.keys_of(candidates), return_index=True)
        for number in self.rule.needed_conditions:
            held = view.columns.held(self.rule.search.conditions[number])
            if held is not None:
                is_possible = np.isin(keys, view.keys_with(held), assume_unique=True)
                keys, at = keys[is_possible], at[is_possible]
        if not len(keys):
            return
        firsts, stops = candidates[at], view.stops_at(self.until)[keys]
        lengths = stops - firsts
        offsets = np.cumsum(lengths) - lengths
        masks = self.columns.bits(np.repeat(firsts - offsets, lengths) + np.arange(int(lengths.sum())))
        needed = sum(1 << number for number in self.rule.needed_conditions)
        possible = (np.bitwise_or.reduceat(masks, offsets) & needed) == needed
        matcher: PreferredMatcher | None = None
        for number in np.flatnonzero(possible).tolist():
            start, stop, offset = int(firsts[number]), int(stops[number]), int(offsets[number])
            view.masks[start:stop] = masks[offset : offset + stop - start].tolist()
            if matcher is None:
                matcher = PreferredMatcher(self.rule.search, self.rule.skip, self.columns, view.times_listed, after=0)
            begins = candidates[slice(*np.searchsorted(candidates, (start, stop)))].tolist()
            for place in begins:
                view.may_begin[place] = True
            self._find_in_key(matcher, int(keys[number]), start, stop)
            for place in begins:
                view.may_begin[place] = False

    def _find_in_key(self, matcher: PreferredMatcher, key: int, start: int, stop: int) -> None:
        view, version = self.view, self.version
        number = int(view.numbers[start])
        record = self.records.get(number)
        if record is not None:
            start = max(start, view.first_from(key, record))
        count = 0 if record is None else record.count
        if version.start > self.search.before and start < stop and view.times[start] < version.start:
            earlier = int(view.stops_at(version.start - 1)[key])  # decided before it was in force: not emitted
            for match in matcher.run(start, start, earlier, view.may_begin, 0, version.start - 1).matches:
                start = self._after(number, match, count)
        if start >= stop:
            return
        for match in matcher.run(start, start, stop, view.may_begin, 0, self.until).matches:
            count += 1
            path = tuple((int(view.places[place]), variable, out) for place, variable, out in match.path)
            self.search.matches.append(RuleMatch(version, Complete(path, match.end, match.at_limit), count))
            self._after(number, match, count)

    def _after(self, number: int, match: Complete, count: int) -> int:
        """Notes where the search goes on after a match."""
        place = max(first_after(match.path, self.rule.skip), match.first + 1)
        last = place - 1
        record = Record(int(self.view.times[last]), int(self.view.orders[last]) + 1, count)
        self.records[number] = self.search.records[number, self.version.token] = record
        return place
