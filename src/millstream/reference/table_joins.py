"""Joins with tables, a pair of rows at a time.

A table is the sum of its rows' weights, and as of a time of those up to then. Null equals nothing, not even null.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from millstream.plan.bundles import BEGINNING, Bundle, Row
from millstream.plan.late import late_columns
from millstream.plan.nodes import Node
from millstream.plan.table_nodes import Join, LookupJoin, SideJoin, TableJoin
from millstream.reference.operator import Operator, StatefulOperator
from millstream.reference.tables import frozen, singly

Key = tuple[Any, ...]
Values = dict[str, Any]


class Sides:
    """What a join gives for rows of its two sides."""

    def __init__(self, node: Join) -> None:
        self.node = node
        self.only_left = node.how in ("semi", "anti")

    def key(self, values: Values, side: int) -> Key | None:
        """None if the row has no partner whatever comes."""
        key: Key = frozen([values[pair[side]] for pair in self.node.on])
        return None if None in key else key

    def joined(self, left: Values | None, right: Values | None) -> Values:
        """The columns of both; those that both name are there with either."""
        shared = {one for one, other in self.node.on if one == other}
        given: Values = {}
        for name, column in self.node.left:
            source = left if left is not None or column not in shared else right
            given[name] = None if source is None else source[column]
        if not self.only_left:
            given |= {name: None if right is None else right[column] for name, column in self.node.right}
        return given


# ---------------------------------------------------------------- two tables


class Rows:
    """Rows that are equal count as one with the sum of their weights; each has a time from which it holds."""

    def __init__(self, rows: Iterable[tuple[Values, int, int]] = ()) -> None:
        self.values: dict[Any, Values] = {}
        self.weights: Counter[tuple[Any, int]] = Counter()
        for values, time, weight in rows:
            self.add(values, time, weight)

    def add(self, values: Values, time: int, weight: int) -> None:
        self.values[frozen(values)] = values
        self.weights[frozen(values), time] += weight

    def __iter__(self) -> Any:
        return ((self.values[said], time, weight) for (said, time), weight in self.weights.items() if weight)

    def folded(self) -> Rows:
        """Each row once: it holds from the newest time at which it was put there."""
        made = Rows()
        for said, values in self.values.items():
            found = [(time, weight) for (other, time), weight in self.weights.items() if other == said]
            total = sum(weight for _, weight in found)
            if total:
                made.add(values, max(time for time, weight in found if weight * total > 0), total)
        return made


class TableJoinOperator(StatefulOperator):
    node: TableJoin

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        assert isinstance(node, TableJoin)
        self.sides = Sides(node)
        self.held: tuple[dict[Key, Rows], dict[Key, Rows]] = ({}, {})
        self.since: tuple[dict[Key, int], dict[Key, int]] = ({}, {})
        """Of each side, since when a key has rows."""

    def run(self, given: Sequence[list[Row]], clock: Bundle) -> list[Row]:
        sent = Rows()
        came: tuple[dict[Key, Rows], dict[Key, Rows]] = ({}, {})
        for side, rows in enumerate(given):
            for row in rows:
                time = BEGINNING if row.time is None else row.time
                key = self.sides.key(row.values, side)
                if key is not None:
                    came[side].setdefault(key, Rows()).add(row.values, time, row.weight)
                elif self._sends_alone(side):
                    sent.add(self._alone(row.values, side), time, row.weight)
        for key in dict.fromkeys([*came[0], *came[1]]):
            self._change(key, (came[0].get(key, Rows()), came[1].get(key, Rows())), sent)
        changes = [Row(values, None if time == BEGINNING else time, weight) for values, time, weight in sent]
        return singly(sorted(changes, key=lambda row: row.weight > 0))

    def _sends_alone(self, side: int) -> bool:
        return self.node.how in (("left", "full", "anti"), ("right", "full"))[side]

    def _alone(self, values: Values, side: int) -> Values:
        return self.sides.joined(values, None) if side == 0 else self.sides.joined(None, values)

    def _change(self, key: Key, came: tuple[Rows, Rows], sent: Rows) -> None:
        old = (self.held[0].get(key, Rows()), self.held[1].get(key, Rows()))
        if not self.sides.only_left:
            for left, right, time, weight in _new_pairs(old[0], came[0], old[1], came[1]):
                sent.add(self.sides.joined(left, right), time, weight)
        for side in (0, 1):
            before, turns = self._partners(key, 1 - side, old[1 - side], came[1 - side])
            if self.node.how == "semi" and side == 0:
                for values, _, time, weight in _new_pairs(old[0], came[0], before, turns):
                    sent.add(self.sides.joined(values, None), time, weight)
            elif self._sends_alone(side):  # all rows but those with a partner
                for values, time, weight in came[side]:
                    sent.add(self._alone(values, side), time, weight)
                for values, _, time, weight in _new_pairs(old[side], came[side], before, turns):
                    sent.add(self._alone(values, side), time, -weight)
        for side in (0, 1):
            self.held[side][key] = Rows([*old[side], *came[side]]).folded()

    def _partners(self, key: Key, side: int, old: Rows, came: Rows) -> tuple[Rows, Rows]:
        """When a key has rows: one that says since when, as it was, and how that changes."""
        count = sum(weight for _, _, weight in old)
        since = self.since[side].pop(key, BEGINNING)
        before = Rows([({}, since, 1)] if count > 0 else [])
        counts: defaultdict[int, int] = defaultdict(int, {since: count})
        for _, time, weight in came:
            counts[time] += weight
        after, count, is_on = Rows(), 0, False
        for time in sorted(counts):
            count += counts[time]
            if (count > 0) != is_on:
                is_on = not is_on
                after.add({}, time, 1 if is_on else -1)
                if is_on:
                    self.since[side][key] = time
        if not is_on:
            self.since[side].pop(key, None)
        return before, Rows([*after, *((values, time, -weight) for values, time, weight in before)])


def _new_pairs(old: Rows, came: Rows, others: Rows, others_came: Rows) -> Iterable[tuple[Values, Values, int, int]]:
    """What came with all on the other side, and what was there with what came on the other side."""
    for rows, partners in ((came, [*others, *others_came]), (old, list(others_came))):
        for values, time, weight in rows:
            for partner, partner_time, partner_weight in partners:
                yield values, partner, max(time, partner_time), weight * partner_weight


# ---------------------------------------------------------------- a stream and a table


class LookupJoinOperator(StatefulOperator):
    """All changes of the table are kept; what it held at a time is their sum up to then."""

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
        """What is sent for a row, given the table as of a time, or as it is."""
        found: Counter[Any] = Counter()
        values: dict[Any, Values] = {}
        key = self.sides.key(row.values, 0)
        for change in self.changes.get(key, []) if key is not None else []:
            if time is None or change.time is None or change.time <= time:
                asked = {} if self.sides.only_left else change.values
                found[frozen(asked)] += change.weight
                values[frozen(asked)] = asked
        there = {said: count for said, count in found.items() if count > 0}
        how = self.node.how
        if how in ("inner", "left") and there:
            return [
                Row(self.sides.joined(row.values, values[said]), row.time, row.weight * count)
                for said, count in there.items()
            ]
        if (how == "semi" and there) or (how in ("left", "anti") and not there):
            return [Row(self.sides.joined(row.values, None), row.time, row.weight)]
        return []

    def _late(self, row: Row) -> Row:
        columns = late_columns(self.node)
        assert columns is not None
        given = {name: row.values[column] for name, column in self.node.left}
        reason = "no event time" if row.time is None else "expired"
        given |= {"side": "left", "reason": reason}
        return Row({name: given.get(name) for name in columns.names}, row.time, row.weight)


# ---------------------------------------------------------------- a stream and rows known beforehand


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
        found = [row for row in self.rows if key is not None and self.sides.key(row, 1) == key]
        how = self.node.how
        if how in ("inner", "left") and found:
            return [self.sides.joined(values, row) for row in found]
        alone = (how == "semi" and found) or (how in ("left", "anti") and not found)
        return [self.sides.joined(values, None)] if alone else []
