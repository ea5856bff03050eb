"""Where a consumer can begin, and what else its user may say, checked when it is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from millstream.errors import InvalidSetting
from millstream.log.buffer import microseconds
from millstream.records import duration

Start = str | int | datetime | Mapping[int, int]


def check_start(start: Start) -> None:
    if isinstance(start, str) and start not in ("earliest", "latest"):
        raise InvalidSetting(
            f"start is 'earliest', 'latest', an offset, an aware datetime, or a dict of offsets, not {start!r}"
        )
    if isinstance(start, bool) or not isinstance(start, str | int | datetime | Mapping):
        raise InvalidSetting(f"start cannot be a {type(start).__name__}")
    if isinstance(start, datetime):
        microseconds(start)
    for offset in start.values() if isinstance(start, Mapping) else [start] if isinstance(start, int) else []:
        if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
            raise InvalidSetting(f"an offset is a whole number from 0 on, not {offset!r}")


def checked_interval(said: str | timedelta, seconds_min: float, where: str = "") -> float:
    interval = duration(said, what="max_poll_interval").total_seconds()
    if interval < seconds_min:
        raise InvalidSetting(f"max_poll_interval is not shorter than {seconds_min:g} s{where}, and {said!r} is")
    return interval


def check_choice(what: str, choice: str, choices: Sequence[str]) -> None:
    if choice not in choices:
        raise InvalidSetting(f"there is no {what} {choice!r}", next_step=f"choose one of {', '.join(choices)}")
