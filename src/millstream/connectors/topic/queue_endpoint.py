"""A topic between two flows with limits on what waits in it: beyond them records are dropped, or the writer waits."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

from millstream.connectors import arguments
from millstream.connectors.connector import Reading
from millstream.connectors.source import Source
from millstream.connectors.topic.endpoint import Topic, topic
from millstream.connectors.topic.priority_source import PrioritySource, priority_of
from millstream.connectors.topic.queue_source import DROP_OLDEST, POLICIES, WAIT, Limits, QueueSource
from millstream.records import Schema, duration, format_duration, size_bytes
from millstream.user_lines import AtUsersLine, what_exists

INNER_AT_MOST = 10_000


@dataclass(frozen=True)
class LimitedTopic(Topic):
    limits: Limits = field(default_factory=Limits)

    @property
    def fingerprint(self) -> tuple[str, ...]:
        return (*super().fingerprint, repr(self.limits))

    @property
    def target(self) -> Hashable:
        return Topic(self.topic)

    @property
    def makes_wait(self) -> bool:
        """Whether flows that write it wait while it is full."""
        return self.limits.when_full == WAIT

    @property
    def terms(self) -> str:
        limits = self.limits
        most = [f"{limits.at_most:,} records"] if limits.at_most is not None else []
        most += [f"{limits.size_bytes:,} bytes"] if limits.size_bytes is not None else []
        beyond = "its writers wait" if self.makes_wait else f"drops the {limits.when_full.removeprefix('drop_')}"
        policy = f"at most {' and '.join(most)}, else {beyond}"
        found = [policy] if most else []
        found += [f"by priority: {limits.priority}"] if limits.priority is not None else []
        found += [f"kept for {format_duration(limits.expire_after)}"] if limits.expire_after is not None else []
        return ", ".join(found)

    def open_source(self, reading: Reading) -> Source:
        inner, priority = super().open_source(reading), self.limits.priority
        if priority is None:
            return QueueSource(self.topic, inner, self.limits, reading.folder)
        whole = partial(super().open_source, replace(reading, columns=None))
        at_once = self.limits.at_once
        return PrioritySource(self.topic, inner, whole, priority, reading.schema, reading.folder, at_once)

    def check_columns(self, columns: Schema) -> None:
        if self.limits.priority is not None:
            priority_of(self.limits.priority, columns)


@dataclass(frozen=True)
class InnerQueue(LimitedTopic):
    """A queue inside a flow, which belongs to its job."""

    is_inner: ClassVar[bool] = True


def inner_queue(topic_name: str, limits: Mapping[str, Any]) -> InnerQueue:
    given = dict(limits)
    if not given.keys() & {"at_most", "size", "expire_after"}:
        given["at_most"] = INNER_AT_MOST
    if not given.keys() & {"when_full", "expire_after"}:
        given["when_full"] = WAIT
    made = queue(topic_name, **given)
    return InnerQueue(made.topic, limits=made.limits)


def queue(
    name: str,
    *,
    at_most: int | None = None,
    size: str | int | None = None,
    when_full: str = DROP_OLDEST,
    expire_after: str | timedelta | None = None,
    priority: str | None = None,
    at_once: int | None = None,
) -> LimitedTopic:
    """A topic of the job's broker with limits on what waits in it for its reader.

    At most `at_most` records and `size` bytes wait. When there are more, `when_full` decides: "drop_oldest" and
    "drop_newest" drop records, and count them; with "wait" the flows that write this queue, as the same value, read
    nothing more until there is room. Records older than `expire_after` are dropped.
    With `priority`, an expression such as "level", a batch reads the records with the highest numbers first.
    A batch reads at most `at_once` records.
    """
    made = topic(name)
    if at_most is None and size is None and expire_after is None and priority is None:
        raise arguments.refused(
            "a queue needs a limit: at_most, size or expire_after; or a priority",
            "a topic without limits: flow.read('orders')",
        )
    if priority is not None:
        arguments.text(priority, "priority must be an expression", "for example priority='level'")
        if expire_after is not None or (when_full != WAIT and (at_most is not None or size is not None)):
            raise arguments.refused(
                "a queue with a priority drops nothing", "limit it with when_full='wait', and without expire_after"
            )
    if at_most is not None:
        arguments.whole_number(at_most, "at_most", "at_most is a number of records")
    if at_once is not None:
        arguments.whole_number(at_once, "at_once", "at_once is the number of records that a batch reads")
    if when_full not in POLICIES:
        raise arguments.refused(f"when_full={when_full!r} is unknown", what_exists(when_full, POLICIES, kind="choices"))
    if when_full != DROP_OLDEST and at_most is None and size is None:
        raise arguments.refused("when_full needs at_most or size", "leave it out: expire_after does not depend on it")
    with AtUsersLine():
        size_max = None if size is None else size_bytes(size)
        age = None if expire_after is None else duration(expire_after, what="expire_after")
    if size_max == 0 or (age is not None and age <= timedelta(0)):
        raise arguments.refused("size and expire_after must be more than 0", "leave out what has no limit")
    return LimitedTopic(made.topic, limits=Limits(at_most, size_max, when_full, age, at_once, priority))
