"""How far the streams have come that feed a step: a watermark per source partition and per key group before it.

Watermarks flow in the stream. A source tells what its partitions' rows told; a step before tells the watermark that
each of its key groups passes on. The smallest counts, and it never goes back.

A source whose partitions are all idle, or whose rows have no event time, and a step that is fed by such only, does not
count as long as there is another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millstream.operators.watermarks import SourceWatermark
from millstream.plan.bundles import BEGINNING, END
from millstream.plan.nodes import Node, Read

CLOCK = ""
"""The origin of a control that only tells the time."""


class InputWatermark:
    def __init__(self, origins: Sequence[Node], groups: Mapping[Node, int]) -> None:
        """`groups` says of how many key groups of each step before this one hears."""
        self._groups = {origin.name: groups.get(origin, 0) for origin in origins}
        self._sources = {
            origin.name: SourceWatermark(origin, (), 0)
            for origin in origins
            if isinstance(origin, Read) and origin.watermark is not None
        }
        self._told = {origin.name: BEGINNING for origin in origins if isinstance(origin, Read)}
        self._before: dict[str, dict[int, tuple[int, bool]]] = {
            origin.name: {} for origin in origins if not isinstance(origin, Read)
        }
        self.now = 0

    def hear(self, control: dict[str, Any]) -> None:
        name = control["origin"]
        self.now = max(self.now, control["now"])
        if name == CLOCK or (name not in self._told and name not in self._before):  # or it is not waited for
            return
        if name in self._before:
            self._before[name][control["group"]] = control["watermark"], control["idle"]
            return
        if "watermark" in control:
            self._told[name] = max(self._told[name], control["watermark"])
        for partition, (told, spoke) in control.get("partitions", {}).items():
            if name in self._sources:
                self._sources[name].hear(partition, told, self.now, spoke=spoke)
        for partition in control.get("done", ()):
            if name in self._sources:
                self._sources[name].leave(partition)

    def watermark(self) -> int:
        inputs = self._inputs()
        counting = [reached for reached, idle in inputs if not idle] or [reached for reached, _ in inputs]
        return min(counting, default=END)

    def is_idle(self) -> bool:
        return all(idle for _, idle in self._inputs())

    def _inputs(self) -> list[tuple[int, bool]]:
        """How far each input has come, and whether it is idle."""
        found = []
        for name, told in self._told.items():
            source = self._sources.get(name)
            if source is None:
                found.append((told, told == BEGINNING))
            else:
                found.append((max(told, source.now(self.now)), told < END and source.is_idle(self.now)))
        for name, groups in self._before.items():
            complete = len(groups) == self._groups[name]
            reached = min(watermark for watermark, _ in groups.values()) if complete else BEGINNING
            found.append((reached, complete and all(idle for _, idle in groups.values())))
        return found

    def kept(self) -> tuple[Any, ...]:
        sources = {name: source.kept() for name, source in self._sources.items()}
        return self.now, self._told, self._before, sources

    def go_on(self, kept: tuple[Any, ...]) -> None:
        self.now, told, before, sources = kept
        self._told |= {name: value for name, value in told.items() if name in self._told}
        self._before |= {name: dict(value) for name, value in before.items() if name in self._before}
        for name, source in sources.items():
            if name in self._sources:
                self._sources[name].go_on(source)
