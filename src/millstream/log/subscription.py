"""The topics that one consumer's names stand for, and where it begins in those it is sent to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from millstream.log.groups import TopicPartition, committed_offsets
from millstream.log.partition import Partition
from millstream.log.switches import Switch, offsets_at, time_reached

if TYPE_CHECKING:
    from millstream.log.embedded import EmbeddedLog


class Followed:
    """Asked at every poll; a consumer that is pinned stays with the topics of those very names."""

    def __init__(self, log: EmbeddedLog, names: Sequence[str], group: str | None, *, pinned: bool) -> None:
        self._log = log
        self._names = list(names)
        self._group = group
        self._pinned = pinned
        self._seen: Mapping[str, Switch] = {} if pinned else log.switches.now()
        self._switches = self._seen  # those in force; seen are those that the consumer is yet to follow
        self._moved: set[str] = set()
        self._left: dict[TopicPartition, int] = {}
        self._found: dict[str, dict[int, int]] = {}
        self.topics = self.next_topics = self._topics(self._seen)

    def _topics(self, switches: Mapping[str, Switch]) -> list[str]:
        return list(dict.fromkeys(switches[name].topic if name in switches else name for name in self._names))

    def resolve(self, name: str) -> str:
        """The topic that this consumer reads for a name."""
        return self._switches[name].topic if name in self._names and name in self._switches else name

    def changed(self) -> bool:
        """Whether the names stand for other topics than those that are read; one look at a file if nothing has."""
        if not self._pinned and (switches := self._log.switches.now()) is not self._seen:
            self._seen = switches
            self.next_topics = self._topics(switches)
        return self.next_topics != self.topics

    def leave(self, positions: Mapping[TopicPartition, tuple[Partition, int]]) -> None:
        """Remembers where a consumer without a group was, for nobody else does: for the way back, and the time."""
        self._left |= {place: offset for place, (_, offset) in positions.items()}
        for switch in self._own(self._seen):
            if switch.corresponding and switch.topic not in self.topics:
                came_to = [position for place, position in positions.items() if place.topic in switch.versions]
                partitions = self._log.topic(switch.topic).partitions()
                self._found[switch.topic] = offsets_at(partitions, time_reached(came_to))

    def come_over(self) -> None:
        self._moved |= set(self.next_topics) - set(self.topics)
        self.topics, self._switches = self.next_topics, self._seen

    def comes_over(self, topic: str) -> Switch | None:
        """The switch that brought this consumer, or its group while it was away, to a topic it had not asked for."""
        switch = next((switch for switch in self._own(self._switches) if switch.topic == topic), None)
        if switch is None or topic in self._moved:
            return switch
        read = {p.topic for p in committed_offsets(self._log.coordinator, self._group)} if self._group else set()
        return switch if read & set(switch.versions) - {topic} else None

    def start(self, place: TopicPartition) -> int | None:
        """Where a partition begins that was switched to, unless something is committed of it."""
        if place in self._left:
            return self._left[place]
        switch = self.comes_over(place.topic)
        if switch is None:
            return None
        found = self._found.get(place.topic)
        return switch.start(self._group, place.partition) if found is None else found.get(place.partition, 0)

    def _own(self, switches: Mapping[str, Switch]) -> list[Switch]:
        return [switches[name] for name in self._names if name in switches]
