"""The base of every step of the reference: it takes one bundle per input and returns one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from millstream.plan.nodes import Node
from millstream.plan.time.bundles import AHEAD, BEGINNING, END, Bundle, Row, dead_letter_values
from millstream.plan.time.timing import Timed
from millstream.plan.time.windows import microseconds


class Operator:
    """Takes one bundle per input, returns one, and collects the rows of `.late`, `.dead` and `.timed_out`."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.late: list[Row] = []
        self.dead: list[Row] = []
        self.timed_out: list[Row] = []

    def step(self, bundles: Sequence[Bundle]) -> Bundle:
        """The watermark is the smallest of the inputs' watermarks."""
        rows = [row for bundle in bundles for row in bundle.rows]
        joined = slowest(bundles)
        return replace(joined, rows=self.apply(rows, joined.clock))

    def apply(self, rows: list[Row], clock: int) -> list[Row]:
        return rows

    def without_state(self) -> Operator:
        """The same step, as it was before it saw any row."""
        return type(self)(self.node)


class StatefulOperator(Operator):
    """A step with state, which may hold back its output watermark."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._passed_on = BEGINNING

    def step(self, bundles: Sequence[Bundle]) -> Bundle:
        given = slowest(bundles[: self.node.awaited_inputs])
        self.late = []
        rows = self.run([bundle.rows for bundle in bundles], given)
        reached = min(self.reached(given.watermark), self.hold())
        before, self._passed_on = self._passed_on, max(self._passed_on, reached)
        return replace(given, rows=rows, watermark_before=before, watermark=self._passed_on)

    def without_state(self) -> Operator:
        made = type(self)(self.node)
        made._passed_on = self._passed_on
        return made

    def run(self, given: Sequence[list[Row]], clock: Bundle) -> list[Row]:
        """The output, given the rows of each input; `clock` has the watermark and the processing time."""
        raise NotImplementedError

    def reached(self, watermark: int) -> int:
        """The watermark as this step sees it."""
        return watermark

    def hold(self) -> int:
        """The smallest event time that may still be emitted."""
        return END


def slowest(bundles: Sequence[Bundle]) -> Bundle:
    return replace(
        bundles[0],
        rows=[row for bundle in bundles for row in bundle.rows],
        watermark_before=min(bundle.watermark_before for bundle in bundles),
        watermark=min(bundle.watermark for bundle in bundles),
    )


def timed_at(time: int | None, node: Timed, clock: int) -> int | None:
    """An event time as the steps see it: one that is too far ahead of the processing time is marked."""
    ahead = getattr(node.watermark, "ahead_at_most", None)
    return AHEAD if ahead is not None and time is not None and time > clock + microseconds(ahead) else time


def without_ahead(bundle: Bundle) -> Bundle:
    """For a step in which no row is late: rows too far ahead have no event time."""
    rows = [replace(row, time=None) if row.time == AHEAD else row for row in bundle.rows]
    return replace(bundle, rows=rows)


def dead_letter(row: Row, reason: str, clock: int) -> Row:
    return Row(dead_letter_values(row.values, reason, clock), row.time, row.weight)
