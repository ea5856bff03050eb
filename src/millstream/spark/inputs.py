"""How far the streams have come that feed a step: a watermark per source partition and per key group before it.

Watermarks flow in the stream. A source tells what its partitions' rows told; a step before tells the watermark that
each of its key groups passes on. The smallest counts, and it never goes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millstream.operators.watermarks import SourceWatermark
from millstream.plan.bundles import BEGINNING, END
from millstream.plan.nodes import Node, Read

CLOCK = ""
"""The origin of a control that only tells the time."""


class InputWatermark:
    def __init__(self, origins: Sequence[Node], groups: int) -> None:
        self._groups = groups
        self._sources = {
            origin.name: SourceWatermark(origin, (), 0)
            for origin in origins
            if isinstance(origin, Read) and origin.watermark is not None
        }
        self._told = {origin.name: BEGINNING for origin in origins if isinstance(origin, Read)}
        self._before: dict[str, dict[int, int]] = {
            origin.name: {} for origin in origins if not isinstance(origin, Read)
        }
        self.now = 0

    def hear(self, control: dict[str, Any]) -> None:
        name = control["origin"]
        self.now = max(self.now, control["now"])
        if name == CLOCK:
            return
        if name in self._before:
            self._before[name][control["group"]] = control["watermark"]
            return
        if "watermark" in control:
            self._told[name] = max(self._told[name], control["watermark"])
        for partition, (told, spoke) in control.get("partitions", {}).items():
            if name in self._sources:
                self._sources[name].hear(partition, told, self.now, spoke=spoke)

    def watermark(self) -> int:
        reached = []
        for name, told in self._told.items():
            by_rows = self._sources[name].now(self.now) if name in self._sources else BEGINNING
            reached.append(max(told, by_rows))
        for passed_on in self._before.values():
            reached.append(min(passed_on.values()) if len(passed_on) == self._groups else BEGINNING)
        return min(reached, default=END)

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
