"""The step that finds the matches of rules that change: for each key and each version of a rule, a search of its own.

A version decides while it is in force: it sees the rows from a little before on, if history is kept, but what was
decided about them before is not emitted; and what is not decided when it ends is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from millstream.plan.patterns.automaton import Kind
from millstream.plan.patterns.found import Complete, first_after
from millstream.plan.patterns.node import (
    MATCH,
    MATCH_END,
    MATCH_START,
    MATCHED_ROWS,
    RULE,
    RULE_VERSION,
    VARIABLE,
    MatchRules,
)
from millstream.plan.patterns.rule_text import FILTER, ID, TEXT, VERSION, WEIGHT, Rule, rule_input, rule_of
from millstream.plan.patterns.rule_versions import revised
from millstream.plan.stored.versions import Change, Version
from millstream.plan.time.bundles import END, Bundle, Row, moment
from millstream.plan.time.windows import microseconds
from millstream.reference.event_order import EventOrder, time_of
from millstream.reference.operator import StatefulOperator
from millstream.reference.patterns.conditions import Conditions
from millstream.reference.patterns.preferred import PreferredMatcher
from millstream.reference.tables import computed
from millstream.reference.windows import sort_key

Key = tuple[Any, ...]


@dataclass
class Searching:
    """The search of one version among the rows of one key."""

    matcher: PreferredMatcher
    after: int = 0
    """The first place at which a match may begin, given those before."""
    count: int = 0

    def matches(self, until: int) -> list[Complete]:
        self.matcher.advance(until)
        found, self.matcher.matches, self.matcher.timed_out = self.matcher.matches, [], []
        for match in found:
            self.after = max(first_after(match.path, self.matcher.skip), match.first + 1)
        return found


class RulesOperator(StatefulOperator):
    node: MatchRules

    def __init__(self, node: MatchRules) -> None:
        super().__init__(node)
        self.order = EventOrder()
        self.given = rule_input(node)
        self.history = microseconds(node.history)
        self.versions: list[Version] = []
        self.rows: dict[Key, list[Row]] = {}
        self.searches: dict[tuple[Key, str], Searching] = {}
        self.watermark = 0

    def run(self, given: Sequence[list[Row]], clock: Bundle) -> list[Row]:
        self.late = self.order.take(replace(clock, rows=given[0]))
        self.versions = revised(self.versions, map(_change, given[1]), clock.watermark_before)
        for row in self.order.ready(clock.watermark):
            self.rows.setdefault(tuple(row.values[name] for name in self.node.keys), []).append(row)
        sent = []
        for key in sorted(self.rows, key=sort_key):
            for version in self.versions:
                if version.start <= clock.watermark and not version.is_over(clock.watermark_before):
                    sent += self._matched(key, version, version.decides_until(clock.watermark))
        self.versions = [each for each in self.versions if not each.is_over(clock.watermark)]
        self.watermark = clock.watermark
        return sent

    def _rule(self, version: Version) -> Rule:
        return rule_of(self.given, *version.content[2:])

    def _matched(self, key: Key, version: Version, until: int) -> list[Row]:
        rule = self._rule(version)
        search = self.searches.get((key, version.token))
        if search is None:
            conditions = Conditions(rule.search, self.given.schema)
            search = Searching(PreferredMatcher(rule.search, rule.skip, conditions, after=0))
            self.searches[key, version.token] = search
            conditions.rows = self._seen(key, version, rule, version.start - 1)
            search.matches(version.start - 1)
        search.matcher.conditions.rows = self._seen(key, version, rule, until)
        sent = []
        for match in search.matches(until):
            search.count += 1
            sent.append(self._row(key, version, match, search))
        return sent

    def _seen(self, key: Key, version: Version, rule: Rule, until: int) -> list[Row]:
        """The rows of a key that a version looks at."""
        start = version.sees_from(rule.within, self.history)
        rows = [row for row in self.rows[key] if start <= time_of(row) <= until]
        if rule.filter is None:
            return rows
        return [row for row, holds in zip(rows, computed(rule.filter, rows, self.node), strict=True) if holds]

    def _row(self, key: Key, version: Version, match: Complete, search: Searching) -> Row:
        rows = search.matcher.conditions.rows
        name, number, *_ = version.content
        values = {
            RULE: name,
            RULE_VERSION: number,
            **dict(zip(self.node.keys, key, strict=True)),
            MATCH: search.count,
            MATCH_START: moment(time_of(rows[match.first])),
            MATCH_END: moment(match.end),
            MATCHED_ROWS: [
                {VARIABLE: variable, **rows[place].values}
                for place, variable, is_excluded in match.path
                if not is_excluded
            ],
        }
        return Row(values, match.end)

    def hold(self) -> int:
        """The first row with which a match may begin that is not decided for certain: its time is not over."""
        return min((self._held(key, version) for key in self.rows for version in self.versions), default=END)

    def _held(self, key: Key, version: Version) -> int:
        search = self.searches.get((key, version.token))
        if search is None:
            return END
        rule, conditions = self._rule(version), search.matcher.conditions
        for place in range(search.after, len(conditions.rows)):
            time = time_of(conditions.rows[place])
            if time + rule.within >= self.watermark and _may_begin(rule, conditions, place):
                return time
        return END


def _may_begin(rule: Rule, conditions: Conditions, place: int) -> bool:
    arcs = rule.search.automaton.states[0].arcs
    return any(arc.kind is Kind.TAKE and conditions.hold(arc.test, place, ()) for arc in arcs)


def _change(row: Row) -> Change:
    content = (row.values[ID], row.values[VERSION], row.values[FILTER], row.values[TEXT])
    return Change(content, row.time, row.values[WEIGHT])
