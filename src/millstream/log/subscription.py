"""The topics that a consumer's names refer to, and where it starts in those it is switched to."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence

from millstream.errors import InvalidInput
from millstream.log.agreement.groups import TopicPartition
from millstream.log.ports import Describing
from millstream.log.switches import Switch

SEARCH_SECONDS = 1.0  # between searches for new topics that match a pattern
Corresponding = Callable[[Mapping[TopicPartition, int], str], dict[int, int]]


class Subscription:
    """Checked at every poll; a pinned consumer stays with the topics of exactly these names."""

    def __init__(
        self,
        log: Describing,
        names: Sequence[str],
        group: str | None,
        *,
        pinned: bool,
        pattern: re.Pattern[str] | None = None,
    ) -> None:
        self._log = log
        self.pattern = pattern
        self._names = list(names) if pattern is None else self._matching(pattern)
        self._searched_at = time.monotonic()
        self._first = set(self._names)
        self._group = group
        self._pinned = pinned
        self._seen: Mapping[str, Switch] = {} if pinned else log.switches.fresh()
        self._switches = self._seen  # those in force; `_seen` are those that the consumer has yet to follow
        self._moved: set[str] = set()
        self._left: dict[TopicPartition, int] = {}
        self._found: dict[str, dict[int, int]] = {}
        self.topics = self.next_topics = self._topics(self._seen)

    def _topics(self, switches: Mapping[str, Switch]) -> list[str]:
        return list(dict.fromkeys(switches[name].topic if name in switches else name for name in self._names))

    def _matching(self, pattern: re.Pattern[str]) -> list[str]:
        return [name for name in self._log.topics() if pattern.fullmatch(name)]

    def _search(self) -> None:
        """Finds new topics that match the pattern, and drops deleted ones."""
        if self.pattern is not None and time.monotonic() - self._searched_at > SEARCH_SECONDS:
            self._names = self._matching(self.pattern)
            self._searched_at = time.monotonic()
            self.next_topics = self._topics(self._seen)

    def search_again(self, deleted: str) -> None:
        """Called when a topic was deleted: it is dropped, or is another one of that name."""
        self._first.discard(deleted)
        self._left = {place: offset for place, offset in self._left.items() if place.topic != deleted}
        self._searched_at = 0.0

    def is_found_later(self, topic: str) -> bool:
        """Whether a topic has appeared since this consumer began: it then reads all of its records."""
        return self.pattern is not None and topic not in self._first

    def resolve(self, name: str) -> str:
        """The topic that this consumer reads for a name."""
        return self._switches[name].topic if name in self._names and name in self._switches else name

    def has_changed(self) -> bool:
        """Whether the names refer to other topics than those that are read; one stat if nothing has changed."""
        self._search()
        if not self._pinned and (switches := self._log.switches.now()) is not self._seen:
            self._seen = switches
            self.next_topics = self._topics(switches)
        return self.next_topics != self.topics

    def leave(self, positions: Mapping[TopicPartition, int], corresponding: Corresponding) -> None:
        """Remembers the positions of a consumer without a group, which are stored nowhere else.

        They are needed to switch back, and to switch to the corresponding time.
        """
        self._left |= positions
        for switch in self._own(self._seen):
            if switch.corresponding and switch.topic not in self.topics:
                reached = {place: offset for place, offset in positions.items() if place.topic in switch.versions}
                self._found[switch.topic] = corresponding(reached, switch.topic)

    def follow(self) -> None:
        self._moved |= set(self.next_topics) - set(self.topics)
        self.topics, self._switches = self.next_topics, self._seen

    def switch_to(self, topic: str) -> Switch | None:
        """The switch that moved this consumer, or its group while it was away, to a topic it had not subscribed to."""
        switch = next((switch for switch in self._own(self._switches) if switch.topic == topic), None)
        if switch is None or topic in self._moved:
            return switch
        read = {place.topic for place in self._log.committed_offsets(self._group)} if self._group else set()
        return switch if read & set(switch.versions) - {topic} else None

    def start(self, place: TopicPartition) -> int | None:
        """Where to start in a partition that was switched to, unless it has a committed offset."""
        if place in self._left:
            return self._left[place]
        switch = self.switch_to(place.topic)
        if switch is None:
            return None
        found = self._found.get(place.topic)
        return switch.start(self._group, place.partition) if found is None else found.get(place.partition, 0)

    def _own(self, switches: Mapping[str, Switch]) -> list[Switch]:
        return [switches[name] for name in self._names if name in switches]


def compiled(pattern: str | None) -> re.Pattern[str] | None:
    """The pattern of a consumer, which must match whole names of topics."""
    try:
        return None if pattern is None else re.compile(pattern)
    except (re.error, TypeError) as error:
        raise InvalidInput(
            f"{pattern!r} is not a regular expression: {error}", next_step=r"log.consumer(pattern=r'orders\..*')"
        ) from error
