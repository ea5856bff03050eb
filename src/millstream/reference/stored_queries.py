"""Matches documents with stored queries: each document that the watermark has passed with each version of a query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from millstream.errors import ExpressionFailed
from millstream.plan.search.node import (
    FRAGMENTS,
    OWNER,
    QUERY,
    SCORE,
    MatchQueries,
    change_of,
    condition,
    looks_back_to,
    where_of,
)
from millstream.plan.stored.versions import Version, revised
from millstream.plan.time.bundles import AHEAD, Bundle, Row, late_reason
from millstream.reference.event_order import in_time, time_of
from millstream.reference.operator import StatefulOperator
from millstream.reference.tables import computed, late
from millstream.search.fields import Document, documents, field_of
from millstream.search.fragments import fragments


class QueriesOperator(StatefulOperator):
    node: MatchQueries

    def __init__(self, node: MatchQueries) -> None:
        super().__init__(node)
        self.text = [field_of(node.searched, name) for name in node.searched.text]
        self.history = node.history_us
        self.versions: list[Version] = []
        self.rows: list[Row] = []
        """All documents, in order of arrival."""
        self.looked_back: set[tuple[Any, int]] = set()

    def run(self, given: Sequence[list[Row]], clock: Bundle) -> list[Row]:
        bundle = replace(clock, rows=given[0])
        taken = in_time(bundle)
        self.late = [late(row, late_reason(row.time)) for row in given[0] if not any(row is each for each in taken)]
        self.rows += [row for row in given[0] if row.time not in (None, AHEAD)] if self.node.from_log else taken
        changes = [change_of(row.values, row.time) for row in given[1]]
        self.versions = revised(self.versions, changes, clock.watermark_before)
        found = [*self._decided(clock), *self._from_the_past(clock)]
        found.sort(key=lambda each: each[0])
        return [row for _, row in found]

    def _decided(self, clock: Bundle) -> Iterator[tuple[Any, Row]]:
        """The matches of the documents that the watermark has passed in this step."""
        for place, row in enumerate(self.rows):
            time = time_of(row)
            if clock.watermark_before <= time < clock.watermark:
                for version in self.versions:
                    if version.start <= time and (version.end is None or time < version.end):
                        yield from self._match(version, place, time)

    def _from_the_past(self, clock: Bundle) -> Iterator[tuple[Any, Row]]:
        """The matches of versions that have just taken effect with the documents before them."""
        for version in self.versions:
            first = looks_back_to(version, self.history)
            known = (version.content, version.start)
            if first is None or version.start > clock.watermark or known in self.looked_back:
                continue
            self.looked_back.add(known)
            for place, row in enumerate(self.rows):
                if first <= time_of(row) < version.start:
                    yield from self._match(version, place, version.start)

    def _match(self, version: Version, place: int, time: int) -> Iterator[tuple[Any, Row]]:
        """The result, and its place among the results of a step."""
        row = self.rows[place]
        (document,) = documents([row.values], self.text)
        if not condition(version, self.node.searched).matches(document) or not self._holds(version, row):
            return
        values = {QUERY: version.content[0], OWNER: version.content[3], **self._shown(version, document)}
        sorting = (time, time_of(row), place, version.content[0])
        yield sorting, Row({**values, **row.values}, time, row.weight)

    def _holds(self, version: Version, row: Row) -> bool:
        text = version.content[2]
        if text is None:
            return True
        try:
            (holds,) = computed(where_of(text, self.node.inputs[0].schema), [row], self.node)
        except ExpressionFailed:
            return False
        return bool(holds)

    def _shown(self, version: Version, document: Document) -> dict[str, Any]:
        made: dict[str, Any] = {}
        query = condition(version, self.node.searched)
        if self.node.score:
            made[SCORE] = query.score(document)
        if self.node.highlight:
            made[FRAGMENTS] = fragments(query, document, self.text)
        return made
