"""From when until when each version of something is in force, in event time: of a rule, of a stored query.

A table is a sum of changes. A change that comes too late, or without a time, takes effect as early as it can: what was
decided before stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from millstream.plan.time.bundles import AHEAD, BEGINNING

Content = tuple[Any, ...]
"""What a version says; two versions of the same content differ in their times."""


@dataclass(frozen=True, slots=True)
class Version:
    """A version, from its first moment to before its last."""

    content: Content
    start: int
    end: int | None

    @property
    def token(self) -> str:
        """Identifies it for as long as it is in force."""
        return blake2b(repr((self.content, self.start)).encode(), digest_size=12).hexdigest()

    def decides_until(self, watermark: int) -> int:
        """The last moment at which it decides about rows, up to a watermark."""
        return watermark if self.end is None else min(watermark, self.end - 1)

    def is_over(self, watermark: int) -> bool:
        """Whether it has decided everything, once the watermark is there."""
        return self.end is not None and self.end - 1 <= watermark

    def sees_from(self, within: int, history: int) -> int:
        """The first moment whose rows it sees: rows before it was in force as well, as far as they are held."""
        return max(self.start - min(within, history), BEGINNING)


@dataclass(frozen=True, slots=True)
class Change:
    content: Content
    time: int | None
    weight: int


def revised(known: Iterable[Version], changes: Iterable[Change], first: int) -> list[Version]:
    """The versions after some changes, of which none takes effect before the first moment that is not decided."""
    sums: dict[Content, dict[int, int]] = {}

    def add(content: Content, time: int, weight: int) -> None:
        at = sums.setdefault(content, {})
        at[time] = at.get(time, 0) + weight

    for version in known:
        add(version.content, version.start, 1)
        if version.end is not None:
            add(version.content, version.end, -1)
    for change in changes:
        untimed = change.time is None or change.time == AHEAD
        add(change.content, first if untimed else max(change.time or 0, first), change.weight)
    return [version for content, at in sums.items() for version in _spans(content, at)]


def _spans(content: Content, at: dict[int, int]) -> list[Version]:
    found: list[Version] = []
    count, start = 0, 0
    for time, weight in sorted(at.items()):
        before, count = count, count + weight
        if before <= 0 < count:
            start = time
        elif count <= 0 < before:
            found.append(Version(content, start, time))
    return [*found, Version(content, start, None)] if count > 0 else found


def next_change(versions: Sequence[Version], watermark: int) -> int | None:
    """When a version begins or ends next."""
    times = [time for each in versions for time in (each.start, each.end) if time is not None and time > watermark]
    return min(times, default=None)
