"""Switches on Kafka: one document in `_millstream` says what all names stand for, so readers see a change at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from millstream.errors import DamagedLog
from millstream.log.buffer import microseconds
from millstream.log.disk import FileLock
from millstream.log.groups import TopicPartition
from millstream.log.kafka.clients import Clients
from millstream.log.kafka.descriptions import Descriptions
from millstream.log.kafka.groups import committed_offsets, group_names
from millstream.log.kafka.topics import KafkaTopic, offsets
from millstream.log.subscription import Followed
from millstream.log.switches import ALL_OTHERS, At, Switch, Switches, Switching

if TYPE_CHECKING:
    from millstream.log.kafka.log import KafkaLog

KIND, NAME = "switches", "all"


class KafkaSwitches(Switches):
    def __init__(self, descriptions: Descriptions) -> None:
        self._descriptions = descriptions
        self._seen: tuple[Any, Mapping[str, Switch]] = (None, {})

    def now(self) -> Mapping[str, Switch]:
        """By name, as they were a second ago at most; the same object as long as nothing has changed."""
        return self._read_from(self._descriptions.of(KIND, fresh=False))

    def fresh(self) -> Mapping[str, Switch]:
        return self._read_from(self._descriptions.of(KIND))

    def write(self, switches: Mapping[str, Switch]) -> None:
        self._descriptions.write(KIND, NAME, {name: switch.to_document() for name, switch in sorted(switches.items())})

    def _read_from(self, documents: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Switch]:
        if self._seen[0] is not documents:
            try:
                found = {name: Switch.of(name, entry) for name, entry in documents.get(NAME, {}).items()}
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise DamagedLog(
                    f"what names stand for cannot be read: {error}",
                    where="topic '_millstream'",
                    next_step="somebody else writes into this topic: leave it to Millstream",
                ) from error
            self._seen = documents, found
        return self._seen[1]


class KafkaSwitching(Switching):
    """What a log on Kafka offers about switches."""

    clients: Clients
    descriptions: Descriptions
    _lock_here: Any

    def _set_up_switches(self) -> None:
        self.switches = KafkaSwitches(self.descriptions)
        self.path = Path("kafka")  # where the embedded log keeps them; here they are in a topic

    def topic(self, name: str) -> KafkaTopic:  # type: ignore[override]
        raise NotImplementedError

    def _lock(self) -> FileLock:
        """Of this process alone: two that switch at once are in no order, as two that give orders at once are not."""
        return cast(FileLock, self._lock_here)

    def _starts(self, old: str, new: str, at: At) -> dict[str, dict[int, int]]:
        """Fixed when the switch is made: records that come after it are read, whenever a reader comes over."""
        places = self.topic(new).places()
        if at == "latest":
            ends = offsets(self.clients, places, "latest", committed=True)
            return {ALL_OTHERS: {place.partition: offset for place, offset in ends.items()}}
        if isinstance(at, datetime):
            return {ALL_OTHERS: offsets_at(self.clients, places, -(-microseconds(at) // 1000))}
        starts: dict[str, dict[int, int]] = {}
        for group in group_names(self.clients) if at == "corresponding" and self._exists(old) else ():
            came_to = {p: offset for p, offset in committed_offsets(self.clients, group).items() if p.topic == old}
            if came_to:
                starts[group] = offsets_at(self.clients, places, time_reached(self.clients, came_to))
        return starts


def offsets_at(clients: Clients, places: Iterable[TopicPartition], time_ms: int | None) -> dict[int, int]:
    if time_ms is None:
        return {}
    return {place.partition: offset for place, offset in offsets(clients, places, time_ms).items()}


def time_reached(clients: Clients, came_to: Mapping[TopicPartition, int]) -> int | None:
    """The time (ms) of the first record that is not yet read; of a reader that has read all, just after the last."""
    from millstream.log.kafka.fetching import first_record_time, newest_time

    starts = offsets(clients, came_to, "earliest")
    ends = offsets(clients, came_to, "latest", committed=True)
    unread, read = [], []
    for place, offset in came_to.items():
        first = max(offset, starts[place])
        found = first_record_time(clients, place, first) if first < ends[place] else None
        if found is not None:
            unread.append(found)
        elif (newest := newest_time(clients, place)) is not None:
            read.append(newest + 1)
    return min(unread, default=max(read, default=None))


class KafkaFollowed(Followed):
    """The topics that one consumer's names stand for."""

    def __init__(self, log: KafkaLog, names: list[str], group: str | None, *, pinned: bool) -> None:
        self._clients = log.clients
        if not pinned:
            cast(KafkaSwitches, log.switches).fresh()
        super().__init__(cast(Any, log), names, group, pinned=pinned)

    def leave_at(self, positions: Mapping[TopicPartition, int]) -> None:
        """Remembers where a consumer without a group was, for nobody else does: for the way back, and the time."""
        self._left |= positions
        for switch in self._own(self._seen):
            if switch.corresponding and switch.topic not in self.topics:
                came_to = {place: offset for place, offset in positions.items() if place.topic in switch.versions}
                places = cast(KafkaTopic, self._log.topic(switch.topic)).places()
                self._found[switch.topic] = offsets_at(self._clients, places, time_reached(self._clients, came_to))

    def comes_over(self, topic: str) -> Switch | None:
        switch = next((switch for switch in self._own(self._switches) if switch.topic == topic), None)
        if switch is None or topic in self._moved:
            return switch
        read = {place.topic for place in committed_offsets(self._clients, self._group)} if self._group else set()
        return switch if read & set(switch.versions) - {topic} else None
