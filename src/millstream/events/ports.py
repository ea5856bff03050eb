"""What an event store needs of a broker beyond consumers: to store what it decides, alone, and to look events up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from millstream.errors import OffsetLost
from millstream.events.layout import Row
from millstream.events.scavenging import Expired, Removed


class Span(NamedTuple):
    """Consecutive rows of the store's topic; the next ones begin at `next_position`, or after it."""

    positions: list[int]
    rows: list[Row]
    next_position: int


class Stored(NamedTuple):
    """Where rows were stored, and where the next ones may be."""

    positions: list[int]
    next_position: int


Decide = Callable[[], Sequence[Sequence[Row]]]
"""Returns the rows to store, in pieces that are each stored whole or not at all."""


Restate = Callable[[Sequence[str], int], None]
"""Records the rules of streams again, and with them the position before which all is about to be deleted."""


class EventLog(Protocol):
    """The topic of one event store."""

    identity: str
    """Another one if the topic is deleted and created again."""
    index_path: Path | None
    """Where the index is shared with other processes, if it is."""
    has_random_access: bool
    has_gaps: bool
    """Whether there may be positions without a record."""
    has_milliseconds: bool
    """Whether a position is found by a time in milliseconds only."""
    on_lost: str
    """What a subscription does if the events at its position were deleted, a setting of consumers."""

    def spans(self, start: int) -> Iterator[Span]:
        """What is stored from a position on, up to the current end."""

    def news(self, start: int) -> Iterator[Span]:
        """Like `spans`, fast if it is called often; one at a time."""

    def write(self, decide: Decide) -> Stored:
        """Calls `decide` while nobody else can write, stores its rows durably, and returns their positions.

        `decide` may be called again if another writer takes over; it finds what that one has stored.
        """

    def rows(self, positions: Sequence[int]) -> list[Row | None]:
        """The rows at these positions, in any order, None for removed ones; only with random access."""

    def remove(self, expired: Expired, restate: Restate) -> Removed:
        """Deletes expired events for good, as far as the broker can."""

    def close(self) -> None: ...


def events_lost(topic: str, start: int, stored: int) -> OffsetLost:
    """Without the oldest events the version of a stream is unknown: any other than the right one loses updates."""
    return OffsetLost(
        f"the events from position {start} to {stored - 1} are no longer stored",
        where=f"topic '{topic}'",
        next_step="the retention of the topic has deleted them, or its archive was removed: restore them from "
        f"a copy of the topic; what is left can be read with read_all({stored}), or with a consumer",
    )
