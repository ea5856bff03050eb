"""Joins with tables, one pair of rows at a time.

A table is the sum of its rows' weights, and as of a time of those up to then. Null equals nothing, not even null.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from millstream.plan.nodes import Node
from millstream.plan.table_nodes import Join, LookupJoin, SideJoin, TableJoin
from millstream.plan.time.bundles import BEGINNING, Bundle, Row, late_reason
from millstream.plan.time.late import late_columns
from millstream.reference.join_conditions import Condition
from millstream.reference.operator import Operator, StatefulOperator
from millstream.reference.tables import frozen, singly

Key = tuple[Any, ...]
Values = dict[str, Any]


class Sides:
    """The output of a join for rows of its two sides."""

    def __init__(self, node: Join) -> None:
        self.node = node
        self.only_left = node.how in ("semi", "anti")
        self.condition = Condition(node)

    def key(self, values: Values, side: int) -> Key | None:
        """None if the row can never have a partner."""
        key: Key = frozen([values[pair[side]] for pair in self.node.on])
        return None if None in key else key

    def matches(self, left: Values, right: Values) -> bool:
        """Whether rows with equal keys match."""
        return self.condition.holds(left, right)

    def joined(self, left: Values | None, right: Values | None) -> Values:
        """The columns of both; shared ones come from either."""
        shared = {one for one, other in self.node.on if one == other}
        given: Values = {}
        for name, column in self.node.left:
            source = left if left is not None or column not in shared else right
            given[name] = None if source is None else source[column]
        if not self.only_left:
            given |= {name: None if right is None else right[column] for name, column in self.node.right}
        return given


# ---------------------------------------------------------------- two tables


class Changes:
    """Changes of a table, each with the time from which it is valid. Equal ones are merged."""

    def __init__(self, changes: Iterable[tuple[Values, int, int]] = ()) -> None:
        self.values: dict[Any, Values] = {}
        self.weights: Counter[tuple[Any, int]] = Counter()
        for values, time, weight in changes:
            self.add(values, time, weight)

    def add(self, values: Values, time: int, weight: int) -> None:
        row_key = frozen(values)
        self.values[row_key] = values
        self.weights[row_key, time] += weight

    def __iter__(self) -> Iterator[tuple[Values, int, int]]:
        return ((self.values[row_key], time, weight) for (row_key, time), weight in self.weights.items() if weight)

    def folded(self, watermark: int) -> Changes:
        """Nobody asks for a time before the watermark any more: changes up to it have always been valid."""
        return Changes((values, BEGINNING if time <= watermark else time, weight) for values, time, weight in self)

    def as_of(self, asked: int) -> list[tuple[Values, int]]:
        """The rows present at a time, and how many of each."""
        found: Counter[Any] = Counter()
        for (row_key, time), weight in self.weights.items():
            found[row_key] += weight if time <= asked else 0
        return [(self.values[row_key], weight) for row_key, weight in found.items() if weight]


class TableJoinOperator(StatefulOperator):
    """Keeps all changes. For each key that changed, recomputes the join as of every time and emits the difference."""

    node: TableJoin

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        assert isinstance(node, TableJoin)
        self.sides = Sides(node)
        self.held: tuple[dict[Key, Changes], dict[Key, Changes]] = ({}, {})

    def run(self, given: Sequence[list[Row]], clock: Bundle) -> list[Row]:
        sent = Changes()
        came: tuple[dict[Key, Changes], dict[Key, Changes]] = ({}, {})
        for side, rows in enumerate(given):
            for row in rows:
                time = BEGINNING if row.time is None else row.time
                key = self.sides.key(row.values, side)
                if key is not None:
                    came[side].setdefault(key, Changes()).add(row.values, time, row.weight)
                elif self._sends_alone(side):
                    sent.add(self._alone(row.values, side), time, row.weight)
        for key in dict.fromkeys([*came[0], *came[1]]):
            old = [held.get(key, Changes()).folded(clock.watermark_before) for held in self.held]
            new = [Changes([*changes, *rows.get(key, Changes())]) for changes, rows in zip(old, came, strict=True)]
            for values, time, weight in self._history(*new):
                sent.add(values, time, weight)
            for values, time, weight in self._history(*old):
                sent.add(values, time, -weight)
            self.held[0][key], self.held[1][key] = new
        changes = [Row(values, None if time == BEGINNING else time, weight) for values, time, weight in sent]
        return singly(sorted(changes, key=lambda row: row.weight > 0))

    def _sends_alone(self, side: int) -> bool:
        return self.node.how in (("left", "full", "anti"), ("right", "full"))[side]

    def _alone(self, values: Values, side: int) -> Values:
        return self.sides.joined(values, None) if side == 0 else self.sides.joined(None, values)

    def _history(self, left: Changes, right: Changes) -> Changes:
        """The changes of a key's join: from each time on, the new result replaces the old one."""
        history, last = Changes(), list[tuple[Values, int]]()
        for time in sorted({time for changes in (left, right) for _, time, _ in changes}):
            now = self._joined(left.as_of(time), right.as_of(time))
            for values, weight in now:
                history.add(values, time, weight)
            for values, weight in last:
                history.add(values, time, -weight)
            last = now
        return history

    def _joined(self, left: list[tuple[Values, int]], right: list[tuple[Values, int]]) -> list[tuple[Values, int]]:
        """The join of the rows of a key."""
        pairs = [(one, n, other, m) for one, n in left for other, m in right if self.sides.matches(one, other)]
        made = []
        if not self.sides.only_left:
            made = [(self.sides.joined(one, other), n * m) for one, n, other, m in pairs]
        for values, count in left:
            has_partner = sum(m for one, _, _, m in pairs if one is values) > 0
            if has_partner if self.node.how == "semi" else self._sends_alone(0) and not has_partner:
                made.append((self._alone(values, 0), count))
        for values, count in right:
            has_partner = sum(n for _, n, other, _ in pairs if other is values) > 0
            if self._sends_alone(1) and not has_partner:
                made.append((self._alone(values, 1), count))
        return made


# ---------------------------------------------------------------- a stream and a table


class LookupJoinOperator(StatefulOperator):
    """Keeps all changes of the table; its content at a time is their sum up to then."""

    node: LookupJoin

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        assert isinstance(node, LookupJoin)
        self.sides = Sides(node)
        self.changes: defaultdict[Key, list[Row]] = defaultdict(list)
        self.waiting: list[Row] = []

    def run(self, given: Sequence[list[Row]], clock: Bundle) -> list[Row]:
        rows, changes = given
        for change in changes:
            key = self.sides.key(change.values, 1)
            if key is not None:
                self.changes[key].append(change)
        if not self.node.at_event_time:
            return singly(made for row in rows for made in self._looked_up(row, None))
        for row in rows:
            if row.time is None or row.time < clock.watermark_before:
                self.late.append(self._late(row))
            else:
                self.waiting.append(row)
        ready = [row for row in self.waiting if row.time is not None and row.time < clock.watermark]
        self.waiting = [row for row in self.waiting if row.time is not None and row.time >= clock.watermark]
        return singly(made for row in ready for made in self._looked_up(row, row.time))

    def hold(self) -> int:
        return min((row.time for row in self.waiting if row.time is not None), default=super().hold())

    def _looked_up(self, row: Row, time: int | None) -> list[Row]:
        """The output for a row, given the table as of a time, or as it is now."""
        found: Counter[Any] = Counter()
        values: dict[Any, Values] = {}
        key = self.sides.key(row.values, 0)
        for change in self.changes.get(key, []) if key is not None else []:
            if time is None or change.time is None or change.time <= time:
                if not self.sides.matches(row.values, change.values):
                    continue
                asked = {} if self.sides.only_left else change.values
                found[frozen(asked)] += change.weight
                values[frozen(asked)] = asked
        there = {row_key: count for row_key, count in found.items() if count > 0}
        how = self.node.how
        if how in ("inner", "left") and there:
            return [
                Row(self.sides.joined(row.values, values[row_key]), row.time, row.weight * count)
                for row_key, count in there.items()
            ]
        if (how == "semi" and there) or (how in ("left", "anti") and not there):
            return [Row(self.sides.joined(row.values, None), row.time, row.weight)]
        return []

    def _late(self, row: Row) -> Row:
        columns = late_columns(self.node)
        assert columns is not None
        given = {name: row.values[column] for name, column in self.node.left}
        given |= {"side": "left", "reason": late_reason(row.time)}
        return Row({name: given.get(name) for name in columns.names}, row.time, row.weight)


# ---------------------------------------------------------------- a stream and static rows


class SideJoinOperator(Operator):
    node: SideJoin

    def __init__(self, node: SideJoin) -> None:
        super().__init__(node)
        self.sides = Sides(node)
        self.rows: list[Values] = node.rows.to_pylist()

    def apply(self, rows: list[Row], clock: int) -> list[Row]:
        return [Row(values, row.time, row.weight) for row in rows for values in self._joined(row.values)]

    def _joined(self, values: Values) -> list[Values]:
        key = self.sides.key(values, 0)
        found = [row for row in self.rows if key is not None and self._matches(values, key, row)]
        how = self.node.how
        if how in ("inner", "left") and found:
            return [self.sides.joined(values, row) for row in found]
        alone = (how == "semi" and found) or (how in ("left", "anti") and not found)
        return [self.sides.joined(values, None)] if alone else []

    def _matches(self, values: Values, key: Key, row: Values) -> bool:
        return self.sides.key(row, 1) == key and self.sides.matches(values, row)
