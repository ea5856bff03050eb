"""Joins of two streams.

An interval join keeps all rows and emits what differs from before; a window is joined once, when it is complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from millstream.plan import table_nodes
from millstream.plan.nodes import Node
from millstream.plan.time.bundles import AHEAD, BEGINNING, END, Bundle, Row, late_reason
from millstream.plan.time.windows import LAST, Sessions, microseconds
from millstream.reference.join_conditions import Condition
from millstream.reference.operator import StatefulOperator
from millstream.reference.spans import span_values, spans_of, touching
from millstream.reference.tables import frozen, less, singly

LEFT, RIGHT = 0, 1
Key = tuple[Any, ...]
Values = dict[str, Any]


class StreamJoinOperator(StatefulOperator):
    """Shared by both: keys, and the output row."""

    node: table_nodes.Join

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        assert isinstance(node, table_nodes.Join)
        self.condition = Condition(node)

    def key(self, row: Row, side: int) -> Key | None:
        """The values that must be equal; None if one of them is null, which equals nothing."""
        key: Key = frozen([row.values[pair[side]] for pair in self.node.on])
        return None if None in key else key

    def joins(self, left: Row, right: Row) -> bool:
        key = self.key(left, LEFT)
        if key is None or key != self.key(right, RIGHT) or not self.is_near(left, right):
            return False
        return self.condition.holds(left.values, right.values)

    def is_near(self, left: Row, right: Row) -> bool:
        return True

    def is_kept_alone(self, side: int) -> bool:
        """Whether a row without a match is emitted."""
        return self.node.how in (("left", "full", "anti"), ("right", "full"))[side]

    def pair(self, left: Row | None, right: Row | None) -> Values:
        """The columns of both sides."""
        values = {name: left and left.values[column] for name, column in self.node.left}
        values |= {name: right and right.values[column] for name, column in self.node.right}
        if left is None and right is not None:  # a shared column has the value of the side that is present
            named = {column: name for name, column in self.node.left}
            given = [column for _, column in self.node.right]
            values |= {named[one]: right.values[other] for one, other in self.node.on if other not in given}
        return values

    def alone(self, row: Row, side: int) -> Values:
        return self.pair(row, None) if side == LEFT else self.pair(None, row)

    def half(self, row: Row) -> Values:
        return {name: row.values[column] for name, column in self.node.left}

    def given(self, row: Row, side: int) -> Values:
        """The output for a row without a match."""
        return self.half(row) if self.node.how == "anti" else self.alone(row, side)

    def too_late(self, row: Row, side: int, **extra: Any) -> None:
        values = {**self.alone(row, side), "side": ("left", "right")[side], **extra}
        self.late.append(Row(values, row.time, row.weight))


class IntervalJoinOperator(StreamJoinOperator):
    """The output so far is a function of the rows that were not late, and of the watermark."""

    node: table_nodes.IntervalJoin

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.rows: tuple[list[Row], list[Row]] = ([], [])
        self.sent: list[Row] = []
        self.watermark = BEGINNING

    def reached(self, watermark: int) -> int:
        """Rows may be late by the allowed lateness: the effective watermark is behind by that much."""
        return watermark if watermark in (BEGINNING, END) else watermark - microseconds(self.node.lateness)

    def run(self, given: Sequence[list[Row]], clock: Bundle) -> list[Row]:
        for side, rows in enumerate(given):
            for row in rows:
                if row.time is None or row.time < self.reached(clock.watermark_before):
                    self.too_late(row, side, reason=late_reason(row.time))
                else:
                    self.rows[side].append(row)
        self.watermark = self.reached(clock.watermark)
        before, self.sent = self.sent, list(self._result())
        return singly(less(self.sent, before))

    def _result(self) -> Iterator[Row]:
        left, right = (net(rows) for rows in self.rows)
        if self.node.how not in ("semi", "anti"):
            for one in left:
                for other in right:
                    if self.joins(one, other):
                        yield Row(self.pair(one, other), max(_time(one), _time(other)), one.weight * other.weight)
        if self.node.how == "semi":
            yield from (Row(self.half(row), row.time, row.weight) for row in left if self._matches(row, LEFT) > 0)
        for side, rows in ((LEFT, left), (RIGHT, right)):
            for row in rows:
                if self.is_kept_alone(side) and self._is_over(row, side) and self._matches(row, side) <= 0:
                    yield Row(self.given(row, side), row.time, row.weight)

    def is_near(self, left: Row, right: Row) -> bool:
        low, high = microseconds(self.node.low), microseconds(self.node.high)
        return low <= _time(left) - _time(right) <= high

    def _matches(self, row: Row, side: int) -> int:
        if side == LEFT:
            return sum(other.weight for other in self.rows[RIGHT] if self.joins(row, other))
        return sum(other.weight for other in self.rows[LEFT] if self.joins(other, row))

    def _is_over(self, row: Row, side: int) -> bool:
        """Whether no row that is still in time can match or retract it."""
        waits = (-microseconds(self.node.low), microseconds(self.node.high))[side]
        if self.node.inputs[side].is_changing:
            waits = max(waits, 0)
        return self.watermark > _time(row) + waits

    def hold(self) -> int:
        """Rows that may still be emitted alone, or for their first match, hold the watermark at their time."""
        times = []
        for side, rows in enumerate(self.rows):
            may_be_sent = self.is_kept_alone(side) or (side == LEFT and self.node.how == "semi")
            can_lose = self.node.inputs[1 - side].is_changing
            for row in net(rows) if may_be_sent else []:
                if not self._is_over(row, side) and (can_lose or self._matches(row, side) <= 0):
                    times.append(_time(row))
        return min(times, default=END)


class WindowJoinOperator(StreamJoinOperator):
    """Rows are put into windows; a complete window is joined, emitted and dropped."""

    node: table_nodes.WindowJoin

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.windows: dict[tuple[Key | None, int, int], tuple[list[Row], list[Row]]] = {}
        """By key (if windows are per key), start and end: the rows of either side."""

    def run(self, given: Sequence[list[Row]], clock: Bundle) -> list[Row]:
        arrived: dict[Key, list[tuple[int, int, Any]]] = {}
        window = self.node.window
        for side, rows in enumerate(given):
            for row in rows:
                if row.time is None or row.time == AHEAD:
                    self.too_late(row, side, window=None, reason=late_reason(row.time))
                elif not isinstance(window, Sessions):
                    for start, end in spans_of(window, row.time):
                        self._put(None, start, end, [(side, row)], clock)
                else:
                    key, end = self.key(row, side), min(row.time + microseconds(window.gap), LAST)
                    if key is None:  # it matches nothing, so it is its own session
                        self._put(None, row.time, end, [(side, row)], clock)
                    else:
                        arrived.setdefault(key, []).append((row.time, end, (side, row)))
        for key, parts in arrived.items():
            self._put_sessions(key, parts, clock)
        over = [place for place in self.windows if self._expiry(place[2]) <= clock.watermark]
        return [row for place in over for row in self._joined(self.windows.pop(place), place)]

    def _put_sessions(self, key: Key, parts: list[tuple[int, int, Any]], clock: Bundle) -> None:
        """Adds all rows, then merges sessions that touch, and only then checks for late rows."""
        held = [(start, end, None) for of, start, end in self.windows if of == key]
        for group in touching([*parts, *held]):
            arrived = [part for _, _, part in group if part is not None]
            if not arrived:
                continue
            old = [self.windows.pop((key, start, end)) for start, end, part in group if part is None]
            kept = [(side, row) for rows in old for side in (LEFT, RIGHT) for row in rows[side]]
            self._put(key, min(part[0] for part in group), max(part[1] for part in group), kept + arrived, clock)

    def _put(self, key: Key | None, start: int, end: int, rows: list[tuple[int, Row]], clock: Bundle) -> None:
        for side, row in rows:
            if self._expiry(end) <= clock.watermark_before:
                self.too_late(row, side, window=span_values((start, end)), reason="expired")
            elif self.key(row, side) is not None or self.is_kept_alone(side):
                self.windows.setdefault((key, start, end), ([], []))[side].append(row)

    def _expiry(self, end: int) -> int:
        return min(END, end + microseconds(self.node.lateness))

    def _joined(self, rows: tuple[list[Row], list[Row]], place: tuple[Key | None, int, int]) -> list[Row]:
        left, right = ([row for row in singly(net(each)) if row.weight > 0] for each in rows)
        made: list[Values] = []
        if self.node.how not in ("semi", "anti"):
            made += [self.pair(one, other) for one in left for other in right if self.joins(one, other)]
        if self.node.how == "semi":
            made += [self.half(row) for row in left if any(self.joins(row, other) for other in right)]
        if self.is_kept_alone(LEFT):
            made += [self.given(row, LEFT) for row in left if not any(self.joins(row, other) for other in right)]
        if self.is_kept_alone(RIGHT):
            made += [self.given(row, RIGHT) for row in right if not any(self.joins(other, row) for other in left)]
        _, start, end = place
        return [Row({**values, "window": span_values((start, end))}, end - 1) for values in made]

    def hold(self) -> int:
        """Rows in windows hold the watermark at the time of their output; a session stays even if its rows are gone."""
        waiting = [
            end - 1
            for (_, _, end), rows in self.windows.items()
            if isinstance(self.node.window, Sessions) or any(map(net, rows))
        ]
        return min(waiting, default=END)


def net(rows: Iterable[Row]) -> list[Row]:
    """Merges equal rows, adding up their weights."""
    return less(rows, [])


def _time(row: Row) -> int:
    assert row.time is not None
    return row.time
