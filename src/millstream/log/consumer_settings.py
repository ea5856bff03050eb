"""The settings of a consumer, validated when it is created; the same on every broker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from millstream.errors import InvalidInput
from millstream.log.start_positions import Start, check_choice, check_start, checked_interval

DELIVERIES = ("at_most_once", "at_least_once", "exactly_once")
ISOLATIONS = ("read_committed", "read_uncommitted")
LOST_CHOICES = ("earliest", "latest", "error")


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    group: str | None
    delivery: str
    start: Start
    isolation: str
    on_lost: str
    partitions: tuple[int, ...] | None
    poll_seconds_max: float

    @classmethod
    def of(
        cls,
        *,
        group: str | None,
        delivery: str,
        start: Start,
        isolation: str,
        on_lost: str,
        partitions: Sequence[int] | None,
        max_poll_interval: str | timedelta,
        poll_seconds_min: float,
    ) -> ConsumerSettings:
        check_choice("delivery", delivery, DELIVERIES)
        check_choice("isolation", isolation, ISOLATIONS)
        check_choice("on_lost", on_lost, LOST_CHOICES)
        if group is None and delivery != "at_least_once":
            raise InvalidInput(f"delivery '{delivery}' needs committed offsets", next_step="give the consumer a group")
        if group is not None and partitions is not None:
            raise InvalidInput(
                "a group assigns the partitions itself", next_step="leave out either group or partitions"
            )
        check_start(start)
        interval = checked_interval(max_poll_interval, poll_seconds_min)
        chosen = None if partitions is None else tuple(partitions)
        return cls(group, delivery, start, isolation, on_lost, chosen, interval)

    @property
    def reads_committed(self) -> bool:
        return self.isolation == "read_committed"
