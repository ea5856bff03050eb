"""The input, output and late rows of a windowed aggregation, step by step: everything that a figure shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millstream.plan.flow import Flow
from millstream.plan.nodes import Node, WindowedAggregate
from millstream.plan.steps.keyed import Panes
from millstream.reference import Bundle, Row


@dataclass(frozen=True)
class Moment:
    """One step, as the aggregation saw it; the watermark is that of its input."""

    clock: int
    watermark_before: int
    watermark: int
    partitions: Mapping[str, int]
    given: list[Row]
    sent: list[Row]
    lost: list[Row]


class Recording:
    def __init__(self, flow: Flow, aggregate: WindowedAggregate) -> None:
        self.aggregate = aggregate
        self.moments: list[Moment] = []
        self._late = Panes(flow, aggregate).late.node

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (self.aggregate.inputs[0], self.aggregate, self._late)

    def note(self, sent: Mapping[Node, Bundle], partitions: Mapping[str, int]) -> None:
        given = sent[self.aggregate.inputs[0]]
        panes, lost = sent[self.aggregate].rows, sent[self._late].rows
        before, after = given.watermark_before, given.watermark
        self.moments.append(Moment(given.clock, before, after, partitions, given.rows, panes, lost))
