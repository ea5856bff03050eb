"""The meaning of a plan, row by row in plain Python: slow, obvious, and right by definition.

Read it to learn the rules of time. A step of a stream is a bundle: some rows, the watermark and the clock. Every
operator takes one bundle per input and returns one. In order:

- `rows`: rows, bundles, and times in whole microseconds since 1970
- `spans`: where windows lie
- `triggers`: when a window emits a pane
- `windows`: the core: rows are put into windows, each is evaluated once, and expires when it is over
- `aggregates`: what a pane contains
- `process`: a user's function of each row and its key, with state and timers
- `grouped`, `tables`, `stream_joins`, `table_joins`: tables and joins
- `steps`: all other steps
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from millstream.plan import nodes
from millstream.plan.bad_rows import listened_to, record_failed
from millstream.plan.nodes import Node
from millstream.plan.on_spark.needs_spark import check_without_spark
from millstream.plan.patterns.node import TimedOut
from millstream.plan.time.bundles import BEGINNING, END, EPOCH, MICROSECOND, Bundle, Row, micros, moment, table_of
from millstream.plan.time.calendars import calendar_span
from millstream.plan.time.late import late_columns
from millstream.plan.walking import in_order
from millstream.reference.operator import Operator, dead_letter, without_ahead
from millstream.reference.spans import spans_of
from millstream.reference.steps import OPERATORS
from millstream.reference.windows import WindowOperator, sort_key

__all__ = [
    "BEGINNING",
    "END",
    "EPOCH",
    "MICROSECOND",
    "OPERATORS",
    "Bundle",
    "Operator",
    "Reference",
    "Row",
    "WindowOperator",
    "calendar_span",
    "dead_letter",
    "micros",
    "moment",
    "sort_key",
    "spans_of",
    "table_of",
]


class Reference:
    """Runs the part of a plan that some nodes need, one bundle at a time."""

    def __init__(self, observed: Sequence[Node]) -> None:
        self.order = in_order(observed)
        check_without_spark(self.order)
        self.listening = listened_to(self.order)
        self.operators = {node: OPERATORS[type(node)](node) for node in self.order if type(node) in OPERATORS}

    def step(self, sources: dict[Node, Bundle]) -> dict[Node, Bundle]:
        """The output of every node in one step, given that of the sources."""
        sent: dict[Node, Bundle] = {}
        for node in self.order:
            given = [sent[node_] for node_ in node.inputs]
            if isinstance(node, nodes.Read):
                sent[node] = sources[node]
            elif isinstance(node, nodes.Late):
                sent[node] = replace(given[0], rows=self.operators[node.inputs[0]].late)
            elif isinstance(node, TimedOut):
                sent[node] = replace(given[0], rows=self.operators[node.inputs[0]].timed_out)
            elif isinstance(node, nodes.Dead):
                operator = self.operators.get(node.inputs[0])  # a source has none: its rows are already decoded
                sent[node] = replace(given[0], rows=operator.dead if operator else [])
            else:
                if node.keeps_state and late_columns(node) is None:
                    given = [without_ahead(bundle) for bundle in given]
                if node.per_batch_state:
                    self.operators[node] = self.operators[node].without_state()
                sent[node] = self.operators[node].step(given)
                dead = self.operators[node].dead
                if dead and node not in self.listening:
                    raise record_failed(node, dead[0].values)
        return sent
