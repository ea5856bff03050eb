"""The rows of a captured table, row by row: each key has a deletion for each truncation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millstream.plan.captured_rows import CapturedRows
from millstream.plan.nodes import Node
from millstream.plan.time.bundles import AHEAD, BEGINNING, Bundle, Row, late_reason
from millstream.reference.tables import LatestOperator, Version, computed, key_of, late, less, singly


class CapturedRowsOperator(LatestOperator):
    node: CapturedRows

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.truncations: list[Version] = []

    def run(self, given: Sequence[list[Row]], clock: Bundle) -> list[Row]:
        before, passed = self._changes(), clock.watermark_before
        bases = {key: _newest(versions, passed) for key, versions in self.versions.items()}
        base = _newest(self.truncations, passed)
        empties = computed(self.node.emptied, given[0], self.node)
        for row, deleted, emptied in zip(given[0], self._deleted(given[0]), empties, strict=True):
            self.count += 1
            key = key_of(row, self.node.keys)
            newest = BEGINNING if emptied else max(base, bases.get(key, BEGINNING))
            if row.time is None or row.time == AHEAD or row.time < newest:
                self.late.append(late(row, late_reason(row.time)))
            elif emptied:
                self.truncations.append(Version(self._place(row), row, True))
            else:
                self.versions[key].append(Version(self._place(row), row, deleted))
        for key, versions in self.versions.items():
            there = {version.place for version in versions}
            made = [each for each in self.truncations if each.place not in there]
            versions += [each for each in made if each.place[0] >= bases.get(key, BEGINNING)]
        return singly(less(self._changes(), before))

    def _place(self, row: Row) -> Any:
        """By time, then as the source says, then by arrival; nulls come first."""
        values = [row.values[name] for name in self.node.places]
        return row.time, *((value is not None, value or 0) for value in values), self.count


def _newest(versions: Sequence[Version], watermark: int) -> int:
    """The time of the newest one that the watermark has passed."""
    return max((version.place[0] for version in versions if version.place[0] < watermark), default=BEGINNING)
