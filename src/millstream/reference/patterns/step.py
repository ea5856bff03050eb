"""The step that finds matches: rows of each key in order of event time, each offered to a matcher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millstream.plan.patterns.found import Complete
from millstream.plan.patterns.node import (
    CLASSIFIER,
    IS_EXCLUDED,
    MATCH,
    MATCH_END,
    MATCH_START,
    PATH,
    ROW,
    VARIABLE,
    Match,
    Matches,
    Rows,
    last_variable,
)
from millstream.plan.time.bundles import END, Bundle, Row, moment
from millstream.reference.event_order import EventOrder, in_time, time_of
from millstream.reference.operator import StatefulOperator
from millstream.reference.patterns.conditions import Conditions
from millstream.reference.patterns.every import EveryMatcher
from millstream.reference.patterns.preferred import PreferredMatcher
from millstream.reference.windows import sort_key

MatcherOfKey = EveryMatcher | PreferredMatcher


class MatchOperator(StatefulOperator):
    node: Match

    def __init__(self, node: Match) -> None:
        super().__init__(node)
        self.order = EventOrder()
        self.matchers: dict[tuple[Any, ...], MatcherOfKey] = {}
        self.taken: dict[tuple[Any, ...], int] = {}
        """By key, how many rows the matcher has seen."""
        self.emitted: dict[tuple[Any, ...], int] = {}
        self.valid: dict[tuple[Any, ...], list[list[Row]]] = {}
        """For early matches: the rows of each match that is valid now."""
        self.all_rows: dict[tuple[Any, ...], list[Row]] = {}
        self.timed_out: list[Row] = []

    def run(self, given: Sequence[list[Row]], clock: Bundle) -> list[Row]:
        self.late = self.order.take(clock)
        sent = self._matched(clock)
        return self._changed(clock) if self.node.early else sent

    def _matched(self, clock: Bundle) -> list[Row]:
        """What the rows that the watermark has reached decide: the matches, and the partial ones that are over."""
        for row in self.order.ready(clock.watermark):
            self._matcher(self._key(row)).conditions.rows.append(row)
        sent, self.timed_out = [], []
        for key in sorted(self.matchers, key=sort_key):
            matcher = self.matchers[key]
            reached = matcher.conditions.reach(clock.watermark)
            for place in range(self.taken.get(key, 0), matcher.conditions.count):
                matcher.take(place)
            self.taken[key] = matcher.conditions.count
            matcher.advance(reached)
            if clock.watermark >= END:
                matcher.finish()
            for match in matcher.matches:
                self.emitted[key] = self.emitted.get(key, 0) + 1
                sent += self._rows(key, match, self.emitted[key], matcher.conditions)
            self.timed_out += [self._row(key, over, None, matcher.conditions) for over in matcher.timed_out]
            matcher.matches, matcher.timed_out = [], []
        return sent

    def _changed(self, clock: Bundle) -> list[Row]:
        """For early matches, all rows so far are matched from the beginning; what has changed is emitted."""
        for row in in_time(clock):
            self.all_rows.setdefault(self._key(row), []).append(row)
        gone: list[Row] = []
        come: list[Row] = []
        for key in sorted(self.all_rows, key=sort_key):
            self.all_rows[key].sort(key=time_of)
            matcher = self._new_matcher()
            for place, row in enumerate(self.all_rows[key]):
                matcher.conditions.rows.append(row)
                matcher.take(place)
            matcher.advance(clock.watermark)
            if clock.watermark >= END:
                matcher.finish()
            certain = [match for match in matcher.matches if not match.at_limit or match.end < clock.watermark]
            now = [self._rows(key, match, number, matcher.conditions) for number, match in enumerate(certain, 1)]
            before = self.valid.get(key, [])
            gone += [Row(row.values, row.time, -1) for rows in before if rows not in now for row in rows]
            come += [row for rows in now if rows not in before for row in rows]
            self.valid[key] = now
        return gone + come

    def hold(self) -> int:
        if self.node.early:  # what was emitted early may be retracted at any time
            return END
        return min((_hold(matcher) for matcher in self.matchers.values()), default=END)

    def _key(self, row: Row) -> tuple[Any, ...]:
        return tuple(row.values[name] for name in self.node.keys)

    def _matcher(self, key: tuple[Any, ...]) -> MatcherOfKey:
        if key not in self.matchers:
            self.matchers[key] = self._new_matcher()
        return self.matchers[key]

    def _new_matcher(self) -> MatcherOfKey:
        conditions = Conditions(self.node.search, self.node.inputs[0].schema)
        if self.node.matches is Matches.EVERY:
            return EveryMatcher(self.node.search, self.node.skip, conditions)
        return PreferredMatcher(self.node.search, self.node.skip, conditions, self.node.after)

    # ------------------------------------------------------------ results

    def _rows(self, key: tuple[Any, ...], match: Complete, number: int, conditions: Conditions) -> list[Row]:
        if self.node.rows is not Rows.ALL:
            return [self._row(key, match, number, conditions)]
        added = {MATCH: number, **self._times(match, conditions)}
        return [
            Row({**conditions.rows[place].values, **added, VARIABLE: variable}, match.end)
            for place, variable, is_excluded in match.path
            if not is_excluded
        ]

    def _row(self, key: tuple[Any, ...], match: Complete, number: int | None, conditions: Conditions) -> Row:
        values = dict(zip(self.node.keys, key, strict=True))
        numbered = {} if number is None else {MATCH: number}
        if self.node.rows in (Rows.LIST, Rows.MEASURES):
            path = [
                {VARIABLE: variable, IS_EXCLUDED: is_excluded, ROW: conditions.rows[place].values}
                for place, variable, is_excluded in self._with_neighbours(match, number, len(conditions.rows))
            ]
            if self.node.rows is Rows.MEASURES and number is not None:
                return Row({**values, **numbered, **self._measures(path)}, match.end)
            return Row({**values, **numbered, **self._times(match, conditions), PATH: path}, match.end)
        lists = {
            name: [conditions.rows[place].values for place, variable, _ in match.path if variable == name]
            for name in self.node.search.variables
        }
        return Row({**values, **numbered, **self._times(match, conditions), **lists}, match.end)

    def _measures(self, path: Sequence[dict[str, Any]]) -> dict[str, Any]:
        variables, rows = [step[VARIABLE] for step in path], [step[ROW] for step in path]
        measured = {each.reference.column: each.value(variables, rows, len(path)) for each in self.node.measures}
        return {CLASSIFIER: last_variable(variables), **measured}

    def _with_neighbours(
        self, match: Complete, number: int | None, count: int
    ) -> Sequence[tuple[int, str | None, bool]]:
        """The rows of a match, and those around it that its measures may look at: they play no variable."""
        first, last = match.path[0][0], match.path[-1][0]
        before = range(max(first - self.node.before, 0), first)
        after = range(last + 1, min(last + 1 + self.node.after, count)) if number is not None else ()
        return [
            *((place, None, True) for place in before),
            *match.path,
            *((place, None, True) for place in after),
        ]

    def _times(self, match: Complete, conditions: Conditions) -> dict[str, Any]:
        return {MATCH_START: moment(time_of(conditions.rows[match.first])), MATCH_END: moment(match.end)}


def _hold(matcher: MatcherOfKey) -> int:
    """The earliest event time that is still to be emitted: rows that wait for the next one may be in a match."""
    conditions = matcher.conditions
    return matcher.hold() if conditions.stop is None else min(matcher.hold(), time_of(conditions.rows[conditions.stop]))
