"""The watermark of a step's inputs, from one watermark per source partition and per key group of an upstream step.

Watermarks travel with the rows: a source sends those of its partitions, a step those of its key groups. The lowest one
counts, and it never goes back.

A source whose partitions are all idle, or whose rows have no event time, and a step fed only by such, is ignored as
long as there is another input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millstream.operators.source_watermarks import SourceWatermark
from millstream.plan.nodes import Node, Read
from millstream.plan.time.bundles import BEGINNING, END
from millstream.plan.time.timing import Timed
from millstream.spark.query.task_messages import Control, SourceControl, StepControl


class InputWatermark:
    def __init__(self, origins: Sequence[Node], groups: Mapping[Node, int], timing: Mapping[Read, Timed]) -> None:
        """`groups` has the number of key groups of each upstream step that report to this one.

        `timing` has, by source, the node that gives its rows their event time.
        """
        self._groups = {origin.name: groups.get(origin, 0) for origin in origins}
        self._sources = {
            origin.name: SourceWatermark(timing[origin], (), 0)
            for origin in origins
            if isinstance(origin, Read) and origin in timing
        }
        self._watermarks = {origin.name: BEGINNING for origin in origins if isinstance(origin, Read)}
        self._before: dict[str, dict[int, tuple[int, bool]]] = {
            origin.name: {} for origin in origins if not isinstance(origin, Read)
        }
        self.now = 0

    def update(self, control: Control) -> None:
        """Applies a control. Controls of origins that this step does not wait for only advance the clock."""
        self.now = max(self.now, control.now)
        if isinstance(control, StepControl) and control.origin in self._before:
            self._before[control.origin][control.group] = control.watermark, control.idle
        elif isinstance(control, SourceControl) and control.origin in self._watermarks:
            self._update_source(control)

    def _update_source(self, control: SourceControl) -> None:
        name = control.origin
        if control.watermark is not None:
            self._watermarks[name] = max(self._watermarks[name], control.watermark)
        if name not in self._sources:
            return
        for partition, (watermark, has_rows) in control.partitions.items():
            self._sources[name].update(partition, watermark, self.now, has_rows=has_rows)
        for partition in control.done:
            self._sources[name].leave(partition)

    def watermark(self) -> int:
        inputs = self._inputs()
        counting = [reached for reached, idle in inputs if not idle] or [reached for reached, _ in inputs]
        return min(counting, default=END)

    def is_idle(self) -> bool:
        return all(idle for _, idle in self._inputs())

    def _inputs(self) -> list[tuple[int, bool]]:
        """The watermark of each input, and whether it is idle."""
        found = []
        for name, given in self._watermarks.items():
            source = self._sources.get(name)
            if source is None:
                found.append((given, given == BEGINNING))
            else:
                found.append((max(given, source.now(self.now)), given < END and source.is_idle(self.now)))
        for name, groups in self._before.items():
            complete = len(groups) == self._groups[name]
            reached = min(watermark for watermark, _ in groups.values()) if complete else BEGINNING
            found.append((reached, complete and all(idle for _, idle in groups.values())))
        return found

    def kept(self) -> tuple[Any, ...]:
        sources = {name: source.kept() for name, source in self._sources.items()}
        return self.now, self._watermarks, self._before, sources

    def restore(self, kept: tuple[Any, ...]) -> None:
        self.now, given, before, sources = kept
        self._watermarks |= {name: value for name, value in given.items() if name in self._watermarks}
        self._before |= {name: dict(value) for name, value in before.items() if name in self._before}
        for name, source in sources.items():
            if name in self._sources:
                self._sources[name].restore(source)
