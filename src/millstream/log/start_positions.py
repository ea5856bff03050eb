"""Where a consumer starts in its partitions, from its user's settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from millstream.errors import InvalidSetting, UnknownPartition
from millstream.log.agreement.groups import TopicPartition
from millstream.log.buffer import microseconds
from millstream.log.ports import Fetching
from millstream.records import duration

Start = str | int | datetime | Mapping[int, int]


def check_start(start: Start) -> None:
    if isinstance(start, str) and start not in ("earliest", "latest"):
        raise InvalidSetting(
            f"start must be 'earliest', 'latest', an offset, an aware datetime, or a dict of offsets, not {start!r}"
        )
    if isinstance(start, bool) or not isinstance(start, str | int | datetime | Mapping):
        raise InvalidSetting(f"start cannot be a {type(start).__name__}")
    if isinstance(start, datetime):
        microseconds(start)
    for offset in start.values() if isinstance(start, Mapping) else [start] if isinstance(start, int) else []:
        if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
            raise InvalidSetting(f"an offset must be a whole number of at least 0, not {offset!r}")


def checked_interval(given: str | timedelta, seconds_min: float) -> float:
    interval = duration(given, what="max_poll_interval").total_seconds()
    if interval < seconds_min:
        raise InvalidSetting(f"max_poll_interval must be at least {seconds_min:g} s here, not {given!r}")
    return interval


def check_choice(what: str, choice: str, choices: Sequence[str]) -> None:
    if choice not in choices:
        raise InvalidSetting(f"there is no {what} {choice!r}", next_step=f"choose one of {', '.join(choices)}")


def check_exists(fetching: Fetching, places: Sequence[TopicPartition], start: Start) -> None:
    """Rejects offsets that no partition has reached yet."""
    if not isinstance(start, int | Mapping):
        return
    ends = {place: fetching.offset(place, "latest") for place in places}
    if isinstance(start, int) and ends and start > max(ends.values()):
        raise InvalidSetting(f"there is no offset {start} yet: the longest partition ends at {max(ends.values())}")
    for number, offset in start.items() if isinstance(start, Mapping) else ():
        end = max((end for place, end in ends.items() if place.partition == number), default=None)
        if end is None:
            raise UnknownPartition(f"start names partition {number!r}, which this consumer does not read")
        if offset > end:
            raise InvalidSetting(f"there is no offset {offset} yet: partition {number} ends at {end}")


def offset_of(fetching: Fetching, place: TopicPartition, start: Start, *, reads_committed: bool) -> int:
    if start == "earliest":
        return fetching.offset(place, "earliest")
    if start == "latest":
        return fetching.offset(place, "stable" if reads_committed else "latest")
    if isinstance(start, datetime):
        return fetching.offset(place, start)
    offset = start.get(place.partition) if isinstance(start, Mapping) else start
    if offset is None:
        return fetching.offset(place, "earliest")
    assert isinstance(offset, int)
    return min(offset, fetching.offset(place, "latest"))
