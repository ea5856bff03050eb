"""Which topics of a broker are read: those with these names, or all that match a pattern."""

from __future__ import annotations

import re
from dataclasses import dataclass

from millstream.log import Broker


@dataclass(frozen=True)
class TopicNames:
    names: tuple[str, ...] = ()
    pattern: str | None = None

    def includes(self, topic: str) -> bool:
        return topic in self.names if self.pattern is None else re.fullmatch(self.pattern, topic) is not None

    def among(self, log: Broker) -> list[str]:
        """The topics to read now; a missing one is reported where it is opened."""
        return list(self.names) if self.pattern is None else [name for name in log.topics() if self.includes(name)]

    def __str__(self) -> str:
        return ", ".join(self.names) if self.pattern is None else f"topics({self.pattern})"
