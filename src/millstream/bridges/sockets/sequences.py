"""Numbered messages of one sender over one line or several: each number counts once, and missing ones are counted."""

from __future__ import annotations

from dataclasses import dataclass, field

MISSING_MAX = 100_000
"""A larger jump is a sender that has started again."""


@dataclass
class Sequence:
    next: int | None = None
    duplicates: int = 0
    restarts: int = 0
    _missing: set[int] = field(default_factory=set)
    _given_up: int = 0

    @property
    def missing(self) -> int:
        """How many numbers were skipped and did not come since."""
        return len(self._missing) + self._given_up

    def is_new(self, number: int) -> bool:
        if self.next is None or not self.next - MISSING_MAX <= number < self.next + MISSING_MAX:
            if self.next is not None:
                self.restarts += 1
                self._given_up += len(self._missing)
                self._missing.clear()
            self.next = number + 1
            return True
        if number >= self.next:
            self._missing.update(range(self.next, number))
            self.next = number + 1
            if len(self._missing) > MISSING_MAX:
                oldest = sorted(self._missing)[: len(self._missing) - MISSING_MAX]
                self._missing.difference_update(oldest)
                self._given_up += len(oldest)
            return True
        if number in self._missing:  # late, or from the other line
            self._missing.discard(number)
            return True
        self.duplicates += 1
        return False

    def give_back(self, number: int) -> None:
        """It was new, and could not be stored: it is missing until it comes again."""
        if self.next is not None and self.next - MISSING_MAX <= number < self.next:
            self._missing.add(number)
