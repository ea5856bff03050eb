"""How long a job tries again to write to a sink that is unavailable."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from millstream.records import duration, format_duration
from millstream.user_lines import AtUsersLine


@dataclass(frozen=True)
class Retry:
    """The policy of one sink."""

    at_most: timedelta

    def __str__(self) -> str:
        return f"retry for {format_duration(self.at_most)}"


def retry(*, at_most: str | timedelta) -> Retry:
    """Tries for so long to write to a sink that is unavailable; then the job stops, and nothing is lost.

    The next run writes the batch first. "0 seconds" stops the job at once.
    """
    with AtUsersLine():
        return Retry(duration(at_most, what="at_most"))
