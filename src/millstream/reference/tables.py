"""Tables of one input: keeps all rows, recomputes the table in each step, and emits the difference."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from millstream.expressions.expression import Expression, evaluate
from millstream.plan import table_nodes
from millstream.plan.nodes import Node
from millstream.plan.time.bundles import AHEAD, Bundle, Row, late_reason, table_of
from millstream.plan.time.windows import microseconds
from millstream.reference.operator import StatefulOperator


@dataclass(frozen=True, slots=True)
class Version:
    """A row of a key and its position among the others: by time, then by arrival."""

    place: tuple[Any, ...]
    row: Row
    deleted: bool


class LatestOperator(StatefulOperator):
    """Each version retracts the previous one and replaces it, from its own time on."""

    node: table_nodes.Latest

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.versions: defaultdict[Any, list[Version]] = defaultdict(list)
        self.count = 0

    def run(self, given: Sequence[list[Row]], clock: Bundle) -> list[Row]:
        before = self._changes()
        known = {key: list(versions) for key, versions in self.versions.items()}
        for row, deleted in zip(given[0], self._deleted(given[0]), strict=True):
            self.count += 1
            key = key_of(row, self.node.keys)
            if self.node.by_time and deleted and row.time is None:  # it deletes the newest version, if there is one
                if not self.versions[key]:
                    continue
                row = replace(row, time=max(version.place for version in self.versions[key])[0])
            reason = self._reason(row, known.get(key, []), clock.watermark_before)
            if reason:
                self.late.append(late(row, reason))
            else:
                time = row.time if self.node.by_time and row.time is not None else 0
                self.versions[key].append(Version((time, self.count), row, deleted))
        changes = singly(less(self._changes(), before))
        self._forget_deleted(clock.watermark)
        return changes

    def _forget_deleted(self, watermark: int) -> None:
        if self.node.forget_after is None:
            return
        for key, versions in list(self.versions.items()):
            newest = max(versions, key=lambda version: version.place, default=None)
            if newest and newest.deleted and newest.place[0] + microseconds(self.node.forget_after) < watermark:
                del self.versions[key]

    def _reason(self, row: Row, known: list[Version], watermark: int) -> str | None:
        """A row is late if it is older than the newest version that the watermark has passed."""
        if not self.node.by_time:
            return None
        if row.time is None or row.time == AHEAD:
            return late_reason(row.time)
        passed = [version.place[0] for version in known if version.place[0] < watermark]
        return late_reason(row.time) if passed and row.time < max(passed) else None

    def _changes(self) -> list[Row]:
        """The changes of all versions."""
        changes = []
        for versions in self.versions.values():
            last: Version | None = None
            for version in sorted(versions, key=lambda version: version.place):
                if last is not None and not last.deleted:
                    changes.append(replace(last.row, time=version.row.time, weight=-1))
                if not version.deleted:
                    changes.append(version.row)
                last = version
        return changes

    def _deleted(self, rows: list[Row]) -> list[bool]:
        if self.node.deleted is not None:
            return [bool(holds) for holds in computed(self.node.deleted, rows, self.node)]
        values = self.node.values
        return [bool(values) and all(row.values[name] is None for name in values) for row in rows]


class DistinctOperator(StatefulOperator):
    node: table_nodes.Distinct

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.sent: defaultdict[Any, list[int | None]] = defaultdict(list)
        self.table = Groups(self.node.keys, smallest)

    def run(self, given: Sequence[list[Row]], clock: Bundle) -> list[Row]:
        if self.node.inputs[0].is_changing:
            return self.table.changed(given[0], clock.watermark)
        if self.node.within is None:
            return [row for row in given[0] if self._is_first(row)]
        return [row for row in given[0] if self._is_unlike(row, microseconds(self.node.within), clock)]

    def _is_first(self, row: Row) -> bool:
        sent = self.sent[key_of(row, self.node.keys)]
        sent.append(row.time)
        return len(sent) == 1

    def _is_unlike(self, row: Row, span: int, clock: Bundle) -> bool:
        if row.time is None or row.time < clock.watermark_before:
            self.late.append(late(row, late_reason(row.time)))
            return False
        sent = self.sent[key_of(row, self.node.keys)]
        if any(abs(row.time - time) < span for time in sent if time is not None):
            return False
        sent.append(row.time)
        return True


class TakeOperator(StatefulOperator):
    node: table_nodes.Take

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.counts: defaultdict[Any, int] = defaultdict(int)

    def run(self, given: Sequence[list[Row]], clock: Bundle) -> list[Row]:
        return [row for row in given[0] if self._is_among_the_first(row)]

    def _is_among_the_first(self, row: Row) -> bool:
        key = key_of(row, self.node.keys)
        self.counts[key] += 1
        return self.counts[key] <= self.node.count


class TopOperator(StatefulOperator):
    node: table_nodes.Top

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.table = Groups(self.node.keys, self._first)

    def run(self, given: Sequence[list[Row]], clock: Bundle) -> list[Row]:
        return self.table.changed(given[0], clock.watermark)

    def _first(self, rows: list[Row]) -> list[Row]:
        rows = in_order(rows)
        for part in reversed(self.node.order):
            by = computed(part.by, rows, self.node)
            known = [(ordered(value), place) for place, value in enumerate(by) if value is not None]
            known.sort(key=lambda pair: pair[0], reverse=part.descending)
            unknown = [row for row, value in zip(rows, by, strict=True) if value is None]
            rows = [rows[place] for _, place in known] + unknown
        if self.node.ties:
            return self._with_ties(rows)
        single = [row for row in rows for _ in range(row.weight)][: self.node.count]
        if not self.node.rank:
            return [replace(row, weight=1) for row in single]
        return [Row({**row.values, self.node.rank: place}, None) for place, row in enumerate(single, 1)]

    def _with_ties(self, rows: list[Row]) -> list[Row]:
        """Of sorted rows, those with fewer than `count` before them; ties share a rank."""
        by = zip(*(map(frozen, computed(part.by, rows, self.node)) for part in self.node.order), strict=True)
        first, before, place, last = list[Row](), 0, 0, None
        for row, values in zip(rows, by, strict=True):
            place = place if values == last else before + 1
            before, last = before + row.weight, values
            if place <= self.node.count:
                rank = {self.node.rank: place} if self.node.rank else {}
                first.append(replace(row, values={**row.values, **rank}))
        return first


# ---------------------------------------------------------------- groups of weighted rows


class Groups:
    """The table's rows of each group, kept up to date. They change at the newest time of the group."""

    def __init__(self, keys: tuple[str, ...], made: Callable[[list[Row]], list[Row]]) -> None:
        self.keys = keys
        self.made = made
        self.rows: dict[Any, list[Row]] = {}
        self.newest: dict[Any, int | None] = {}

    def changed(self, rows: list[Row], watermark: int) -> list[Row]:
        coming: dict[Any, list[Row]] = {}
        for row in rows:
            coming.setdefault(key_of(row, self.keys), []).append(row)
        changes = []
        for key, new in coming.items():
            before = self._made(key)
            self.rows[key] = less([*self.rows.get(key, []), *(replace(row, time=None) for row in new)], [])
            times = [row.time for row in new if row.time is not None]
            known = self.newest.get(key)
            self.newest[key] = max(times if known is None else [*times, known], default=None)
            different = singly(less(self._made(key), before))
            changes += [replace(row, time=self.newest[key]) for row in different]
        self._forget(watermark)
        return changes

    def _made(self, key: Any) -> list[Row]:
        return self.made([row for row in self.rows.get(key, []) if row.weight > 0])

    def _forget(self, watermark: int) -> None:
        """A group without rows is dropped when the watermark has reached its newest time."""
        for key, time in list(self.newest.items()):
            if not self.rows[key] and (time is None or time <= watermark):
                del self.newest[key], self.rows[key]


def smallest(rows: list[Row]) -> list[Row]:
    return [replace(row, weight=1) for row in in_order(rows)[:1]]


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Sorts by all columns in turn; nulls last."""
    return sorted(rows, key=lambda row: [(v is None, None if v is None else ordered(v)) for v in row.values.values()])


def less(rows: Iterable[Row], others: Iterable[Row]) -> list[Row]:
    """The sum of weighted rows minus that of others: each row once, without those that cancel out."""
    sums: dict[Any, Row] = {}
    for sign, part in ((1, rows), (-1, others)):
        for row in part:
            same = sums.setdefault((frozen(row.values), row.time), replace(row, weight=0))
            sums[frozen(row.values), row.time] = replace(same, weight=same.weight + sign * row.weight)
    return [row for row in sums.values() if row.weight]


def singly(rows: Iterable[Row]) -> list[Row]:
    """Changes of weight 1 or -1: one of weight n becomes n. Retractions come first."""
    each = [replace(row, weight=1 if row.weight > 0 else -1) for row in rows for _ in range(abs(row.weight))]
    return sorted(each, key=lambda row: row.weight)


# ---------------------------------------------------------------- values


def key_of(row: Row, keys: Sequence[str]) -> Any:
    return frozen([row.values[name] for name in keys])


def frozen(value: Any) -> Any:
    """A hashable value that is equal to another if a table considers them equal: NaN equals itself."""
    if isinstance(value, dict):
        return tuple((name, frozen(part)) for name, part in value.items())
    if isinstance(value, list | tuple):
        return tuple(frozen(part) for part in value)
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def ordered(value: Any) -> Any:
    """A comparable value: NaN is the largest number. Within lists and structs nulls come first."""
    if isinstance(value, dict):
        return [(name, ordered([part])) for name, part in value.items()]
    if isinstance(value, list | tuple):
        return [(part is not None, None if part is None else ordered(part)) for part in value]
    if isinstance(value, float):
        return (True, 0.0) if math.isnan(value) else (False, value)
    return value


def computed(made: Expression, rows: list[Row], node: Node) -> list[Any]:
    if not rows:
        return []
    values: list[Any] = evaluate({"value": made.lowered}, table_of(rows, node.inputs[0])).column("value").to_pylist()
    return values


def late(row: Row, reason: str) -> Row:
    """The row and the reason, which comes last and replaces a column of that name."""
    values = {name: value for name, value in row.values.items() if name != "reason"}
    return replace(row, values={**values, "reason": reason})
