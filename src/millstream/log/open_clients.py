"""The producers, consumers and queues that a log has opened and closes with itself."""

from __future__ import annotations

import weakref
from typing import Protocol, TypeVar

from millstream.errors import MillstreamError


class Closing(Protocol):
    def close(self) -> None: ...


Part = TypeVar("Part", bound=Closing)


class Parts:
    def __init__(self) -> None:
        self._made: weakref.WeakSet[Closing] = weakref.WeakSet()

    def noted(self, part: Part) -> Part:
        self._made.add(part)
        return part

    def close(self) -> MillstreamError | None:
        """Closes all of them; returns the first error."""
        failures = []
        for part in list(self._made):
            try:
                part.close()
            except MillstreamError as error:
                failures.append(error)
        return failures[0] if failures else None
