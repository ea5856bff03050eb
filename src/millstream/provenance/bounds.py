"""What another bound of the watermark would have meant: fewer or more late rows, and later or earlier results.

The recorded batches are repeated with each bound, and what the windows did is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from statistics import mean
from typing import Any

from millstream.errors import InvalidInput
from millstream.operators.elementwise import table_of
from millstream.plan.nodes import Late, Node, Read, WindowedAggregate, WithEventTime
from millstream.plan.time.late import late_columns
from millstream.plan.time.watermarks import Bounded
from millstream.plan.walking import in_order
from millstream.provenance.history import History
from millstream.provenance.replaying import Replay
from millstream.records import Schema, batch_to_rows, duration, format_duration


@dataclass
class Outcome:
    """What a step did with one bound."""

    rows: int = 0
    late: int = 0
    closed: dict[str, int] = field(default_factory=dict)
    """By key and window, the clock at which its on-time pane was sent."""

    def document(self, bound: timedelta) -> dict[str, Any]:
        share = self.late / self.rows if self.rows else 0.0
        return {
            "bound": format_duration(bound),
            "rows": self.rows,
            "late": self.late,
            "late_share": share,
            "windows_closed": len(self.closed),
        }


def why_bound(history: History, bound: str | timedelta, step: str | None = None) -> dict[str, Any]:
    """The late rows of windowed steps with the bound that the job has and with another, and the delay it adds."""
    other = duration(bound, what="bound")
    chosen = history.windowed if step is None and history.windowed else [history.windowed_step(step)]
    names = [node.name for node in chosen]
    bounds = {node.name: bound_of(node) for node in chosen}
    replay, before = _outcomes(history, names)
    _, after = _outcomes(history.changed(partial(with_bound, bound=other)), names)
    return {
        "job": history.job,
        "batches": [history.batches[0].number, history.batches[-1].number],
        "steps": [
            {
                "step": name,
                "now": before[name].document(bounds[name]),
                "then": after[name].document(other),
                "added_delay": _added(before[name], after[name]),
            }
            for name in names
        ],
        "notes": history.notes(replay, chosen[0]),
    }


def bound_of(step: WindowedAggregate) -> timedelta:
    """The bound of a step's sources, the largest if they differ."""
    found = [node.watermark for node in in_order([step]) if isinstance(node, Read | WithEventTime)]
    bounds = [each.delay for each in found if isinstance(each, Bounded)]
    if not bounds:
        raise InvalidInput(
            f"the sources of '{step.name}' have no bound, so another cannot be compared with it",
            where=step.user_line,
            next_step="ask about a source with watermark=ms.bounded(…)",
        )
    return max(bounds)


def with_bound(node: Node, bound: timedelta) -> Node:
    """A step with another bound, if it has one."""
    if isinstance(node, Read | WithEventTime) and isinstance(node.watermark, Bounded):
        return replace(node, watermark=replace(node.watermark, delay=bound))
    return node


def _outcomes(history: History, names: Sequence[str]) -> tuple[Replay, dict[str, Outcome]]:
    steps = [node for node in history.windowed if node.name in names]
    late = {node: _late_of(node) for node in steps}
    replay = history.replay([*steps, *late.values()])
    found = {node.name: Outcome() for node in steps}
    for at in replay.moments():
        for node in steps:
            outcome = found[node.name]
            outcome.rows += len(at.sent[node.inputs[0]].rows)
            outcome.late += len(at.sent[late[node]].rows)
            panes = at.sent[node].rows
            for batch in table_of(panes, node.schema).to_batches():
                for row in batch_to_rows(batch):
                    if row["pane"]["timing"] == "on_time":
                        key = repr([*(row[name] for name in node.keys), row["window"]])
                        outcome.closed.setdefault(key, at.clock)
    return replay, found


def _late_of(node: WindowedAggregate) -> Late:
    columns = late_columns(node)
    assert columns is not None
    return Late(f"{node.name}.late", Schema.from_arrow(columns), (node,), node.user_line)


def _added(before: Outcome, after: Outcome) -> dict[str, Any]:
    """How much later the on-time panes come, in seconds of the job's clock, over windows that close with both."""
    both = [(after.closed[key] - closed) / 1e6 for key, closed in before.closed.items() if key in after.closed]
    return {
        "windows": len(both),
        "mean_s": mean(both) if both else None,
        "max_s": max(both, default=None),
        "still_open": sum(key not in after.closed for key in before.closed),
    }
